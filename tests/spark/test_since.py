"""Verification of what was written since a time: what lies before is given, what comes after is proven.

A case writes a partition's history, with a moment in it from which on is judged. All of them are judged in
one go, as the partitions of one topic.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kpsplit.spark_jobs.verification.findings import Severity, Verdict, result_line
from kpsplit.spark_jobs.verification.start import Since
from kpsplit.spark_jobs.verification.verifier import VerifyCheck
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition, SegmentKind
from kpsplit.splitter.records.data import STAMP_HEADER, Stamp
from tests.spark.histories import KEYS, Record, World, busy, judge, lived, returned

AT = 1_700_000_000_000
Expect = Callable[[Verdict], None]
CASES: dict[str, Callable[[World], Expect]] = {}


def case(plant: Callable[[World], Expect]) -> Callable[[World], Expect]:
    CASES[plant.__name__] = plant
    return plant


@pytest.fixture(scope="module")
def judged(spark) -> dict[str, tuple[Verdict, Expect]]:
    worlds = [World(number) for number in range(len(CASES))]
    expected = [plant(world) for world, plant in zip(worlds, CASES.values(), strict=True)]
    first = {place: offset for world in worlds for place, offset in world.first_offsets().items()}
    near = {place: max(0, offset - 5) for place, offset in first.items()}
    verdict = judge(spark, worlds, since=Since(AT, first, near))
    assert verdict.judged_since_ms == AT
    parts = [verdict.of_partition(number) for number in range(len(worlds))]
    return dict(zip(CASES, zip(parts, expected, strict=True), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_judged(judged, name: str) -> None:
    verdict, expect = judged[name]
    expect(verdict)


def clean(verdict: Verdict) -> None:
    assert verdict.clean, (verdict.defects, verdict.unproven)
    assert "clean since 2023-11-14 22:13:20" in result_line(verdict)


def stamp_of(record: Record) -> Stamp:
    found = Stamp.decode(dict(record.headers)[STAMP_HEADER])
    assert found is not None
    return found


def ours(
    world: World, place: PhysicalPartition, producer: int, first: int = 0, behind: int | None = None
) -> list[int]:
    """Where a producer's records stand in a stretch of a log."""
    log = world.logs[place]
    return [
        offset
        for offset in range(first, len(log) if behind is None else behind)
        if (record := log[offset]) is not None
        and STAMP_HEADER in dict(record.headers)
        and stamp_of(record).instance == producer
    ]


def lose(world: World, place: PhysicalPartition, offset: int) -> int:
    """Lose a record; return its number."""
    number = stamp_of(world.logs[place][offset]).sequence
    world.logs[place][offset] = None
    return number


def phantoms(world: World) -> list[PhysicalPartition]:
    return [s.source for s in world.state.lineage if s.kind is SegmentKind.PHANTOM]


def split_life(world: World) -> None:
    """Written to before the split, behind it, and from the moment on."""
    busy(world)
    world.split(0, 2)
    busy(world)
    world.since_now()
    busy(world)


def split_life_of_an_open_writer(world: World) -> list[PhysicalPartition]:
    """The same, and Bert leaves no certificate; return the two phantoms."""
    world.open.add(world.bert)
    split_life(world)
    return phantoms(world)


# What lies before is given


@case
def a_clean_history_is_clean_since_any_moment(world: World) -> Expect:
    split_life(world)
    return clean


@case
def a_whole_life_behind_the_moment_is_clean(world: World) -> Expect:
    """Splits, strays, aborted transactions, failures and a merge come from the moment on."""
    made = lived(world.parent.partition)
    vars(world).update(vars(made))
    world.moment = {world.parent: 30}
    return clean


@case
def nothing_written_since_is_clean(world: World) -> Expect:
    busy(world)
    world.logs[world.parent][20] = None
    world.since_now()
    return clean


@case
def faults_before_the_moment_are_not_told(world: World) -> Expect:
    """A lost record, one in the segment of other keys, a stray never sent again, a foreign one, one twice."""
    busy(world)
    world.split(0, 2)
    busy(world)
    place = phantoms(world)[0]
    lose(world, place, ours(world, place, world.anna)[4])
    stranger = next(k for k in KEYS if world.taking(k).source != place)
    world.logs[place][ours(world, place, world.bert)[3]].key = stranger
    world.put(world.parent, KEYS[0], 0, world.bert, world.number(world.bert))
    world.foreign(b"x", place)
    world.logs[place].append(world.logs[place][ours(world, place, world.bert)[0]])
    world.since_now()
    busy(world)
    return clean


@case
def the_lost_tail_of_a_producer_that_wrote_nothing_since_is_not_told(world: World) -> Expect:
    busy(world)
    world.number(world.bert)
    world.since_now()
    world.send(world.anna, KEYS[0], times=3)
    return clean


@case
def a_number_that_lies_just_before_the_moment_of_another_log_is_not_missing(world: World) -> Expect:
    """The logs' moments are not one: another writer's clock is ahead in one phantom."""
    split_life(world)
    one, other = phantoms(world)
    world.moment[one] -= 12
    world.moment[other] += 1
    return clean


@case
def a_number_that_lies_far_before_the_moment_of_another_log_is_not_missing(world: World) -> Expect:
    split_life(world)
    one, _ = phantoms(world)
    world.moment[one] = 0
    return clean


@case
def a_range_commit_that_went_back_before_the_moment_is_not_told(world: World) -> Expect:
    busy(world)
    world.commit("back", WHOLE, {0: 6})
    world.commit("back", WHOLE, {0: 2})
    world.since_now()
    world.commit("back", WHOLE, {0: 4})
    return clean


@case
def what_retention_removed_before_the_moment_is_given(world: World) -> Expect:
    split_life(world)
    world.lows[world.parent] = world.state.lineage.get(0).end - 3
    world.lows[phantoms(world)[0]] = 4
    return clean


@case
def a_sub_topic_that_was_retired_before_the_moment_is_given(world: World) -> Expect:
    busy(world)
    world.split(0, 2)
    busy(world)
    gone = phantoms(world)
    world.merge()
    busy(world)
    world.since_now()
    busy(world)

    world.retired.update(gone)
    return clean


def _returned(world: World) -> None:
    """The moment lies in the time in which the topic was not enrolled."""
    busy(world)
    world.split(0, 2)
    busy(world)
    world.merge()
    busy(world)
    world.commit_all("readers")
    returned(world)
    world.since_now()
    returned(world)
    busy(world)
    world.split(world.state.lineage.open_segments()[0].id, 2)
    busy(world)
    world.commit_all("readers")


@case
def a_moment_between_a_return_and_the_next_enrolment_is_clean(world: World) -> Expect:
    _returned(world)
    return clean


@case
def a_record_lost_after_a_topic_was_enrolled_again_is_found(world: World) -> Expect:
    _returned(world)
    place = phantoms(world)[-1]
    lost = lose(world, place, ours(world, place, world.anna)[3])

    def expect(verdict: Verdict) -> None:
        (finding,) = verdict.of(VerifyCheck.SEQUENCES_COMPLETE, Severity.FINDING)
        assert (finding.first, finding.last) == (lost, lost)

    return expect


@case
def a_producer_whose_first_transaction_since_was_aborted_is_clean(world: World) -> Expect:
    """Its certificate counts the aborted records of a segment that was opened since."""
    busy(world)
    world.since_now()
    world.split(0, 2)
    late = 0xC0FFEE0000 + world.parent.partition
    world.abort(late, KEYS[0], 10)
    world.send(late, KEYS[0], times=10)
    world.abort(world.anna, KEYS[1])
    busy(world)
    return clean


# What comes after is proven


@case
def a_lost_record_since_is_found_and_one_before_is_not(world: World) -> Expect:
    split_life(world)
    place = phantoms(world)[0]
    behind = world.moment[place]
    lose(world, place, ours(world, place, world.bert, 0, behind)[2])
    lost = lose(world, place, ours(world, place, world.bert, behind)[2])

    def expect(verdict: Verdict) -> None:
        (finding,) = verdict.defects
        assert (finding.check, finding.producer) == (VerifyCheck.SEQUENCES_COMPLETE, f"{world.bert:016x}")
        assert (finding.first, finding.last) == (lost, lost)

    return expect


def _a_lost_record_beyond(far: int) -> None:
    def plant(world: World) -> Expect:
        world.given[world.bert] = far - 30
        split_life(world)
        place = phantoms(world)[0]
        lost = lose(world, place, ours(world, place, world.bert, world.moment[place])[2])
        assert lost > far

        def expect(verdict: Verdict) -> None:
            (finding,) = verdict.defects
            assert (finding.check, finding.producer) == (VerifyCheck.SEQUENCES_COMPLETE, f"{world.bert:016x}")
            assert (finding.first, finding.last) == (lost, lost)

        return expect

    plant.__name__ = f"a_lost_record_beyond_number_{far}_is_found"
    case(plant)


for _far in (1 << 35, 1 << 53, (1 << 63) - 400):
    _a_lost_record_beyond(_far)


@case
def a_lost_tail_since_is_found(world: World) -> Expect:
    split_life(world)
    number = world.number(world.anna)

    def expect(verdict: Verdict) -> None:
        (finding,) = verdict.defects
        assert (finding.check, finding.first) == (VerifyCheck.SEQUENCES_COMPLETE, number)

    return expect


@case
def a_record_since_that_was_there_before_is_found(world: World) -> Expect:
    world.plain.add(world.anna)
    split_life(world)
    place = phantoms(world)[0]
    again = world.logs[place][ours(world, place, world.anna)[0]]
    world.logs[place].append(again)

    def expect(verdict: Verdict) -> None:
        (finding,) = verdict.of(VerifyCheck.SEQUENCES_UNIQUE)
        assert "before the time" in finding.message
        assert verdict.of(VerifyCheck.SEQUENCES_COMPLETE) == ()

    return expect


@case
def a_stray_since_that_was_never_sent_again_is_found(world: World) -> Expect:
    split_life(world)
    number = world.number(world.bert)
    world.put(world.parent, KEYS[0], 0, world.bert, number)

    def expect(verdict: Verdict) -> None:
        (finding,) = verdict.defects
        assert (finding.check, finding.first) == (VerifyCheck.STRAYS_SENT_AGAIN, number)

    return expect


@case
def a_foreign_record_and_a_misplaced_one_since_are_found(world: World) -> Expect:
    split_life(world)
    place = phantoms(world)[1]
    stranger = next(k for k in KEYS if world.taking(k).source != place)
    world.logs[place][ours(world, place, world.bert, world.moment[place])[3]].key = stranger
    world.foreign(b"x", place)
    return lambda verdict: _checks(
        verdict, {VerifyCheck.RECORDS_IN_THEIR_SEGMENTS, VerifyCheck.FOREIGN_RECORDS}
    )


@case
def a_certificate_of_a_segment_opened_since_is_compared(world: World) -> Expect:
    busy(world)
    world.since_now()
    world.split(0, 2)
    busy(world)
    opened = str(world.state.lineage.open_segments()[0].id)
    world.plain.add(world.bert)
    world.delivered[world.bert][opened] += 1
    world.fail(world.anna)
    return lambda verdict: _checks(verdict, {VerifyCheck.CERTIFICATES_AGREE})


@case
def a_certificate_of_transactions_is_compared_where_nothing_of_it_lies_before_the_time(
    world: World,
) -> Expect:
    busy(world)
    world.since_now()
    world.split(0, 2)
    late = 0xC0FFEE0000 + world.parent.partition
    world.send(late, KEYS[0], times=10)
    world.delivered[late][str(world.taking(KEYS[0]).id)] += 1
    return lambda verdict: _checks(verdict, {VerifyCheck.CERTIFICATES_AGREE})


@case
def a_range_commit_that_goes_back_since_is_found(world: World) -> Expect:
    busy(world)
    world.commit("back", WHOLE, {0: 6})
    world.since_now()
    world.commit("back", WHOLE, {0: 2})
    return lambda verdict: _checks(verdict, {VerifyCheck.COMMITS_MOVE_FORWARD})


@case
def a_missing_marker_since_is_found(world: World) -> Expect:
    busy(world)
    world.since_now()
    world.split(0, 2)
    world.logs[world.parent][world.state.lineage.get(0).end] = None
    return lambda verdict: _checks(verdict, {VerifyCheck.STRETCHES_COMPLETE})


# What cannot be judged


@case
def what_retention_removed_may_have_been_written_since(world: World) -> Expect:
    """The first record that is left is not older than the time: nobody knows how old those before it were."""
    busy(world)
    world.lows[world.parent] = 10
    world.moment = {}

    def expect(verdict: Verdict) -> None:
        assert (verdict.exit_code, verdict.defects) == (1, ())
        assert any("retention" in why for why in verdict.unproven)

    return expect


@case
def a_number_missing_since_of_an_open_producer_cannot_be_judged(world: World) -> Expect:
    place, _ = split_life_of_an_open_writer(world)
    lose(world, place, ours(world, place, world.bert, world.moment[place])[2])

    def expect(verdict: Verdict) -> None:
        assert (verdict.exit_code, verdict.defects) == (1, ())
        assert [f.check for f in verdict.findings if f.severity is Severity.UNPROVEN] == [
            VerifyCheck.SEQUENCES_COMPLETE
        ]

    return expect


# The ends of the logs are asked one after the other, while producers write


def in_flight(world: World, place: PhysicalPartition) -> bytes:
    """A key whose records go to a log."""
    return next(k for k in KEYS if world.taking(k).source == place)


def was_under_way(check: VerifyCheck) -> Expect:
    def expect(verdict: Verdict) -> None:
        clean(verdict)
        (note,) = verdict.of(check, Severity.NOTE)
        assert "was under way" in note.message
        assert note.count == 1

    return expect


@case
def a_number_that_was_under_way_is_not_missing(world: World) -> Expect:
    """Of two numbers the first lies in the log that was asked first, after its end."""
    one, other = split_life_of_an_open_writer(world)
    asked = {one: len(world.logs[one])}
    world.send(world.bert, in_flight(world, one))
    world.send(world.bert, in_flight(world, other))
    world.ends_asked(asked)
    return was_under_way(VerifyCheck.SEQUENCES_COMPLETE)


@case
def numbers_of_many_open_writers_that_were_under_way_are_not_missing(world: World) -> Expect:
    """Each has one such number: what is looked at is counted by numbers, not by writers."""
    one, other = split_life_of_an_open_writer(world)
    writers = range(0xC0DE_0000, 0xC0DE_0000 + 300)
    world.open.update(writers)
    for writer in writers:
        world.send(writer, in_flight(world, other))
    asked = {one: len(world.logs[one])}
    for writer in writers:
        world.send(writer, in_flight(world, one))
        world.send(writer, in_flight(world, other))
    world.ends_asked(asked)

    def expect(verdict: Verdict) -> None:
        clean(verdict)
        assert len(verdict.of(VerifyCheck.SEQUENCES_COMPLETE, Severity.NOTE)) == len(writers)

    return expect


@case
def a_number_that_was_under_way_may_lie_in_a_log_that_is_newer_than_the_ends(world: World) -> Expect:
    """The producer held it back for a split."""
    one, other = split_life_of_an_open_writer(world)
    key, number = in_flight(world, one), world.number(world.bert)
    world.send(world.bert, in_flight(world, other))
    world.ends_asked()
    world.split(world.taking(key).id, 2)
    world._deliver(world.bert, key, number)
    return was_under_way(VerifyCheck.SEQUENCES_COMPLETE)


@case
def an_aborted_number_that_was_under_way_is_not_missing(world: World) -> Expect:
    one, other = split_life_of_an_open_writer(world)
    asked = {one: len(world.logs[one])}
    world.abort(world.bert, in_flight(world, one), 1)
    world.send(world.bert, in_flight(world, other))
    world.ends_asked(asked)
    return was_under_way(VerifyCheck.SEQUENCES_COMPLETE)


@case
def a_stray_that_was_being_sent_again_is_no_finding(world: World) -> Expect:
    place, _ = split_life_of_an_open_writer(world)
    asked = {place: len(world.logs[place])}
    world.stray(world.bert, in_flight(world, place), world.parent, 0)
    world.ends_asked(asked)
    return was_under_way(VerifyCheck.STRAYS_SENT_AGAIN)


@case
def a_number_that_an_open_transaction_hid_is_not_missing(world: World) -> Expect:
    """Another producer's: this one has closed, and its certificate counts what is hidden."""
    world.plain.add(world.bert)
    busy(world)
    world.since_now()
    world.split(0, 2)
    busy(world)
    one, other = phantoms(world)
    stable = {one: len(world.logs[one])}
    world.send(world.bert, in_flight(world, one))
    world.send(world.bert, in_flight(world, other))
    world.ends_asked(stable, open_=True)
    return was_under_way(VerifyCheck.SEQUENCES_COMPLETE)


@case
def a_number_of_a_closed_producer_was_not_under_way(world: World) -> Expect:
    """Its certificate was read before the ends: all that it delivered lies before them."""
    split_life(world)
    one, other = phantoms(world)
    asked = {one: len(world.logs[one])}
    world.send(world.bert, in_flight(world, one))
    world.send(world.bert, in_flight(world, other))
    world.ends_asked(asked)
    return lambda verdict: _checks(verdict, {VerifyCheck.SEQUENCES_COMPLETE})


def _checks(verdict: Verdict, checks: set[VerifyCheck]) -> None:
    assert {f.check for f in verdict.defects} == checks, verdict.defects
