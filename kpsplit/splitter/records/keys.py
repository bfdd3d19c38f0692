"""Keys of the control topic, and names of what kpsplit owns (design, section 4).

``/`` cannot occur in a topic's name, so ``orders/3`` (a logical partition), ``orders/*`` (a topic's
enrolment) and ``_cluster`` (the settings) never collide.
"""

from __future__ import annotations

import hashlib
import re

from kpsplit.errors import RecordError, UsageError
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.strict_json import Fields

CONTROL_TOPIC = "__kpsplit.control"
PRODUCERS_TOPIC = "__kpsplit.producers"
OFFSETS_TOPIC = "__kpsplit.offsets"
OWN_TOPICS = (CONTROL_TOPIC, PRODUCERS_TOPIC, OFFSETS_TOPIC)
"""What kpsplit has once per cluster."""
SLOTS_PREFIX = "__kpsplit.slots."
SETTINGS_KEY = b"_cluster"

MAX_TOPIC_NAME = 249
"""Kafka's limit on the length of a topic's name."""

MAX_PARTITION = (1 << 31) - 1

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_PARTITION = re.compile(r"(0|[1-9][0-9]{0,9})")


def is_topic_name(name: str) -> bool:
    """Tell whether Kafka accepts the name of a topic."""
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def topic_field(fields: Fields, name: str) -> str:
    """Take the name of a topic from a record.

    Raises:
        RecordError: the field is missing, or Kafka accepts no such name.
    """
    topic = fields.text(name)
    if not is_topic_name(topic):
        fields.fail(f"{name} is not a topic's name")
    return topic


def place_field(fields: Fields, prefix: str = "") -> PhysicalPartition:
    """Take ``<prefix>topic`` and ``<prefix>partition`` from a record.

    Raises:
        RecordError: one of them is missing or out of Kafka's limits.
    """
    topic = topic_field(fields, f"{prefix}topic")
    return PhysicalPartition(topic, fields.integer(f"{prefix}partition", 0, MAX_PARTITION))


def partition_key(parent: PhysicalPartition) -> bytes:
    """Return the control topic's key of a logical partition."""
    return str(parent).encode("ascii")


def enrolment_key(topic: str) -> bytes:
    """Return the control topic's key of a topic's enrolment."""
    return f"{topic}/*".encode("ascii")


def parse_partition(text: str) -> PhysicalPartition:
    """Read ``topic/partition``.

    Raises:
        UsageError: the text does not name a partition.
    """
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
    """Return with what the names of all sub-topics of a topic begin, those that are shortened as well."""
    longest = f".split-{MAX_PARTITION}-{MAX_PARTITION}"
    if len(topic) + len(longest) <= MAX_TOPIC_NAME:
        return f"{topic}.split-"
    return topic[: MAX_TOPIC_NAME - len(longest) - 17]


def subtopic_name(parent: PhysicalPartition, number: int) -> str:
    """Return the name of a sub-topic: ``orders.split-3-1``; one that is too long is shortened with a hash."""
    suffix = f".split-{parent.partition}-{number}"
    if len(parent.topic) + len(suffix) <= MAX_TOPIC_NAME:
        return parent.topic + suffix
    digest = hashlib.sha256(parent.topic.encode("ascii")).hexdigest()[:16]
    return f"{parent.topic[: MAX_TOPIC_NAME - len(suffix) - 17]}-{digest}{suffix}"


def collides(name: str, other: str) -> bool:
    """Tell whether two different names are one in Kafka's metrics, where ``.`` becomes ``_``."""
    return name != other and name.replace(".", "_") == other.replace(".", "_")


def slots_topic(topic: str) -> str:
    """Return the name of the slots topic of a topic; one that is too long is shortened with a hash."""
    if len(SLOTS_PREFIX) + len(topic) <= MAX_TOPIC_NAME:
        return SLOTS_PREFIX + topic
    digest = hashlib.sha256(topic.encode("ascii")).hexdigest()[:16]
    return f"{SLOTS_PREFIX}{topic[: MAX_TOPIC_NAME - len(SLOTS_PREFIX) - 17]}-{digest}"


def operator_transactional_id(parent: PhysicalPartition) -> str:
    """Return the transactional id by which operators of a partition fence each other."""
    return f"kpsplit.op.{parent.topic}.{parent.partition}"
