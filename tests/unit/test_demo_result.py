"""The demo's verdicts, its last line, its summary and its page."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from kpsplit.consumer.fetch.gaps import Gap
from kpsplit.consumer.fetch.lineage_reader import LineageTally, LogicalRecord
from kpsplit.control.status import Report, Spread
from kpsplit.demo.endpoints import WriterNews, WriterStage
from kpsplit.demo.judge import GroupVerdict, ReadBack, ReadBackCheck, SegmentSeen
from kpsplit.demo.page import (
    Rows,
    Scale,
    page,
    powers,
    runs,
    table_lines,
    ticks,
    usual_height,
    write_summary,
)
from kpsplit.demo.records import LINE_HEADER, JournalEntry, Line, value_of
from kpsplit.demo.result import (
    QUESTIONS,
    DemoResult,
    DemoVerdict,
    GroupOutcome,
    PhantomStart,
    failed_line,
    last_line,
    phantom_starts,
    result_json,
)
from kpsplit.demo.scenario import PLAIN_WRITER
from kpsplit.demo.timeline import (
    Latencies,
    OperationTimeline,
    SegmentDrain,
    Series,
    Timeline,
    TimeSpan,
)
from kpsplit.pages import OVERFLOW_COLOUR
from kpsplit.splitter.driver import StepDone
from kpsplit.splitter.lineage import Lineage, SegmentKind
from kpsplit.splitter.reading import ForeignReason, GapReason
from kpsplit.splitter.records.producers import PauseReport
from kpsplit.testing import Anomaly, Delivery, SendOutcome, check_history
from tests.unit.samples import PARENT, life

STATE = life().merged
SPREAD = Spread(3, 10.0, 20.0, 21.0)


def operation(label: str, began: float) -> OperationTimeline:
    outcome = STATE.last
    assert outcome is not None
    pauses = {"a": PauseReport(outcome.attempt.id, 40, 7, 0)}
    steps = [(began, StepDone("Fence", 0.01)), (began + 0.1, StepDone("Commit", 0.02))]
    return OperationTimeline(label, "of orders/3", steps, Report(outcome, STATE, pauses, 1.0))


def a_result() -> DemoResult:
    """A demo that went well, with few records."""
    history = check_history([], [], [STATE.lineage])
    seen = {s.id: SegmentSeen(5, 10 * s.id, 10 * s.id + 4) for s in STATE.lineage}
    back = ReadBack(
        replace(history, sent=5, ok=5, delivered=5, read=5), {PARENT: LineageTally()}, {PARENT: seen}, {}, {}
    )
    places = [str(s) for s in STATE.lineage.sources()]
    drained = SegmentDrain(next(s for s in STATE.lineage if not s.is_open), 101.1, 103.6)
    result = DemoResult(
        timeline=Timeline(
            100.0,
            "orders",
            104.0,
            PARENT,
            [operation("split into 4", 101.0), operation("merge", 103.0)],
            TimeSpan("writer-4 suspended", 100.5, 101.1),
        ),
        news={
            "writer-1": WriterNews(WriterStage.DONE, 5, 5, 0, 0, 2, 1, (40, 50)),
            PLAIN_WRITER: WriterNews(WriterStage.DONE, 1, 1),
        },
        state=STATE,
        back=back,
        group=GroupOutcome(GroupVerdict(5, shares=Counter({"reader-1": 5})), (drained,), None),
        pauses=Spread.of([40, 50]),
        latencies=Latencies(SPREAD, SPREAD, SPREAD, SPREAD),
        control=Latencies(SPREAD, SPREAD, SPREAD, SPREAD),
        longest_waits=(44.0, 55.0),
        held_elsewhere=0,
        catching_up=0.5,
        starts=(PhantomStart(2, "orders.split-3-1/0", 1001, 1000, 1000),),
        throughput=tuple(Series(name, 1.0, (1.0, 2.0, 0.0, 5000.0)) for name in [*places, "orders/<other>"]),
        slowness=(
            Series("affected partition", 1.0, (1.0, None, 300.0, 2.0)),
            Series("other partitions", 1.0, (1.0, 2.0, 3.0, 2.0)),
            Series("other partitions, plain writer", 1.0, (1.0, 2.0, 3.0, 2.0)),
        ),
    )
    return judged(result)


def judged(result: DemoResult) -> DemoResult:
    return replace(result, verdicts=tuple(question(result) for question in QUESTIONS))


def test_the_last_line_of_a_demo_that_went_well() -> None:
    assert last_line(a_result()) == (
        "PASS sent=5 delivered=5 lost=0 duplicated=0 out_of_order=0 strays=0 "
        "pause_p50_ms=40 pause_p99_ms=50 pause_max_ms=50"
    )


def test_the_result_for_programs_has_the_figures_and_every_answer() -> None:
    result = judged(replace(a_result(), starts=(PhantomStart(2, "orders.split-3-1/0", 999, 1000, 1000),)))
    data = result_json(result)
    answers = {verdict["question"]: verdict["ok"] for verdict in data.pop("verdicts")}
    assert [question for question, ok in answers.items() if not ok] == ["logical offsets"]
    assert len(answers) == len(QUESTIONS) and data.pop("passed") is False
    assert " ".join(f"{name}={number}" for name, number in data.items()) in last_line(result)


def failed(result: DemoResult) -> str:
    line = last_line(judged(result))
    assert line.startswith("FAIL sent=") and "\n" not in line
    return line.partition("reason=")[2]


def with_back(**changes: object) -> DemoResult:
    result = a_result()
    return replace(result, back=replace(result.back, **changes))  # type: ignore[arg-type]


def test_any_finding_of_the_history_checker_fails_the_demo() -> None:
    stray = Delivery(PARENT, 0, 0, b"k", "nobody's", PARENT, 0)
    history = check_history([], [stray], [STATE.lineage])
    assert history.count(Anomaly.NEVER_SENT) == 1
    assert failed(with_back(history=history)).startswith("history: never sent: 1")


def test_a_copy_that_the_client_library_wrote_fails_the_demo() -> None:
    history = replace(a_result().back.history, read=6, library_duplicates=1)
    assert failed(with_back(history=history)).endswith("5 read back in 6 deliveries")


def test_a_failed_send_fails_the_demo() -> None:
    history = replace(a_result().back.history, sent=6, failed=1)
    assert failed(with_back(history=history)).startswith(
        "complete: 6 sent, 5 reported as delivered, 1 failed"
    )


def test_a_group_that_left_a_record_out_fails_the_demo() -> None:
    group = replace(a_result().group, verdict=GroupVerdict(5, missing=1))
    assert failed(replace(a_result(), group=group)).startswith("consumer group: 4 of 5 records worked on")


def test_an_altered_value_fails_the_demo() -> None:
    assert failed(with_back(altered=2)) == "content: 2 values differ from what was sent"


@pytest.mark.parametrize("kind", ["foreign", "gap", "malformed"])
def test_a_reader_that_met_anything_odd_fails_the_demo(kind: str) -> None:
    tally = LineageTally()
    if kind == "foreign":
        tally.foreign[ForeignReason.BEHIND_THE_END] += 1
    elif kind == "gap":
        tally.gaps.append(Gap(0, PARENT, 0, 5, GapReason.EXPIRED))
    else:
        tally.malformed_headers += 1
    assert failed(with_back(tallies={PARENT: tally})).startswith("reading: ")


def test_a_phantom_that_begins_at_the_parents_log_end_fails_the_demo() -> None:
    result = replace(a_result(), starts=(PhantomStart(2, "t/0", 1000, 1000, 1000),))
    assert failed(result) == "logical offsets: t/0: 1000 > 1000"


def test_phantoms_are_compared_with_the_parents_end_at_their_ancestors_split() -> None:
    starts = phantom_starts(STATE.lineage, {s.id: s.progression.base for s in STATE.lineage})
    assert {s.segment for s in starts} == {2, 3, 4, 5, 7, 8}
    assert {s.parent_end for s in starts} == {1000}
    assert all(s.ok for s in starts)
    nested = next(s for s in starts if s.segment == 7)
    assert nested.above == STATE.lineage.get(4).logical(10)
    assert not phantom_starts(Lineage.unsplit(PARENT), {})


def test_a_demo_that_did_not_come_to_its_end_fails_in_one_line() -> None:
    assert failed_line("writer-1 was\nkilled\x1b[31m") == "FAIL reason=writer-1 was killed [31m"


def test_the_summary_has_every_table_and_no_line_is_a_result_line() -> None:
    stream = io.StringIO()
    write_summary(a_result(), stream)
    text = stream.getvalue()
    for heading in (
        "Records",
        "Writers",
        "Pauses of",
        "Logical offsets of orders/3",
        "Phantoms begin",
        "Checks",
    ):
        assert f"\n{heading}" in f"\n{text}"
    assert not any(line.startswith(("PASS", "FAIL")) for line in text.splitlines())


def test_tables_are_aligned() -> None:
    rows = Rows("T", ("name", "n"), (("a", "1"), ("bb", "1,000")))
    assert table_lines(rows) == ["T", "  name      n", "  a         1", "  bb    1,000"]


class Outline(HTMLParser):
    """Checks that elements are closed in order, and collects what would load something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [tag for name, _ in attrs if name in ("src", "href", "srcset")]
        if tag in ("script", "link", "iframe", "object"):
            self.loads.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_loads_nothing() -> None:
    text = page(a_result())
    outline = Outline()
    outline.feed(text)
    assert outline.open == []
    assert outline.loads == []
    assert "url(" not in text and "@import" not in text


def test_every_picture_is_a_sound_document() -> None:
    text = page(a_result())
    pictures = [p.partition("</svg>")[0] + "</svg>" for p in text.split("<svg")[1:]]
    assert len(pictures) == 3
    for picture in pictures:
        ElementTree.fromstring("<svg" + picture)
    assert "1: split into 4, fence of 110 ms" in text
    assert "writer-4 suspended, 0.6 s" in text
    overflows = [s for s in STATE.lineage if s.kind is SegmentKind.OVERFLOW]
    assert overflows and text.count(f'fill="{OVERFLOW_COLOUR}"') == len(overflows), "not its partition's"
    assert "orders/&lt;other&gt;" in text and "<other>" not in text


def test_a_figure_is_never_broken_however_wide_the_readers_font_is() -> None:
    style = page(a_result()).partition("<style>")[2].partition("</style>")[0]
    rules = dict(re.findall(r"^(\.cards[^{]*) { ([^}]+) }$", style.replace("\n  ", " "), re.MULTILINE))
    assert "white-space: nowrap" in rules[".cards b"]
    assert "min-width: max-content" in rules[".cards div"] and "flex-wrap: wrap" in rules[".cards"]


def test_the_page_shows_a_failure() -> None:
    result = a_result()
    text = page(replace(result, verdicts=(DemoVerdict("history", False, "lost: 1"),)))
    assert 'section class="found"' in text
    assert "FAIL sent=5" in text


def test_scales_map_data_to_the_picture() -> None:
    scale = Scale(0, 10, 100, 0)
    assert (scale(0), scale(5), scale(10)) == (100, 50, 0)
    assert Scale(3, 3, 7, 9)(3) == 7
    log = Scale(1, 1000, 0, 300, log=True)
    assert (log(0), log(1), log(10), log(1000)) == (0, 0, 100, 300)


@pytest.mark.parametrize("high", [0, 0.3, 1, 7, 40, 999, 5500, 123456])
def test_ticks_are_few_round_and_reach_the_top(high: float) -> None:
    marks = ticks(high, 6)
    assert marks[0] == 0 and marks[-1] >= high and 2 <= len(marks) <= 7


def test_powers_reach_the_top() -> None:
    assert powers(0) == [1, 10]
    assert powers(1001) == [1, 10, 100, 1000, 10000]


def test_gaps_divide_a_line_into_runs() -> None:
    assert runs([None, 1.0, 2.0, None, 3.0]) == [(1, [1.0, 2.0]), (4, [3.0])]
    assert runs([]) == []


def test_one_burst_does_not_dwarf_the_rest() -> None:
    assert usual_height([10.0] * 99 + [1000.0]) == pytest.approx(13.5)
    assert usual_height([10.0, 11.0]) == 11.0
    assert usual_height([]) == 0.0


def record(offset: int, key: bytes | None, value: bytes, line: int | None = None) -> LogicalRecord:
    headers = () if line is None else ((LINE_HEADER, b"%d" % line),)
    return LogicalRecord(offset, 0, 0, key, value, headers, PARENT.topic, PARENT.partition, offset, 1, None)


def entry(sequence: int, key: bytes | None, offset: int | None) -> JournalEntry:
    outcome = SendOutcome.UNKNOWN if offset is None else SendOutcome.OK
    return JournalEntry(sequence, key, PARENT.partition, 1.0, outcome, PARENT.partition, offset, 2.0)


def test_records_are_matched_with_journals_by_their_values() -> None:
    reading = ReadBackCheck([Lineage.unsplit(PARENT)], ())
    reading.take_journals(PARENT.topic, {"writer-1": [entry(0, b"k", 0)], PLAIN_WRITER: [entry(0, b"k", 1)]})
    found = record(0, b"k", value_of("writer-1", 0)), record(1, b"k", value_of(PLAIN_WRITER, 0))
    reading.take(PARENT, found, LineageTally())
    back = reading.result()
    assert back.history.clean and back.history.delivered == 2 and not back.altered
    assert back.segments[PARENT][0] == SegmentSeen(2, 0, 1)
    assert back.places["writer-1", 0] == PARENT


def test_values_that_are_not_what_was_sent_are_counted() -> None:
    reading = ReadBackCheck([Lineage.unsplit(PARENT)], ())
    reading.take_journals(PARENT.topic, {"writer-1": [entry(0, b"k", 0)]})
    altered = record(0, b"k", value_of("writer-1", 0) + b"!"), record(1, b"k", b"garbage")
    reading.take(PARENT, altered, LineageTally())
    back = reading.result()
    assert back.altered == 2
    assert back.history.count(Anomaly.NEVER_SENT) == 1


def test_lines_are_matched_by_their_numbers_and_compared_byte_by_byte() -> None:
    lines = [Line(0, b"a 0", b"a"), Line(1, b"a 1", b"a")]
    reading = ReadBackCheck([Lineage.unsplit(PARENT)], (), lines)
    reading.take_journals(PARENT.topic, {"writer-2": [entry(0, b"a", 0), entry(1, b"a", 1)]})
    found = record(0, b"a", b"a 0", 0), record(1, b"a", b"a one", 1)
    reading.take(PARENT, found, LineageTally())
    back = reading.result()
    assert back.history.clean and back.altered == 1
