"""The last word over a run: everything is looked at anew, by the public history checker."""

from __future__ import annotations

from collections.abc import Iterator

from kpsplit.splitter.reading import Deliver, classify
from kpsplit.testing.history import Delivery, HistoryChecker, HistoryReport, Send, SendOutcome
from kpsplit.testing.readings import RawRecord, ReadingChecker
from tests.sim.logs import PARENT
from tests.sim.oracle import Sent, ViolationError
from tests.sim.world import FOREIGN, World


def judge(world: World) -> HistoryReport:
    """Check all sends against what a reader finds who goes through the logs along the lineage, once at rest.

    Raises:
        ViolationError: the history checker found something.
    """
    checker = HistoryChecker([world.control.truth.lineage], {FOREIGN}, examples=3)
    for sent in world.oracle.sends.values():
        checker.sent(_send(sent, given_up=sent.id in world.oracle.given_up))
    for delivery in _deliveries(world):
        checker.delivered(delivery)
    report = checker.report()
    if not report.clean:
        raise ViolationError(f"HISTORY: {report}")
    _judge_readings(world)
    return report


def _judge_readings(world: World) -> None:
    """Check what each member was given, unless records have gone that it may have been given or not."""
    logs = world.brokers.logs.values()
    if any(log.start or log.source.topic not in world.brokers.topics for log in logs):
        return
    checker = ReadingChecker([world.control.truth], examples=3)
    for log in logs:
        for e in log.entries:
            checker.raw(RawRecord(e.source, e.offset, e.id, e.key, e.stamp, e.marker))
    for reader, (slot, given) in world.oracle.readers.items():
        checker.began(reader, PARENT, [slot.range])
        for at in given:
            e = at.entry
            checker.read(reader, Delivery(PARENT, at.logical, at.segment, e.key, e.id, e.source, e.offset))
    report = checker.report()
    if not report.clean:
        raise ViolationError(f"READINGS: {report}")


def _send(sent: Sent, *, given_up: bool) -> Send:
    """Return a send. The client gave up a record whose application died before it was told: it failed."""
    place = (PARENT, sent.offset) if sent.offset is not None else None
    outcome = sent.outcome or (SendOutcome.FAILED if given_up else SendOutcome.UNKNOWN)
    return Send(sent.producer, PARENT, sent.key, sent.id, sent.number, outcome, sent.logical, place)


def _deliveries(world: World) -> Iterator[Delivery]:
    state = world.control.truth
    for segment in state.lineage:
        for entry in world.brokers.logs[segment.source].entries:
            if not segment.holds(entry.offset):
                continue
            verdict = classify(state, entry.source, entry.offset, entry.stamp, entry.marker, refreshed=True)
            if isinstance(verdict, Deliver):
                yield Delivery(
                    PARENT,
                    verdict.logical_offset,
                    segment.id,
                    entry.key,
                    entry.id,
                    entry.source,
                    entry.offset,
                )
