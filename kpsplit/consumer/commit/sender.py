"""One commit on its way: what goes to the brokers, in which pieces, and what state goes along.

Enrolled partitions are committed in a transaction, and the changelog of their state in the same one. Topics
that are not enrolled are committed in the ordinary way, and the changelog is acknowledged before that. While
a commit carries outputs everything is one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from confluent_kafka import KafkaException

from kpsplit.consumer.commit.payload import CommitPayload, CommitPayloads, TransactionParticipant
from kpsplit.consumer.commit.writes import Processed, plain_offsets
from kpsplit.consumer.context import Context
from kpsplit.consumer.group.subscriptions import Mode
from kpsplit.consumer.slots.assigned import AssignedSlot
from kpsplit.consumer.slots.owned_slot import OwnedSlot
from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import Deadline
from kpsplit.splitter.cursor import Cursor
from kpsplit.splitter.lineage import PhysicalPartition

COMMIT_SECONDS = 20.0
"""How long one commit may take; the transaction itself is aborted by the broker after 10 s."""

Cursors = Mapping[OwnedSlot, tuple[Cursor, ...]]


@dataclass(slots=True)
class Piece:
    """What is committed all or nothing.

    ``load``: what goes along in its transaction, None if there is none. ``then``: what follows when
    ``future`` has come out well.
    """

    slots: tuple[OwnedSlot, ...]
    future: Future[None]
    payload: CommitPayload | None = None
    then: Callable[[], Future[None]] | None = None

    def done(self) -> bool:
        """Tell whether it is over, going on with what comes after."""
        if self.future.done() and self.then is not None:
            then, self.then = self.then, None
            if self.future.exception() is None:
                try:
                    self.future = then()
                except (KpsplitError, KafkaException) as error:
                    self.future = _failure(error)
        return self.future.done()


def send(context: Context, cursors: Cursors, moved: Collection[OwnedSlot] = ()) -> list[Piece]:
    """Begin to commit slots, of which the application has ``moved`` some.

    Raises:
        KpsplitError: the state that belongs to them is not there; nothing was sent.
    """
    processed = [_of(context, parent, cursors, moved) for parent in sorted({slot.parent for slot in cursors})]
    if context.participant is not None:
        return [_with_outputs(context, context.participant, processed, tuple(cursors))]
    plain = [p for p in processed if p.mode is Mode.PLAIN]
    enrolled = [p for p in processed if p.mode is not Mode.PLAIN]
    pieces = []
    if enrolled:
        pieces.append(_in_transaction(context, enrolled, _slots_of(enrolled, cursors)))
    if plain:
        try:
            pieces += _in_the_ordinary_way(context, plain, _slots_of(plain, cursors))
        except (KpsplitError, KafkaException) as error:
            pieces.append(Piece(_slots_of(plain, cursors), _failure(error)))
    return pieces


def _of(
    context: Context, parent: PhysicalPartition, cursors: Cursors, moved: Collection[OwnedSlot]
) -> Processed:
    mine = context.assigned_slots.of(parent)
    ranges = frozenset(c.range for h in mine if h.slot in moved for c in cursors.get(h.slot, ()))
    written = [c for h in mine for c in cursors.get(h.slot, ())]
    unchanged = [c for h in mine if h.slot not in cursors for c in h.committed]
    first = next(h for h in mine if h.slot in cursors)
    state, epochs = context.metadata.state(parent), context.epochs.of(parent, written)
    return Processed(state, first.mode, tuple(written), tuple(unchanged), first.place, epochs, ranges)


def _slots_of(processed: Iterable[Processed], cursors: Cursors) -> tuple[OwnedSlot, ...]:
    parents = {p.parent for p in processed}
    return tuple(slot for slot in cursors if slot.parent in parents)


def _with_outputs(
    context: Context,
    participant: TransactionParticipant,
    processed: list[Processed],
    slots: tuple[OwnedSlot, ...],
) -> Piece:
    member, metadata = context.member(), context.group.metadata()
    state = context.state_binding.commit(processed, slots)
    payload = CommitPayloads(participant.payload(processed), *(() if state is None else (state,)))
    future = context.executor.run(
        lambda: context.group_offsets.commit_loaded(
            processed, member, metadata, COMMIT_SECONDS, participant, payload
        )
    )
    return Piece(slots, future, payload)


def _in_transaction(context: Context, processed: list[Processed], slots: tuple[OwnedSlot, ...]) -> Piece:
    member, metadata = context.member(), context.group.metadata()
    payload = context.state_binding.commit(processed, slots)
    future = context.executor.run(
        lambda: context.group_offsets.commit(processed, member, metadata, COMMIT_SECONDS, payload)
    )
    return Piece(slots, future, payload)


def _in_the_ordinary_way(
    context: Context, processed: list[Processed], slots: tuple[OwnedSlot, ...]
) -> list[Piece]:
    offsets = plain_offsets(processed)
    if not offsets:
        return []
    state = context.state_binding.commit(processed, slots)
    if state is None:
        return [Piece(slots, context.group.commit(offsets, context.metadata_of(offsets)))]
    assigned_slots = [h for h in context.assigned_slots if h.slot in slots]
    flushed = context.executor.run(lambda: state.flush(Deadline(COMMIT_SECONDS)))
    return [Piece(slots, flushed, then=lambda: _commit_then(context, offsets, assigned_slots))]


def _commit_then(
    context: Context, offsets: Mapping[PhysicalPartition, int], assigned_slots: list[AssignedSlot]
) -> Future[None]:
    """Commit ordinary offsets of what is still held as it was when their state was flushed."""
    held = {id(h): h.parent for h in context.assigned_slots}
    ours = {held[id(h)] for h in assigned_slots if id(h) in held}
    left = {parent: offset for parent, offset in offsets.items() if parent in ours}
    if left:
        return context.group.commit(left, context.metadata_of(left))
    done: Future[None] = Future()
    done.set_result(None)
    return done


def _failure(error: Exception) -> Future[None]:
    future: Future[None] = Future()
    future.set_exception(error)
    return future
