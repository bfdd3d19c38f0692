"""A retirement that is broken off: what its error says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from kpsplit.errors import DeadlineExceededError
from kpsplit.kafka.clock import Deadline
from kpsplit.kafka.retirement import Retirement
from kpsplit.splitter.events import Event
from kpsplit.splitter.partition_state import PartitionState, SubTopic, SubTopicState
from tests.unit.samples import UNSPLIT

NAMES = ("orders.split-3-1", "orders.split-3-2")
LEFT = replace(
    UNSPLIT, subtopics=tuple(SubTopic(name, i, 2, SubTopicState.ABANDONED) for i, name in enumerate(NAMES, 1))
)


@dataclass
class Runner:
    """Records what is retired, so many times; then the time is over."""

    times: int
    retired: list[Event] = field(default_factory=list)

    def peek(self, _deadline: Any) -> PartitionState:
        return LEFT

    def claim(self, _deadline: Any) -> PartitionState:
        return LEFT

    def record(self, state: PartitionState, event: Event, _deadline: Any) -> PartitionState:
        if len(self.retired) == self.times:
            raise DeadlineExceededError("no time left")
        self.retired.append(event)
        return state


class Admin:
    """Knows no sub-topic any more."""

    def known(self, _name: str) -> None:
        return None


def test_retired_subtopics_stay_retired_when_the_next_one_fails() -> None:
    runner = Runner(times=1)
    retirement = Retirement(cast(Any, None), cast(Any, Admin()), cast(Any, runner), lambda _: None)
    with pytest.raises(DeadlineExceededError) as caught:
        retirement.run(force=False, deadline=Deadline(10))
    assert len(runner.retired) == 1
    assert caught.value.changed is True


def test_all_that_is_left_over_is_retired() -> None:
    runner = Runner(times=2)
    retirement = Retirement(cast(Any, None), cast(Any, Admin()), cast(Any, runner), lambda _: None)
    assert retirement.run(force=False, deadline=Deadline(10)) == list(NAMES)
