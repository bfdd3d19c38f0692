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
SLOTS_NAME = "__kpsplit.slots"
MOST_GENERATIONS = 9999
"""Of a topic's number of slots: so often it can be changed."""
CHANGELOG_PREFIX = "__kpsplit.changelog."
SETTINGS_KEY = b"_cluster"

MAX_TOPIC_NAME = 249
"""Kafka's limit on the length of a topic's name."""

MAX_PARTITION = (1 << 31) - 1

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_PARTITION = re.compile(r"(0|[1-9][0-9]{0,9})")
_SLOTS_TOPIC = re.compile(rf"{re.escape(SLOTS_NAME)}(?:-([1-9][0-9]{{0,3}}))?\.")
_PLAIN_GROUP = re.compile(r"[a-zA-Z0-9_-]{1,120}")


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


def slots_topic(topic: str, generation: int = 1) -> str:
    """Return the name of the slots topic of a topic; one that is too long is shortened with a hash.

    Each number of slots that a topic has had has a slots topic of its own, numbered by ``generation``, so a
    partition of it means the same key range for everybody, always. What stands before the topic's name tells
    the generation, whatever the topic is called. The present one is in the ``Enrolment``.
    """
    prefix = f"{SLOTS_NAME}." if generation == 1 else f"{SLOTS_NAME}-{generation}."
    if len(prefix) + len(topic) <= MAX_TOPIC_NAME:
        return prefix + topic
    return prefix + _shortened(topic, MAX_TOPIC_NAME - len(prefix))


def slots_generation(name: str, topic: str) -> int | None:
    """Return which slots topic of a topic has this name, None if none has."""
    found = _SLOTS_TOPIC.match(name)
    generation = int(found[1] or 1) if found else 0
    return generation if generation and name == slots_topic(topic, generation) else None


def changelog_topic(group: str, topic: str) -> str:
    """Return the name of a group's changelog for a topic: ``__kpsplit.changelog.<group>.<topic>``.

    A group whose name has a dot, or what no topic's name may have, is written with a hash, so that two
    pairs of group and topic never share a changelog. A name that gets too long ends in a hash.
    """
    name = group
    if not _PLAIN_GROUP.fullmatch(group):
        name = f"{re.sub(r'[^a-zA-Z0-9_-]', '_', group)[:100]}-{_digest(group)}"
    return _changelog(name, topic)


def is_changelog_of(name: str, topic: str) -> bool:
    """Return whether a group keeps its state of a topic in the topic of this name."""
    group = name.removeprefix(CHANGELOG_PREFIX).partition(".")[0]
    return name == _changelog(group, topic)


def _changelog(name: str, topic: str) -> str:
    whole = f"{CHANGELOG_PREFIX}{name}.{topic}"
    return whole if len(whole) <= MAX_TOPIC_NAME else _shortened(whole, MAX_TOPIC_NAME)


def _shortened(topic: str, length: int) -> str:
    """Return the beginning of a topic's name and the hash of the whole, together of a length."""
    return f"{topic[: length - 17]}-{_digest(topic)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


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


def enroller_transactional_id(topic: str) -> str:
    """Return the transactional id by which operators who write a topic's enrolment fence each other.

    No partition's operator has it: ``*`` is no number. It is covered by the right on ``operator_ids``.
    """
    return f"{operator_ids(topic)}*"


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

    The settings and enrolments stand alone: no operation of a partition hides them.
    The logical partitions of a topic are spread: an open transaction about one hides nothing about the next.
    """
    if not isinstance(subject, PhysicalPartition):
        return 0
    return 1 + (crc32(subject.topic.encode("ascii")) + subject.partition) % STATE_PARTITIONS


def offsets_partition(parent: PhysicalPartition, count: int) -> int:
    """Return the partition of the offset log that holds everything about a logical partition."""
    return crc32(partition_key(parent)) % count
