"""Reads the physical partitions that the slots of this member need (protocol, sections 9 and 10).

``fetch_state`` and ``record_filter`` decide what is read and who gets it; here are the clients. One consumer
is assigned by hand.
A physical partition that has to wait is taken from its assignment, and added again at the exact offset, so
nothing waits in memory and the others go on. (librdkafka drops what it has fetched of a partition when it is
taken away, before the call returns: no record of an earlier assignment comes later.)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from kpsplit.clock import monotonic
from kpsplit.consumer.config import CLIENT_KBYTES
from kpsplit.consumer.fetch.batch import MESSAGE_BYTES, Backpressured, Batch
from kpsplit.consumer.fetch.fetch_state import FetchState
from kpsplit.consumer.fetch.gaps import Gap, GapPolicy, ReadingEvent, Unreadable
from kpsplit.consumer.fetch.physical_reader import LogProbe
from kpsplit.errors import ConfigurationError
from kpsplit.kafka.connection import AdminUse, Connection
from kpsplit.kafka.error_map import TRANSIENT_READS, translate, translated
from kpsplit.kafka.logical_message import all_keyed, stretch_ends
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor, wrong_topic

__all__ = ["Batch", "OwnedSlot", "SlotReader"]

MOST = 1000
"""So many records are taken at once at most: the garbage collector goes through those that wait."""

LOOK_SECONDS = 0.01
"""How long a step waits at most while a broker's answer about a log is due."""

NEAR = 8
"""So many offsets are read over rather than fetched anew: a marker, say."""

FIRST_REST_SECONDS = 1.0
LONGEST_REST_SECONDS = 30.0
"""How long a log that cannot be read rests before it is tried again: at first, and at most."""

LOOK_BEHIND_SECONDS = 1.0
"""How often the bounds of a log are asked for where reading does not go on: an open transaction, say."""

GROWTH = 4
_OUTSIDE = {
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError._LOG_TRUNCATION,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
}
"""The log is not what was expected: brokers are asked about it."""
_REFUSED = {KafkaError.TOPIC_AUTHORIZATION_FAILED}
"""Nothing was read. Other errors may stand in the place of records that the client passes over."""


class SlotReader:
    """Reads what the owned slots need. Not thread safe: whoever calls holds the engine's lock.

    Args: connection: how to reach the cluster. settings: the application's own consumer settings that
    concern fetching. report: called with everything that is no record, from within the other methods; it
    must not call back. on_gap: what is done where records are gone; where they are skipped, reading waits at
    a gap until ``told`` says that the application knows of it. wrap_all: hand out every message as a
    ``LogicalMessage``. client: reads the logs, made of the settings if none is given.

    Raises:
        ConfigurationError: the client refuses a setting.
    """

    def __init__(
        self,
        connection: Connection,
        settings: Mapping[str, Any],
        report: Callable[[ReadingEvent], None],
        *,
        on_gap: GapPolicy = GapPolicy.ERROR,
        wrap_all: bool = False,
        client: Consumer | None = None,
    ) -> None:
        self._report = report
        self._on_gap = on_gap
        self._wrap_all = wrap_all
        self._consumer = client or _consumer(connection, settings)
        self._connection = connection
        self._admin = AdminUse(connection)
        self._tickets = itertools.count(1)
        self._partitions: dict[PhysicalPartition, FetchState] = {}
        self._assigned: dict[PhysicalPartition, int] = {}
        """Where the client stands in each log: up to there it was read without a break."""
        self._heard_end: set[PhysicalPartition] = set()
        """The logs whose end the client has reported there: it does that once, and not again by itself."""
        self._owners: dict[PhysicalPartition, FetchState] = {}
        self._probes: dict[PhysicalPartition, LogProbe] = {}
        self._identified: set[str] = set()
        self._told: dict[PhysicalPartition | None, int] = {}
        self._rests: dict[PhysicalPartition, tuple[float, float]] = {}
        """By stopped log: when it is tried again (0: not set), and how long it rests then."""
        self._looked: dict[PhysicalPartition, int] = {}
        """Where the bounds of a log were asked for, and nothing followed from the answer."""
        self._held_back = False
        self.most = MOST
        """How many records a step takes at most."""
        self._count = 16
        self._size = 0

    # what is owned

    def update(self, state: PartitionState) -> None:
        """Take the newest view of a logical partition. Needed before a slot of it is owned."""
        known = self._partitions.get(state.parent)
        if known is not None:
            known.update(state)
            return
        self._partitions[state.parent] = FetchState(
            state, lambda: next(self._tickets), self._report, self._on_gap, self._wrap_all
        )

    def own(self, slot: OwnedSlot, cursor: Cursor) -> None:
        """Read for a slot from where it was processed to; one that is owned from another place."""
        self._partitions[slot.parent].own(slot, cursor)

    def told(self, parent: PhysicalPartition, gap: Gap) -> list[Batch]:
        """The report of a gap has reached the application: go on after it. Returns as ``step``."""
        return self._partitions[parent].told(gap)

    def disown(self, slots: Iterable[OwnedSlot]) -> None:
        """Stop reading for slots; those that are not owned are ignored."""
        for slot in slots:
            if slot.parent in self._partitions:
                self._partitions[slot.parent].disown(slot)

    def pause(self, parents: Iterable[PhysicalPartition]) -> None:
        """Stop fetching for logical partitions, at their places."""
        for parent in parents:
            self._partitions[parent].pause(True)

    def resume(self, parents: Iterable[PhysicalPartition]) -> None:
        for parent in parents:
            self._partitions[parent].pause(False)

    def hold_back(self, backpressured: Backpressured) -> None:
        """Read nothing more of some key ranges for now; of what was named before and is not, go on."""
        if backpressured or self._held_back:
            for parent, fetch_state in self._partitions.items():
                fetch_state.hold_back(backpressured.get(parent, frozenset()))
            self._held_back = bool(backpressured)

    def start_over(self, cursors: Mapping[OwnedSlot, Cursor]) -> None:
        """Forget everything that was read, and begin anew for exactly these slots.

        For when an exception came between the brokers and whoever hands out records: what was read then is
        not known. May itself be ended by one, and called again.
        """
        with translated("change what is read"):
            self._consumer.unassign()
        for known in (self._assigned, self._heard_end, self._owners, self._probes, self._told):
            known.clear()
        for parent, fetch_state in self._partitions.items():
            self._partitions[parent] = fetch_state.anew()
        self._held_back = True  # whether anything is, is said before the next step
        for slot, cursor in cursors.items():
            self.own(slot, cursor)

    def cursor(self, slot: OwnedSlot) -> Cursor:
        """Return how far has been read for an owned slot (not: processed)."""
        return self._partitions[slot.parent].cursor(slot)

    @property
    def fetch_states(self) -> Mapping[PhysicalPartition, FetchState]:
        """What is known of each logical partition, for statistics."""
        return self._partitions

    @property
    def strays(self) -> int:
        """How many records were skipped as strays, in all logical partitions."""
        return sum(fetch_state.tally.strays for fetch_state in self._partitions.values())

    # fresh views

    @property
    def wants_refresh(self) -> int:
        """A request id, 0 for none: something waits for the control topic, read to an end asked for *now*."""
        return max((fetch_state.request_id for fetch_state in self._partitions.values()), default=0)

    def refreshed(self, request_id: int) -> None:
        """The control topic was read to an end that was asked for after ``wants_refresh`` was this id."""
        for fetch_state in self._partitions.values():
            fetch_state.refreshed(request_id)

    # reading

    def step(self, seconds: float, room: int) -> list[Batch]:
        """Read at most what fits ``room`` bytes; wait ``seconds`` for the first record (0: do not wait).

        The batches are in the order in which they have to be worked on. Returns at once if ``room`` <= 0.
        The room may be exceeded when records become larger all of a sudden, by what the client has fetched.

        Raises:
            KpsplitError: the client cannot be used any more.
        """
        if room <= 0:
            return []
        self._try_again()
        batches = self._look()
        self._arrange()
        if self._probes:
            seconds = min(seconds, LOOK_SECONDS)
        count = self._affordable(room)
        messages = self._fetch(0.0 if batches else seconds, count)
        for source, run in _runs(messages, self._assigned):
            batches += self._take(source, run)
        self._learn_size(len(messages), batches)
        self._arrange()
        return batches

    def close(self) -> None:
        self._consumer.close()
        self._probes.clear()
        self._admin.close()

    def _fetch(self, seconds: float, count: int) -> list[Message]:
        with translated("read"):
            messages = self._consumer.consume(count, 0)
            if messages or seconds <= 0:
                return messages
            first = self._consumer.poll(seconds)
            if first is None:
                return []
            return [first, *(self._consumer.consume(count - 1, 0) if count > 1 else ())]

    def _affordable(self, room: int) -> int:
        return max(1, min(self._count, self.most, room // self._size if self._size else 1))

    def _learn_size(self, read: int, batches: list[Batch]) -> None:
        """Keep in mind how large records are; nothing is known at first, and one is taken to find out."""
        handed_out = sum(len(batch.messages) for batch in batches)
        if handed_out:
            latest = sum(batch.bytes for batch in batches) // handed_out + 1
            self._size = max(latest, self._size * 3 // 4)
        elif read:
            self._size = self._size or MESSAGE_BYTES
        if read >= self._count:
            self._count = min(MOST, self._count * GROWTH)

    def _take(self, source: PhysicalPartition | None, run: list[Message]) -> list[Batch]:
        """Take a run in the client's order. An end after which more of the log comes is none any more."""
        if source is not None and all_keyed(run):
            return self._take_records(source, run, keyed=True)
        batches: list[Batch] = []
        last = next((m for m in reversed(run) if source is not None and _is_of(m, source)), None)
        for failed, group in itertools.groupby(run, lambda message: message.error() is not None):
            if failed:
                for message in group:
                    batches += self._take_error(source, message, ends=message is last)
            elif source is not None:
                records = list(group)
                batches += self._take_records(source, records, keyed=all_keyed(records))
        return batches

    def _take_records(self, source: PhysicalPartition, records: list[Message], *, keyed: bool) -> list[Batch]:
        self._told.pop(source, None)
        self._rests.pop(source, None)
        self._heard_end.discard(source)
        start, self._assigned[source] = self._assigned[source], (records[-1].offset() or 0) + 1
        return self._owners[source].take(source, start, records, keyed)

    def _take_error(self, source: PhysicalPartition | None, message: Message, *, ends: bool) -> list[Batch]:
        error = message.error()
        if message.topic() is None:
            source = None
        elif source is None or not _is_of(message, source):
            return []  # of a log that is read no more: the client drops its records then, not its errors
        code = None if error is None else error.code()
        if code == KafkaError._PARTITION_EOF and source is not None:
            return self._take_end(source, message.offset() or 0) if ends else []
        if source is not None and code in _OUTSIDE:
            if source in self._probes and not self._probes[source].holds_up:
                del self._probes[source]  # the client has stopped there: it has to be assigned anew
            self._probe(self._owners[source], source, self._assigned[source], with_bounds=True)
        elif error is not None and code not in TRANSIENT_READS:
            told = translate(error, f"read {source}" if source else "read")
            told.retriable = not error.fatal()
            if source is not None and code not in _REFUSED:
                self._owners[source].stop(source, told)
            elif self._told.get(source) != code:
                self._told[source] = error.code()
                owner = None if source is None else self._owners[source].parent
                self._report(Unreadable(owner, source, told))
        return []

    def _take_end(self, source: PhysicalPartition, offset: int) -> list[Batch]:
        start, fetch_state = self._assigned[source], self._owners[source]
        self._assigned[source] = max(offset, start)
        self._heard_end.add(source)
        batches = fetch_state.at_end(source, start, offset)
        self._look_behind(fetch_state, source)
        return batches

    # what is assigned

    def _arrange(self) -> None:
        """Make the assignment what the fetch states want; a topic is looked at before it is read at first."""
        leaving: list[PhysicalPartition] = []
        coming: dict[PhysicalPartition, int] = {}
        for fetch_state in self._partitions.values():
            if fetch_state.changed:
                fetch_state.changed = False
                self._compare(fetch_state, leaving, coming)
        if not leaving and not coming:
            return
        with translated("change what is read"):
            if leaving:
                self._consumer.incremental_unassign([_place(s) for s in leaving])
            if coming:
                self._consumer.incremental_assign([_place(s, offset) for s, offset in coming.items()])
        new = {source.topic for source in coming} - {source.topic for source in self._assigned}
        self._assigned.update(coming)
        for topic in new:
            # The client looks for leaders once a second by itself, and reads nothing until then.
            with suppress(KafkaException):  # it does not wait for the answer, and says so
                self._consumer.list_topics(topic, timeout=0)

    def _compare(
        self,
        fetch_state: FetchState,
        leaving: list[PhysicalPartition],
        coming: dict[PhysicalPartition, int],
    ) -> None:
        wanted = {s: at for s, at in fetch_state.wanted().items() if self._may_read(fetch_state, s, at)}
        for source in [s for s, owner in self._owners.items() if owner is fetch_state]:
            at = wanted.get(source)
            if at is not None and self._reads_on(fetch_state, source, at):
                self._look_behind(fetch_state, source)
                del wanted[source]
                continue
            leaving.append(source)
            del self._assigned[source], self._owners[source]
            self._heard_end.discard(source)
        for source, at in wanted.items():
            coming[source] = at
            self._owners[source] = fetch_state

    def _reads_on(self, fetch_state: FetchState, source: PhysicalPartition, at: int) -> bool:
        """Return whether the client comes to a place by itself.

        Not from the end of a log, which may have been cut off. An end that was not taken it reports again
        only when it is assigned anew.
        """
        if source in self._heard_end:
            return at == self._assigned[source] and fetch_state.ended(source)
        return self._assigned[source] <= at <= self._assigned[source] + NEAR

    def _may_read(self, fetch_state: FetchState, source: PhysicalPartition, at: int) -> bool:
        if source in self._probes:
            return not self._probes[source].holds_up
        if source.topic in self._identified or not fetch_state.state.topic_id_of(source.topic):
            return True
        self._probe(fetch_state, source, at, with_bounds=False)
        return False

    def _try_again(self) -> None:
        """Try stopped logs again, each after a longer rest, until something of it is read."""
        for fetch_state in self._partitions.values():
            for source in fetch_state.stopped:
                due, rest = self._rests.get(source, (0.0, 0.0))
                if not due:
                    rest = min(LONGEST_REST_SECONDS, max(FIRST_REST_SECONDS, rest * 2))
                    self._rests[source] = monotonic() + rest, rest
                elif monotonic() >= due:
                    self._rests[source] = 0.0, rest
                    fetch_state.try_again(source)

    # what brokers are asked

    def _look_behind(self, fetch_state: FetchState, source: PhysicalPartition) -> None:
        if fetch_state.cut_short(source) and source not in self._probes:
            self._probe(fetch_state, source, self._assigned[source], with_bounds=True, holds_up=False)

    def _probe(
        self,
        fetch_state: FetchState,
        source: PhysicalPartition,
        position: int,
        *,
        with_bounds: bool,
        holds_up: bool = True,
    ) -> None:
        if source in self._probes:
            return
        again = with_bounds and self._looked.get(source) == position
        retired = fetch_state.state.is_retired(source.topic)
        self._probes[source] = LogProbe(
            self._admin(),
            self._connection,
            source,
            position,
            with_bounds=with_bounds,
            holds_up=holds_up,
            retired=retired,
            rest=LOOK_BEHIND_SECONDS if again else 0.0,
        )
        if holds_up:
            self._identified.discard(source.topic)
            fetch_state.changed = True

    def _look(self) -> list[Batch]:
        """Take what brokers have answered."""
        batches: list[Batch] = []
        for source, probe in list(self._probes.items()):
            if probe.done():
                del self._probes[source]
                for fetch_state in self._partitions.values():
                    if fetch_state.wanted().get(source) == probe.position:
                        batches += self._take_answer(fetch_state, probe)
                    else:  # it says nothing of where reading goes on now: look there
                        fetch_state.changed = True
        return batches

    def _take_answer(self, fetch_state: FetchState, probe: LogProbe) -> list[Batch]:
        fetch_state.changed = True
        if probe.error is not None:
            fetch_state.stop(probe.source, probe.error)
        if probe.found is None:
            return []
        if wrong_topic(fetch_state.state, probe.source, probe.found.topic_id) is None:
            self._identified.add(probe.source.topic)
        batches = fetch_state.examine(probe.source, probe.found)
        if probe.found.bounds is not None and fetch_state.wanted().get(probe.source) == probe.position:
            self._looked[probe.source] = probe.position
        return batches


def _consumer(connection: Connection, settings: Mapping[str, Any]) -> Consumer:
    base = connection.reader("slots", auto_offset_reset="error", queued_max_messages_kbytes=CLIENT_KBYTES)
    ours = {"auto.offset.reset", "enable.partition.eof", "group.id", "enable.auto.commit"}
    theirs = {name: value for name, value in settings.items() if name not in ours}
    try:
        return connection.consumer_of({**base, **theirs})
    except (KafkaException, ValueError, TypeError) as error:
        raise ConfigurationError(f"the client refuses a setting: {error}") from None


def _runs(
    messages: list[Message], assigned: Iterable[PhysicalPartition]
) -> Iterator[tuple[PhysicalPartition | None, list[Message]]]:
    """Divide what the client gave into runs of one physical partition (None: of none that is assigned).

    The client gives what one fetch brought in a row, so there are few. Where numbers or topics alone tell the
    partitions apart, only they are looked at; where there is one partition, nothing is.
    """
    sources = list(assigned)
    if len(sources) == 1 and messages:
        yield sources[0], messages
        return
    ask: list[Callable[[Message], object]] = [Message.topic, Message.partition]
    if len({source.partition for source in sources}) == len(sources):
        ask = [Message.partition]
    elif len({source.topic for source in sources}) == len(sources):
        ask = [Message.topic]
    by_name: dict[object, PhysicalPartition] = {
        (source.topic, source.partition): source for source in sources
    }
    at = 0
    for end in stretch_ends(messages, ask):
        source = by_name.get((messages[at].topic(), messages[at].partition()))
        yield source, messages[at:end]
        at = end


def _is_of(message: Message, source: PhysicalPartition) -> bool:
    return (message.topic(), message.partition()) == (source.topic, source.partition)


def _place(source: PhysicalPartition, offset: int = 0) -> TopicPartition:
    return TopicPartition(source.topic, source.partition, offset)
