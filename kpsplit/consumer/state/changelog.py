"""The changelog topics of a group: made with the right policy, or refused by name; where their logs end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import NewPartitions

from kpsplit.consumer.state.changelog_record import wrong_slots
from kpsplit.consumer.state.marker import ChangelogFacts
from kpsplit.consumer.state.slots import SlotId, changelog_topic
from kpsplit.control.own_topics import REPLICATION, OwnTopic, misfits, topic_config
from kpsplit.errors import CheckFailedError, UnreachableError, UsageError
from kpsplit.kafka.cluster_admin import ANSWER_SECONDS, ClusterAdmin, TopicFacts
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import error_of, translate
from kpsplit.kafka.log_ends import learn_leaders
from kpsplit.kafka.served import await_served
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.ports import Deadline

_DEFAULT_DELETE_RETENTION_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class _Checked:
    topic_id: str
    slots: int
    partitions: int
    delete_retention_ms: int


class Changelogs:
    """The changelogs of one group. Not thread safe: the follower's thread owns it."""

    def __init__(self, connection: Connection, group: str) -> None:
        self._connection = connection
        self._group = group
        self._admin = ClusterAdmin(connection)
        self._checked: dict[str, _Checked] = {}

    def name(self, slot: SlotId) -> str:
        """Return the name of the changelog of a slot; the slot's number is its partition there."""
        return changelog_topic(self._group, slot.topic)

    def facts(self, slots: Sequence[SlotId], deadline: Deadline) -> dict[SlotId, ChangelogFacts]:
        """Return what the changelog partitions of slots of one topic hold now; it is made if it is missing.

        Raises:
            CheckFailedError: the topic exists and is not as it has to be. AuthorizationError: a right is
            missing. KpsplitError: the brokers could not be asked.
        """
        last = max(slots, key=lambda slot: slot.number)
        name = self.name(last)
        checked = self._checked.get(name)
        if checked is None or not self._is_still(name, last, checked):
            checked = self._checked[name] = self._check(name, last, deadline)
        places = {slot: PhysicalPartition(name, slot.number) for slot in slots}
        low = self._admin.start_offsets(places.values())
        high = self._admin.end_offsets(places.values())
        if len(low) < len(places) or len(high) < len(places):
            del self._checked[name]
            raise UnreachableError(f"some partitions of {name} do not answer", hint="retry")
        topic_id, retention = checked.topic_id, checked.delete_retention_ms
        return {
            slot: ChangelogFacts(topic_id, low[place], high[place].offset, retention)
            for slot, place in places.items()
        }

    def _is_still(self, name: str, slot: SlotId, checked: _Checked) -> bool:
        if slot.slots != checked.slots or slot.number >= checked.partitions:
            return False
        found = self._admin.layout(name)
        return found is not None and found.topic_id == checked.topic_id

    def _check(self, name: str, slot: SlotId, deadline: Deadline) -> _Checked:
        """Return the topic with all partitions that it needs, made or extended if need be."""
        wanted = self._wanted(slot)
        brokers = self._admin.brokers()
        replication = min(REPLICATION, len(brokers))
        if name not in self._admin.topics():
            self._admin.create(name, topic_config(replication), partitions=wanted, replication=replication)
            await_served(self._connection, brokers, {name: wanted}, deadline)
        found = self._admin.describe(name)
        wrong = misfits(OwnTopic(name, None), found, len(brokers))
        if wrong:
            raise CheckFailedError(
                f"the changelog {name} is not as it has to be: {wrong[0]}",
                hint="no state was read or written",
            )
        if len(found.partitions) != wanted:
            self._extend(found, slot, wanted)
            await_served(self._connection, brokers, {name: wanted}, deadline)
        learn_leaders(self._admin.client, name, ANSWER_SECONDS)  # it may remember fewer partitions
        retention = int(found.config.get("delete.retention.ms", _DEFAULT_DELETE_RETENTION_MS))
        return _Checked(found.topic_id, slot.slots, wanted, retention)

    def _wanted(self, slot: SlotId) -> int:
        parent = self._admin.known(slot.topic)
        if parent is None:
            raise UsageError(
                f"there is no topic {slot.topic}", hint="check the name and the right to describe"
            )
        return len(parent.partitions) * slot.slots

    def _extend(self, found: TopicFacts, slot: SlotId, wanted: int) -> None:
        """The topic got more partitions: so does the changelog. Any other difference is another division."""
        has = len(found.partitions)
        if has > wanted or has % slot.slots:
            raise wrong_slots(slot, f"{has} partitions, not {wanted}, for another number of")
        future = self._admin.client.create_partitions(
            [NewPartitions(found.name, wanted)], request_timeout=ANSWER_SECONDS
        )[found.name]
        try:
            future.result(ANSWER_SECONDS)
        except (KafkaException, TimeoutError) as exception:
            now = self._admin.layout(found.name)
            if now is not None and len(now.partitions) == wanted:  # another member was faster
                return
            error = error_of(exception) if isinstance(exception, KafkaException) else None
            raise translate(error, f"add partitions to {found.name}", writing=True) from exception
