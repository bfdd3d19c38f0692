"""Rolling back an operation whose operator died in the fence (design, section 7, step 2).

Any producer that is held up may do it: it claims the operation, which fences the operator if it is only slow,
and rolls back unless the log says that the attempt has ended.
"""

from __future__ import annotations

import logging
import random
import threading

from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import Deadline, monotonic
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import OperationLog
from kpsplit.splitter import steps
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import EndedBy
from kpsplit.splitter.states import Phase

log = logging.getLogger(__name__)

GRACE_SECONDS = 1.0
"""An operator aborts by itself at max-pause; only one that is gone needs this much longer."""
SPREAD_SECONDS = 1.5
"""Producers do not all claim at the same moment."""
CLAIM_SECONDS = 60.0
RETRY_SECONDS = 2.0


class Takeover:
    """Watches one fence; ``check`` is called by the library's thread, the claim runs in one of its own."""

    def __init__(self, connection: Connection, parent: PhysicalPartition, attempt_id: str, max_pause: float):
        self.attempt_id = attempt_id
        self._connection = connection
        self._parent = parent
        self._due = monotonic() + max_pause + GRACE_SECONDS + random.uniform(0.0, SPREAD_SECONDS)
        self._thread: threading.Thread | None = None

    def check(self) -> None:
        """Start the claim when it is due."""
        if monotonic() < self._due or (self._thread is not None and self._thread.is_alive()):
            return
        self._thread = threading.Thread(target=self._run, name="kpsplit-takeover", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began = monotonic()
        try:
            roll_back(self._connection, self._parent, self.attempt_id)
        except KpsplitError as error:
            log.warning("could not take over %s: %s", self._parent, error)
        finally:
            # Claims fence each other: producers whose claims are slow must not all go on at the same pace.
            self._due = monotonic() + RETRY_SECONDS + random.uniform(0.0, monotonic() - began)


def roll_back(connection: Connection, parent: PhysicalPartition, attempt_id: str) -> bool:
    """Claim an operation and roll back the attempt if it still holds its fence; tell whether it did.

    Raises:
        KpsplitError: the claim failed; nothing was changed, or somebody else is at it.
    """
    deadline = Deadline(CLAIM_SECONDS)
    operation = OperationLog(connection, parent)
    try:
        state = operation.claim(deadline)
        if state.phase is not Phase.FENCED or state.attempt is None or state.attempt.id != attempt_id:
            return False
        event = steps.settle(state, EndedBy.TAKEOVER, "the operator did not finish within max-pause")
        if event is None:
            return False
        operation.record(state, event, deadline)
        log.warning("rolled back attempt %s on %s: its operator is gone", attempt_id, parent)
        return True
    finally:
        operation.close()
