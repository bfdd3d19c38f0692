"""A commit that names a sub-topic which was deleted a moment ago."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from kpsplit.consumer.commit import group_offsets
from kpsplit.consumer.commit.group_offsets import GroupOffsets
from kpsplit.consumer.commit.writes import CommitMember, Processed
from kpsplit.errors import UsageError
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.group_slots import Mode
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.reading import Cursor
from tests.unit.samples import PARENT, life

STATE = life().merged
DELETED = next(t.name for t in STATE.subtopics if t.in_lineage)
MEMBER = CommitMember("g", "me", 1)


class Brokers:
    """The coordinator knows of the deletion; the broker that is asked does so from its n-th answer on."""

    def __init__(self, heard_at: int) -> None:
        self.heard_at = heard_at
        self.asked = 0
        self.tried: list[Mapping[PhysicalPartition, int]] = []
        self.payloads = 0

    def describe_topics(self, topics: Any, **_: object) -> dict[str, Future[Any]]:
        self.asked += 1
        futures = {name: Future[Any]() for name in topics.topic_names}
        for name, future in futures.items():
            if name == DELETED and self.asked >= self.heard_at:
                future.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
            else:
                future.set_result(None)
        return futures

    def commit(
        self, _r: Any, _t: Any, offsets: Mapping[PhysicalPartition, int], _m: Any, _d: Any, also: Any = None
    ) -> None:
        self.tried.append(offsets)
        if also is not None:
            also(None)
        if any(place.topic == DELETED for place in offsets):
            cause = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
            raise UsageError("could not commit ranges: no such topic or partition") from cause

    def write(self, _producer: Any, _deadline: Any) -> None:
        self.payloads += 1


@pytest.fixture(params=["commit", "commit_with_outputs"])
def loaded(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "commit_with_outputs")


def commit(brokers: Brokers, *, loaded: bool) -> GroupOffsets:
    offsets = GroupOffsets(None, None, "g", "earliest")  # type: ignore[arg-type]
    tail = SimpleNamespace(fold=CommitFold(), poll=lambda _: None, follow=lambda _: None)
    offsets._tail = tail  # type: ignore[assignment]
    offsets._admin = SimpleNamespace(client=brokers)  # type: ignore[assignment]
    offsets._writer = offsets._output_writer = brokers  # type: ignore[assignment]
    processed = [Processed(STATE, Mode.SLOTS, (Cursor.at_start(WHOLE),), (), PARENT)]
    payload: Any = brokers
    if loaded:
        offsets.commit_with_outputs(processed, MEMBER, object(), 5.0, None, payload)  # type: ignore[arg-type]
    else:
        offsets.commit(processed, MEMBER, object(), 5.0, payload)
    return offsets


def test_it_is_made_again_without_the_sub_topic_once_a_broker_knows(loaded: bool) -> None:
    brokers = Brokers(heard_at=3)
    commit(brokers, loaded=loaded)
    refused, done = brokers.tried
    assert {p.topic for p in refused} - {p.topic for p in done} == {DELETED}
    assert done == {p: at for p, at in refused.items() if p.topic != DELETED} and done
    assert (brokers.asked, brokers.payloads) == (3, 2)


def test_it_fails_where_no_broker_knows_of_a_deletion(loaded: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(group_offsets, "DELETION_SECONDS", 0.2)
    brokers = Brokers(heard_at=1000)
    with pytest.raises(UsageError):
        commit(brokers, loaded=loaded)
    assert len(brokers.tried) == 1


def test_it_names_nothing_that_a_broker_knew_to_be_gone(loaded: bool) -> None:
    brokers = Brokers(heard_at=1)
    commit(brokers, loaded=loaded)
    assert len(brokers.tried) == 1 and brokers.asked == 1
