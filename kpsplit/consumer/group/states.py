"""The life of a group member: ONE transition table (protocol, section 10).

Theory of operation. A consumer begins UNSUBSCRIBED. With a subscription it joins its group and waits in
PREPARING_REBALANCE for the coordinator. Slots that arrive are looked up in the offset log and the application
is told (ASSIGNING_PARTITIONS); then the member is STABLE. Slots that are taken away again pass through
three states: their records are withheld and what is being worked on is finished (PREPARE_REVOCATION), the
application's callback runs in the application's thread (REVOKING_PARTITION), what was processed is
committed and the slots are let go (PARTITION_REVOKED). Then the rebalance goes on (PREPARING_REBALANCE):
more slots may arrive, or the member is STABLE with what it kept. Slots that stay are read and served all
the time.

A member that was suspended, or that the group gave up, finds its slots LOST: nothing of them is committed,
the application is told, and the member joins again. A member whose application stops polling, or whose
revocation takes too long under a policy that leaves, gives its slots up in the same way and stays
UNSUBSCRIBED until the application polls. ``close()`` is legal in every state: CLOSING hands everything over
in the same order, then CLOSED.

With partitions assigned by hand there is no group: UNSUBSCRIBED goes straight to ASSIGNING_PARTITIONS.

A pair that is not in the table is illegal.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from kpsplit.errors import InvariantError


class State(StrEnum):
    """Where a member stands."""

    UNSUBSCRIBED = "unsubscribed"
    PREPARING_REBALANCE = "preparing_rebalance"
    ASSIGNING_PARTITIONS = "assigning_partitions"
    STABLE = "stable"
    PREPARE_REVOCATION = "prepare_revocation"
    REVOKING_PARTITION = "revoking_partition"
    PARTITION_REVOKED = "partition_revoked"
    LOST = "lost"
    CLOSING = "closing"
    CLOSED = "closed"


class Event(StrEnum):
    """What happens to a member."""

    JOIN = "join"
    """It has a subscription: the group consumer subscribes."""
    ASSIGN = "assign"
    """Slots arrive, or none (a rebalance that gave nothing)."""
    START = "start"
    """Every slot that arrived has its cursor, and the application was told."""
    REVOKE = "revoke"
    """Slots are taken away."""
    RELEASE = "release"
    """Nothing of them is being worked on any more, or the time for that is over."""
    ANSWER = "answer"
    """The application's callback has returned, or raised, or there is none."""
    HAND_OVER = "hand_over"
    """What was processed is committed, or was refused, and the slots are let go."""
    SETTLE = "settle"
    """The rebalance took only some slots: the member goes on with the others."""
    LOSE = "lose"
    """The slots are not the member's any more: fenced, given up, or too late."""
    FORGET = "forget"
    """Lost slots were dropped and the application told; the member joins again."""
    LEAVE = "leave"
    """The subscription is given up, for good or until the application polls again."""
    CLOSE = "close"
    """The application closes the consumer."""
    END = "end"
    """Everything was handed over, the clients are closed."""


_S, _E = State, Event

_HOLDING = (
    _S.PREPARING_REBALANCE,
    _S.ASSIGNING_PARTITIONS,
    _S.STABLE,
    _S.PREPARE_REVOCATION,
    _S.REVOKING_PARTITION,
    _S.PARTITION_REVOKED,
)

TRANSITIONS: dict[tuple[State, Event], State] = {
    (_S.UNSUBSCRIBED, _E.JOIN): _S.PREPARING_REBALANCE,
    (_S.UNSUBSCRIBED, _E.ASSIGN): _S.ASSIGNING_PARTITIONS,
    (_S.PREPARING_REBALANCE, _E.ASSIGN): _S.ASSIGNING_PARTITIONS,
    (_S.STABLE, _E.ASSIGN): _S.ASSIGNING_PARTITIONS,
    (_S.ASSIGNING_PARTITIONS, _E.ASSIGN): _S.ASSIGNING_PARTITIONS,
    (_S.ASSIGNING_PARTITIONS, _E.START): _S.STABLE,
    (_S.STABLE, _E.REVOKE): _S.PREPARE_REVOCATION,
    (_S.ASSIGNING_PARTITIONS, _E.REVOKE): _S.PREPARE_REVOCATION,
    (_S.PREPARING_REBALANCE, _E.REVOKE): _S.PREPARE_REVOCATION,
    (_S.PREPARE_REVOCATION, _E.RELEASE): _S.REVOKING_PARTITION,
    (_S.REVOKING_PARTITION, _E.ANSWER): _S.PARTITION_REVOKED,
    (_S.PARTITION_REVOKED, _E.HAND_OVER): _S.PREPARING_REBALANCE,
    (_S.PREPARING_REBALANCE, _E.SETTLE): _S.STABLE,
    **{(state, _E.LOSE): _S.LOST for state in _HOLDING},
    (_S.LOST, _E.FORGET): _S.PREPARING_REBALANCE,
    (_S.PREPARING_REBALANCE, _E.LEAVE): _S.UNSUBSCRIBED,
    (_S.STABLE, _E.LEAVE): _S.UNSUBSCRIBED,
    (_S.LOST, _E.LEAVE): _S.UNSUBSCRIBED,
    (_S.UNSUBSCRIBED, _E.CLOSE): _S.CLOSING,
    (_S.LOST, _E.CLOSE): _S.CLOSING,
    **{(state, _E.CLOSE): _S.CLOSING for state in _HOLDING},
    (_S.CLOSING, _E.END): _S.CLOSED,
}


def next_state(state: State, event: Event) -> State:
    """Return the state after an event.

    Raises:
        InvariantError: the table has no such transition.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise InvariantError(f"{event} is illegal while the consumer is {state}") from None


class Life:
    """A member's state, and how often it went along each edge of the table. Written by the engine only."""

    def __init__(self) -> None:
        self.state = State.UNSUBSCRIBED
        self.edges: Counter[tuple[State, Event]] = Counter()

    def on(self, event: Event) -> State:
        """Go along an edge; return the new state.

        Raises:
            InvariantError: the table has no such transition; the state stays as it is.
        """
        after = next_state(self.state, event)
        self.edges[self.state, event] += 1
        self.state = after
        return after
