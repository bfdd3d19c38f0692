"""The state that a verification leaves to the next one: sets of numbers, the JSON document, the file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpsplit.admin_cli.commands.verify import conclude, write_page
from kpsplit.errors import CheckFailedError, ConflictError, FutureVersionError, KpsplitError, UsageError
from kpsplit.spark_jobs.schemas import Fate
from kpsplit.spark_jobs.snapshot import LogBounds, LoggedCommit, Snapshot
from kpsplit.spark_jobs.verification import ledger as ledger_module
from kpsplit.spark_jobs.verification import succession
from kpsplit.spark_jobs.verification.counted import Total
from kpsplit.spark_jobs.verification.findings import Check, Finding, Severity, Verdict
from kpsplit.spark_jobs.verification.ledger import Held, Ledger
from kpsplit.spark_jobs.verification.numbers import (
    Run,
    bits_of,
    common,
    joined,
    members,
    minus,
    size,
    united,
)
from kpsplit.spark_jobs.verification.sequence_checks import Holes, numbers_given
from kpsplit.spark_jobs.verification.state import PartitionPast, State, forgotten, held_back, to_read
from kpsplit.spark_jobs.verification.state_file import StateFile
from kpsplit.spark_jobs.verification.state_json import decode_state, encode_state
from kpsplit.spark_jobs.verification.succession import Decider, Seen, successor
from kpsplit.spark_jobs.verification.writers import Writer, Writers
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.offsets import Position, RangeCommit
from kpsplit.splitter.records.producers import Certificate

NUMBERS = st.sets(st.integers(0, 200))
ORDERS = PhysicalPartition("orders", 3)


def runs(numbers: set[int]) -> list[Run]:
    return joined((n, n) for n in sorted(numbers))


def numbers(of: list[Run]) -> set[int]:
    return {n for first, last in of for n in range(first, last + 1)}


@given(NUMBERS, NUMBERS, st.integers(0, 220), st.integers(0, 220))
def test_runs_of_numbers_are_sets(a, b, first, behind) -> None:
    assert common(runs(a), runs(b)) == runs(a & b)
    assert minus(runs(a), runs(b)) == runs(a - b)
    assert united(runs(a), runs(b)) == runs(a | b)
    assert size(runs(a), first, behind) == len(a & set(range(first, behind)))
    assert {n for k in range(4) for n in members(k, bits_of(runs(a), k))} == a


@given(st.integers(0, 200), NUMBERS, NUMBERS, NUMBERS, st.integers(0, 3))
def test_a_ledger_knows_what_need_not_come_and_what_must_not(behind, fresh, doubted, gone, bucket) -> None:
    gone = gone - fresh - doubted
    ledger = Ledger(behind, tuple(runs(fresh)), tuple(runs(doubted - fresh)), tuple(runs(gone)))
    accounted = set(range(behind)) - fresh - doubted
    here = set(range(bucket * 64, bucket * 64 + 64))
    assert set(members(bucket, ledger.accounted_bits(bucket))) == accounted & here
    assert set(members(bucket, ledger.present_bits(bucket))) == (accounted - gone) & here
    assert ledger.accounted(7, 150) == len(accounted & set(range(7, 150)))


@pytest.fixture
def state() -> State:
    """A state with something of everything."""
    commit = RangeCommit("readers", ORDERS, WHOLE, {0: Position(7, 1)}, "m", 1)
    past = PartitionPast(
        topic_id="id",
        read={ORDERS: 40, PhysicalPartition("orders.split-3-1", 0): 0},
        totals=(Total(3, 0, Fate.DATA, True, 30, 0, 0, 39), Total(3, None, Fate.STRAY, True, 1, 0, 9, 9)),
        ledgers={
            "00000000a11a0000": Ledger(
                *(31, ((4, 4), (7, 9)), ((2, 2),), ((0, 1),), ((4, 4),), True, False, {0: Held(30, 0, 30)})
            ),
            "ffffffff00000000": Ledger(5, closed=True),
        },
        commits=(LoggedCommit("readers", ORDERS, WHOLE, commit, 2, 17),),
        commits_read=18,
        told=2,
        unread=True,
    )
    return State("cluster", "orders", ("readers",), 1_700_000_000_000, {3: past})


def test_a_state_comes_back_as_it_was(state) -> None:
    assert decode_state(encode_state(state)) == state


def test_a_state_with_very_many_single_numbers_comes_back_as_it_was(state) -> None:
    every_other = tuple((n, n) for n in range(0, 150_000, 2))
    many = replace(state.partitions[3], ledgers={"00000000a11a0000": Ledger(150_000, doubted=every_other)})
    assert decode_state(encode_state(replace(state, partitions={3: many}))).partitions[3] == many


def without(text: str, name: str) -> str:
    return json.dumps({k: v for k, v in json.loads(text).items() if k != name})


DAMAGE = {
    "garbage": lambda text: "{" + text,
    "a part of it": lambda text: text[: len(text) // 2],
    "nothing": lambda text: "",
    "a list": lambda text: f"[{text}]",
    "a key twice": lambda text: text[:-1] + ',"topic":"orders"}',
    "NaN": lambda text: text.replace('"told":2', '"told":NaN'),
    "a fraction": lambda text: text.replace('"told":2', '"told":2.0'),
    "a negative number": lambda text: text.replace('"next":31', '"next":-1'),
    "an unknown key": lambda text: text[:-1] + ',"more":1}',
    "a missing key": lambda text: without(text, "cluster"),
    "a run without an end": lambda text: text.replace('"fresh":[4,4,7,9]', '"fresh":[4,4,7]'),
    "runs that fall": lambda text: text.replace('"fresh":[4,4,7,9]', '"fresh":[7,9,4,4]'),
    "an unknown fate": lambda text: text.replace('"fate":"DATA"', '"fate":"LUCK"'),
    "a strange producer": lambda text: text.replace('"ffffffff00000000"', '"anna"'),
    "a range commit of another topic": lambda text: text.replace('\\"orders\\"', '\\"others\\"'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_no_state_is_refused_in_one_line_and_left_alone(state, damage, tmp_path: Path) -> None:
    path = tmp_path / "orders.state"
    text = encode_state(state).decode()
    damaged = DAMAGE[damage](text)
    assert damaged != text
    path.write_text(damaged)
    with pytest.raises(UsageError, match="is no state of a verification") as caught:
        StateFile(path).load()
    assert "\n" not in str(caught.value)
    assert path.read_text() == damaged


def test_a_state_of_a_newer_version_is_refused(state, tmp_path: Path) -> None:
    path = tmp_path / "orders.state"
    path.write_bytes(encode_state(state).replace(b'"v":1}', b'"v":2}'))
    with pytest.raises(FutureVersionError, match="newer"):
        StateFile(path).load()


def snapshot(topic: str = "orders", topic_id: str = "id") -> Snapshot:
    parent = PhysicalPartition(topic, 3)
    return Snapshot(topic, (PartitionState.unsplit(parent, topic_id),), {parent: LogBounds(0, 50, 60)})


@pytest.mark.parametrize(
    ("cluster", "found", "groups", "reason"),
    [
        ("another", snapshot(), ("readers",), "one of cluster"),
        ("cluster", snapshot("others"), ("readers",), "one of topic orders"),
        ("cluster", snapshot(topic_id="new"), ("readers",), "deleted"),
        ("cluster", snapshot(), None, "the groups readers"),
    ],
)
def test_a_state_of_something_else_is_refused(state, cluster, found, groups, reason) -> None:
    state.check_belongs("cluster", snapshot(), ("readers",))
    with pytest.raises(UsageError, match=reason):
        state.check_belongs(cluster, found, groups)


def test_a_run_reads_from_where_the_last_one_ended(state) -> None:
    assert to_read(snapshot(), state) == {ORDERS: (40, 50)}
    assert to_read(snapshot(), State("cluster", "orders")) == {ORDERS: (0, 50)}


def test_an_open_transaction_and_what_cannot_be_read_again_are_known(state) -> None:
    assert held_back(snapshot()) == {3}
    expired = replace(snapshot(), bounds={ORDERS: LogBounds(10, 60, 60)})
    assert (held_back(expired), forgotten(snapshot(), state), forgotten(expired, state)) == (
        set(),
        set(),
        {3},
    )


def test_the_file_is_replaced_as_a_whole_and_by_one_run_at_a_time(state, tmp_path: Path) -> None:
    path = tmp_path / "orders.state"
    ours, theirs = StateFile(path), StateFile(path)
    assert (ours.load(), theirs.load()) == (None, None)
    ours.save(state)
    with pytest.raises(ConflictError, match="meanwhile"):
        theirs.save(replace(state, made_ms=5))
    assert StateFile(path).load() == state
    ours.save(replace(state, made_ms=6))
    assert [p.name for p in tmp_path.iterdir()] == ["orders.state"]


def test_a_folder_that_is_not_there_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        StateFile(tmp_path / "nowhere" / "orders.state").load()


NOTE, UNPROVEN, FINDING = Severity.NOTE, Severity.UNPROVEN, Severity.FINDING
SURE, SEEN = Certificate(10, {"0": 9}, ()), LogBounds(0, 50, 50)
OPEN_BEFORE, DOUBTED_BEFORE = Ledger(9, fresh=((4, 5),)), Ledger(9, doubted=((4, 5),))


@pytest.mark.parametrize(
    ("certificate", "bounds", "known", "going_on", "said"),
    [
        (SURE, SEEN, Ledger(), False, [((4, 5), FINDING, True)]),
        (SURE, SEEN, OPEN_BEFORE, True, [((4, 5), FINDING, True)]),
        (SURE, LogBounds(0, 50, 60), Ledger(), False, [((4, 5), UNPROVEN, False)]),
        (SURE, LogBounds(3, 50, 50), Ledger(), False, [((4, 5), UNPROVEN, True)]),
        (None, SEEN, Ledger(), False, [((4, 5), UNPROVEN, False)]),
        (None, SEEN, Ledger(), True, [((4, 5), NOTE, False)]),
        (None, SEEN, OPEN_BEFORE, True, [((4, 5), UNPROVEN, False)]),
        (None, SEEN, DOUBTED_BEFORE, True, []),
        (None, SEEN, Ledger(9, fresh=((5, 6),)), True, [((5, 5), UNPROVEN, False), ((4, 4), NOTE, False)]),
    ],
)
def test_a_missing_number_is_decided_by_the_certificate_and_what_can_be_read(
    certificate, bounds, known, going_on, said
) -> None:
    """Numbers 4 and 5 are missing."""
    writer = Writer(ORDERS, "00000000a11a0000", certificate)
    past = State("c", "orders", partitions={3: PartitionPast("id", ledgers={writer.producer: known})})
    found = Decider(replace(snapshot(), bounds={ORDERS: bounds}), past, going_on).decided(writer, [(4, 5)])
    assert [(run, d.severity, d.final) for part, d in found for run in part] == said


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.data())
def test_many_missing_numbers_are_decided_as_each_of_them_alone(
    missing, fresh, doubted, strays, data
) -> None:
    writer = Writer(ORDERS, "00000000a11a0000", data.draw(st.sampled_from([None, SURE])), transactional=False)
    known = Ledger(
        data.draw(st.integers(0, 220)), tuple(runs(fresh)), tuple(runs(doubted)), (), tuple(runs(strays))
    )
    unread, going_on = data.draw(st.booleans()), data.draw(st.booleans())
    past = PartitionPast("id", ledgers={writer.producer: known}, unread=unread)
    whole = replace(snapshot(), bounds={ORDERS: data.draw(st.sampled_from([SEEN, LogBounds(0, 50, 60)]))})
    decider = Decider(whole, State("c", "orders", partitions={3: past}), going_on)

    def said(of: list[Run]) -> list[tuple[int, object]]:
        return sorted(
            ((n, d) for part, d in decider.decided(writer, of) for n in numbers(part)), key=lambda x: x[0]
        )

    run_by_run = sorted((x for run in runs(missing) for x in said([run])), key=lambda x: x[0])
    assert said(runs(missing)) == run_by_run


@pytest.mark.parametrize("many", [10, 1_000])
def test_what_is_known_of_a_producer_is_sorted_once_however_much_is_missing(many, monkeypatch) -> None:
    missing = [(4 * i, 4 * i) for i in range(many)]
    sorted_ = []

    def counted(*several: Iterable[Run]) -> list[Run]:
        sorted_.append(several)
        return united(*several)

    monkeypatch.setattr(succession, "united", counted)
    monkeypatch.setattr(ledger_module, "united", counted)
    known = Ledger(4 * many, tuple(missing[::2]))
    past = State("c", "orders", partitions={3: PartitionPast("id", ledgers={WRITER.producer: known})})
    assert [len(part) for part, _ in Decider(snapshot(), past, True).decided(WRITER, missing)] == [
        many // 2
    ] * 2
    assert [known.accounted_bits(n) for n in range(many // 16)] == [~0x101010101010101 & (1 << 64) - 1] * (
        many // 16
    )
    assert known.accounted(0, 4 * many) == 4 * many - many // 2
    assert len(sorted_) == 2


WRITER = Writer(ORDERS, "00000000a11a0000", transactional=False)


def next_state(found: Snapshot, past: State, holes: list[Holes]) -> tuple[list[Severity], State]:
    """What a run that found some holes says of them, and the state that it leaves, through its JSON form."""
    decider = Decider(found, past, going_on=True)
    given = numbers_given(Writers(found), past, {})
    seen = Seen(given, holes, {}, [], [], (), {})
    left = successor(found, past, 5, seen, decider)
    return [f.severity for f in decider.findings(holes)], decode_state(encode_state(left))


def test_numbers_that_went_before_any_run_read_them_are_never_called_lost() -> None:
    """Run 1 finds the log's beginning gone and nothing of the producer; it closes before run 2."""
    first = replace(snapshot(), bounds={ORDERS: LogBounds(50, 50, 50)})
    said, left = next_state(first, State("c", "orders"), [])
    closed = replace(WRITER, certificate=Certificate(50, {"0": 50}, ()))
    said, left = next_state(first, left, [Holes(closed, ((0, 49),), ())])
    assert said == [UNPROVEN]
    assert left.ledger(3, WRITER.producer).doubtful, "its certificate cannot be compared any more"
    known = Ledger(60)
    later = replace(left, partitions={3: replace(left.past(3), ledgers={WRITER.producer: known})})
    ((_, decision),) = Decider(first, later, going_on=True).decided(closed, [(62, 63)])
    assert decision.severity is FINDING, "numbers before and behind them were read"


def test_a_stray_of_a_producer_of_which_nothing_else_is_known_is_told_until_it_is_decided() -> None:
    """A note at first, then unproven once, and a finding when the producer closes."""
    found = replace(snapshot(), bounds={ORDERS: SEEN})
    said, left = next_state(found, State("c", "orders"), [Holes(WRITER, (), ((7, 7),))])
    assert said == [NOTE]
    known = left.ledger(3, WRITER.producer)
    assert (known.strays, known.doubtful) == (((7, 7),), False)
    said, left = next_state(found, left, [Holes(WRITER, (), ((7, 7),))])
    assert said == [UNPROVEN]
    said, left = next_state(found, left, [Holes(WRITER, (), ((7, 7),))])
    assert said == []
    closed = replace(WRITER, certificate=Certificate(8, {}, ()))
    said, left = next_state(found, left, [Holes(closed, (), ((7, 7),))])
    assert said == [FINDING]


@pytest.mark.parametrize(
    ("found", "error"),
    [((), ConflictError), ((NOTE,), ConflictError), ((UNPROVEN, FINDING), CheckFailedError)],
)
def test_a_state_that_cannot_be_saved_hides_no_finding(state, found, error, tmp_path: Path) -> None:
    path = tmp_path / "orders.state"
    ours, theirs = StateFile(path), StateFile(path)
    ours.load(), theirs.load()
    theirs.save(state)
    findings = tuple(Finding(Check.MISSING, severity, ORDERS, "a number") for severity in found)
    verdict = Verdict("orders", (3,), snapshot(), findings, successor=replace(state, made_ms=5))
    said: list[str] = []
    with pytest.raises(error):
        conclude(verdict, ours, said.append)
    assert any("not saved" in line for line in said) == (error is CheckFailedError)
    assert StateFile(path).load() == state


@pytest.mark.parametrize(("found", "error"), [((), KpsplitError), ((FINDING,), CheckFailedError)])
def test_a_report_that_cannot_be_written_hides_no_finding_and_no_state(state, found, error, tmp_path) -> None:
    file = StateFile(tmp_path / "orders.state")
    file.load()
    findings = tuple(Finding(Check.MISSING, severity, ORDERS, "a number") for severity in found)
    verdict = Verdict("orders", (3,), snapshot(), findings, successor=state)
    said: list[str] = []
    with pytest.raises(error) as caught:
        conclude(verdict, file, said.append, [KpsplitError("cannot write page.html: no room")])
    assert type(caught.value) is error
    assert any("no room" in line for line in [*said, str(caught.value)])
    assert StateFile(tmp_path / "orders.state").load() == state


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("year 55840 is out of range"), "ValueError"),
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (KpsplitError("no broker answers", hint="check it"), "no broker answers"),
    ],
)
def test_whatever_goes_wrong_with_the_page_is_one_reason_why_it_was_not_written(
    error, told, tmp_path
) -> None:
    def page() -> str:
        raise error

    (why,) = write_page(tmp_path / "page.html", page)
    assert why.message == f"cannot write {tmp_path / 'page.html'}: {told}"
    assert list(tmp_path.iterdir()) == []
    assert write_page(tmp_path / "page.html", lambda: "<p>") == []
    assert (tmp_path / "page.html").read_text() == "<p>"
