"""Keys, names and reasons may hold anything: what is printed controls no terminal and is no markup."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner
from rich.console import Console

from kpsplit.admin_cli import call as calls
from kpsplit.admin_cli.call import Call
from kpsplit.admin_cli.commands import verify
from kpsplit.admin_cli.commands.read import record_json, record_line
from kpsplit.admin_cli.failures import line_of
from kpsplit.admin_cli.main import cli
from kpsplit.admin_cli.render.plan import show_outcome, show_plan, show_report
from kpsplit.admin_cli.render.status import progress_json, show_progress, show_seek
from kpsplit.consumer.fetch.lineage_reader import LogicalRecord
from kpsplit.control.plans import Check as PlanCheck
from kpsplit.control.plans import Drain, HotKey
from kpsplit.control.seeking import Seek, SeekTarget, Whence
from kpsplit.control.status import Basis, PartitionProgress, RangeProgress, Report
from kpsplit.demo.page import page
from kpsplit.demo.result import DemoVerdict, failed_line
from kpsplit.errors import KpsplitError
from kpsplit.kafka.groups import Owner
from kpsplit.spark_jobs.report import Times, report_page
from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.spark_jobs.verification.findings import Finding, Severity, Verdict
from kpsplit.spark_jobs.verification.verifier import MEANINGS, VerifyCheck
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.partition_state import EndedBy, Outcome, Result
from kpsplit.splitter.reading import Cursor
from kpsplit.splitter.records.producers import PauseReport
from tests.unit.samples import PARENT, life, split_attempt
from tests.unit.test_demo_result import a_result
from tests.unit.test_kafka_plans import PLAN

TERMINAL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\x08\x7f\u202e\u2066\u200f\ufeff\u2028\ue000\U000e0041"
MARKUP = "</td></title><script>alert(1)</script>'\"&amp;[red]"
EVIL = f"a{TERMINAL}{MARKUP}z"
STATE = life().merged
DANGEROUS = (*TERMINAL.translate({ord(c): None for c in "]0;owned[2J31m"}),)


def check_shown(text: str) -> None:
    """Fail if a character of this text could control a terminal."""
    assert "owned" in text
    for line in text.split("\n"):
        assert not set(line) & set(DANGEROUS), ascii(line)


def drawn(draw: Callable[[Console], None]) -> str:
    """What is printed on a wide terminal without colours."""
    file = io.StringIO()
    draw(Console(file=file, width=300, force_terminal=False, markup=False, highlight=False, emoji=False))
    return file.getvalue()


def a_verdict() -> Verdict:
    """A verification whose every text is bad."""
    finding = Finding(
        *(Severity.FINDING, PARENT, f"group {EVIL} goes on"),
        group=EVIL,
        check=VerifyCheck.COMMITS_LEAVE_NO_GAP,
    )
    return Verdict(
        topic="orders",
        partitions=(3,),
        snapshot=Snapshot("orders", (replace(STATE, frozen_reason=EVIL),), {}),
        findings=(finding,),
        unjudged=(f"orders/3: it is frozen: {EVIL}",),
        groups=(EVIL,),
        checks=MEANINGS,
    )


def a_progress() -> PartitionProgress:
    """A group whose member has a bad name."""
    owner = Owner(member=EVIL, client_id=EVIL, host=EVIL)
    return PartitionProgress(STATE, (RangeProgress(WHOLE, Basis.NOTHING, (), owner),), "stable")


BAD_PLAN = replace(
    PLAN,
    heaviest=(HotKey(7, 0.6, EVIL),),
    checks=(PlanCheck(EVIL, False, EVIL, EVIL),),
    drains=(Drain(EVIL, 7),),
    note=EVIL,
)
OUTCOME = Outcome(
    split_attempt(life().split, 4, WHOLE.split_evenly(2)), Result.ROLLED_BACK, EndedBy.REQUEST, EVIL
)
A_RECORD = LogicalRecord(
    logical_offset=1, segment=0, epoch=0, key=TERMINAL.encode(), value=EVIL.encode(), headers=(),
    source_topic="orders", source_partition=3, source_offset=1, timestamp=None, stamp=None,
)  # fmt: skip


@pytest.mark.parametrize(
    "draw",
    [
        lambda console: verify._show(a_verdict(), console),
        lambda console: show_progress([a_progress()], console),
        lambda console: show_seek(
            Seek(EVIL, STATE, SeekTarget(Whence.LATEST), Cursor(WHOLE, {9: 7000})), console
        ),
        lambda console: show_plan(BAD_PLAN, console),
        lambda console: show_outcome(OUTCOME, STATE, console),
        lambda console: show_report(Report(OUTCOME, STATE, {EVIL: PauseReport("a", 1, 2, 3)}, 1.0), console),
        lambda console: console.print(record_line(A_RECORD, 200)),
    ],
    ids=["verify", "offsets", "seek", "plan", "outcome", "report", "read"],
)
def test_nothing_that_is_shown_controls_a_terminal(draw: Callable[[Console], None]) -> None:
    check_shown(drawn(draw))


@pytest.mark.parametrize(
    "data",
    [a_verdict().json(), progress_json(EVIL, [a_progress()]), record_json(A_RECORD)],
    ids=["verify", "offsets", "read"],
)
def test_json_keeps_every_character_as_an_escape(data: object, capsys: pytest.CaptureFixture[str]) -> None:
    calls.print_json(data)
    printed = capsys.readouterr().out
    check_shown(printed)
    assert printed.isascii()
    assert json.loads(printed) == data


@pytest.mark.parametrize("error", [KpsplitError(EVIL, hint=EVIL), OSError(2, EVIL, EVIL), ValueError(EVIL)])
def test_an_error_controls_no_terminal_whoever_wrote_it(error: Exception) -> None:
    line = line_of(error, "split")
    check_shown(line)
    assert "\n" not in line


def test_the_last_line_of_the_demo_controls_no_terminal() -> None:
    check_shown(failed_line(EVIL))


def test_a_question_names_a_group_safely(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Admin:
        def __enter__(self) -> Admin:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def plan_seek(self, group: str, *_: object, **__: object) -> Seek:
            return Seek(group, STATE, SeekTarget(Whence.LATEST), Cursor(WHOLE, {9: 7000}))

        def seek(self, _: Seek) -> None:
            return None

    monkeypatch.setattr(Call, "operations", lambda _: Admin())
    monkeypatch.setattr(Call, "confirm", lambda _self, question, _yes: asked.append(question))
    result = CliRunner().invoke(cli, ["seek", "orders/3", "--group", EVIL, "--to", "latest", "-b", "x:1"])
    assert result.exit_code == 0, result.stderr
    for text in (*asked, result.stdout, result.stderr):
        check_shown(text)


class Tags(HTMLParser):
    """The names of all elements of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        assert not any(name.startswith("on") for name, _ in attrs)
        self.found.append(tag)


def a_bad_demo() -> str:
    """The page of a demo that went wrong with a bad reason."""
    return page(replace(a_result(), verdicts=(DemoVerdict(EVIL, False, EVIL),)))


@pytest.mark.parametrize(
    "make", [lambda: report_page(a_verdict(), Times(0, cluster=EVIL)), a_bad_demo], ids=["verify", "demo"]
)
def test_markup_in_a_name_is_text_in_a_page(make: Callable[[], str]) -> None:
    html = make()
    tags = Tags()
    tags.feed(html)
    assert "script" not in tags.found
    assert tags.found.count("title") == html.count("<title>")
    assert "&lt;script&gt;alert(1)" in html
