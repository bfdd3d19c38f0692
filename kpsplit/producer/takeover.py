"""Rolling back an operation whose operator died in the fence (docs/protocol.md, 5.3 and step 2 of 7.1).

Any producer that is held up may do it: it claims the operation, which fences the operator if it is only slow,
and rolls back unless the log says that the attempt has ended.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from secrets import token_hex

from kpsplit.clock import Deadline, monotonic
from kpsplit.errors import ConflictError, KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import OperationLog
from kpsplit.splitter.claimed_log import Announce, ClaimQueue, Go, WaitForTurn
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import Abort, EndedBy, PartitionState, Phase
from kpsplit.splitter.records.control import Claim

log = logging.getLogger(__name__)

AHEAD_SECONDS = 10.0
"""So long before max-pause producers settle who takes over, or half of max-pause if that is less.

On slow brokers the announcement takes seconds, and so does opening clients. Both are over when it is due.
Producers do not all announce at the same moment: the first announcement keeps the later ones away.
"""
GRACE_SECONDS = 1.0
"""An operator aborts by itself at max-pause; only one that is gone needs this much longer."""
SPREAD_SECONDS = 1.5
"""Producers do not all go on at the same moment when a turn of another one is over."""
UNSEEN_SECONDS = 5.0
"""How long an announcement is waited for in the view."""
CLAIM_SECONDS = 60.0
RETRY_SECONDS = 2.0


class Takeover:
    """Watches one fence; ``check`` is called by the library's thread, the claim runs in one of its own."""

    def __init__(
        self,
        connection: Connection,
        parent: PhysicalPartition,
        attempt_id: str,
        max_pause: float,
        announce: Callable[[Claim], None],
    ) -> None:
        self.attempt_id = attempt_id
        self._connection = connection
        self._parent = parent
        self._spread = random.uniform(0.0, SPREAD_SECONDS)
        over = monotonic() + max_pause
        self._due = over + GRACE_SECONDS
        ahead = min(AHEAD_SECONDS, max_pause / 2)
        self._next = over - ahead + random.uniform(0.0, ahead / 2)
        self._queue = ClaimQueue(token_hex(8), self._due)
        self._thread: threading.Thread | None = None
        self._announce = announce
        self._announced: Claim | None = None
        self._unseen_until = 0.0
        self._waits = False

    def check(self, view: ControlView) -> None:
        """Start the claim when its turn has come or is reserved."""
        decision = self.look(view)
        if (self._thread is None or not self._thread.is_alive()) and self.begins(decision):
            self._thread = threading.Thread(target=self._run, name="kpsplit-takeover", daemon=True)
            self._thread.start()

    def look(self, view: ControlView) -> Announce | WaitForTurn | Go:
        """Return whose turn it is as far as the view shows, and note it for a claim that is under way.

        A reservation becomes a claim when it is due: the others see that before this one has asked brokers.
        """
        state, now = view.state(self._parent), monotonic()
        revision, announced = 0 if state is None else state.revision, view.claims.get(self._parent, ())
        decision = self._queue.decide(revision, announced, now)
        ours = self._queue.has_turn(revision, announced)
        self._waits = isinstance(decision, WaitForTurn) and not ours
        if self._waits:
            self._next = max(self._next, now + self._spread)
        # A claim fences the operator, so it is announced first: another producer that sees it does not claim.
        if isinstance(decision, Go) and decision.claim not in announced:
            self._announce_once(decision.claim)
        return decision

    def begins(self, decision: Announce | WaitForTurn | Go) -> bool:
        """Return whether to begin the claim now; announce first what is to be announced.

        So only one producer opens clients and asks brokers that may be slow already. It does so as soon as
        the turn is reserved, and waits for the moment. An announcement may stay unseen (another operator's
        open transaction hides it, for example); once the takeover is due, this producer goes on without it.
        """
        now = monotonic()
        if now < self._next:
            return False
        if isinstance(decision, Announce):
            self._announce_once(decision.claim)
            return now >= max(self._unseen_until, self._due)
        return not self._waits

    def _announce_once(self, claim: Claim) -> None:
        if claim != self._announced:
            self._announced, self._unseen_until = claim, monotonic() + UNSEEN_SECONDS
            self._announce(claim)

    def roll_back(self, connection: Connection) -> bool:
        """Roll back, as the function does; give up when the view shows that another producer has the turn."""
        return roll_back(connection, self._parent, self.attempt_id, self._queue, lambda: self._waits)

    def rest(self) -> None:
        """Begin the next try a while after this one."""
        self._next = monotonic() + RETRY_SECONDS

    def _run(self) -> None:
        try:
            self.roll_back(self._connection)
        except ConflictError as error:
            log.info("another producer takes over %s: %s", self._parent, error)
        except KpsplitError as error:
            log.warning("could not take over %s: %s", self._parent, error)
        finally:
            self.rest()


def roll_back(
    connection: Connection,
    parent: PhysicalPartition,
    attempt_id: str,
    queue: ClaimQueue | None = None,
    waits: Callable[[], bool] = lambda: False,
) -> bool:
    """Claim an operation and roll back the attempt if it still holds its fence. Return whether it did.

    Of all producers that want to do this one does, and the others wait; ``queue`` is what an earlier try
    knows of them. ``waits`` returns True when the view shows that another has the turn; this one gives up.

    Raises:
        KpsplitError: the claim failed; nothing was changed, or another operator works on it.
    """
    deadline = Deadline(AHEAD_SECONDS + GRACE_SECONDS + CLAIM_SECONDS)
    operation = OperationLog(connection, parent, queue)
    operation.connect()

    def fit(state: PartitionState) -> bool:
        if waits():
            raise ConflictError(f"{parent}: another operator has the turn to claim it", retriable=True)
        return _holds_its_fence(state, attempt_id)

    try:
        state = operation.claim(deadline, fit)
        if not _holds_its_fence(state, attempt_id):
            return False
        reason = "the operator did not finish within max-pause"
        operation.record(state, Abort(attempt_id, EndedBy.TAKEOVER, reason), deadline)
        log.warning("rolled back attempt %s on %s: its operator is gone", attempt_id, parent)
        return True
    finally:
        operation.close()


def _holds_its_fence(state: PartitionState, attempt_id: str) -> bool:
    return state.phase is Phase.FENCED and state.attempt is not None and state.attempt.id == attempt_id
