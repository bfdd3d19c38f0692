"""What becomes of a commit, and of its producer, where the client library does not say how it ended.

The producer is a fake: a library that hangs, or loses an answer, cannot be had at will.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from kpsplit.clock import Deadline
from kpsplit.consumer.events import kafka_error
from kpsplit.errors import FencedError, KpsplitError, UnknownOutcomeError, UnreachableError
from kpsplit.kafka import commit_writer, control_log
from kpsplit.kafka.commit_writer import CommitWriter
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import FENCED
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.offsets import Position, RangeCommit

PARENT = PhysicalPartition("orders", 0)
SECONDS = 60.0


class Fake:
    """A producer that does what it is told to at the first call of a name, and notes what it was asked."""

    def __init__(self, at: dict[str, Callable[[], None]]) -> None:
        self._at = at
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*_: Any, **__: Any) -> Any:
            self.asked.append(name)
            self._at.pop(name, lambda: None)()
            return 0

        return call


class Scene:
    """A writer whose first producer misbehaves; the later ones do not."""

    def __init__(self, **at: Callable[[], None]) -> None:
        self.made: list[Fake] = []
        self._at = [at]
        connection = Connection({"bootstrap.servers": "nowhere:1"})
        self.abandoned: list[Any] = []
        self._writer = CommitWriter(connection, "id", 16, self._make, self.abandoned.append)

    def commit(self, seconds: float = SECONDS, records: Sequence[RangeCommit] = ()) -> None:
        self._writer.commit(records, [], {PARENT: 7}, object(), Deadline(seconds))

    def _make(self, _config: Any) -> Any:
        self.made.append(Fake(self._at.pop() if self._at else {}))
        return self.made[-1]


def failing(code: int, **flags: bool) -> Callable[[], None]:
    def fail() -> None:
        raise KafkaException(KafkaError(code, "planted", **flags))

    return fail


def test_a_commit_that_never_returns_is_unknown_and_commits_nothing_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commit_writer, "ABORT_SECONDS", 0.05)
    monkeypatch.setattr(commit_writer, "GRACE_SECONDS", 0.0)
    answer, over = threading.Event(), threading.Event()
    scene = Scene(flush=lambda: answer.wait(SECONDS) and None, abort_transaction=over.set)
    with pytest.raises(UnknownOutcomeError, match="hangs"):
        scene.commit(0.05)
    assert scene.abandoned == scene.made
    answer.set()
    assert over.wait(SECONDS)
    assert "commit_transaction" not in scene.made[0].asked
    scene.commit()
    assert len(scene.made) == 2 and "commit_transaction" in scene.made[1].asked


def test_a_commit_that_does_not_find_its_coordinator_is_made_by_another_producer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The library waits for ever then, whatever time it is given; nothing was committed, that is certain."""
    monkeypatch.setattr(commit_writer, "OFFSETS_SECONDS", 0.05)
    monkeypatch.setattr(commit_writer, "GRACE_SECONDS", 0.0)
    answer = threading.Event()
    scene = Scene(send_offsets_to_transaction=lambda: answer.wait(SECONDS) and None)
    scene.commit()
    assert [("commit_transaction" in made.asked) for made in scene.made] == [False, True]
    assert scene.abandoned == scene.made[:1]
    assert "abort_transaction" not in scene.made[0].asked, "it is inside a call"
    answer.set()


def test_a_commit_that_does_not_find_its_coordinator_in_time_is_not_committed_and_that_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commit_writer, "GRACE_SECONDS", 0.0)
    answer = threading.Event()
    scene = Scene(send_offsets_to_transaction=lambda: answer.wait(SECONDS) and None)
    with pytest.raises(UnreachableError, match="nothing was committed"):
        scene.commit(0.05)
    answer.set()
    assert "commit_transaction" not in scene.made[0].asked


def test_a_commit_whose_answer_was_lost_is_unknown_even_where_an_abort_is_asked_for() -> None:
    scene = Scene(commit_transaction=failing(KafkaError._TIMED_OUT, txn_requires_abort=True))
    with pytest.raises(UnknownOutcomeError, match="outcome unknown"):
        scene.commit()
    assert "abort_transaction" not in scene.made[0].asked, "it may have been committed"
    scene.commit()
    assert len(scene.made) == 2


def test_a_right_that_is_missing_at_the_commit_is_named() -> None:
    scene = Scene(commit_transaction=failing(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, fatal=True))
    with pytest.raises(UnknownOutcomeError, match="missing the right to write with the transactional id"):
        scene.commit()


def test_what_the_producer_itself_refuses_to_commit_is_not_committed() -> None:
    scene = Scene(commit_transaction=failing(KafkaError._STATE, retriable=True, txn_requires_abort=True))
    with pytest.raises(KpsplitError, match="planted") as caught:
        scene.commit()
    assert not isinstance(caught.value, UnknownOutcomeError)
    assert scene.made[0].asked[-1] == "abort_transaction"
    scene.commit()
    assert len(scene.made) == 1


def broken(**at: Callable[[], None]) -> KpsplitError:
    """What a commit is refused with that goes wrong there."""
    with pytest.raises(KpsplitError) as caught:
        Scene(**at).commit()
    return caught.value


@pytest.mark.parametrize("code", sorted(FENCED))
@pytest.mark.parametrize("call", ["init_transactions", "send_offsets_to_transaction"])
def test_a_producer_whose_epoch_is_over_says_nothing_of_the_group(call: str, code: int) -> None:
    """The brokers ended its transaction; the member owns its slots still, and its next commit succeeds."""
    error = broken(**{call: failing(code, fatal=True)})
    assert not isinstance(error, FencedError)
    assert error.retriable and "the transaction was ended by the brokers" in error.message
    assert kafka_error(error).code() != KafkaError.ILLEGAL_GENERATION


def masked() -> None:
    """Raise what the library makes of a fatal error where a flush goes on to delivery reports."""
    fatal = KafkaException(KafkaError(KafkaError._FENCED, "planted", fatal=True))
    raise SystemError("<function report> returned a result with an exception set") from fatal


@pytest.mark.parametrize("fail", [failing(KafkaError._FATAL), masked], ids=["produce", "flush"])
@pytest.mark.parametrize("undo", [failing(KafkaError._FENCED, fatal=True), masked], ids=["plain", "masked"])
def test_a_producer_that_ends_while_something_is_written_says_why(
    fail: Callable[[], None], undo: Callable[[], None]
) -> None:
    scene = Scene(flush=fail, abort_transaction=undo)
    with pytest.raises(UnreachableError, match="the transaction was ended by the brokers"):
        scene.commit()
    scene.commit()
    assert scene.abandoned == scene.made[:1], "its producer is no use any more"


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT, KafkaError._FENCED])
def test_a_commit_that_took_too_long_says_so_and_what_makes_it_shorter(code: int) -> None:
    """librdkafka ends the wait for an acknowledgement after the time that a transaction may take."""
    error = broken(send_offsets_to_transaction=failing(code, txn_requires_abort=True))
    assert isinstance(error, UnreachableError) and error.retriable
    assert "10 s" in error.message and "nothing was committed" in error.message
    assert "cannot be reached" not in error.message
    assert "max_pending_bytes" in (error.hint or "") and "auto.commit.interval.ms" in (error.hint or "")


@pytest.mark.parametrize("code", sorted(FENCED))
def test_the_same_of_an_operators_producer_means_that_another_operator_took_over(code: int) -> None:
    for written_for in (None, 0.1):
        error = control_log._refused(KafkaError(code), "claim orders/0", written_for)
        assert isinstance(error, FencedError)
        assert error.message == "could not claim orders/0: another operator took over"


@pytest.mark.parametrize(("seconds", "may_be_the_brokers"), [(9.0, False), (12.0, True)])
def test_an_operators_transaction_that_took_too_long_may_have_been_ended_by_the_brokers(
    monkeypatch: pytest.MonkeyPatch, seconds: float, may_be_the_brokers: bool
) -> None:
    """They refuse it with the same error as one of an operator that was fenced by another."""
    now = [100.0]
    monkeypatch.setattr(control_log, "monotonic", lambda: now[0])

    def late() -> None:
        now[0] += seconds
        failing(KafkaError._FENCED, fatal=True)()

    operator = control_log.OperatorProducer(Connection({"bootstrap.servers": "nowhere:1"}), "id", "orders/0")
    operator.taken = Fake({"commit_transaction": late})  # type: ignore[assignment]
    with pytest.raises(FencedError, match="another operator took over") as caught:
        operator.write([], "record the seal of orders/0", Deadline(SECONDS))
    both = "or the brokers ended the transaction, which took 12 s" in caught.value.message
    assert both is may_be_the_brokers
    assert ("run the same command again" in (caught.value.hint or "")) is may_be_the_brokers


def full() -> None:
    raise BufferError("Queue full")


RECORD = RangeCommit("g", PARENT, WHOLE, {0: Position(7)}, "m", 1)


def test_a_commit_waits_while_the_queue_of_the_client_is_full() -> None:
    scene = Scene(produce=full)
    scene.commit(records=[RECORD])
    assert [call for call in scene.made[0].asked if call in ("produce", "poll")] == [
        "produce",
        "poll",
        "produce",
    ]
    assert scene.made[0].asked[-1] == "commit_transaction"


def test_a_queue_that_stays_full_ends_the_commit_at_its_deadline_with_nothing_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    monkeypatch.setattr(Fake, "produce", lambda *_: full(), raising=False)
    monkeypatch.setattr(Fake, "poll", lambda *_: time.sleep(0.01), raising=False)
    with pytest.raises(KpsplitError) as caught:
        scene.commit(0.05, [RECORD])
    assert not isinstance(caught.value, UnknownOutcomeError)
    assert scene.made[0].asked[-1] == "abort_transaction"


@pytest.mark.parametrize(
    ("code", "error", "producers"),
    [
        (KafkaError.ILLEGAL_GENERATION, FencedError, 1),
        (KafkaError._TRANSPORT, UnreachableError, 2),
        (KafkaError._TIMED_OUT, UnreachableError, 2),
        (KafkaError.CONCURRENT_TRANSACTIONS, UnreachableError, 2),
        (KafkaError._FENCED, UnreachableError, 2),
        (KafkaError.PRODUCER_FENCED, UnreachableError, 2),
        (KafkaError.INVALID_PRODUCER_EPOCH, UnreachableError, 2),
        (KafkaError.INVALID_PRODUCER_ID_MAPPING, UnreachableError, 2),
    ],
)
def test_a_producer_is_kept_where_the_brokers_said_how_it_ended(
    code: int, error: type[KpsplitError], producers: int
) -> None:
    scene = Scene(send_offsets_to_transaction=failing(code, txn_requires_abort=True))
    with pytest.raises(error):
        scene.commit()
    assert scene.made[0].asked[-1] == "abort_transaction"
    scene.commit()
    assert len(scene.made) == producers
    assert scene.abandoned == scene.made[:-1]
