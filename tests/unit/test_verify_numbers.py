"""What a verification decides without Spark: which numbers are judged, and what is said of missing ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpsplit.admin_cli.commands.verify import conclude, write_page
from kpsplit.errors import CheckFailedError, KpsplitError
from kpsplit.spark_jobs.regions import Fate
from kpsplit.spark_jobs.snapshot import LogEnds, Snapshot
from kpsplit.spark_jobs.verification.checks import foreign_records, uncertified_findings
from kpsplit.spark_jobs.verification.counts import (
    BLOCK,
    Bucket,
    Run,
    SegmentSpan,
    SequenceBlock,
    Total,
    common,
    joined,
    minus,
    split_at,
)
from kpsplit.spark_jobs.verification.findings import Finding, Severity, Verdict
from kpsplit.spark_jobs.verification.sequences import (
    Decider,
    Holes,
    at_most,
    holes,
    incomplete,
    reaching_beyond,
    split_at_the_cut,
)
from kpsplit.spark_jobs.verification.start import (
    STRAY_SPREAD,
    UNBOUNDED,
    Extent,
    JudgedFrom,
    KnownProducer,
    KnownProducers,
    Since,
    extents,
    held_back,
)
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import GapReason
from kpsplit.splitter.records.producers import Certificate, ProducerRegistration
from tests.spark.histories import World, busy

NUMBERS = st.sets(st.integers(0, 200))
ORDERS = PhysicalPartition("orders", 0)
NAME = "00000000a11a0000"
ANNA = (0, NAME)
NOTE, UNPROVEN, FINDING = Severity.NOTE, Severity.UNPROVEN, Severity.FINDING


def runs(numbers: set[int]) -> list[Run]:
    return joined((n, n) for n in sorted(numbers))


def numbers(of: list[Run]) -> set[int]:
    return {n for first, last in of for n in range(first, last + 1)}


def snapshot(bounds: LogEnds | None = None) -> Snapshot:
    places = {ORDERS: bounds or LogEnds(0, 50, 50)}
    return Snapshot("orders", (PartitionState.unsplit(ORDERS, "id"),), places)


@given(NUMBERS, NUMBERS, st.integers(0, 220))
def test_runs_of_numbers_are_sets(a, b, at) -> None:
    assert minus(runs(a), runs(b)) == runs(a - b)
    assert common(runs(a), sorted(b)) == runs(a & b)
    below, rest = split_at(runs(a), at)
    assert below == runs({n for n in a if n < at})
    assert rest == runs({n for n in a if n >= at})


# Which numbers are judged


def merged() -> World:
    """Written to, split, written to, split again, written to, merged, written to."""
    world = World(0)
    busy(world, 1)
    world.split(0, 2)
    busy(world, 1)
    world.split(2, 2)
    busy(world, 1)
    world.merge()
    busy(world, 1)
    return world


def spans_of(world: World, held: dict[int, tuple[int, int]]) -> list[SegmentSpan]:
    return [SegmentSpan(0, segment, NAME, b - a + 1, 0, a, b) for segment, (a, b) in held.items()]


def extent(
    found: Snapshot, spans: list[SegmentSpan], start: JudgedFrom | None = None, firsts: int | None = None
) -> Extent | None:
    least = min((s.first for s in spans), default=firsts)
    known = {} if least is None else {ANNA: least}
    return extents(found, start or JudgedFrom(), KnownProducers(found), spans, known).get(ANNA)


def closed(found: Snapshot, certificate: Certificate) -> Snapshot:
    record = ProducerRegistration(
        int(NAME, 16), 1, "c", topics=("orders",), closed=True, certificates={str(ORDERS): certificate}
    )
    return replace(found, producers=(record,))


def test_where_nothing_was_removed_every_number_is_judged() -> None:
    assert extent(snapshot(), [SegmentSpan(0, 0, NAME, 3, 0, 4, 6)]) == Extent(0, 7)
    sure = closed(snapshot(), Certificate(90, {"0": 90}, ()))
    assert extent(sure, [SegmentSpan(0, 0, NAME, 3, 0, 4, 6)]) == Extent(0, 90)
    assert extent(sure, []) == Extent(0, 90), "all of it may be lost"


def test_what_retention_removed_lies_below_the_first_number_that_its_segment_still_holds() -> None:
    found = snapshot(LogEnds(9, 50, 50))
    assert extent(found, [SegmentSpan(0, 0, NAME, 3, 0, 4, 6)]) == Extent(4, 7, 4)
    assert extent(found, []) is None
    assert extent(found, [], firsts=7) == Extent(7, 0, UNBOUNDED), "only a stray of it is there"


@pytest.mark.parametrize("far", [1 << 35, 1 << 53, (1 << 63) - 128])
def test_numbers_far_out_are_judged_as_any(far) -> None:
    found = closed(snapshot(LogEnds(9, 50, 50)), Certificate(far + 99, {"0": far + 99}, ()))
    judged = {ANNA: extent(found, [SegmentSpan(0, 0, NAME, 3, 0, far, far + 2)])}
    assert judged == {ANNA: Extent(far, far + 99, far)}
    block = (*ANNA, far // BLOCK)
    assert incomplete(judged, {block: SequenceBlock(3, 3, 0)}) == {block: 3}
    bits = 0b111 << far % 64
    there = [Bucket(*ANNA, far // 64, bits, 0, 3)]
    (lost,) = holes(KnownProducers(found), judged, {block}, {block}, there)
    assert lost.runs == ((far + 3, far + 98),)


def test_what_a_split_closed_lies_below_what_follows_and_a_merge_may_mix_it() -> None:
    world = merged()
    ids = {s.id: s for s in world.state.lineage}
    split_again, beside = ids[2], ids[3]
    last = world.state.lineage.segments[-1].id
    whole = world.snapshot()

    def retired(*segments: int) -> Snapshot:
        gone = {ids[i].source: GapReason.RETIRED for i in segments}
        bounds = {p: b for p, b in whole.bounds.items() if p not in gone}
        return replace(whole, bounds=bounds, gone=gone, producers=())

    heir = next(s.id for s in world.state.lineage if split_again.id in s.predecessors and s.id != last)
    assert extent(retired(2), spans_of(world, {0: (0, 9), heir: (30, 39), last: (60, 69)})) == Extent(
        0, 70, 30
    )
    mixed = extent(retired(3), spans_of(world, {0: (0, 9), last: (60, 69)}))
    assert mixed == Extent(0, 70, 60 + STRAY_SPREAD)
    silent = closed(retired(3), Certificate(70, {"0": 10, str(last): 60}, ()))
    assert extent(silent, spans_of(world, {0: (0, 9), last: (10, 69)})) == Extent(0, 70)
    assert beside.source != split_again.source


def test_since_a_time_numbers_begin_with_the_first_that_is_there() -> None:
    since = JudgedFrom(Since(1, {}, {}))
    found = closed(snapshot(), Certificate(90, {"0": 90}, ()))
    assert extent(found, [SegmentSpan(0, 0, NAME, 3, 0, 70, 72)], since) == Extent(70, 90, 70)
    assert extent(found, [], since) is None


def test_a_certificate_of_a_topic_that_was_deleted_says_nothing_of_the_one_that_has_its_name_now() -> None:
    old = closed(snapshot(), Certificate(90, {"0": 90}, (), "id of the old one"))
    assert extent(old, []) is None
    assert KnownProducers(old).certified() == {}
    for same in ("id", None):
        assert extent(closed(snapshot(), Certificate(90, {"0": 90}, (), same)), []) == Extent(0, 90)


@pytest.mark.parametrize("forged_last", [True, False])
def test_a_forged_registration_of_the_same_instance_hides_no_certificate(forged_last) -> None:
    sure = closed(snapshot(), Certificate(90, {"0": 90}, ()))
    (real,) = sure.producers
    forged = replace(real, generation=2, closed=False, transactional_id="forged", certificates={})
    records = (real, forged) if forged_last else (forged, real)
    writers = KnownProducers(replace(sure, producers=records))
    assert writers.get(*ANNA).certificate == real.certificates[str(ORDERS)]
    assert not writers.get(*ANNA).transactional
    assert list(writers.open) == [NAME]


# What is said of missing numbers

SURE = Certificate(10, {"0": 9}, ())


@pytest.mark.parametrize(
    ("certificate", "bounds", "extent", "start", "said"),
    [
        (SURE, LogEnds(0, 50, 50), Extent(0, 10), JudgedFrom(), [(4, 5, FINDING)]),
        (SURE, LogEnds(0, 50, 60), Extent(0, 10), JudgedFrom(), [(4, 5, UNPROVEN)]),
        (None, LogEnds(0, 50, 50), Extent(0, 10), JudgedFrom(), [(4, 5, UNPROVEN)]),
        (SURE, LogEnds(3, 50, 50), Extent(2, 10, 5), JudgedFrom(), [(4, 4, NOTE), (5, 5, FINDING)]),
        (None, LogEnds(3, 50, 50), Extent(2, 10, 5), JudgedFrom(), [(4, 4, NOTE), (5, 5, UNPROVEN)]),
        (SURE, LogEnds(3, 50, 50), Extent(2, 10, 9), JudgedFrom(Since(1, {}, {})), [(4, 5, UNPROVEN)]),
    ],
)
def test_a_missing_number_is_decided_by_the_certificate_and_what_can_be_read(
    certificate, bounds, extent, start, said
) -> None:
    """Numbers 4 and 5 are missing."""
    found = Holes(KnownProducer(ORDERS, NAME, certificate), ((4, 5),), ())
    decider = Decider(snapshot(bounds), start, {ANNA: extent})
    assert [(f.first, f.last, f.severity) for f in decider.sequences_complete([found], [])] == said
    assert decider.is_decided(found) == any(severity is not NOTE for *_, severity in said if extent.sure < 9)


@pytest.mark.parametrize(
    ("certificate", "extent", "said"),
    [
        (SURE, Extent(0, 9000, 9000), [(0, 7998, 4000, UNPROVEN)]),
        (None, Extent(0, 9000, 0), [(0, 7998, 4000, UNPROVEN)]),
        (SURE, Extent(0, 9000, 7998), [(0, 7996, 3999, UNPROVEN), (7998, 7998, 1, FINDING)]),
    ],
)
def test_what_one_retired_sub_topic_took_of_a_producer_is_one_thing_that_was_not_judged(
    certificate, extent, said
) -> None:
    """Its records stood between those of others: every second number is missing."""
    found = Holes(KnownProducer(ORDERS, NAME, certificate), tuple((n, n) for n in range(0, 8000, 2)), ())
    decider = Decider(snapshot(), JudgedFrom(Since(1, {}, {})), {ANNA: extent})
    told = list(decider.sequences_complete([found], []))
    assert [(f.first, f.last, f.count, f.severity) for f in told] == said
    assert f"each of {told[0].count:,} numbers between 0 and" in told[0].message


def test_an_open_transaction_hides_records() -> None:
    assert held_back(snapshot()) == set()
    assert held_back(snapshot(LogEnds(0, 50, 60))) == {0}


def test_a_block_that_holds_numbers_that_were_never_given_is_no_proof() -> None:
    """As many are there as were given, and one of them is too great."""
    judged = {ANNA: Extent(0, 10)}
    beyond = reaching_beyond([SegmentSpan(0, 0, NAME, 10, 0, 0, 12)], judged)
    assert beyond == {ANNA}
    assert incomplete(judged, {(*ANNA, 0): SequenceBlock(10, 10, 0)}) == {}
    assert incomplete(judged, {(*ANNA, 0): SequenceBlock(10, 10, 0)}, beyond) == {(*ANNA, 0): 10}
    late = {ANNA: Extent(5, 10)}
    assert incomplete(late, {(*ANNA, 0): SequenceBlock(5, 5, 0)}) == {}
    assert incomplete(late, {(*ANNA, 0): SequenceBlock(5, 5, 0)}, (), {ANNA}) == {(*ANNA, 0): 5}


def test_as_many_blocks_are_looked_at_as_the_driver_has_room_for() -> None:
    one, other, great = ((*ANNA, n) for n in range(3))
    wanted = {great: 1024, one: 5, other: 7}
    assert at_most(wanted, 2000) == {one, other, great}
    assert at_most(wanted, 1035) == {one, other}
    assert at_most(wanted, 11) == {one}


def test_failed_numbers_are_not_missing_in_a_block_of_which_nothing_is_there() -> None:
    found = closed(snapshot(), Certificate(10, {}, (3, 4)))
    (lost,) = holes(KnownProducers(found), {ANNA: Extent(0, 10)}, set(), set(), ())
    assert lost.runs == ((0, 2), (5, 9))


def test_producers_without_a_certificate_are_a_note_or_cannot_be_judged() -> None:
    """If certificates are required: also those of which nothing is there."""
    silent = ProducerRegistration(7, 1, "c", topics=("orders",))
    elsewhere = ProducerRegistration(8, 1, "c", topics=("other",))
    writers = KnownProducers(replace(snapshot(), producers=(silent, elsewhere)))
    spans = [SegmentSpan(0, 0, NAME, 3, 0, 0, 2)]
    (note,) = uncertified_findings(writers, spans, required=False)
    assert (note.severity, note.producer, note.last) == (NOTE, NAME, 2)
    found = list(uncertified_findings(writers, spans, required=True))
    assert [(f.severity, f.producer) for f in found] == [(UNPROVEN, NAME), (UNPROVEN, f"{7:016x}")]


# Numbers that were under way when the logs were asked for their ends


def bits(numbers: set[int]) -> int:
    return sum(1 << n for n in numbers)


@pytest.mark.parametrize(
    ("segment", "stamped", "severity"),
    [
        (0, True, None),
        (0, False, NOTE),
        (1, True, FINDING),
        (1, False, NOTE),
        (2, True, None),
        (2, False, FINDING),
    ],
)
def test_phantoms_are_for_stamped_records_and_overflows_for_the_others(segment, stamped, severity) -> None:
    world = World(0)
    world.split(0, 2)
    total = Total(0, segment, Fate.DATA, stamped, 3, 0, 7, 9)
    found = [(f.severity, f.segment, f.first, f.last) for f in foreign_records(world.snapshot(), [total])]
    assert found == ([] if severity is None else [(severity, segment, 7, 9)])


def test_what_lies_after_the_ends_was_under_way_and_the_rest_is_missing_still() -> None:
    lost = Holes(KnownProducers(snapshot()).get(*ANNA), ((3, 6), (20, 20)), ((9, 9), (11, 11)))
    there = [Bucket(*ANNA, 0, bits({4, 9}), bits({5}), 2), Bucket(0, "b" * 16, 0, bits({3}), 0, 1)]
    assert split_at_the_cut([lost], there) == (
        [Holes(lost.writer, ((4, 5),), ((9, 9),))],
        [Holes(lost.writer, ((3, 3), (6, 6), (20, 20)), ((11, 11),))],
    )


def test_what_a_closed_producer_delivered_was_not_under_way_but_may_have_been_hidden() -> None:
    """Certificates are read before the ends."""
    found = closed(snapshot(), Certificate(10, {"0": 10}, ()))
    lost = Holes(KnownProducers(found).get(*ANNA), ((3, 3),), ())
    after = [Bucket(*ANNA, 0, bits({3}), 0, 1)]
    assert split_at_the_cut([lost], after) == ([], [lost])
    assert split_at_the_cut([lost], after, {0}) == ([lost], []), "an open transaction hid it"
    stray = [Bucket(*ANNA, 0, 0, bits({3}), 1)]
    assert split_at_the_cut([lost], stray, {0}) == ([], [lost]), "nobody sends it again"


def test_a_second_stray_is_no_copy_of_the_first() -> None:
    found = Holes(KnownProducers(snapshot()).get(*ANNA), (), ((5, 5),))
    assert split_at_the_cut([found], [Bucket(*ANNA, 0, 0, bits({5}), 1)]) == ([], [found])
    assert split_at_the_cut([found], [Bucket(*ANNA, 0, bits({5}), 0, 1)]) == ([found], [])


# What the command says at its end


@pytest.mark.parametrize(("found", "error"), [((), KpsplitError), ((FINDING,), CheckFailedError)])
def test_a_report_that_cannot_be_written_hides_no_finding(found, error) -> None:
    findings = tuple(Finding(severity, ORDERS, "a number") for severity in found)
    verdict = Verdict("orders", (0,), snapshot(), findings)
    said: list[str] = []
    with pytest.raises(error) as caught:
        conclude(verdict, said.append, [KpsplitError("cannot write page.html: no room")])
    assert type(caught.value) is error
    assert any("no room" in line for line in [*said, str(caught.value)])


def test_whatever_goes_wrong_with_the_page_is_one_reason_why_it_was_not_written(tmp_path) -> None:
    def page() -> str:
        raise ValueError("year 55840 is out of range")

    (why,) = write_page(tmp_path / "page.html", page)
    assert why.message == f"cannot write {tmp_path / 'page.html'}: ValueError"
    (why,) = write_page(tmp_path / "gone" / "page.html", lambda: "<p>")
    assert why.message == f"cannot write {tmp_path / 'gone/page.html'}: No such file or directory"
    assert list(tmp_path.iterdir()) == []
    assert write_page(tmp_path / "page.html", lambda: "<p>") == []
    assert (tmp_path / "page.html").read_text() == "<p>"
