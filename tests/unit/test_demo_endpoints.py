"""A scenario's processes as their parent sees them: how they end, are killed, and are suspended."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from kpsplit.demo import writer as writing
from kpsplit.demo.endpoints import (
    ChildDiedError,
    Endpoint,
    Endpoints,
    Orders,
    WriterNews,
    WriterOrders,
    WriterStage,
)
from kpsplit.demo.records import read_journal
from kpsplit.testing import SendOutcome

SECONDS = 60.0


class LateHearing(Endpoint[WriterNews]):
    """One whose news take a while to be read, as on a busy machine."""

    def heard(self, line: str) -> None:
        time.sleep(0.3)
        super().heard(line)


@contextmanager
def running(what: str) -> Iterator[tuple[Endpoints[WriterNews], Endpoint[WriterNews]]]:
    with Endpoints[WriterNews]() as endpoints:
        orders = Orders(name="w", properties={}, topic=what)
        endpoints.all.append(LateHearing("writer", "tests.unit.endpoint_child", orders, WriterNews()))
        yield endpoints, endpoints["w"]


def ended(endpoint: Endpoint[WriterNews]) -> None:
    end = time.monotonic() + SECONDS
    while endpoint.alive:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_process_that_ends_right_after_its_last_news_is_well() -> None:
    with running("end") as (_, endpoint):
        ended(endpoint)
        endpoint.check()
        assert endpoint.news.done


@pytest.mark.parametrize(
    ("what", "reason"),
    [("report an error", "writer w failed: no broker"), ("die", "ended with exit code 1: out of memory")],
)
def test_a_process_that_ends_too_soon_is_reported_with_the_reason(what: str, reason: str) -> None:
    with running(what) as (_, endpoint):
        ended(endpoint)
        with pytest.raises(ChildDiedError, match=reason):
            endpoint.check()


def test_a_process_that_is_killed_on_purpose_is_well_and_is_not_asked_to_finish() -> None:
    with running("work") as (endpoints, endpoint):
        endpoint.kill()
        endpoints.finish("the rest", SECONDS)
        assert not endpoint.alive and str(endpoint) == "w was killed"


def test_a_process_that_stopped_itself_goes_on_and_finishes() -> None:
    with running("work") as (endpoints, endpoint):
        endpoint.suspend_in_burst()
        assert endpoint.alive and str(endpoint) == "w is suspended"
        endpoints.finish("the writer", SECONDS)
        assert endpoint.news.done and not endpoint.alive


def test_no_process_outlives_the_block() -> None:
    with running("work") as (_, endpoint):
        endpoint.suspend()
    assert not endpoint.alive


@pytest.mark.parametrize("transactional_id", [None, "t"])
def test_a_writer_is_suspended_goes_on_and_has_a_report_of_every_record_in_its_journal(
    tmp_path: Path, transactional_id: str | None
) -> None:
    orders = WriterOrders(
        name="w",
        properties={"test.mock.num.brokers": 1},
        topic="t",
        journal=str(tmp_path / "journal"),
        partitions=3,
        rate=2000.0,
        seed=1,
        plain=True,
        transactional_id=transactional_id,
    )
    with Endpoints[WriterNews]() as endpoints:
        writer = Endpoint("writer", "tests.fault.chaos.writer", orders, WriterNews())
        endpoints.all.append(writer)
        endpoints.wait("reports", lambda: writer.news.ok > 0, SECONDS)
        writer.suspend_in_burst()
        endpoints.finish("the writer", SECONDS)
    entries = read_journal(Path(orders.journal))
    assert len(entries) == writer.news.sent == writer.news.ok > 100
    assert {entry.outcome for entry in entries} == {SendOutcome.OK}


class Bursts:
    """Stands for a writer, its client and a clock. ``took``: seconds for each burst."""

    def __init__(self, *took: float) -> None:
        self.client, self.now, self.done = self, 0.0, list[str]()
        self._took = list(took)

    def news(self, stage: WriterStage) -> WriterNews:
        return WriterNews(stage)

    def flush(self, _seconds: float) -> None:
        self.done.append("flush")

    def send(self, items: Sequence[object]) -> None:
        self.now += self._took.pop(0)
        self.done.append(f"send {len(items)}")


def test_a_writer_stops_with_records_that_its_client_has_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst that took longer than records linger may be with the brokers already."""
    linger = writing.LINGER_MS / 1000
    bursts = Bursts(3 * linger, 2 * linger, linger / 2)
    orders = WriterOrders(name="w", properties={}, topic="t", partitions=3, rate=100.0, seed=1)
    monkeypatch.setattr(writing, "monotonic", lambda: bursts.now)
    monkeypatch.setattr(writing, "report", lambda _: None)
    monkeypatch.setattr(writing.os, "kill", lambda *_: bursts.done.append("stop"))
    loop = writing.WriterLoop(orders, cast(Any, bursts))
    loop._suspend()
    assert bursts.done == [*["flush", f"send {writing.BURST}"] * 3, "stop"]
