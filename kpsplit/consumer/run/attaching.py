"""What ``run()`` does in the engine's thread: another sink takes the poll buffer's place, and gives it back.

Slots that are owned already start anew for the new sink from what is processed, piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from kpsplit.consumer.commit.committer import Committer, Parts
from kpsplit.consumer.commit.group_offsets import Start, merged
from kpsplit.consumer.commit.payload import Carrier
from kpsplit.consumer.config import ConsumerSettings
from kpsplit.consumer.context import Context
from kpsplit.consumer.fetch.sink import Sink
from kpsplit.consumer.slots.assigned import IN_SINK, Holding, Stage
from kpsplit.consumer.slots.initializer import begin, start_anew
from kpsplit.consumer.slots.pieces import Ahead
from kpsplit.splitter.cursor import Cursor


@dataclass(frozen=True, slots=True)
class Attached:
    """What records go to: a sink, the settings and statistics that go with it, what commits carry besides."""

    sink: Sink
    settings: ConsumerSettings
    stats: Callable[[], Mapping[str, Any] | None]
    carrier: Carrier | None = None


def attach(context: Context, committer: Committer, new: Attached) -> Attached:
    """Have records go to another sink from now on; return where they went before.

    Outputs that wait for a commit go with the carrier: their slots start anew from what is committed.
    """
    before = Attached(context.sink, context.settings, context.run_stats, context.carrier)
    start_anew(context, _unsure(context))
    processed = {h.slot: _processed(context, h) for h in context.holdings.on(IN_SINK)}
    # Behind the positions: what a worker that was not waited for adds now is beyond them.
    _take_back_outputs(context, committer)
    holdings = context.holdings.on(IN_SINK)
    slots = [holding.slot for holding in holdings]
    context.reader.disown(slots)
    before.sink.dropped(slots)
    context.sink, context.settings = new.sink, new.settings
    context.run_stats, context.carrier = new.stats, new.carrier
    context.stored.clear()  # it is in the places where slots restart; kept, it would take later commits back
    for holding in holdings:
        _restart(context, holding, processed[holding.slot])
    return before


def _unsure(context: Context) -> list[Holding]:
    """Return the slots with state of which a record is being worked on: whether it will count is open."""
    if context.keeping.store is None:
        return []
    return [h for h in context.holdings.on(IN_SINK) if not context.sink.release([h.slot])]


def _take_back_outputs(context: Context, committer: Committer) -> None:
    """Have records whose outputs were not committed count as not processed."""
    carrier = context.carrier
    if carrier is None:
        return
    found = [(h, h.start) for h in context.holdings.on(IN_SINK) if carrier.keeps(h.slot)]
    begun = [(h, start) for h, start in found if not h.committed]
    start_anew(context, [h for h, _ in found])
    if committer.idle():
        # The log has nothing of them: a reset of the group to the end would pass their records over.
        for holding, start in begun:
            if holding.stage is Stage.WANTED and start is not None:
                holding.start, holding.stage = start, Stage.FOUND


def commit_now(context: Context, committer: Committer) -> Future[Parts]:
    """Commit what is processed; the future raises _NO_OFFSET where that is nothing new."""
    future: Future[Parts] = Future()
    committer.ask(committer.changed(context.holdings.on(IN_SINK)), future)
    return future


def _processed(context: Context, holding: Holding) -> Sequence[Cursor]:
    """Return how far a slot is processed, or what ``store_offsets`` was told of it."""
    stored = context.processed(holding)
    if stored or holding.start is None:
        return stored
    return holding.start.pieces


def _restart(context: Context, holding: Holding, pieces: Sequence[Cursor]) -> None:
    committed = holding.start is not None and holding.start.committed
    holding.start = Start(tuple(pieces), committed=committed)
    context.ahead.pop(holding.slot, None)
    if holding.stage is Stage.READING:
        begin(context, holding)
        return
    if len(pieces) > 1:
        context.ahead[holding.slot] = Ahead(tuple(pieces))
    context.sink.taken(holding.slot, merged(context.lineage(holding.parent), holding.start))
    context.sink.release([holding.slot])
