"""How plans, states, lineages, reports and records look, as JSON and at narrow and wide terminals."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from inspect import unwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from kpsplit.admin_cli.call import Call
from kpsplit.admin_cli.commands import route
from kpsplit.admin_cli.commands.read import record_json, record_line, tally_lines
from kpsplit.admin_cli.commands.status import Found, StatusWatch
from kpsplit.admin_cli.options import Given
from kpsplit.admin_cli.render.console import FittingTable, StepProgress, step_line
from kpsplit.admin_cli.render.plan import report_json, show_plan, show_report
from kpsplit.admin_cli.render.status import (
    draw_groups,
    draw_statuses,
    lineage_json,
    show_lineage,
    show_progress,
    statuses_json,
)
from kpsplit.consumer.fetch.gaps import Gap
from kpsplit.consumer.fetch.lineage_reader import LineageTally, LogicalRecord
from kpsplit.control.plans import Check, Drain, HotKey, Plan
from kpsplit.control.status import (
    Basis,
    GroupDrain,
    PartitionProgress,
    PartitionStatus,
    RangeProgress,
    Remaining,
    Report,
    SegmentLeft,
)
from kpsplit.errors import AuthorizationError, KpsplitError, UnreachableError
from kpsplit.kafka.groups import Owner
from kpsplit.splitter.driver import StepDone
from kpsplit.splitter.key_range import WHOLE, Sizing, assess
from kpsplit.splitter.partition_state import OperationKind, Target
from kpsplit.splitter.reading import GapReason, SkipReason
from kpsplit.splitter.records.control import Enrolment, Partitioner
from kpsplit.splitter.records.data import Stamp
from kpsplit.splitter.records.producers import PauseReport, ProducerRegistration
from tests.unit.samples import PARENT, UNSPLIT, fenced, life, split_attempt

ROOT = Path(__file__).parents[2]
SOURCES = [*(ROOT / "kpsplit/control").rglob("*.py"), *(ROOT / "kpsplit/splitter").rglob("*.py")]
STEP = re.compile(r'StepDone\("(\w+)"')
EVIL = "evil\x1b[2J\nname"
WIDTHS = (60, 80, 120)


def drawn(draw: Callable[[Console], None], width: int) -> str:
    """What is printed on a terminal of that width."""
    file = io.StringIO()
    draw(Console(file=file, width=width, force_terminal=False, markup=False, highlight=False, emoji=False))
    text = file.getvalue()
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines()) <= width
    return text


def a_plan() -> Plan:
    return Plan(
        parent=PARENT,
        kind=OperationKind.SPLIT,
        epoch=4,
        topic_id="id",
        sources=(0,),
        ranges=WHOLE.split_evenly(4),
        target=Target.PHANTOMS,
        subtopic="orders.split-3-1",
        shares=(0.61, 0.2, 0.15, 0.04),
        heaviest=(HotKey(0x12345678, 0.61, EVIL),),
        sampled=20_000,
        useful=False,
        note="cannot be split usefully: key hash 12345678 has 61 %",
        checks=(
            Check("enrolled", True, "orders is enrolled"),
            Check("useful", False, "one key has 61 %", "choose another key", forceable=True),
            Check("min-isr", False, "min.insync.replicas is 1", "set it to 2"),
        ),
        made_ms=1_700_000_000_000,
    )


def a_merge_plan() -> Plan:
    drains = (Drain(EVIL, 70_000), Drain("billing", 1_200, 95), *(Drain(f"g{i}", 0, 0) for i in range(20)))
    return replace(a_plan(), kind=OperationKind.MERGE, target=Target.PARENT, drains=drains)


def a_status() -> PartitionStatus:
    nested = life().nested
    state = fenced(nested, split_attempt(nested, nested.lineage.open_segments()[0].id, _halves(nested), "n"))
    attempt = replace(state.attempt, operator=f"{EVIL}@host") if state.attempt else None
    return PartitionStatus(
        state=replace(state, attempt=attempt),
        enrolment=Enrolment("orders", "id", Partitioner.CONSISTENT_RANDOM, True),
        ends={s.id: 1234 for s in state.lineage if s.is_open},
        writers=(ProducerRegistration(7, 1, EVIL, topics=("orders",)),),
        attempt_age_seconds=75.0,
    )


def _halves(state):
    return state.lineage.open_segments()[0].range.split_evenly(2)


def a_record(**changed: object) -> LogicalRecord:
    record = LogicalRecord(
        1038, 4, 1, b"key", b"value", (), "orders.split-3-1", 2, 7, 1_700_000_000_000, Stamp(1, 255, 9)
    )
    return replace(record, **changed)  # type: ignore[arg-type]


def test_a_status_names_a_change_of_slots_that_is_not_finished() -> None:
    status = a_status()
    change = replace(status.enrolment, slots=8, generation=2, former_slots=2)
    status = replace(status, enrolment=change)
    for drains in (None, []):
        text = " ".join(drawn(lambda c, d=drains: c.print(draw_statuses([status], d)), 300).split())
        assert "the slots of orders are being changed from 2 to 8; run: kpsplit enroll orders" in text
    (data,) = statuses_json([status])["partitions"]
    assert (data["slots"], data["generation"], data["former_slots"]) == (8, 2, 2)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_plan_shows_load_top_keys_checks_and_notes(width) -> None:
    text = drawn(lambda console: show_plan(a_plan(), console), width)
    joined = " ".join(text.split())
    assert "61 %" in joined
    assert "12345678" in joined
    assert "cannot be split usefully" in joined
    assert "→ set it to 2" in joined
    assert "█" in joined


@pytest.mark.parametrize("width", WIDTHS)
def test_a_status_names_phase_epoch_ranges_operator_and_writers(width) -> None:
    text = " ".join(drawn(lambda console: console.print(draw_statuses([a_status()], [])), width).split())
    for wanted in ("fenced", "epoch 2", "1,234", "begun 1 min 15 s ago", "1 writer"):
        assert wanted in text
    overview = drawn(lambda console: console.print(draw_statuses([a_status()])), width)
    assert "fenced" in overview


def test_a_status_names_who_drains_a_segment_and_how_long_that_takes() -> None:
    owner = Owner(member="m-1", client_id="rdkafka", host="127.0.0.1")
    segment = life().merged.lineage.segments[0]
    drain = GroupDrain(segment, "billing", Remaining(1234, 65), WHOLE, owner)
    idle = replace(drain, group="idle", left=Remaining(5), owner=None)
    text = " ".join(drawn(lambda c: c.print(draw_statuses([a_status()], [drain, idle])), 80).split())
    assert (
        f"segment 0 of {segment.source} drains: group billing has 1,234 offsets to read, about 1 min" in text
    )
    assert f"slowest: {WHOLE}, {owner}" in text
    assert "group idle has 5 offsets to read, not moving" in text
    (data,) = statuses_json([a_status()], [drain])["partitions"]
    assert [(one["segment"], one["left"], one["seconds"]) for one in data["drains"]] == [(0, 1234, 65)]


def test_a_status_says_why_it_is_not_known_who_drains_a_segment() -> None:
    error = AuthorizationError("missing Describe on all groups")
    text = drawn(lambda console: console.print(draw_statuses([a_status()], error)), 120)
    assert "what groups still drain is not known: missing Describe on all groups" in text
    assert statuses_json([a_status()], error)["partitions"][0]["drains"] is None


@pytest.mark.parametrize("width", (40, *WIDTHS))
def test_ranges_places_and_numbers_of_a_status_are_never_broken(width) -> None:
    numbers = ("segment", "log end", "logical end")
    table = FittingTable(("range", "place"), numbers, right=numbers)
    table.add_row(Text(str(WHOLE)), "orders.split-3-1/0", "1", "1,234,567,890", "12,345,678,901")
    text = drawn(lambda console: console.print(table), width)
    for whole in (str(WHOLE), "orders.split-3-1/0", "1,234,567,890", "12,345,678,901"):
        assert whole in text


@pytest.mark.parametrize("width", WIDTHS)
def test_a_lineage_shows_every_segment_and_every_epoch(width) -> None:
    merged = life().merged
    text = drawn(lambda console: show_lineage(merged, console), width)
    for epoch in range(merged.epoch + 1):
        assert f"epoch {epoch}" in text
    assert "overflow" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_a_report_shows_the_pause_of_each_producer(width) -> None:
    split = life().split
    assert split.last is not None
    outcome = split.last
    report = Report(outcome, split, {"00000000000000ff": PauseReport("s", 42, 1000, 3)}, 1.5)
    text = " ".join(drawn(lambda console: show_report(report, console), width).split())
    assert "took effect after 1.5 s" in text
    assert "42 ms" in text
    data = report_json(report)
    assert data["pause_ms"] == {"p50": 42, "p99": 42, "max": 42}
    assert data["producers"]["00000000000000ff"] == {"pause_ms": 42, "held": 1000, "strays": 3}
    assert len(data["ranges"]) == 4


def test_the_json_of_a_lineage_has_the_published_form() -> None:
    data = json.loads(json.dumps(lineage_json(life().split)))
    assert (data["topic"], data["partition"], data["epoch"]) == ("orders", 3, 1)
    second = data["segments"][2]
    assert second == {
        "id": 2,
        "kind": "phantom",
        "range": [0, 1 << 30],
        "source_topic": "orders.split-3-1",
        "source_partition": 0,
        "start": 0,
        "end": None,
        "base": 1001,
        "stride": 5,
        "predecessors": [0],
        "opened_epoch": 1,
        "closed_epoch": None,
        "end_leader_epoch": None,
    }


def test_the_json_of_a_record_has_the_published_form() -> None:
    assert record_json(a_record()) == {
        "logical_offset": 1038,
        "segment": 4,
        "epoch": 1,
        "key": "key",
        "value": "value",
        "source_topic": "orders.split-3-1",
        "source_partition": 2,
        "source_offset": 7,
        "timestamp": 1_700_000_000_000,
        "stamp": {"epoch": 1, "instance": "00000000000000ff", "sequence": 9},
    }


def test_bytes_that_are_not_text_are_base64_in_json() -> None:
    data = record_json(a_record(key=b"\xff", value=None, stamp=None))
    assert data["key_b64"] == "/w=="
    assert "key" not in data
    assert data["value"] is None
    assert data["stamp"] is None


@pytest.mark.parametrize("width", WIDTHS)
def test_a_record_is_one_line_that_fits(width) -> None:
    line = record_line(a_record(key=EVIL.encode(), value=b"v" * 500), max(width, 60))
    assert "\x1b" not in line
    assert "\n" not in line
    assert len(line) <= max(width, 60)


def test_gaps_and_skipped_records_are_told() -> None:
    tally = LineageTally(delivered=3, gaps=[Gap(0, PARENT, 5, 9, GapReason.EXPIRED)])
    tally.skipped[SkipReason.STRAY] = 2
    text = "\n".join(tally_lines(tally))
    assert "offsets 5 to 8 of orders/3 cannot be read (expired)" in text
    assert "3 records; skipped: 2 strays" in text


def test_the_json_of_a_status_has_places_and_ends() -> None:
    (data,) = json.loads(json.dumps(statuses_json([a_status()])))["partitions"]
    assert data["phase"] == "fenced"
    assert data["attempt"]["id"] == "n"
    assert data["ranges"][0]["log_end"] == 1234
    assert data["writers"][0]["instance"] == "0000000000000007"


def test_a_partition_that_was_never_split_is_drawn_too() -> None:
    assert "parent" in drawn(lambda console: show_lineage(UNSPLIT, console), 80)


def test_each_step_is_a_line_with_its_time() -> None:
    file = io.StringIO()
    with StepProgress(Console(file=file, width=100)) as progress:
        progress(StepDone("Commit", 0.0123))
        progress(StepDone("AppendMarkers", 2.0, EVIL))
    lines = file.getvalue().splitlines()
    assert "committed: new layout in force" in lines[0]
    assert "12 ms" in lines[0]
    assert "\x1b" not in lines[1]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_merge_plan_shows_what_groups_drain_first_and_how_long_that_takes(width) -> None:
    text = drawn(lambda console: show_plan(a_merge_plan(), console), width)
    assert "70,000" in text and "not moving" in text
    assert "1,200" in text and "1 min 35 s" in text
    assert "and 12 more" in text and "g19" not in text


def test_a_brief_plan_only_counts_the_checks_that_passed() -> None:
    text = drawn(lambda console: show_plan(a_plan(), console, brief=True), 80)
    assert "1 check passed" in text
    assert "orders is enrolled" not in text
    assert "→ set it to 2" in text


def test_a_terminal_that_is_gone_does_not_stop_an_operation_half_way() -> None:
    class Gone(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(5, "Input/output error")

    with StepProgress(Console(file=Gone(), width=80)) as progress:
        progress(StepDone("Fence", 0.1))


@pytest.mark.parametrize("width", WIDTHS)
def test_the_places_and_numbers_of_a_groups_progress_are_never_broken(width) -> None:
    state = life().merged
    left = tuple(SegmentLeft(s, 1_234_567, 98_765_432, True) for s in state.lineage.segments[:4])
    owner = Owner(member="m-1", client_id="rdkafka", host="127.0.0.1")
    nothing = RangeProgress(WHOLE, Basis.NOTHING, ())
    ranges = (RangeProgress(WHOLE, Basis.RANGE_COMMIT, left, owner), nothing)
    text = drawn(
        lambda console: show_progress([PartitionProgress(state, ranges, "in rebalance")], console), width
    )
    words = [word.rstrip(",") for word in text.split()]
    assert {"1234567", "98,765,432", *(str(s.segment.source) for s in left)} <= {*words}
    assert str(WHOLE) in words
    assert "group in rebalance" in " ".join(words)
    overview = drawn(
        lambda console: console.print(draw_groups({"g": [PartitionProgress(state, ranges, "in rebalance")]})),
        80,
    )
    assert f"{state.parent} in rebalance" in " ".join(overview.split())


def test_a_sentence_about_what_is_kept_is_not_cut_and_nothing_is_in_a_file() -> None:
    def lines(terminal: bool) -> list[str]:
        file = io.StringIO()
        console = Console(file=file, width=60, force_terminal=terminal, color_system=None)
        progress = StepProgress(console)
        progress(StepDone("Keep", 0.0, f"orders.split-3-1: {'group g stands at 1; ' * 6}"))
        progress(StepDone("Commit", 0.0, "x" * 200))
        return file.getvalue().splitlines()

    (kept, cut), (_, whole) = lines(terminal=True), lines(terminal=False)
    assert kept.startswith("! kept") and kept.count("stands at 1") == 6
    assert cut.startswith("✓") and len(cut) == 60
    assert whole.endswith("x" * 200)


def test_every_step_of_an_operation_has_words_of_its_own() -> None:
    named = {name for path in SOURCES for name in STEP.findall(path.read_text("utf-8"))}
    assert {"Slots", "Settle", "Retire", "Claim"} <= named
    assert all(step_line(StepDone(name, 0.0)).plain[2:].split()[0] != name for name in named)


def test_a_plan_without_records_to_go_by_says_so_also_in_brief() -> None:
    note = even_sizing(0).reason
    check = Check("useful", True, note, forceable=True)
    plan = replace(a_plan(), note=note, checks=(check,))
    assert "no records yet" in drawn(lambda console: show_plan(plan, console, brief=True), 80)


def even_sizing(samples: int) -> Sizing:
    """Return the sizing of two even ranges, after so many samples of one key."""
    return assess([(7, 1)] * samples, WHOLE.split_evenly(2))


def test_a_watch_keeps_what_it_saw_last_until_an_error_that_does_not_pass_by_itself() -> None:
    answers: list[Found | KpsplitError] = [
        ([], None),
        UnreachableError("no broker of b:1 answered, password hunter22"),
        ([], None),
        AuthorizationError("could not look"),
    ]

    def look() -> Found:
        match answers.pop(0):
            case KpsplitError() as error:
                raise error
            case found:
                return found

    watch = StatusWatch(Call(Given(properties={"sasl.password": "hunter22"})), look)
    assert watch.look() and not watch.trouble
    assert not watch.look() and watch.found == ([], None)
    shown = drawn(lambda console: console.print(watch), 200)
    assert "no broker of b:1 answered, password [redacted]; check the brokers" in shown
    assert "nothing new for" in shown
    assert watch.look() and not watch.trouble
    with pytest.raises(AuthorizationError):
        watch.look()


@pytest.mark.parametrize(
    ("partition", "said"),
    [(None, "(by consistent_random)"), (PARENT.partition, "(named by --partition)")],
)
def test_a_partition_that_was_named_is_not_said_to_be_the_partitioners_choice(
    monkeypatch, partition, said
) -> None:
    enrolment = SimpleNamespace(partitioner=Partitioner.CONSISTENT_RANDOM)
    brokers = SimpleNamespace(view=lambda: SimpleNamespace(enrolments={PARENT.topic: enrolment}))
    shown: list[tuple[dict[str, object], Callable[[Console], None]]] = []
    call: Any = SimpleNamespace(
        operations=lambda: nullcontext(brokers), connection=None, show=lambda *both: shown.append(both)
    )
    partitions = SimpleNamespace(partition_count=lambda _: PARENT.partition + 1)
    monkeypatch.setattr(route, "ClusterAdmin", lambda _: partitions)
    monkeypatch.setattr(route, "find_state", lambda *_: UNSPLIT)
    unwrap(route.command.callback)(call, PARENT.topic, "customer-7", None, None, partition)
    ((data, draw),) = shown
    assert (data["partitioner"], data["partition_named"]) == ("consistent_random", partition is not None)
    assert f"{PARENT} {said}" in drawn(draw, 80)
