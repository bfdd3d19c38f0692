"""The history checker finds every anomaly that is planted, and none in a clean history."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from kpsplit.errors import UsageError
from kpsplit.splitter.key_range import WHOLE, key_hash
from kpsplit.splitter.lineage import PhysicalPartition, Segment, SegmentKind
from kpsplit.splitter.partition_state import Attempt, PartitionState
from kpsplit.testing import Anomaly, Delivery, HistoryReport, Send, SendOutcome, check_history
from tests.unit.samples import PARENT, UNSPLIT, fenced, merge_attempt, operated, split_attempt

FOREIGN = "plain"
PRODUCERS = ("p0", "p1", "p2", FOREIGN)


@dataclass
class Story:
    """A partition that lives: records are written, splits and merges take effect, all is recorded."""

    seed: int
    state: PartitionState = UNSPLIT
    sends: list[Send] = field(default_factory=list)
    placed: dict[int, list[Delivery]] = field(default_factory=dict)
    ends: dict[PhysicalPartition, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    @property
    def deliveries(self) -> list[Delivery]:
        """As a reader along the lineage finds them."""
        return [d for segment in self.state.lineage for d in self.placed.get(segment.id, [])]

    def write(self, count: int) -> None:
        for _ in range(count):
            producer = self.random.choice(PRODUCERS)
            key = self.random.choice([None, *(b"key-%d" % i for i in range(12))])
            outcome = self.random.choices(list(SendOutcome), [20, 1, 1, 1])[0]
            maybe = outcome is not SendOutcome.ABORTED and self.random.random() < 0.5
            self.send(producer, key, outcome, written=outcome is SendOutcome.OK or maybe)

    def send(self, producer: str, key: bytes | None, outcome: SendOutcome, written: bool) -> None:
        number = len(self.sends)
        segment = self._target(producer, key)
        offset = self.ends.setdefault(segment.source, 0)
        known = outcome is SendOutcome.OK
        foreign = producer == FOREIGN
        self.sends.append(
            Send(
                producer,
                PARENT,
                key,
                f"{producer}:{number}",
                number,
                outcome,
                segment.logical(offset) if known and not foreign else None,
                (segment.source, offset) if known and foreign else None,
            )
        )
        if written:
            self.ends[segment.source] = offset + 1
            self.placed.setdefault(segment.id, []).append(
                Delivery(
                    PARENT,
                    segment.logical(offset),
                    segment.id,
                    key,
                    f"{producer}:{number}",
                    segment.source,
                    offset,
                )
            )

    def split(self, segment: Segment, parts: int) -> None:
        self._operate(
            split_attempt(
                self.state, segment.id, segment.range.split_evenly(parts), f"s{self.state.revision}"
            )
        )

    def merge(self) -> None:
        ids = tuple(s.id for s in self.state.lineage.open_segments())
        self._operate(merge_attempt(self.state, ids, WHOLE, f"m{self.state.revision}"))

    def any_operation(self) -> None:
        layout = self.state.lineage.open_segments()
        if len(layout) > 1 and self.random.random() < 0.4:
            self.merge()
        else:
            self.split(self.random.choice(layout), self.random.randint(2, 4))

    def check(self) -> HistoryReport:
        return check_history(self.sends, self.deliveries, [self.state.lineage], {FOREIGN})

    def _target(self, producer: str, key: bytes | None) -> Segment:
        if producer == FOREIGN:
            return next(s for s in self.state.lineage if s.is_open and s.source == PARENT)
        layout = self.state.lineage.open_segments()
        if key is None:
            return self.random.choice(layout)
        return next(s for s in layout if key_hash(key) in s.range)

    def _operate(self, attempt: Attempt) -> None:
        """Markers go after the last record of every segment that the attempt closes."""
        closing = fenced(self.state, attempt).closing_segments()
        ends = {}
        for segment in map(self.state.lineage.get, closing):
            ends[segment.id] = self.ends.get(segment.source, 0)
            self.ends[segment.source] = ends[segment.id] + 1
        self.state = operated(self.state, attempt, ends)


def told(seed: int = 7) -> Story:
    """A split in four, a nested split, a merge of all; records all the time."""
    story = Story(seed)
    story.write(60)
    story.split(story.state.lineage.get(0), 4)
    story.write(60)
    story.split(story.state.lineage.open_segments()[1], 2)
    story.write(60)
    story.merge()
    story.write(60)
    return story


@pytest.mark.parametrize("start", range(0, 1000, 100))
def test_a_thousand_random_clean_histories_give_no_alarm(start: int) -> None:
    for seed in range(start, start + 100):
        story = Story(seed)
        for _ in range(story.random.randint(0, 6)):
            story.write(story.random.randint(0, 25))
            story.any_operation()
        story.write(story.random.randint(0, 25))
        report = story.check()
        assert report.clean, f"seed {seed}: {report}"
        assert report.delivered == report.read == len(story.deliveries)
        told = report.ok + report.failed + report.unknown + report.aborted
        assert report.sent == told == len(story.sends)


def ok_index(story: Story, wanted: Callable[[Send, Delivery], bool]) -> tuple[int, Delivery]:
    """A record that was reported as delivered: its index among the sends, and its delivery."""
    by_id = {d.id: d for d in story.deliveries}
    for index, send in enumerate(story.sends):
        if send.outcome is SendOutcome.OK and wanted(send, by_id[send.id]):
            return index, by_id[send.id]
    raise AssertionError("the story has no such record")


def check(story: Story, deliveries: list[Delivery], sends: list[Send] | None = None) -> HistoryReport:
    return check_history(
        story.sends if sends is None else sends, deliveries, [story.state.lineage], {FOREIGN}
    )


def only(report: HistoryReport, *anomalies: Anomaly) -> None:
    assert {f.anomaly for f in report.findings} == set(anomalies), str(report)
    assert all(f.count >= 1 and f.examples for f in report.findings)


def test_a_record_that_was_reported_and_is_not_there_is_lost() -> None:
    story = told()
    _, gone = ok_index(story, lambda s, d: d.segment == 0)
    report = check(story, [d for d in story.deliveries if d != gone])
    only(report, Anomaly.LOST)
    assert (report.lost, report.duplicated, report.out_of_order) == (1, 0, 0)
    assert repr(gone.id) in report.findings[0].examples[0]


def test_a_record_after_the_end_of_reading_is_unseen_and_counts_as_lost() -> None:
    story = told()
    while story.sends[-1].outcome is not SendOutcome.OK:
        story.write(1)
    report = check(story, [d for d in story.deliveries if d.id != story.sends[-1].id])
    only(report, Anomaly.UNSEEN)
    assert report.lost == 1


def test_a_record_delivered_again_in_another_segment_is_a_duplicate() -> None:
    story = told()
    _, first = ok_index(story, lambda s, d: d.segment == 0)
    last = story.deliveries[-1]
    copy = last._replace(
        id=first.id, key=first.key, logical_offset=last.logical_offset + 1, offset=last.offset + 1
    )
    report = check(story, [*story.deliveries, copy])
    only(report, Anomaly.DUPLICATE)
    assert report.duplicated == 1


def test_a_record_read_twice_at_one_place_is_a_duplicate_whose_offset_is_used_twice() -> None:
    story = told()
    last = story.deliveries[-1]
    only(
        check(story, [*story.deliveries, last]),
        Anomaly.DUPLICATE,
        Anomaly.OFFSET_REUSED,
        Anomaly.OFFSET_NOT_RISING,
    )


def test_two_records_of_a_key_that_changed_places_are_out_of_order() -> None:
    story = told()
    story.send("p0", b"k", SendOutcome.UNKNOWN, written=True)
    story.send("p0", b"k", SendOutcome.UNKNOWN, written=True)
    *others, first, second = story.deliveries
    report = check(story, [*others, first._replace(id=second.id), second._replace(id=first.id)])
    only(report, Anomaly.OUT_OF_ORDER)
    assert report.out_of_order == 1


def test_a_record_that_nobody_sent_is_found() -> None:
    story = told()
    index, delivery = ok_index(story, lambda s, d: True)
    sends = [s for i, s in enumerate(story.sends) if i != index]
    report = check(story, story.deliveries, sends)
    only(report, Anomaly.NEVER_SENT)
    assert repr(delivery.id) in report.findings[0].examples[0]


def test_a_report_that_names_another_logical_offset_is_found() -> None:
    story = told()
    index, _ = ok_index(story, lambda s, d: s.logical_offset is not None)
    sends = list(story.sends)
    sends[index] = sends[index]._replace(logical_offset=(sends[index].logical_offset or 0) + 1)
    only(check(story, story.deliveries, sends), Anomaly.WRONG_PLACE)


def test_a_report_of_a_plain_producer_that_names_another_physical_place_is_found() -> None:
    story = told()
    index, delivery = ok_index(story, lambda s, d: s.place is not None)
    sends = list(story.sends)
    sends[index] = sends[index]._replace(place=(delivery.source, delivery.offset + 1))
    only(check(story, story.deliveries, sends), Anomaly.WRONG_PLACE)


def test_a_logical_offset_that_does_not_belong_to_its_physical_place_is_found() -> None:
    story = told()
    deliveries = story.deliveries
    shifted = deliveries[-1]._replace(logical_offset=deliveries[-1].logical_offset + 1)
    sends = [s._replace(logical_offset=None) if s.id == shifted.id else s for s in story.sends]
    only(check(story, [*deliveries[:-1], shifted], sends), Anomaly.WRONG_PLACE)


def test_a_record_after_its_segments_end_is_in_the_wrong_place() -> None:
    story = told()
    phantom = next(s for s in story.state.lineage if s.kind is SegmentKind.PHANTOM and s.end is not None)
    assert phantom.end is not None
    stray = Delivery(
        PARENT, phantom.logical(phantom.end), phantom.id, None, "p0:late", phantom.source, phantom.end
    )
    late = Send("p0", PARENT, None, "p0:late", 10_000, SendOutcome.UNKNOWN)
    deliveries = story.deliveries
    after = max(i for i, d in enumerate(deliveries) if d.segment == phantom.id) + 1
    deliveries.insert(after, stray)
    only(check(story, deliveries, [*story.sends, late]), Anomaly.WRONG_PLACE)


def test_a_record_in_an_unknown_segment_or_partition_is_in_the_wrong_place() -> None:
    story = told()
    alien = story.deliveries[-1]._replace(segment=4711, id="p0:alien")
    only(check(story, [*story.deliveries, alien]), Anomaly.WRONG_PLACE)
    other = PhysicalPartition("orders", 4)
    index, _ = ok_index(story, lambda s, d: True)
    sends = list(story.sends)
    sends[index] = sends[index]._replace(partition=other)
    only(check(story, story.deliveries, sends), Anomaly.WRONG_PLACE)


def test_a_key_outside_its_segments_range_is_found() -> None:
    story = told()
    _, delivery = ok_index(
        story,
        lambda s, d: s.key is not None and story.state.lineage.get(d.segment).kind is SegmentKind.PHANTOM,
    )
    range_ = story.state.lineage.get(delivery.segment).range
    stranger = next(k for k in (b"x%d" % i for i in range(100)) if key_hash(k) not in range_)
    deliveries = [d._replace(key=stranger) if d.id == delivery.id else d for d in story.deliveries]
    only(check(story, deliveries), Anomaly.WRONG_SEGMENT, Anomaly.WRONG_KEY)


@pytest.mark.parametrize(("kind", "producer"), [(SegmentKind.OVERFLOW, "p0"), (SegmentKind.PHANTOM, FOREIGN)])
def test_a_segment_that_is_not_for_the_producer_is_found(kind: SegmentKind, producer: str) -> None:
    story = told()
    index, _ = ok_index(story, lambda s, d: story.state.lineage.get(d.segment).kind is kind)
    sends = list(story.sends)
    sends[index] = sends[index]._replace(producer=producer, sequence=index)
    found = {f.anomaly for f in check(story, story.deliveries, sends).findings}
    assert Anomaly.WRONG_SEGMENT in found


def test_logical_offsets_that_fall_along_the_lineage_are_found() -> None:
    story = told()
    first_segment = [d for d in story.deliveries if d.segment == 0]
    others = [d for d in story.deliveries if d.segment != 0]
    report = check(story, [*others, *first_segment])
    assert report.count(Anomaly.OUT_OF_ORDER) > 0
    swapped = [first_segment[1], first_segment[0], *first_segment[2:], *others]
    assert check(story, swapped).count(Anomaly.OFFSET_NOT_RISING) == 1


def test_a_failed_record_that_was_written_is_counted_and_no_anomaly() -> None:
    story = Story(1)
    story.send("p0", b"k", SendOutcome.FAILED, written=True)
    story.send("p0", b"k", SendOutcome.FAILED, written=False)
    story.send("p0", b"k", SendOutcome.UNKNOWN, written=True)
    story.send("p0", b"k", SendOutcome.UNKNOWN, written=False)
    report = story.check()
    assert report.clean
    assert (report.failed_but_written, report.unknown_but_written) == (1, 1)
    assert str(report) == "clean: 2 of 4 records delivered, each once and in order"


def test_a_failed_record_after_later_ones_is_counted_and_no_anomaly() -> None:
    story = Story(1)
    story.send("p0", b"k", SendOutcome.OK, written=True)
    story.send("p0", b"k", SendOutcome.OK, written=True)
    late = Delivery(PARENT, 2, 0, b"k", "p0:-1", PARENT, 2)
    failed = Send("p0", PARENT, b"k", "p0:-1", -1, SendOutcome.FAILED)
    report = check(story, [*story.deliveries, late], [*story.sends, failed])
    assert report.clean
    assert report.failed_out_of_order == 1


def test_records_without_a_key_have_no_order() -> None:
    story = Story(1)
    story.send("p0", None, SendOutcome.UNKNOWN, written=True)
    story.send("p0", None, SendOutcome.UNKNOWN, written=True)
    first, second = story.deliveries
    assert check(story, [first._replace(id=second.id), second._replace(id=first.id)]).clean


def test_a_record_of_an_aborted_transaction_that_is_read_is_found() -> None:
    story = Story(1)
    story.send("p0", b"k", SendOutcome.ABORTED, written=True)
    story.send("p0", b"k", SendOutcome.ABORTED, written=False)
    report = story.check()
    only(report, Anomaly.ABORTED_READ)
    assert report.aborted == 2


def twice_in_one_segment(first_epoch: int | None, second_epoch: int | None, producer: str) -> HistoryReport:
    story = Story(1)
    story.send(producer, b"k", SendOutcome.OK, written=True)
    (first,) = story.deliveries
    copies = [
        first._replace(epoch=first_epoch),
        first._replace(epoch=second_epoch, offset=1, logical_offset=1),
    ]
    return check(story, copies)


@pytest.mark.parametrize(("epoch", "producer"), [(0, "p0"), (None, FOREIGN)])
def test_a_copy_with_the_same_stamp_in_the_same_segment_is_the_librarys(
    epoch: int | None, producer: str
) -> None:
    report = twice_in_one_segment(epoch, epoch, producer)
    assert report.clean, str(report)
    assert report.library_duplicates == 1


@pytest.mark.parametrize("reported", [0, 1, 2])
def test_a_report_may_tell_the_place_of_either_copy_of_the_library_and_no_third(reported: int) -> None:
    story = Story(1)
    story.send("p0", b"k", SendOutcome.OK, written=True)
    first = story.deliveries[0]._replace(epoch=0)
    copies = [first, first._replace(offset=1, logical_offset=1)]
    report = check(story, copies, [story.sends[0]._replace(logical_offset=reported)])
    assert report.library_duplicates == 1
    if reported in (0, 1):
        assert report.clean, str(report)
    else:
        only(report, Anomaly.WRONG_PLACE)


@pytest.mark.parametrize("epochs", [(0, 1), (None, None), (0, None)])
def test_a_copy_with_another_stamp_or_an_unknown_one_is_ours(epochs: tuple[int | None, int | None]) -> None:
    report = twice_in_one_segment(*epochs, "p0")
    only(report, Anomaly.DUPLICATE)
    assert report.library_duplicates == 0


def test_a_failed_record_that_is_missing_before_later_ones_of_its_key_is_the_librarys_gap() -> None:
    story = Story(1)
    story.send("p0", b"k", SendOutcome.FAILED, written=False)
    story.send("p0", b"other", SendOutcome.FAILED, written=False)
    story.send("p0", b"k", SendOutcome.OK, written=True)
    report = story.check()
    assert report.clean
    assert report.library_gaps == 1


def test_key_hashes_may_stand_for_keys() -> None:
    story = told()
    hashed = [s._replace(key=key_hash(s.key)) if isinstance(s.key, bytes) else s for s in story.sends]
    assert check(story, story.deliveries, hashed).clean


def test_two_sends_with_one_id_are_refused() -> None:
    story = Story(1)
    story.send("p0", b"k", SendOutcome.OK, written=True)
    with pytest.raises(UsageError, match="two sends have the id"):
        check(story, story.deliveries, [*story.sends, story.sends[0]._replace(sequence=1)])


def test_only_the_first_examples_are_kept() -> None:
    story = told()
    report = check(story, [])
    assert report.lost == report.ok
    assert all(len(f.examples) == 10 for f in report.findings if f.count >= 10)
    assert "lost: " in str(report) or "unseen: " in str(report)
