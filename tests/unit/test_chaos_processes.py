"""What the processes of a chaos run leave behind, and how the operator's news become operations."""

from __future__ import annotations

import json
from pathlib import Path

from kpsplit.demo.records import JournalWriter, read_journal
from kpsplit.testing import SendOutcome
from tests.fault.chaos.member import beside, losses_of
from tests.fault.chaos.processes import OperatorEndpoint, OperatorNews
from tests.fault.chaos.verdict import Ending, Operation


class Heard(OperatorEndpoint):
    """An operator without a process: only its news."""

    def __init__(self, operations: list[Operation]) -> None:
        self.found = False
        self.notes = []
        self.news = OperatorNews()
        self._operations = operations
        self._mine = None

    def say(self, event: str, **what: object) -> None:
        self.heard(json.dumps({"event": event, **what}))


def test_sends_are_in_the_journal_of_a_writer_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "writer"
    with JournalWriter(path) as journal:
        journal.sent(0, b"key", 1, 5.0)
        journal.flush()
        journal.reported(0, True, 1, 7, 6.0)  # not written out before the kill
        (entry,) = read_journal(path)
    assert (entry.key, entry.outcome) == (b"key", SendOutcome.UNKNOWN)


def test_every_loss_of_slots_is_read_back(tmp_path: Path) -> None:
    journal = tmp_path / "member"
    assert losses_of(journal) == []
    beside(journal, "lost").write_text("1.5\n2.5\n")
    assert losses_of(journal) == [1.5, 2.5]


def test_an_operation_that_its_operator_ends_went_on_or_was_rolled_back() -> None:
    operations: list[Operation] = []
    operator = Heard(operations)
    operator.say("begin", verb="split", partition=0, epoch=4)
    operator.say("step", name="Fence")
    assert operator.current is operations[0]
    assert operations[0].last_step == "Fence"
    operator.say("end", how="done", epoch=5)
    operator.say("begin", verb="merge", partition=0, epoch=5)
    operator.say("end", how="DeadlineExceededError: too long", epoch=5)
    assert [o.ending for o in operations] == [Ending.WENT_ON, Ending.ROLLED_BACK]
    assert operator.notes == ["merge: DeadlineExceededError: too long"]


def test_the_next_operator_finds_out_how_the_operations_of_a_dead_one_ended() -> None:
    operations: list[Operation] = []
    dead = Heard(operations)
    dead.say("begin", verb="split", partition=0, epoch=4)
    dead.say("end", how="done", epoch=5)
    dead.say("begin", verb="split", partition=1, epoch=7)
    Heard(operations).say("found", epochs={"0": 5, "1": 8})
    assert [o.ending for o in operations] == [Ending.WENT_ON, Ending.ROLLED_FORWARD]
