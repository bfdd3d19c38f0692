"""What the reading side has met besides records, told to the application. Engine's thread."""

from __future__ import annotations

import logging

from confluent_kafka import KafkaError

from kpsplit.consumer.context import Context, Notice, kafka_error, named
from kpsplit.consumer.fetch.lineage_reader import GapReason
from kpsplit.consumer.fetch.reading_events import EndReached, ForeignFound, GapFound, ReadingEvent, Unreadable
from kpsplit.consumer.group.subscriptions import Mode

log = logging.getLogger(__name__)

_BEGINNINGS = {"earliest", "latest"}
_OUTSIDE = {GapReason.EXPIRED, GapReason.CUT_OFF}


def report(context: Context, event: ReadingEvent) -> None:
    """Count it, and tell the application of it, or begin anew where ``auto.offset.reset`` says."""
    if _resets(context, event):
        return
    if isinstance(event, GapFound):
        context.counts["gaps"] += 1
        context.counts["gap_records"] += event.records
        _tell_gap(context, event)
    elif isinstance(event, ForeignFound):
        context.counts["foreign_records"] += event.count
    elif isinstance(event, EndReached):
        context.ends[event.parent] = event.offset
    else:
        context.counts["unreadable"] += 1
        context.trouble = event.error
        context.events.tell(kafka_error(event.error), **named(event.parent))


def _resets(context: Context, event: ReadingEvent) -> bool:
    """Have a partition begin anew whose offset is outside its log; tell whether it does. As the original.

    Only where the topic is not enrolled: there is no lineage that says what is missing.
    """
    if context.settings.reset not in _BEGINNINGS or isinstance(event, ForeignFound | EndReached):
        return False
    stops = isinstance(event, Unreadable) or event.error is not None
    reason = event.gap.reason if isinstance(event, GapFound) else event.reason
    if event.parent is None or not stops or reason not in _OUTSIDE:
        return False
    holdings = [h for h in context.holdings.of(event.parent) if h.mode is Mode.PLAIN]
    for holding in holdings:
        holding.reset = True
        context.counts["offsets_reset"] += 1
        log.warning("kpsplit: %s; it begins anew at the %s offset", event.error, context.settings.reset)
    return bool(holdings)


def _tell_gap(context: Context, event: GapFound) -> None:
    if event.error is not None:
        context.events.tell(
            KafkaError(KafkaError._AUTO_OFFSET_RESET, str(event.error)), **named(event.parent)
        )
        return
    what = f"{event.parent}: {event.gap}"
    log.warning("kpsplit: %s; it is skipped", what)
    callback = context.events.warn(KafkaError(KafkaError._AUTO_OFFSET_RESET, what))
    context.notices.append(Notice(event.parent, event.gap, callback))
