"""Keys of the control topic, and names of what kpsplit owns (protocol, section 4).

``/`` cannot occur in a topic's name, so ``orders/3`` (a logical partition), ``orders/*`` (a topic's
enrolment) and ``_cluster`` (the settings) never collide.
"""

from __future__ import annotations

import hashlib
import re
from binascii import crc32
from urllib.parse import quote

from kpsplit.errors import RecordError, UsageError
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.strict_json import Fields

CONTROL_TOPIC = "__kpsplit.control"
PRODUCERS_TOPIC = "__kpsplit.producers"
OFFSETS_TOPIC = "__kpsplit.offsets"
OWN_TOPICS = (CONTROL_TOPIC, PRODUCERS_TOPIC, OFFSETS_TOPIC)
"""What kpsplit has once per cluster."""
STATE_PARTITIONS = 16
"""Of the control topic, for logical partitions. Fixed: a key that moved would have two latest records."""
CONTROL_PARTITIONS = 1 + STATE_PARTITIONS
SLOTS_PREFIX = "__kpsplit.slots."
CHANGELOG_PREFIX = "__kpsplit.changelog."
SETTINGS_KEY = b"_cluster"

MAX_TOPIC_NAME = 249
"""Kafka's limit on the length of a topic's name."""

MAX_PARTITION = (1 << 31) - 1

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_PARTITION = re.compile(r"(0|[1-9][0-9]{0,9})")


def is_topic_name(name: str) -> bool:
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def topic_field(fields: Fields, name: str) -> str:
    """Take the name of a topic; RecordError if Kafka accepts no such name."""
    topic = fields.text(name)
    if not is_topic_name(topic):
        fields.fail(f"{name} is not a topic's name")
    return topic


def place_field(fields: Fields, prefix: str = "") -> PhysicalPartition:
    """Take ``<prefix>topic`` and ``<prefix>partition``; RecordError if out of Kafka's limits."""
    topic = topic_field(fields, f"{prefix}topic")
    return PhysicalPartition(topic, fields.integer(f"{prefix}partition", 0, MAX_PARTITION))


def partition_key(parent: PhysicalPartition) -> bytes:
    return str(parent).encode("ascii")


def enrolment_key(topic: str) -> bytes:
    return f"{topic}/*".encode("ascii")


def parse_partition(text: str) -> PhysicalPartition:
    """Read ``topic/partition``; UsageError if the text is none."""
    topic, slash, number = text.rpartition("/")
    if not slash or not is_topic_name(topic) or not _PARTITION.fullmatch(number):
        raise UsageError(f"{text[:300]!r} does not name a partition", hint="write TOPIC/P, e.g. orders/3")
    if int(number) > MAX_PARTITION:
        raise UsageError(f"partition {number} is out of Kafka's range")
    return PhysicalPartition(topic, int(number))


def parse_control_key(key: bytes | None) -> PhysicalPartition | str | None:
    """Read a control key: a logical partition, the topic of an enrolment, or None for the settings.

    Raises:
        RecordError: the key is none of these.
    """
    if key == SETTINGS_KEY:
        return None
    try:
        text = (key or b"").decode("ascii")
        if text.endswith("/*") and is_topic_name(text[:-2]):
            return text[:-2]
        return parse_partition(text)
    except (UnicodeDecodeError, UsageError):
        raise RecordError("control topic: a key that kpsplit never writes") from None


def subtopics_prefix(topic: str) -> str:
    """Return with what the names of all sub-topics of a topic begin, and those of no other topic's.

    A topic of more than 221 characters has a hash in its place, whatever the numbers of its sub-topics: were
    only the names shortened that need it, what they have in common would also begin the topic's own name.
    """
    longest = MAX_TOPIC_NAME - len(f".split-{MAX_PARTITION}-{MAX_PARTITION}")
    return f"{topic if len(topic) <= longest else _shortened(topic, longest)}.split-"


def subtopic_name(parent: PhysicalPartition, number: int) -> str:
    return f"{subtopics_prefix(parent.topic)}{parent.partition}-{number}"


def collides(name: str, other: str) -> bool:
    """Return whether two different names are one in Kafka's metrics, where ``.`` becomes ``_``."""
    return name != other and name.replace(".", "_") == other.replace(".", "_")


def slots_topic(topic: str) -> str:
    """Return the name of the slots topic of a topic; one that is too long is shortened with a hash."""
    if len(SLOTS_PREFIX) + len(topic) <= MAX_TOPIC_NAME:
        return SLOTS_PREFIX + topic
    return SLOTS_PREFIX + _shortened(topic, MAX_TOPIC_NAME - len(SLOTS_PREFIX))


def _shortened(topic: str, length: int) -> str:
    """Return the beginning of a topic's name and the hash of the whole, together of a length."""
    digest = hashlib.sha256(topic.encode("ascii")).hexdigest()[:16]
    return f"{topic[: length - 17]}-{digest}"


OWN_IDS = "kpsplit."
"""With what all transactional ids of kpsplit's own begin."""


def operator_ids(topic: str) -> str:
    """Return with what the transactional ids of a topic's operators begin.

    And those of no other topic's: no topic has a slash in its name.
    """
    return f"{OWN_IDS}op.{topic}/"


def operator_transactional_id(parent: PhysicalPartition) -> str:
    """Return the transactional id by which operators of a partition fence each other."""
    return f"{operator_ids(parent.topic)}{parent.partition}"


def group_ids(use: str, group: str) -> str:
    """Return with what the transactional ids of a group begin, for one use: ``commit``, ``run`` or ``seek``.

    And those of no other group's: the group's name is written without slashes, percent-encoded.
    """
    return f"{OWN_IDS}{use}.{quote(group, safe='')}/"


def is_writers_id(transactional_id: str) -> bool:
    """Return whether a producer of data can have this transactional id.

    Not so where brokers refuse it (empty, NUL), nor where it is one of kpsplit's own: of these only the runs
    of groups write data, and register like an application.
    """
    if not transactional_id or "\0" in transactional_id:
        return False
    return not transactional_id.startswith(OWN_IDS) or transactional_id.startswith(f"{OWN_IDS}run.")


def control_partition(subject: PhysicalPartition | str | None) -> int:
    """Return the control topic's partition that holds all records about what ``parse_control_key`` names.

    The settings and enrolments stand alone: they are written without transactions, so nothing hides them.
    The logical partitions of a topic are spread: an open transaction about one hides nothing about the next.
    """
    if not isinstance(subject, PhysicalPartition):
        return 0
    return 1 + (crc32(subject.topic.encode("ascii")) + subject.partition) % STATE_PARTITIONS


def offsets_partition(parent: PhysicalPartition, count: int) -> int:
    """Return the partition of the offset log that holds everything about a logical partition."""
    return crc32(partition_key(parent)) % count
