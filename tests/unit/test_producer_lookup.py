"""Searches for a producer's own records in a log: where they begin, end, and keep their place."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from kpsplit.clock import Deadline
from kpsplit.errors import AuthorizationError, DeadlineExceededError
from kpsplit.kafka import cluster_admin
from kpsplit.kafka.cluster_admin import Vote
from kpsplit.producer import lookup
from kpsplit.producer.lookup import Lookup, Search, search_log
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import FIRST, PhysicalPartition, Segment, SegmentKind
from kpsplit.splitter.records.data import STAMP_HEADER, Stamp
from tests.broker.producing import eventually

PLACE = PhysicalPartition("orders.split-0-1", 0)
SEGMENT = Segment(
    id=1, kind=SegmentKind.PHANTOM, range=WHOLE, source=PLACE, start=0, progression=FIRST, opened_epoch=1,
    end=100, closed_epoch=2,
)  # fmt: skip
INSTANCE, HOME = 7, 9


class Log:
    """The brokers and one log: a record of ours with the number of each offset, and who reads it.

    ``ids``: what the brokers say of the topic, one after the other, the last one for ever; None: unknown.
    """

    def __init__(self, start: int = 0, end: int = 101, ids: tuple[str | None, ...] = ("id",)) -> None:
        self.start, self.end, self.ids = start, end, list(ids)
        self.read_from: list[int] = []
        self.portion = 1000
        self.silent = False
        self.error: KafkaError | None = None
        self.strays: set[int] = set()

    # -- the connection ------------------------------------------------------------------------------

    def shared_admin(self) -> Any:
        return self

    def open_reader(self, *_: Any, **__: Any) -> Any:
        return self

    def describe_topics(self, topics: Any, **_: Any) -> dict[str, Future[Any]]:
        future: Future[Any] = Future()
        known = self.ids.pop(0) if len(self.ids) > 1 else self.ids[0]
        if known is None:
            future.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
        else:
            future.set_result(type("Description", (), {"topic_id": known}))
        return {PLACE.topic: future}

    # -- the reader ----------------------------------------------------------------------------------

    def get_watermark_offsets(self, *_: Any) -> tuple[int, int]:
        return self.start, self.end

    def assign(self, places: list[TopicPartition]) -> None:
        self.next = places[0].offset
        self.read_from.append(self.next)

    def close(self) -> None:
        pass

    def consume(self, count: int, _: float) -> list[Message]:
        if self.error is not None:
            return [Message(error=self.error)]
        last = self.next if self.silent else min(self.next + min(count, self.portion), self.end)
        found = [self._message(offset) for offset in range(self.next, last)]
        self.next = last
        return found

    def _message(self, offset: int) -> Message:
        stamp = Stamp(0 if offset in self.strays else 1, INSTANCE, offset, HOME).encode()
        return Message(topic=PLACE.topic, partition=0, offset=offset, headers=[(STAMP_HEADER, stamp)])


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "ASK_SECONDS", 0.01)
    monkeypatch.setattr(cluster_admin, "CERTAIN_SECONDS", 0.1)
    vote = Vote(frozenset({0}), {0: frozenset()})
    monkeypatch.setattr(cluster_admin, "ask_every_broker", lambda *_: vote)


def searched(log: Any, search: Search, seconds: float = 30.0) -> Search:
    search_log(log, search, Deadline(seconds))
    return search


def search_for(*wanted: int, first: int = 0, retired: Callable[[], bool] = lambda: False) -> Search:
    return Search(SEGMENT, first, HOME, INSTANCE, set(wanted), "id", retired)


def test_a_search_reads_from_where_it_begins_to_the_segments_end_and_no_further() -> None:
    log = Log(end=200)
    search = searched(log, search_for(150, 97, first=95))
    assert (log.read_from, search.found, search.complete, search.next >= 100) == ([95], {97: 97}, True, True)


def test_a_search_ends_when_everything_is_found() -> None:
    log = Log()
    log.portion = 10
    search = searched(log, search_for(3, 5))
    assert search.found == {3: 3, 5: 5} and search.next == 10


def test_a_stray_in_the_segment_is_passed_over() -> None:
    """It was sent in an older epoch than the segment's: no reader delivers it."""
    log = Log(end=200)
    log.strays = {3}
    search = searched(log, search_for(3, 5))
    assert (search.found, search.complete) == ({5: 5}, True)


def test_a_try_that_takes_too_long_says_how_far_it_is_and_the_next_one_goes_on_there() -> None:
    log, search = Log(end=40), search_for(39, 99)
    with pytest.raises(DeadlineExceededError, match="offset 40 of 100"):
        searched(log, search, 0.005)
    assert search.found == {39: 39}
    log.end = 101
    searched(log, search)
    assert search.found == {39: 39, 99: 99} and log.read_from[-1] == 40


def test_a_lookup_reports_why_a_try_ended_and_goes_on_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "LOOKUP_SECONDS", 0.005)
    log: Any = Log(end=40)
    running = Lookup(log, search_for(99))
    eventually(running.done, "the first try to end")
    monkeypatch.setattr(lookup, "LOOKUP_SECONDS", 30.0)
    log.end = 101
    with pytest.raises(DeadlineExceededError):
        running.check()
    eventually(running.done, "the second try to end")
    running.check()
    assert running.search.found == {99: 99} and log.read_from[0] == 0 and log.read_from[-1] == 40


def test_a_topic_that_was_deleted_is_never_assigned() -> None:
    log = Log(ids=(None,))
    search = searched(log, search_for(3, retired=lambda: True))
    assert (log.read_from, search.complete, search.over) == ([], False, True)


def test_a_topic_that_was_made_anew_is_not_the_one_that_is_searched() -> None:
    log = Log(ids=("other",))
    search = searched(log, search_for(3))
    assert (log.read_from, search.complete, search.found) == ([], False, {})


def test_a_topic_that_is_deleted_while_it_is_read_ends_the_search() -> None:
    log = Log(ids=("id", None))
    log.silent = True
    assert not searched(log, search_for(3, retired=lambda: True)).complete


def test_one_broker_that_does_not_know_the_topic_yet_is_not_believed() -> None:
    log = Log(ids=(None, None, "id"))
    search = searched(log, search_for(3))
    assert search.found == {3: 3} and search.complete


def test_a_topic_that_nobody_knows_for_long_is_gone_whatever_the_control_topic_says() -> None:
    assert not searched(Log(ids=(None,)), search_for(3)).complete


def test_a_log_whose_beginning_is_gone_cannot_say_what_was_not_written() -> None:
    search = searched(Log(start=50), search_for(49, 60))
    assert (search.found, search.complete) == ({60: 60}, False)


def test_what_is_gone_before_the_search_begins_does_not_matter() -> None:
    assert searched(Log(start=50), search_for(60, first=50)).complete


def test_a_right_that_is_missing_is_reported() -> None:
    log = Log()
    log.error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(AuthorizationError):
        searched(log, search_for(3))
