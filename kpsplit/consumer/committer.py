"""Commits of a member: when, of what, and who hears of it. One at a time (design, section 10)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from kpsplit.consumer.carrier import Load
from kpsplit.consumer.committing import Member, Processed, logical_position, plain_offsets
from kpsplit.consumer.context import Context, kafka_error
from kpsplit.consumer.holdings import IN_SINK, Holding, Stage
from kpsplit.consumer.reading import OwnedSlot
from kpsplit.consumer.subscriptions import Mode
from kpsplit.errors import FencedError, KpsplitError, UnknownOutcomeError
from kpsplit.kafka.clock import monotonic
from kpsplit.splitter.cursor import Cursor
from kpsplit.splitter.lineage import PhysicalPartition

log = logging.getLogger(__name__)

COMMIT_SECONDS = 20.0
"""How long one commit may take; the transaction itself is aborted by the broker after 10 s."""
RETRIES = 5
"""How often a commit is repeated with newer metadata of a member that still belongs to the group."""

Cursors = Mapping[OwnedSlot, tuple[Cursor, ...]]
Parts = list[TopicPartition]


@dataclass(slots=True)
class _Job:
    """One commit under way."""

    cursors: Cursors
    parts: Parts
    futures: tuple[Future[None], ...]
    load: Load | None
    waiting: list[Future[Parts]]
    tries: int = 0


class Committer:
    """See the module."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._next = monotonic() + context.settings.auto_commit_interval
        self._job: _Job | None = None
        self._asked: list[tuple[Cursors, Future[Parts] | None]] = []

    def turn(self) -> None:
        """Take the answer of the commit under way; begin the next that is asked for, or due."""
        if self._job is not None and all(f.done() for f in self._job.futures):
            self._answered(self._job)
        if self._job is not None:
            return
        if self._asked:
            self._begin_asked()
        elif self._context.settings.auto_commit and monotonic() >= self._next:
            self._next = monotonic() + self._context.settings.auto_commit_interval
            self._begin(self.changed(self._context.holdings.on(IN_SINK)), [])

    def ask(self, cursors: Cursors, future: Future[Parts] | None = None) -> None:
        """Commit these cursors as soon as the commit under way is over.

        The future tells what was committed; without one, ``on_commit`` does.
        """
        self._asked.append((cursors, future))

    def changed(self, holdings: list[Holding]) -> Cursors:
        """Return how far slots are processed, where that is not committed."""
        now = {h.slot: self._context.processed(h) for h in holdings}
        return {h.slot: now[h.slot] for h in holdings if now[h.slot] and now[h.slot] != h.committed}

    def idle(self) -> bool:
        """Tell whether nothing is under way or asked for."""
        return self._job is None and not self._asked

    def _begin_asked(self) -> None:
        """Begin what was asked for, all in one: later cursors of a slot win."""
        asked, self._asked = self._asked, []
        together: dict[OwnedSlot, tuple[Cursor, ...]] = {}
        for cursors, _ in asked:
            together.update(cursors)
        self._begin(together, [future for _, future in asked if future is not None])

    def _begin(self, cursors: Cursors, waiting: list[Future[Parts]]) -> None:
        held = {slot: c for slot, c in cursors.items() if slot in self._context.holdings}
        if not held:
            error = KafkaException(KafkaError(KafkaError._NO_OFFSET))
            for future in waiting:
                future.set_exception(error)
            return
        self._job = _Job(held, self._parts(held), *self._send(held), waiting)

    def _send(self, cursors: Cursors) -> tuple[tuple[Future[None], ...], Load | None]:
        context = self._context
        processed = self._processed(cursors)
        member, metadata = context.member(), context.group.metadata()
        carrier = context.carrier
        if carrier is None:
            return self._send_apart(processed, member, metadata), None
        load = carrier.load(processed)
        return (
            context.errands.run(
                lambda: context.ledger.commit_loaded(
                    processed, member, metadata, COMMIT_SECONDS, carrier, load
                )
            ),
        ), load

    def _send_apart(
        self, processed: list[Processed], member: Member, metadata: object
    ) -> tuple[Future[None], ...]:
        """Commit enrolled partitions in a transaction, the others in the ordinary way."""
        context = self._context
        futures: list[Future[None]] = []
        offsets = plain_offsets(processed)
        if any(p.mode is not Mode.PLAIN for p in processed):
            futures.append(
                context.errands.run(
                    lambda: context.ledger.commit(processed, member, metadata, COMMIT_SECONDS)
                )
            )
        if offsets:
            futures.append(context.group.commit(offsets))
        return tuple(futures)

    def _processed(self, cursors: Cursors) -> list[Processed]:
        parents = sorted({slot.parent for slot in cursors})
        return [self._of(parent, cursors) for parent in parents]

    def _of(self, parent: PhysicalPartition, cursors: Cursors) -> Processed:
        context = self._context
        mine = context.holdings.of(parent)
        written = [c for h in mine for c in cursors.get(h.slot, ())]
        unchanged = [c for h in mine if h.slot not in cursors for c in h.committed]
        first = next(h for h in mine if h.slot in cursors)
        return Processed(
            context.views.state(parent), first.mode, tuple(written), tuple(unchanged), first.place
        )

    def _parts(self, cursors: Cursors) -> Parts:
        """Return what a commit says in the terms of applications: one logical offset per partition."""
        parts: Parts = []
        for parent in sorted({slot.parent for slot in cursors}):
            pieces = [c for slot, found in cursors.items() if slot.parent == parent for c in found]
            offset = logical_position(self._context.lineage(parent), pieces)
            parts.append(TopicPartition(parent.topic, parent.partition, offset))
        return parts

    def _answered(self, job: _Job) -> None:
        self._job = None
        try:
            for future in job.futures:
                future.result()
        except FencedError as error:
            if error.retriable and job.tries < RETRIES:
                futures, load = self._send(job.cursors)
                self._job = _Job(job.cursors, job.parts, futures, load, job.waiting, job.tries + 1)
                return
            self._context.counts["commits_rejected"] += 1
            self._failed(job, error)
        except (KpsplitError, KafkaException) as error:
            self._context.counts["commits_failed"] += 1
            if job.load is not None and isinstance(error, UnknownOutcomeError):
                self._start_anew(job)
            self._failed(job, error)
        else:
            self._done(job)

    def _done(self, job: _Job) -> None:
        self._context.counts["commits"] += 1
        if job.load is not None:
            job.load.committed()
        for holding in self._context.holdings:
            if holding.slot in job.cursors:
                holding.committed = job.cursors[holding.slot]
        for future in job.waiting:
            future.set_result(job.parts)
        self._tell(None, job)

    def _start_anew(self, job: _Job) -> None:
        """Whether outputs were committed is not known: the slots start from what the log says."""
        context = self._context
        unknown = [h for h in context.holdings if h.slot in job.cursors and h.stage is Stage.READING]
        slots = [h.slot for h in unknown]
        context.reader.disown(slots)
        context.sink.dropped(slots)
        for holding in unknown:
            context.ahead.pop(holding.slot, None)
            holding.stage, holding.start, holding.committed = Stage.WANTED, None, ()

    def _failed(self, job: _Job, error: Exception) -> None:
        log.warning("kpsplit: a commit failed: %s", error)
        told = kafka_error(error)
        for future in job.waiting:
            future.set_exception(KafkaException(told))
        self._tell(told, job)

    def _tell(self, error: KafkaError | None, job: _Job) -> None:
        """Call on_commit for commits that nobody waits for, as the original does."""
        on_commit = self._context.settings.on_commit
        if on_commit is not None and not job.waiting:
            parts = job.parts
            self._context.events.call(lambda: on_commit(error, parts))
