"""What ``run()`` does in the engine's thread: another sink takes the poll buffer's place, and gives it back.

Slots that are owned already start anew for the new sink from what is processed, piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from kpsplit.consumer.ahead import Ahead
from kpsplit.consumer.carrier import Carrier
from kpsplit.consumer.committer import Committer, Parts
from kpsplit.consumer.config import ConsumerSettings
from kpsplit.consumer.context import Context
from kpsplit.consumer.holdings import IN_SINK, Holding, Stage
from kpsplit.consumer.ledger import Start, merged
from kpsplit.consumer.sink import Sink
from kpsplit.consumer.starter import begin, start_anew
from kpsplit.splitter.cursor import Cursor


@dataclass(frozen=True, slots=True)
class Attached:
    """What records go to: a sink, the settings and statistics that go with it, what commits carry besides."""

    sink: Sink
    settings: ConsumerSettings
    stats: Callable[[], Mapping[str, Any] | None]
    carrier: Carrier | None = None


def attach(context: Context, new: Attached) -> Attached:
    """Have records go to another sink from now on; return where they went before."""
    before = Attached(context.sink, context.settings, context.run_stats, context.carrier)
    start_anew(context, _unsure(context))
    holdings = context.holdings.on(IN_SINK)
    processed = [_processed(context, holding) for holding in holdings]
    slots = [holding.slot for holding in holdings]
    context.reader.disown(slots)
    before.sink.dropped(slots)
    context.sink, context.settings = new.sink, new.settings
    context.run_stats, context.carrier = new.stats, new.carrier
    for holding, pieces in zip(holdings, processed, strict=True):
        _restart(context, holding, pieces)
    return before


def _unsure(context: Context) -> list[Holding]:
    """Return the slots with state of which a record is being worked on: whether it will count is open."""
    if context.keeping.store is None:
        return []
    return [h for h in context.holdings.on(IN_SINK) if not context.sink.release([h.slot])]


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
