"""What a claim acts on, over a log in memory that is read from a leader which may be none any more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kpsplit.errors import DeadlineExceededError, UnknownOutcomeError, UnreachableError
from kpsplit.splitter.claimed_log import ClaimedLog, ClaimQueue
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.partition_state import Event, PartitionState, Phase
from kpsplit.splitter.records.control import Claim
from tests.unit.samples import UNSPLIT, committed, fenced, split_attempt

SPLIT = split_attempt(UNSPLIT, 0, WHOLE.split_evenly(2))
FENCED = fenced(UNSPLIT, SPLIT)
COMMITTED = committed(UNSPLIT, SPLIT, {0: 100})


class Deposed(ClaimedLog):
    """``log``: what is written. A leader that was frozen still says that it ends at ``old_end``."""

    def __init__(self, log: list[PartitionState | Claim], old_end: int) -> None:
        super().__init__(ClaimQueue("claimer"))
        self.log, self.old_end, self.taken = log, old_end, 0
        self._read = 0

    def peek(self, deadline: Any) -> PartitionState:
        self._read = max(self._read, self.old_end)
        return self.seen()

    def _announced(self, deadline: Any) -> Sequence[Claim]:
        return [record for record in self.log if isinstance(record, Claim)]

    def _announce(self, claim: Claim, deadline: Any) -> int:
        self.log.append(claim)
        return len(self.log)

    def _wait(self, seconds: float, deadline: Any) -> None:
        raise DeadlineExceededError("nobody else claims")

    def _now(self) -> float:
        return 0.0

    def _take(self, deadline: Any) -> None:
        self.taken += 1

    def _read_decided(self, end: int, deadline: Any) -> None:
        self._read = max(self._read, end)

    def _read_back(self, end: int, event: Event, deadline: Any) -> None:
        self._read_decided(end, deadline)

    def _write(self, after: PartitionState, event: Event, deadline: Any) -> int:
        self.log.append(after)
        return len(self.log) - 1

    def seen(self) -> PartitionState:
        states = [record for record in self.log[: self._read] if isinstance(record, PartitionState)]
        return states[-1]


def test_a_leader_that_was_deposed_while_it_was_frozen_hides_no_commit_from_a_claim() -> None:
    log = Deposed([UNSPLIT, FENCED, COMMITTED], old_end=2)
    assert log.peek(None).phase is Phase.FENCED
    assert log.claim(None) == COMMITTED
    assert log.taken == 1


def test_where_the_state_is_not_to_be_claimed_nobody_is_fenced() -> None:
    log = Deposed([UNSPLIT, FENCED], old_end=2)
    assert log.claim(None, lambda now: now.phase is Phase.STEADY) == FENCED
    assert (log.taken, len(log.log)) == (0, 2), "nothing was announced either"


@pytest.mark.parametrize("announced", [False, True], ids=["its-turn", "its-mark"])
def test_a_claim_whose_record_is_not_acknowledged_has_changed_nothing(announced: bool) -> None:
    """Whether the announcement is written decides nothing of the operation."""

    class Unacknowledged(Deposed):
        def _announce(self, claim: Claim, deadline: Any) -> int:
            raise UnknownOutcomeError("could not write to the log: no acknowledgement (outcome unknown)")

    claim = [Claim("claimer", UNSPLIT.revision, 1)]
    log = Unacknowledged([UNSPLIT, *(claim if announced else [])], old_end=1)
    with pytest.raises(UnreachableError) as caught:
        log.claim(None)
    assert (log.taken, caught.value.changed, caught.value.retriable) == (announced, False, True)
    assert "outcome unknown" not in str(caught.value)
