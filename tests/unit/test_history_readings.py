"""What the members of a group were given is checked against the raw logs: each anomaly planted is found."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from kpsplit.splitter.key_range import WHOLE, key_hash
from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.records.data import Stamp
from kpsplit.testing import Anomaly, Delivery, RawRecord, ReadingChecker, ReadingReport, SendOutcome
from tests.unit.samples import PARENT
from tests.unit.test_history import Story, told

HALVES = WHOLE.split_evenly(2)


@dataclass
class Group:
    """A group whose members m0 and m1 read a story, half of the key space each, as they should."""

    story: Story
    raw: list[RawRecord] = field(default_factory=list)
    given: dict[str, list[Delivery]] = field(default_factory=lambda: {"m0": [], "m1": []})

    def __post_init__(self) -> None:
        for delivery in self.story.deliveries:
            assert delivery.key is None or isinstance(delivery.key, bytes)
            segment = self.story.state.lineage.get(delivery.segment)
            self.raw.append(
                RawRecord(delivery.source, delivery.offset, delivery.id, delivery.key, _stamp(segment))
            )
            if delivery.key is not None:
                self.given["m0" if key_hash(delivery.key) in HALVES[0] else "m1"].append(delivery)
        self.raw.sort(key=lambda record: (record.source, record.offset))

    def check(self) -> ReadingReport:
        checker = ReadingChecker([self.story.state])
        for record in self.raw:
            checker.raw(record)
        for (name, deliveries), range_ in zip(self.given.items(), HALVES, strict=True):
            checker.began(name, PARENT, [range_])
            for delivery in deliveries:
                checker.read(name, delivery)
        return checker.report()


def _stamp(segment: Segment) -> Stamp | None:
    return None if segment.kind == "overflow" else Stamp(segment.opened_epoch, 1, 1)


def only(report: ReadingReport, *anomalies: Anomaly) -> None:
    assert {f.anomaly for f in report.findings} == set(anomalies), str(report)


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_members_that_read_everything_in_order_give_no_alarm(start: int) -> None:
    for seed in range(start, start + 50):
        story = Story(seed)
        for _ in range(4):
            story.write(20)
            story.any_operation()
        story.write(20)
        for number, send in enumerate(story.sends):  # without keyless records the halves share everything
            assert number == send.sequence
        group = Group(story)
        group.raw = [r for r in group.raw if r.key is not None]
        report = group.check()
        assert report.clean, f"seed {seed}: {report}"


@pytest.fixture
def group() -> Group:
    group = Group(told())
    group.raw = [r for r in group.raw if r.key is not None]
    return group


def test_a_record_that_a_reader_was_never_given_though_it_was_given_later_ones_is_skipped(
    group: Group,
) -> None:
    del group.given["m0"][3]
    report = group.check()
    only(report, Anomaly.SKIPPED)
    assert report.findings[0].count == 1


def test_the_first_record_of_a_later_segment_may_not_be_skipped_either(group: Group) -> None:
    first = next(i for i, d in enumerate(group.given["m1"]) if d.segment != 0)
    del group.given["m1"][first]
    only(group.check(), Anomaly.SKIPPED)


def test_a_reader_that_goes_back_without_having_begun_anew_is_found(group: Group) -> None:
    group.given["m0"].insert(5, group.given["m0"][2])
    only(group.check(), Anomaly.NOT_MONOTONIC)


def test_a_reader_that_begins_a_range_anew_may_go_back(group: Group) -> None:
    checker = ReadingChecker([group.story.state])
    for record in group.raw:
        checker.raw(record)
    checker.began("m0", PARENT, [HALVES[0]])
    for delivery in group.given["m0"][:6]:
        checker.read("m0", delivery)
    checker.anew("m0", PARENT, HALVES[0])
    for delivery in group.given["m0"][2:]:
        checker.read("m0", delivery)
    assert checker.report().clean, str(checker.report())


def test_a_record_that_is_not_in_the_log_where_the_reader_saw_it_was_never_written(group: Group) -> None:
    given = group.given["m0"]
    given[0] = given[0]._replace(id="another")
    given[-1] = given[-1]._replace(offset=1_000_000)
    report = group.check()
    only(report, Anomaly.NEVER_WRITTEN, *([Anomaly.SKIPPED] if report.findings[1:] else []))
    assert report.findings[0].count == 2


def test_a_stray_that_a_reader_was_given_is_found(group: Group) -> None:
    phantom = next(s for s in group.story.state.lineage if s.end is not None and s.kind == "phantom")
    assert phantom.end is not None
    place = (phantom.source, phantom.end + 1)
    group.raw.append(RawRecord(*place, "late", b"k", Stamp(1, 1, 9)))
    assert group.check().strays == 1 and group.check().clean
    group.given["m0"].append(Delivery(PARENT, 0, phantom.id, b"k", "late", *place))
    only(group.check(), Anomaly.LATE_STRAY)


def test_a_record_that_was_given_as_one_of_another_segment_is_found(group: Group) -> None:
    first = next(i for i, d in enumerate(group.given["m0"]) if d.segment != 0)
    group.given["m0"][first] = group.given["m0"][first]._replace(segment=0)
    report = group.check()
    assert report.findings[0].anomaly is Anomaly.WRONG_PLACE and report.findings[0].count == 1


def test_records_of_partitions_that_are_not_checked_are_passed_over() -> None:
    checker = ReadingChecker([Story(1).state])
    checker.raw(RawRecord(PhysicalPartition("other", 0), 0, "x", b"k"))
    assert checker.report().raw == 0
    assert SendOutcome.OK == "ok"
