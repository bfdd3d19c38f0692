"""What the reading side has met besides records, told to the application. Engine's thread."""

from __future__ import annotations

import logging

from confluent_kafka import KafkaError

from kpsplit.consumer.context import Context, Notice, kafka_error, named
from kpsplit.consumer.reading_events import EndReached, ForeignFound, GapFound, ReadingEvent

log = logging.getLogger(__name__)


def report(context: Context, event: ReadingEvent) -> None:
    """Count it, and tell the application of it."""
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
