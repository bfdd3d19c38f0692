"""The verification finds each planted fault, says where it is, and raises no false alarm on clean histories.

Each case makes a partition's history with one fault. All of them are judged in one go, as the partitions of
one
topic: Spark's fixed costs are paid once, and no partition's faults may show in another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import pytest

from kpsplit.spark_jobs.verification import findings
from kpsplit.spark_jobs.verification import verifier as judging
from kpsplit.spark_jobs.verification.findings import MOST, Finding, Severity, Verdict
from kpsplit.spark_jobs.verification.verifier import VerifyCheck
from kpsplit.splitter.key_range import WHOLE, key_hash
from kpsplit.splitter.lineage import PhysicalPartition, SegmentKind
from kpsplit.splitter.records.data import MARKER_HEADER, STAMP_HEADER, Marker, MarkerKind, Stamp
from kpsplit.splitter.records.offsets import Cause
from kpsplit.splitter.records.producers import Certificate
from tests.spark.histories import KEYS, Record, World, busy, judge, lived, returned

Expect = Callable[[Verdict], None]
"""What the verdict of the case's partition must say."""


class Case(NamedTuple):
    world: World
    expect: Expect


CASES: dict[str, Callable[[int], Case]] = {}


def case(plant: Callable[[World], Expect]) -> Callable[[World], Expect]:
    """A case on a clean history that has everything."""
    return _case(plant, lived)


def fresh(plant: Callable[[World], Expect]) -> Callable[[World], Expect]:
    """A case on a partition to which nothing was ever written."""
    return _case(plant, World)


def _case(plant: Callable[[World], Expect], make: Callable[[int], World]) -> Callable[[World], Expect]:
    def build(partition: int) -> Case:
        world = make(partition)
        return Case(world, plant(world))

    CASES[plant.__name__] = build
    return plant


@pytest.fixture(scope="module")
def judged(spark) -> dict[str, tuple[Verdict, Expect]]:
    cases = {name: build(partition) for partition, (name, build) in enumerate(CASES.items())}
    verdict = judge(spark, [c.world for c in cases.values()])
    return {name: (verdict.of_partition(c.world.parent.partition), c.expect) for name, c in cases.items()}


def only(verdict: Verdict, check: VerifyCheck, severity: Severity = Severity.FINDING) -> tuple[Finding, ...]:
    """The findings of a check, when there are no defects of any other check."""
    assert {f.check for f in verdict.defects} <= {check}, verdict.defects
    found = verdict.of(check, severity)
    assert found, verdict.findings
    return found


def clean(verdict: Verdict) -> None:
    assert verdict.clean, (verdict.defects, verdict.unproven)
    assert verdict.exit_code == 0


def stamp_of(record: Record | None) -> Stamp | None:
    value = dict(record.headers).get(STAMP_HEADER) if record else None
    return Stamp.decode(value) if value else None


def sequence_at(world: World, place: PhysicalPartition, offset: int) -> int:
    stamp = stamp_of(world.logs[place][offset])
    assert stamp is not None
    return stamp.sequence


def offsets(world: World, place: PhysicalPartition, producer: int, key: bytes | None = None) -> list[int]:
    """Where a producer's committed records stand in a log, those of one key if it is given."""
    return [
        offset
        for offset, record in enumerate(world.logs[place])
        if record is not None
        and not record.aborted
        and (stamp := stamp_of(record)) is not None
        and stamp.instance == producer
        and key in (None, record.key)
    ]


def phantom(world: World) -> PhysicalPartition:
    """A phantom partition of the first split that was not split again."""
    sources = [s.source for s in world.state.lineage if s.kind is SegmentKind.PHANTOM and s.opened_epoch == 1]
    return sources[-1]


def aborted(record: Record | None, producer: int) -> bool:
    stamp = stamp_of(record)
    return record is not None and record.aborted and stamp is not None and stamp.instance == producer


def swap(world: World, a: tuple[PhysicalPartition, int], b: tuple[PhysicalPartition, int]) -> None:
    one, other = world.logs[a[0]][a[1]], world.logs[b[0]][b[1]]
    world.logs[a[0]][a[1]], world.logs[b[0]][b[1]] = other, one


# Clean histories


@case
def a_history_with_strays_aborted_transactions_failures_and_null_keys_is_clean(world: World) -> Expect:
    def expect(verdict: Verdict) -> None:
        clean(verdict)
        counts = verdict.counts[str(world.parent)]
        assert (counts["stray"], counts["unstamped"], counts["orphan_marker"]) == (4, 3, 1)
        assert {f.severity for f in verdict.findings} == {Severity.NOTE}

    return expect


@fresh
def a_partition_that_was_never_split_is_clean(world: World) -> Expect:
    busy(world)
    return clean


@fresh
def an_empty_partition_is_clean(world: World) -> Expect:
    return clean


@case
def swapped_records_of_different_keys_are_no_defect(world: World) -> Expect:
    """Order is promised per key: a producer's other keys may overtake."""
    place = phantom(world)
    first, second = next(
        pair
        for pair in pairwise(offsets(world, place, world.anna))
        if len({world.logs[place][o].key for o in pair}) == 2
    )
    swap(world, (place, first), (place, second))
    return clean


@case
def garbage_under_our_header_names_is_data(world: World) -> Expect:
    garbage = [(STAMP_HEADER, b"\x01short"), ("kpsplit.marker", b"{}"), ("kpsplit.marker", b"no json")]
    world.logs[world.parent].append(Record(b"k", garbage))

    def expect(verdict: Verdict) -> None:
        clean(verdict)
        assert verdict.counts[str(world.parent)]["unstamped"] == 4

    return expect


@case
def compaction_of_the_control_topic_changes_nothing(world: World) -> Expect:
    """The latest record is the whole state: what led to it may be gone."""
    world.state = replace(world.state, last=None, revision=1)
    return clean


@case
def a_range_commit_that_goes_back_by_a_seek_is_no_defect(world: World) -> Expect:
    last = world.state.lineage.segments[-1]
    world.commit("sought", WHOLE, {last.id: last.start + 6})
    world.commit("sought", WHOLE.split_evenly(2)[1], {last.id: last.start + 2}, Cause.SEEK)
    return clean


# Records


@case
def a_lost_record_is_found_with_its_producer_and_number(world: World) -> Expect:
    place = phantom(world)
    offset = offsets(world, place, world.bert)[5]
    lost = sequence_at(world, place, offset)
    world.logs[place][offset] = None

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.SEQUENCES_COMPLETE)
        assert (finding.producer, finding.first, finding.last) == (f"{world.bert:016x}", lost, lost)

    return expect


@case
def a_lost_tail_is_found(world: World) -> Expect:
    last = world.given[world.anna] - 1
    for offset in offsets(world, world.parent, world.anna)[-3:]:
        world.logs[world.parent][offset] = None

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.SEQUENCES_COMPLETE)
        assert (finding.first, finding.last, finding.count) == (last - 2, last, 3)

    return expect


@case
def everything_of_a_producer_lost_is_found(world: World) -> Expect:
    for place, log in world.logs.items():
        for offset in offsets(world, place, world.bert):
            log[offset] = None
    left = {(p, o) for p, log in world.logs.items() for o, r in enumerate(log) if aborted(r, world.bert)}

    def expect(verdict: Verdict) -> None:
        assert sum(f.count for f in only(verdict, VerifyCheck.SEQUENCES_COMPLETE)) == world.given[
            world.bert
        ] - len(left)

    return expect


@case
def many_lost_numbers_of_a_producer_that_nothing_else_tells_of_are_one_finding(world: World) -> Expect:
    ghost = Certificate(200_000, {}, ())
    world.adjust = lambda snapshot: replace(
        snapshot,
        producers=(
            *snapshot.producers,
            replace(snapshot.producers[0], instance=77, certificates={str(world.parent): ghost}),
        ),
    )

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.SEQUENCES_COMPLETE)
        assert (finding.first, finding.last, finding.count) == (0, 199_999, 200_000)

    return expect


@case
def a_record_that_is_there_twice_is_found_beside_the_one_that_it_replaced(world: World) -> Expect:
    place = phantom(world)
    kept, replaced, *_ = offsets(world, place, world.anna)
    segment = world.state.lineage.at(place, kept)
    lost = sequence_at(world, place, replaced)
    world.logs[place][replaced] = world.logs[place][kept]

    def expect(verdict: Verdict) -> None:
        (finding,) = verdict.of(VerifyCheck.SEQUENCES_UNIQUE)
        assert (finding.producer, finding.first) == (f"{world.anna:016x}", segment.logical(kept))
        assert [f.first for f in verdict.of(VerifyCheck.SEQUENCES_COMPLETE)] == [lost]

    return expect


@case
def swapped_order_within_a_segment_is_found_with_its_key(world: World) -> Expect:
    place = phantom(world)
    key = next(k for k in KEYS if len(offsets(world, place, world.anna, k)) > 2)
    first, second, *_ = offsets(world, place, world.anna, key)
    swap(world, (place, first), (place, second))

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.KEYS_IN_ORDER)
        assert (finding.producer, finding.key_hash) == (f"{world.anna:016x}", key_hash(key))

    return expect


@case
def swapped_order_across_segments_is_found_with_its_key(world: World) -> Expect:
    place = phantom(world)
    key = next(k for k in KEYS[6:] if offsets(world, place, world.anna, k))
    before = world.logs[world.parent][offsets(world, world.parent, world.anna, key)[0]]
    after = world.logs[place][offsets(world, place, world.anna, key)[0]]
    one, other = stamp_of(before), stamp_of(after)
    before.headers[0] = (STAMP_HEADER, replace(one, sequence=other.sequence).encode())
    after.headers[0] = (STAMP_HEADER, replace(other, sequence=one.sequence).encode())

    def expect(verdict: Verdict) -> None:
        assert {f.key_hash for f in only(verdict, VerifyCheck.KEYS_IN_ORDER)} == {key_hash(key)}

    return expect


@case
def a_record_in_the_segment_of_other_keys_is_found(world: World) -> Expect:
    place = phantom(world)
    segment = next(s for s in world.state.lineage if s.source == place)
    offset = offsets(world, place, world.bert)[5]
    key = next(k for k in KEYS if key_hash(k) not in segment.range)
    world.logs[place][offset].key = key

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.RECORDS_IN_THEIR_SEGMENTS)
        assert (finding.segment, finding.first, finding.key_hash) == (segment.id, offset, key_hash(key))

    return expect


@case
def a_stray_that_was_never_sent_again_is_found(world: World) -> Expect:
    world.put(phantom(world), KEYS[0], 1, world.anna, world.number(world.anna))

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.STRAYS_SENT_AGAIN)
        assert finding.first == world.given[world.anna] - 1

    return expect


@fresh
def copies_of_a_log_that_are_written_back_to_it_behind_its_end_are_found(world: World) -> Expect:
    """Readers cannot tell them from strays, and their numbers are there: only their epochs give them away."""
    busy(world)
    world.split(0, 2)
    world.stray(world.anna, KEYS[0], world.parent, 0)
    first = len(world.logs[world.parent])
    for offset in offsets(world, world.parent, world.bert)[:30]:
        world.copy(world.parent, offset, world.parent)
    numbers = [sequence_at(world, world.parent, first + n) for n in range(30)]
    busy(world)

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.STRAYS_SENT_AGAIN)
        assert (finding.producer, finding.segment) == (f"{world.bert:016x}", 1)
        assert (finding.first, finding.last, finding.count) == (min(numbers), max(numbers), 30)
        assert f"offsets {first} to {first + 29}," in finding.message
        assert verdict.counts[str(world.parent)]["stray"] == 31

    return expect


@fresh
def copies_of_records_that_stood_elsewhere_are_delivered_and_no_finding(world: World) -> Expect:
    other = World(world.parent.partition + 1000)
    for each in (other, world):
        busy(each)
        each.split(0, 2)
        busy(each)
    world.logs |= {place: log for place, log in other.logs.items() if place == other.parent}
    copied = offsets(world, other.parent, other.anna)[:20]
    for offset in copied:
        world.copy(other.parent, offset, world.parent)
    del world.logs[other.parent]
    from_phantom = offsets(world, phantom(world), world.anna)[:20]
    for offset in from_phantom:
        world.copy(phantom(world), offset, world.parent)
    world.merge()
    for offset in from_phantom:
        world.copy(phantom(world), offset, world.parent)

    def expect(verdict: Verdict) -> None:
        clean(verdict)
        counts = verdict.counts[str(world.parent)]
        assert (counts.get("stray", 0), counts["unstamped"]) == (0, len(copied) + 2 * len(from_phantom))

    return expect


@case
def a_stray_that_counts_as_data_is_found(world: World) -> Expect:
    """Its stamp names the newer epoch, so readers deliver it, and the copy that was sent again as well."""
    number = world.number(world.anna)
    for _ in range(2):
        world.put(world.parent, KEYS[3], world.state.epoch, world.anna, number)

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.SEQUENCES_UNIQUE)
        assert finding.count == 1

    return expect


@case
def a_foreign_record_behind_the_end_of_a_phantom_is_found(world: World) -> Expect:
    world.foreign(b"x", phantom(world))

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.FOREIGN_RECORDS)
        assert finding.first == len(world.logs[phantom(world)]) - 1

    return expect


@fresh
def a_foreign_record_inside_a_phantom_is_found(world: World) -> Expect:
    world.split(0, 2)
    world.foreign(b"x", world.taking(b"x").source)

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.FOREIGN_RECORDS)
        assert finding.segment == world.taking(b"x").id

    return expect


def _past_the_phantoms(world: World) -> None:
    """A producer writes three records of one key, the second one to the overflow: nothing orders it there."""
    busy(world)
    world.split(0, 2)
    overflow = next(s for s in world.state.lineage if s.kind is SegmentKind.OVERFLOW)
    for segment in (world.taking(KEYS[0]), overflow, world.taking(KEYS[0])):
        number, counts = world.number(world.anna), world.delivered[world.anna]
        counts[str(segment.id)] = counts.get(str(segment.id), 0) + 1
        world.put(segment.source, KEYS[0], world.state.epoch, world.anna, number)


def _found_in_the_overflow(world: World) -> Expect:
    overflow = next(s for s in world.state.lineage if s.kind is SegmentKind.OVERFLOW)

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.FOREIGN_RECORDS)
        assert (finding.segment, finding.first, finding.count) == (overflow.id, overflow.start, 1)

    return expect


@fresh
def a_record_that_a_producer_wrote_past_the_phantoms_is_found(world: World) -> Expect:
    _past_the_phantoms(world)
    return _found_in_the_overflow(world)


@fresh
def a_record_that_an_open_producer_wrote_past_the_phantoms_is_found(world: World) -> Expect:
    _past_the_phantoms(world)
    world.open.add(world.anna)
    return _found_in_the_overflow(world)


@fresh
def a_record_that_was_written_past_the_phantoms_is_found_after_a_merge(world: World) -> Expect:
    _past_the_phantoms(world)
    world.merge()
    busy(world)
    return _found_in_the_overflow(world)


@case
def a_record_in_place_of_a_marker_is_found(world: World) -> Expect:
    end = next(s.end for s in world.state.lineage if s.source == phantom(world))
    world.logs[phantom(world)][end] = Record(b"k", [])

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.FOREIGN_RECORDS)
        assert finding.first == end

    return expect


@case
def a_stamp_of_an_epoch_that_was_never_reached_is_found(world: World) -> Expect:
    world.put(world.parent, KEYS[0], 99, 7, 0)

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.FOREIGN_RECORDS)
        assert finding.count == 1

    return expect


@fresh
def a_certificate_that_counts_other_records_is_found(world: World) -> Expect:
    busy(world)
    world.fail(world.anna)
    world.delivered[world.bert]["0"] += 1

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.CERTIFICATES_AGREE)
        assert (finding.producer, finding.count) == (f"{world.bert:016x}", 1)

    return expect


@fresh
def a_last_number_replaced_by_one_beyond_the_certificate_is_found_beside_the_lost_one(world: World) -> Expect:
    """As many numbers are there as were given."""
    busy(world)
    last = offsets(world, world.parent, world.anna)[-1]
    lost = sequence_at(world, world.parent, last)
    record = world.logs[world.parent][last]
    record.headers[0] = (STAMP_HEADER, Stamp(0, world.anna, lost + 27).encode())

    def expect(verdict: Verdict) -> None:
        (missing,) = verdict.of(VerifyCheck.SEQUENCES_COMPLETE)
        assert (missing.severity, missing.first, missing.last) == (Severity.FINDING, lost, lost)
        (beyond,) = verdict.of(VerifyCheck.CERTIFICATES_AGREE)
        assert (beyond.severity, beyond.segment, beyond.first) == (Severity.FINDING, 0, lost + 27)

    return expect


@case
def a_number_beyond_the_certificate_is_found_where_nothing_is_missing(world: World) -> Expect:
    world.put(world.parent, KEYS[0], world.state.epoch, world.bert, world.given[world.bert] + 3)

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.CERTIFICATES_AGREE)
        assert finding.first == world.given[world.bert] + 3

    return expect


@fresh
def records_in_a_segment_that_the_certificate_does_not_name_are_found(world: World) -> Expect:
    busy(world)
    world.split(0, 2)
    busy(world)
    world.fail(world.anna)
    forgotten = world.state.lineage.open_segments()[1].id
    count = world.delivered[world.bert].pop(str(forgotten))

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.CERTIFICATES_AGREE)
        assert (finding.producer, finding.segment) == (f"{world.bert:016x}", forgotten)
        assert finding.count == count

    return expect


# Segments


@case
def a_gap_at_the_cut_is_found(world: World) -> Expect:
    overflow = next(s for s in world.state.lineage if s.kind is SegmentKind.OVERFLOW)
    world.change(overflow.id, start=overflow.start + 1)

    def expect(verdict: Verdict) -> None:
        found = verdict.of(VerifyCheck.LINEAGE_SOUND, Severity.FINDING)
        assert [(f.segment, f.first, f.last) for f in found] == [
            (overflow.id, overflow.start, overflow.start)
        ]

    return expect


@case
def overlapping_segments_are_found(world: World) -> Expect:
    overflow = next(s for s in world.state.lineage if s.kind is SegmentKind.OVERFLOW)
    world.change(overflow.id, start=overflow.start - 2)

    def expect(verdict: Verdict) -> None:
        assert any("overlap" in f.message for f in verdict.of(VerifyCheck.LINEAGE_SOUND, Severity.FINDING))

    return expect


@case
def a_hole_in_the_key_space_is_found(world: World) -> Expect:
    first = next(s for s in world.state.lineage if s.kind is SegmentKind.PHANTOM)
    world.change(first.id, range=replace(first.range, hi=first.range.hi - 1))

    def expect(verdict: Verdict) -> None:
        assert any("tile" in f.message for f in verdict.of(VerifyCheck.LINEAGE_SOUND, Severity.FINDING))

    return expect


@case
def a_corrupted_logical_offset_is_found(world: World) -> Expect:
    first, second = (s for s in world.state.lineage if s.kind is SegmentKind.PHANTOM and s.opened_epoch == 1)
    world.change(second.id, progression=first.progression)

    def expect(verdict: Verdict) -> None:
        found = verdict.of(VerifyCheck.LOGICAL_OFFSETS_UNIQUE, Severity.FINDING)
        assert any(f.first == first.progression.base for f in found)

    return expect


@case
def a_truncated_segment_is_found(world: World) -> Expect:
    end = next(s.end for s in world.state.lineage if s.source == phantom(world))
    del world.logs[phantom(world)][end - 2 :]

    def expect(verdict: Verdict) -> None:
        assert verdict.outcome(VerifyCheck.STRETCHES_COMPLETE) == "found"
        assert verdict.exit_code == 3

    return expect


@case
def a_missing_marker_is_found(world: World) -> Expect:
    end = next(s.end for s in world.state.lineage if s.source == phantom(world))
    world.logs[phantom(world)][end] = None

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.STRETCHES_COMPLETE)
        assert finding.first == end

    return expect


@case
def a_boundary_record_that_contradicts_the_lineage_is_found(world: World) -> Expect:
    wrong = replace(world.boundaries[0], start=world.boundaries[0].start + 1)
    world.boundaries[0] = wrong

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.BOUNDARIES_AGREE)
        assert finding.segment == wrong.opened_segment

    return expect


@case
def a_boundary_record_that_is_not_there_is_found(world: World) -> Expect:
    """Of ranges that came again the latest record counts: compaction removes the others."""
    gone = world.boundaries.pop(1)
    world.split(world.state.lineage.segments[-1].id, 2)
    world.merge()
    world.split(world.state.lineage.segments[-1].id, 2)
    opened = {s.id: s.range for s in world.state.lineage.open_segments()}
    again = [b for b in world.boundaries if b.range in opened.values()]
    lost = again[-1]
    world.boundaries.remove(lost)
    assert gone.range in opened.values()

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.BOUNDARIES_AGREE)
        assert (finding.segment, opened[finding.segment]) == (lost.opened_segment, lost.range)
        assert (finding.first, finding.last) == (lost.range.lo, lost.range.hi - 1)

    return expect


@case
def the_marker_of_another_partition_is_none(world: World) -> Expect:
    end = next(s.end for s in world.state.lineage if s.source == phantom(world))
    marker = Marker(MarkerKind.SEAL, PhysicalPartition("orders", 4711), "a0")
    world.logs[phantom(world)][end] = Record(None, [(MARKER_HEADER, marker.encode())])

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.FOREIGN_RECORDS)
        assert (finding.first, finding.last) == (end, end)

    return expect


# Range commits


@case
def a_group_that_lags_is_no_defect_and_it_is_told_where_it_stands(world: World) -> Expect:
    last = world.state.lineage.segments[-1]
    half = WHOLE.split_evenly(2)
    world.commit("slow", half[0], {last.id: last.start + 2})
    world.commit("slow", half[1], {last.id: len(world.logs[world.parent])})

    def expect(verdict: Verdict) -> None:
        clean(verdict)
        (note,) = verdict.of(VerifyCheck.COMMITS_REACH_THE_END, Severity.NOTE)
        assert (note.group, note.segment, note.key_hash) == ("slow", last.id, half[0].lo)
        assert (note.first, note.last) == (last.start + 2, len(world.logs[world.parent]) - 1)

    return expect


@case
def a_sub_topic_that_was_retired_before_a_group_had_drained_it_is_told(world: World) -> Expect:
    """It may be a group that nobody needs any more (retire --force): a note says how far it had come."""
    source = phantom(world)
    segment = next(s for s in world.state.lineage if s.source == source)
    slow, quick = segment.range.split_evenly(2)
    world.commit("robbed", slow, {segment.id: segment.start})
    world.commit("robbed", quick, {segment.id: segment.start + 3})
    world.commit("other", segment.range, {segment.id: segment.start})
    world.retired.add(source)

    def expect(verdict: Verdict) -> None:
        assert not verdict.defects
        notes = {
            n.group: n
            for n in verdict.of(VerifyCheck.COMMITS_REACH_THE_END, Severity.NOTE)
            if n.segment == segment.id
        }
        assert {n.first for n in notes.values()} == {segment.start}
        assert notes["robbed"].message.endswith("its sub-topic was retired while the group was reading it")
        assert notes["other"].message.endswith("its sub-topic was retired")

    return expect


@case
def a_range_commit_beyond_the_data_is_found(world: World) -> Expect:
    last = world.state.lineage.segments[-1]
    world.commit("ahead", WHOLE, {last.id: len(world.logs[world.parent]) + 1})

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.COMMITS_WITHIN_DATA)
        assert (finding.group, finding.segment) == ("ahead", last.id)

    return expect


@case
def a_range_commit_of_a_segment_that_does_not_exist_is_found(world: World) -> Expect:
    world.commit("lost", WHOLE, {99: 1})

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.COMMITS_WITHIN_DATA)
        assert finding.segment == 99

    return expect


@case
def a_range_commit_that_goes_back_is_found(world: World) -> Expect:
    last = world.state.lineage.segments[-1]
    world.commit("back", WHOLE, {last.id: last.start + 6})
    world.commit("back", WHOLE.split_evenly(2)[1], {last.id: last.start + 2})

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.COMMITS_MOVE_FORWARD)
        assert (finding.group, finding.first) == ("back", last.start + 2)

    return expect


@case
def a_range_commit_that_skips_part_of_a_predecessor_is_found(world: World) -> Expect:
    last = world.state.lineage.segments[-1]
    before = world.state.lineage.get(last.predecessors[-1])
    world.commit("hasty", WHOLE, {before.id: before.end - 1, last.id: last.start + 2})

    def expect(verdict: Verdict) -> None:
        found = only(verdict, VerifyCheck.COMMITS_LEAVE_NO_GAP)
        assert {(f.group, f.segment, f.first) for f in found} == {("hasty", before.id, before.end - 1)}

    return expect


# What cannot be judged


@case
def keys_for_which_a_group_has_no_range_commit_cannot_be_judged(world: World) -> Expect:
    last = world.state.lineage.segments[-1]
    world.commit("half", WHOLE.split_evenly(2)[0], {last.id: last.start + 2})

    def expect(verdict: Verdict) -> None:
        assert verdict.exit_code == 1
        assert "no range commit" in verdict.unproven[0]

    return expect


@case
def a_failed_number_of_a_producer_without_a_certificate_cannot_be_judged(world: World) -> Expect:
    world.open |= {world.anna, world.bert}

    def expect(verdict: Verdict) -> None:
        assert not verdict.defects
        assert verdict.exit_code == 1
        assert [f.producer for f in verdict.of(VerifyCheck.SEQUENCES_COMPLETE)] == [f"{world.anna:016x}"]

    return expect


@case
def the_lost_tail_of_a_producer_without_a_certificate_is_not_passed_over(world: World) -> Expect:
    """Nobody knows of it; but up to where the producer is proven is told."""
    world.open.add(world.bert)
    place = next(
        s.source for s in reversed(list(world.state.lineage)) if offsets(world, s.source, world.bert)
    )
    last = offsets(world, place, world.bert)[-1]
    world.logs[place][last] = None
    proven = max(
        sequence_at(world, source, at) for source in world.logs for at in offsets(world, source, world.bert)
    )

    def expect(verdict: Verdict) -> None:
        notes = verdict.of(VerifyCheck.CERTIFICATES_AGREE, Severity.NOTE)
        assert [(f.producer, f.last) for f in notes] == [(f"{world.bert:016x}", proven)]
        assert "left no certificate" in notes[0].message
        assert f"{world.bert:016x}" not in {f.producer for f in verdict.defects}

    return expect


@case
def a_lost_record_of_a_producer_without_a_certificate_cannot_be_told_from_a_failed_one(
    world: World,
) -> Expect:
    world.open.add(world.bert)
    world.logs[world.parent][offsets(world, world.parent, world.bert)[5]] = None

    def expect(verdict: Verdict) -> None:
        assert not verdict.defects
        assert [f.producer for f in verdict.of(VerifyCheck.SEQUENCES_COMPLETE)] == [f"{world.bert:016x}"]

    return expect


# What retention and retire removed is given, and the rest is judged


@case
def what_retention_removed_is_given(world: World) -> Expect:
    world.lows[world.parent] = 10

    def expect(verdict: Verdict) -> None:
        clean(verdict)
        (note,) = verdict.of(VerifyCheck.STRETCHES_COMPLETE, Severity.NOTE)
        assert (note.segment, note.first, note.last) == (0, 0, 9)
        assert "retention" in note.message

    return expect


@case
def a_record_lost_behind_what_retention_removed_is_found(world: World) -> Expect:
    world.lows[world.parent] = 10
    return a_lost_record_is_found_with_its_producer_and_number(world)


@case
def a_producer_of_which_retention_left_nothing_is_not_judged(world: World) -> Expect:
    """A log that expired whole; what its writers left elsewhere is judged."""
    world.lows[world.parent] = len(world.logs[world.parent])
    return clean


@fresh
def a_record_lost_after_a_retired_sub_topic_is_found(world: World) -> Expect:
    """The phantom that was split again is retired: what it held had smaller numbers than what followed."""
    busy(world)
    world.split(0, 2)
    busy(world)
    first = world.state.lineage.open_segments()[0]
    world.split(first.id, 2)
    busy(world)
    world.retired.add(first.source)
    place = world.state.lineage.open_segments()[0].source
    offset = offsets(world, place, world.bert)[5]
    lost = sequence_at(world, place, offset)
    world.logs[place][offset] = None

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.SEQUENCES_COMPLETE)
        assert (finding.producer, finding.first, finding.last) == (f"{world.bert:016x}", lost, lost)

    return expect


def _merged_and_retired(world: World) -> None:
    """Strays of one phantom come again first, with smaller numbers than what the other one held."""
    world.plain |= {world.anna, world.bert}
    busy(world)
    world.split(0, 2)
    busy(world)
    one, other = (s.source for s in world.state.lineage.open_segments())
    first = world.number(world.bert)
    key = next(k for k in KEYS if world.taking(k).source == other)
    world.send(world.bert, key, times=3)
    world.merge()
    world.put(one, b"again", 1, world.bert, first)
    world._deliver(world.bert, b"again", first)
    busy(world)
    world.retired |= {one, other}


@fresh
def what_a_merge_moved_and_retire_removed_is_given(world: World) -> Expect:
    _merged_and_retired(world)
    return clean


@fresh
def a_record_lost_after_a_merge_and_a_retire_is_found(world: World) -> Expect:
    _merged_and_retired(world)
    last = world.state.lineage.open_segments()[0]
    world.logs[last.source][offsets(world, last.source, world.bert)[-3]] = None

    def expect(verdict: Verdict) -> None:
        (finding,) = verdict.defects
        assert (finding.check, finding.segment, finding.count) == (VerifyCheck.CERTIFICATES_AGREE, last.id, 1)
        assert finding.producer == f"{world.bert:016x}"

    return expect


def _returned(partition: int) -> World:
    """Split, merged, back with plain clients, enrolled, split and merged again; the producers live on."""
    world = World(partition)
    world.plain |= {world.anna, world.bert}
    for again in (False, True):
        busy(world)
        world.split(world.state.lineage.open_segments()[0].id, 2)
        world.stray(world.anna, KEYS[0], world.parent, world.state.epoch - 1)
        busy(world)
        world.merge()
        busy(world)
        world.fail(world.bert)
        if not again:
            world.commit_all("readers")
            returned(world)
            last = world.state.lineage.open_segments()[0]
            world.commit("readers", WHOLE, {last.id: last.start + 2})  # plain members had sought back
    world.commit_all("readers")
    return world


def once_returned(plant: Callable[[World], Expect]) -> Callable[[World], Expect]:
    """A case on a topic that was led back to plain clients once."""
    return _case(plant, _returned)


@once_returned
def a_topic_that_returned_and_was_enrolled_again_is_clean(world: World) -> Expect:
    def expect(verdict: Verdict) -> None:
        clean(verdict)
        assert {f.severity for f in verdict.findings} == {Severity.NOTE}
        (note,) = verdict.of(VerifyCheck.FOREIGN_RECORDS)
        assert note.count == len(KEYS) and "while the topic was not enrolled" in note.message

    return expect


@once_returned
def a_record_lost_before_the_return_is_found(world: World) -> Expect:
    """Its number may lie in what was retired, as far as numbers say; the certificate counts by segment."""
    world.logs[world.parent][offsets(world, world.parent, world.bert)[5]] = None

    def expect(verdict: Verdict) -> None:
        (finding,) = verdict.defects
        assert (finding.check, finding.segment, finding.count) == (VerifyCheck.CERTIFICATES_AGREE, 0, 1)
        assert finding.producer == f"{world.bert:016x}"

    return expect


@once_returned
def a_record_lost_after_the_topic_was_enrolled_again_is_found(world: World) -> Expect:
    latest = next(s for s in reversed(world.state.lineage.segments) if s.kind is SegmentKind.PHANTOM)
    world.logs[latest.source][offsets(world, latest.source, world.anna)[5]] = None

    def expect(verdict: Verdict) -> None:
        (finding,) = verdict.defects
        assert (finding.check, finding.segment) == (VerifyCheck.CERTIFICATES_AGREE, latest.id)

    return expect


@once_returned
def a_record_of_before_the_return_that_comes_again_after_it_is_found(world: World) -> Expect:
    again = sequence_at(world, world.parent, offsets(world, world.parent, world.anna, KEYS[3])[0])
    world.put(world.parent, KEYS[3], world.state.epoch, world.anna, again)

    def expect(verdict: Verdict) -> None:
        (finding,) = verdict.of(VerifyCheck.SEQUENCES_UNIQUE)
        assert (finding.producer, finding.count) == (f"{world.anna:016x}", 1)
        assert verdict.exit_code == 3

    return expect


@fresh
def a_record_lost_of_a_topic_that_was_never_split_and_returned_is_found_by_its_number(world: World) -> Expect:
    busy(world)
    returned(world)
    busy(world)
    offset = offsets(world, world.parent, world.bert)[5]
    lost = sequence_at(world, world.parent, offset)
    world.logs[world.parent][offset] = None

    def expect(verdict: Verdict) -> None:
        (finding,) = only(verdict, VerifyCheck.SEQUENCES_COMPLETE)
        assert (finding.producer, finding.first, finding.last) == (f"{world.bert:016x}", lost, lost)

    return expect


@case
def a_record_of_a_newer_version_cannot_be_judged(world: World) -> Expect:
    world.logs[world.parent].append(Record(b"k", [(STAMP_HEADER, b"\x03" + bytes(30))]))

    def expect(verdict: Verdict) -> None:
        assert verdict.exit_code == 1
        assert "newer" in verdict.unproven[0]

    return expect


# Together


@case
def two_defects_are_both_found(world: World) -> Expect:
    world.logs[phantom(world)][offsets(world, phantom(world), world.bert)[5]] = None
    world.put(world.parent, KEYS[0], 99, 7, 0)

    def expect(verdict: Verdict) -> None:
        assert {f.check for f in verdict.defects} == {
            VerifyCheck.SEQUENCES_COMPLETE,
            VerifyCheck.FOREIGN_RECORDS,
        }

    return expect


@pytest.mark.parametrize("number", [1 << 63, (1 << 64) - 1])
def test_a_number_that_no_producer_reaches_is_not_provable(spark, number: int) -> None:
    """Judged alone: so many numbers are missing that of other partitions none would be looked at."""
    world = World(0)
    busy(world)
    world.put(world.parent, KEYS[0], 0, 0xF0, number)
    verdict = judge(spark, [world])
    assert not verdict.defects
    assert verdict.exit_code == 1
    assert verdict.outcome(VerifyCheck.SEQUENCES_COMPLETE) == "unproven"


def test_findings_beyond_those_that_are_listed_are_counted(spark) -> None:
    """Judged alone: a topic has one list for all its partitions."""
    verdict = judge(spark, [_with_repetitions(1_500)])
    *listed, last = verdict.of(VerifyCheck.SEQUENCES_UNIQUE)
    assert len(listed) == MOST
    assert (last.count, last.message) == (500, "500 more findings")


def test_of_more_findings_than_are_counted_is_said_that_they_are_more(spark, monkeypatch) -> None:
    for module in (judging, findings):  # what is fetched, and what is said of it
        monkeypatch.setattr(module, "COUNTED", MOST + 7)
    verdict = judge(spark, [_with_repetitions(1_500)])
    assert verdict.of(VerifyCheck.SEQUENCES_UNIQUE)[-1].message == "at least 7 more findings"


def _with_repetitions(number: int) -> World:
    world = World(0)
    world.send(world.anna, KEYS[0], times=number)
    world.logs[world.parent] += world.logs[world.parent][:]
    return world


@pytest.mark.parametrize("name", CASES)
def test_judged(judged, name: str) -> None:
    verdict, expect = judged[name]
    expect(verdict)
