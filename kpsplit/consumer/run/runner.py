"""One call of ``Consumer.run()``: puts it together, serves the application's callbacks, ends in order.

In the engine's thread another sink takes the poll buffer's place, and gives it back. Slots that are owned
already start anew for the new sink from what is processed, piece by piece.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from kpsplit.clock import Deadline
from kpsplit.consumer.commit.committer import Parts
from kpsplit.consumer.commit.writes import TransactionParticipant
from kpsplit.consumer.config import ConsumerSettings
from kpsplit.consumer.engine import Engine
from kpsplit.consumer.fetch.batch import RecordSink
from kpsplit.consumer.fetch.buffer import FetchBuffer
from kpsplit.consumer.run.handlers import (
    Handler,
    OutputError,
    asynchronous,
    check_handler,
    is_async,
    synchronous,
)
from kpsplit.consumer.run.outputs import (
    DeadLetters,
    OutputParticipant,
    following_producer,
    letter_as_output,
)
from kpsplit.consumer.run.policies import Judge, Policy, Stop, check_policy
from kpsplit.consumer.run.work_queue import RunStats, WorkQueue
from kpsplit.consumer.run.workers import CoroutineWorkers, Letters, ProcessWorkers, ThreadWorkers, packed
from kpsplit.consumer.slots.assigned import IN_SINK, SlotStage
from kpsplit.errors import ConfigurationError, KpsplitError, UsageError
from kpsplit.kafka.error_map import error_of

log = logging.getLogger(__name__)

COMMIT_SECONDS = 60.0
COMMIT_TRIES = 5
LOOK_SECONDS = 0.005
LETTER_SECONDS = 10.0

_ENDS_THE_RUN = {
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.INCONSISTENT_GROUP_PROTOCOL,
    KafkaError._STATE,
}
"""Events after which a slot, or everything, waits for somebody."""
_NOT_AGAIN = {KafkaError.ILLEGAL_GENERATION, KafkaError._TIMED_OUT}
"""The slots are another member's; or it is not known, and the log says it to whoever reads it next."""


Workers = ThreadWorkers | CoroutineWorkers


def run(
    consumer: Any,
    handler: Handler,
    *,
    workers: int = 4,
    executor: str = "thread",
    on_error: Policy | None = None,
    transactional: bool = False,
    commit_seconds: float | None = None,
    drain_seconds: float = 30.0,
) -> RunStats:
    """Do what ``Consumer.run`` says; ``RunOptions`` has the meaning of the options."""
    if workers < 1:
        raise ConfigurationError(f"workers={workers}: at least one is needed")
    check_handler(handler, executor=executor)
    if executor == "process" and consumer._state is not None:
        raise UsageError(
            'executor="process": handlers in processes have no access to the state store',
            hint="leave executor out, or make the Consumer without state",
        )
    policy = check_policy(on_error or Stop())
    settings = replace(
        consumer._settings,
        auto_commit=True,
        auto_store=True,
        auto_commit_interval=commit_seconds or consumer._settings.auto_commit_interval,
    )
    work_queue = WorkQueue(
        workers, settings.buffer_bytes, Judge(policy), consumer._state, transactional=transactional
    )
    letters = DeadLetters(partial(following_producer, consumer._connection))
    deliver = letter_as_output if transactional else letters.deliver
    team = _workers(work_queue, workers, executor, handler, deliver, transactional=transactional)
    participant = OutputParticipant(work_queue) if transactional else None
    try:
        attached = Attached(work_queue, settings, lambda: asdict(work_queue.stats()), participant)
        return _Run(consumer, work_queue, team, drain_seconds).run(attached)
    finally:
        letters.close(LETTER_SECONDS)


def _workers(
    work_queue: WorkQueue,
    count: int,
    executor: str,
    handler: Handler,
    letters: Letters,
    *,
    transactional: bool,
) -> Workers:
    if executor == "process":
        return ProcessWorkers(work_queue, count, packed(handler), letters, transactional=transactional)
    if is_async(handler):
        return CoroutineWorkers(
            work_queue, count, asynchronous(handler, transactional=transactional), letters
        )
    return ThreadWorkers(work_queue, [synchronous(handler, transactional=transactional)] * count, letters)


class _Run:
    """From the first record to the last commit. The application's thread, but for ``_listen``."""

    def __init__(self, consumer: Any, work_queue: WorkQueue, workers: Workers, drain_seconds: float) -> None:
        self._consumer = consumer
        self._buffer: FetchBuffer = consumer._buffer
        self._work_queue = work_queue
        self._workers = workers
        self._drain_seconds = drain_seconds
        self._asked: Future[Parts] | None = None

    def run(self, attached: Attached) -> RunStats:
        consumer, work_queue = self._consumer, self._work_queue
        engine: Engine = consumer._running().engine
        if engine.slots.sink is not self._buffer:
            raise KpsplitError("run() is under way already", hint="give it more workers instead")
        self._workers.start()
        work_queue.on_attention = self._buffer.ask_attention
        before: list[Attached] = []
        try:
            self._buffer.processed()
            engine.call(lambda: before.append(attach(engine, attached)))
            with self._listening(), _terminated(consumer._stops):
                self._serve(engine)
                self._drain(engine)
                self._commit(engine)
            stats = work_queue.stats()
        finally:
            work_queue.end()
            work_queue.on_attention = lambda: None
            # The engine itself looks: where an interrupt cut the wait short, it may attach only now.
            engine.call(lambda: [attach(engine, sink) for sink in before])
            self._buffer.attended()
        if work_queue.error is not None:
            raise work_queue.error
        return stats

    def _serve(self, engine: Engine) -> None:
        """Run callbacks and take notice of events until the run has to end."""
        try:
            while not self._work_queue.over.is_set():
                self._buffer.attended()
                event = self._consumer._poller.attend()
                if event is not None and (error := event.error()) is not None:
                    self._note(error)
                elif self._work_queue.wants_commit():
                    self._ask_commit(engine)
                # Whoever attends takes back every call for attention, also that of the run's end.
                elif not engine.events and not self._work_queue.over.is_set():
                    self._buffer.wait(None)
        except KeyboardInterrupt:
            self._work_queue.end()
        except Exception as error:  # noqa: BLE001 - a callback's, or the engine's: raised by run()
            self._work_queue.end(error)

    def _note(self, error: KafkaError) -> None:
        if error.fatal() or error.code() in _ENDS_THE_RUN:
            self._work_queue.end(KafkaException(error))
        elif error.code() != KafkaError._PARTITION_EOF:
            log.warning("kpsplit: %s", error.str())

    def _ask_commit(self, engine: Engine) -> None:
        """Commit before its time, unless that is under way."""
        if self._asked is None or self._asked.done():
            self._asked = engine.call(lambda: commit_now(engine))

    def _drain(self, engine: Engine) -> None:
        """Let what is being worked on be finished; callbacks of the application go on meanwhile."""
        self._work_queue.end()
        deadline = Deadline(self._drain_seconds)
        try:
            while not self._workers.join(Deadline(min(0.1, deadline.left()))) and deadline.left() > 0:
                self._run_callbacks(engine)
        except KeyboardInterrupt:
            log.warning("kpsplit: interrupted again; what is being worked on is given up")
        if not self._workers.join(Deadline(0.0)):
            busy = self._work_queue.stats().busy
            log.warning("kpsplit: %d records were not finished in time; they are not committed", busy)
            self._workers.abandon()
            self._workers.join(Deadline(1.0))

    def _commit(self, engine: Engine) -> None:
        """Commit what was processed, again where that was refused for the moment."""
        deadline = Deadline(COMMIT_SECONDS)
        for _ in range(COMMIT_TRIES):
            exception = self._commit_once(engine, deadline)
            error = None if exception is None else error_of(exception)
            if exception is None or (error is not None and error.code() == KafkaError._NO_OFFSET):
                return
            # An output that cannot be written is in every commit.
            if isinstance(self._work_queue.error, OutputError) or (
                error is not None and error.code() in _NOT_AGAIN
            ):
                break
        self._work_queue.end(exception)

    def _commit_once(self, engine: Engine, deadline: Deadline) -> KafkaException | None:
        asked = engine.call(lambda: commit_now(engine))
        while not asked.done() and deadline.left() > 0 and not engine.ended(LOOK_SECONDS):
            self._run_callbacks(engine)
        if not asked.done():
            text = f"the last commit took longer than {COMMIT_SECONDS:.0f} s"
            return KafkaException(KafkaError(KafkaError._TIMED_OUT, text))
        raised = asked.exception()
        return raised if raised is None or isinstance(raised, KafkaException) else KafkaException(raised)

    def _run_callbacks(self, engine: Engine) -> None:
        self._consumer._poller.alive()
        try:
            engine.events.serve()
        except Exception as error:  # noqa: BLE001 - a callback's: raised by run() when everything is committed
            self._work_queue.end(error)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Listen for ``stop()``, which may come from a signal handler: that must take no lock."""
        stops = self._consumer._stops
        listener = threading.Thread(target=self._listen, args=(stops,), name="kpsplit-stop", daemon=True)
        listener.start()
        try:
            yield
        finally:
            stops.put(False)
            listener.join()
            while not stops.empty():
                stops.get_nowait()

    def _listen(self, stops: queue.SimpleQueue[bool]) -> None:
        if stops.get():
            self._work_queue.end()


@contextmanager
def _terminated(stops: queue.SimpleQueue[bool]) -> Iterator[None]:
    """Take SIGTERM for ``stop()``, where the application does nothing about it itself."""
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda *_: stops.put(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@dataclass(frozen=True, slots=True)
class Attached:
    """What records go to: a sink, the settings and statistics that go with it, what commits carry besides."""

    sink: RecordSink
    settings: ConsumerSettings
    stats: Callable[[], Mapping[str, Any] | None]
    participant: TransactionParticipant | None = None


def attach(engine: Engine, new: Attached) -> Attached:
    """Have records go to another sink from now on; return where they went before.

    Outputs that wait for a commit go with their participant: their slots start anew from what is committed.
    """
    slots, committer = engine.slots, engine.committer
    before = Attached(slots.sink, committer.settings, engine.run_stats, committer.participant)
    slots.start_anew(slots.unsure())
    processed = {h.slot: slots.goes_on_at(h) for h in slots.on(IN_SINK)}
    # After the positions: what a worker that was not waited for adds now is beyond them.
    _take_back_outputs(engine)
    committer.use(new.settings, new.participant)
    engine.run_stats = new.stats
    slots.hand_to(new.sink, processed, auto_store=new.settings.auto_store)
    return before


def _take_back_outputs(engine: Engine) -> None:
    """Have records whose outputs were not committed count as not processed."""
    slots, participant = engine.slots, engine.committer.participant
    if participant is None:
        return
    found = [(h, h.start) for h in slots.on(IN_SINK) if participant.keeps(h.slot)]
    begun = [(h, start) for h, start in found if h.moved or not h.committed]
    slots.start_anew([h for h, _ in found])
    if engine.committer.idle():
        # The log has nothing of them: a reset of the group to the end would pass their records over.
        for assigned, start in begun:
            if assigned.stage is SlotStage.WANTED and start is not None:
                assigned.start, assigned.stage = start, SlotStage.FOUND


def commit_now(engine: Engine) -> Future[Parts]:
    """Commit what is processed; the future raises _NO_OFFSET where that is nothing new."""
    future: Future[Parts] = Future()
    engine.committer.ask(engine.slots.changed(engine.slots.on(IN_SINK)), future)
    return future
