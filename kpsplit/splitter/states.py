"""The life of a logical partition: ONE transition table (design, sections 7 and 8).

Theory of operation. Between operations a partition is STEADY. An operation (split or merge; both close some
segments and open others) writes its intent and is PREPARING: everything slow happens there, writers run. Then
it is FENCED: producers hold records of the affected segments, resolve what is in flight and acknowledge; the
operator appends its markers (the cut). COMMIT is the commit point: before it an operation can only be rolled
back (ABORT), after it only go forward. A COMMITTED operation still has to seal emptied sub-topics in the
broker; FINISH ends it. If a log turns out to be truncated the partition is FROZEN: writers run on, but no
operation is done until a human decides (THAW).

A pair that is not in the table is illegal. The picture in docs/protocol.md is generated from this table.
"""

from __future__ import annotations

from enum import StrEnum

from kpsplit.errors import InvariantError


class Phase(StrEnum):
    """Where a logical partition stands."""

    STEADY = "steady"
    PREPARING = "preparing"
    FENCED = "fenced"
    COMMITTED = "committed"
    FROZEN = "frozen"


class EventKind(StrEnum):
    """What the holder of the operation can record."""

    PREPARE = "prepare"
    FENCE = "fence"
    COMMIT = "commit"
    ABORT = "abort"
    FINISH = "finish"
    RETIRE = "retire"
    FREEZE = "freeze"
    THAW = "thaw"


TRANSITIONS: dict[tuple[Phase, EventKind], Phase] = {
    (Phase.STEADY, EventKind.PREPARE): Phase.PREPARING,
    (Phase.PREPARING, EventKind.FENCE): Phase.FENCED,
    (Phase.FENCED, EventKind.COMMIT): Phase.COMMITTED,
    (Phase.COMMITTED, EventKind.FINISH): Phase.STEADY,
    (Phase.PREPARING, EventKind.ABORT): Phase.STEADY,
    (Phase.FENCED, EventKind.ABORT): Phase.STEADY,
    (Phase.STEADY, EventKind.RETIRE): Phase.STEADY,
    (Phase.STEADY, EventKind.FREEZE): Phase.FROZEN,
    (Phase.COMMITTED, EventKind.FREEZE): Phase.FROZEN,
    (Phase.FROZEN, EventKind.THAW): Phase.STEADY,
}


def next_phase(phase: Phase, event: EventKind) -> Phase:
    """Return the phase after an event.

    Raises:
        InvariantError: the table has no such transition.
    """
    try:
        return TRANSITIONS[phase, event]
    except KeyError:
        raise InvariantError(f"{event} is illegal while the partition is {phase}") from None
