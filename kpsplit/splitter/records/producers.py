"""Records of ``__kpsplit.producers``: registrations, answers, certificates (protocol, section 6).

A producer writes its whole record at each change. The key belongs to one registration. A producer whose
registration is over registers again, under the next key; so an operator may remove a registration that is
over at any time, and never removes one that is in use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from kpsplit.errors import FutureVersionError, RecordError
from kpsplit.splitter.records.data import instance_name
from kpsplit.splitter.records.keys import MAX_TOPIC_NAME, is_writers_id
from kpsplit.splitter.records.strict_json import ANY_VERSION, Fields, decode, encode_readable, form_of

VERSION = 4
"""Of a producer's record: the first that names its instance, and the oldest that is read."""
_WHAT = "producer record"
_KEY_STEP = 0x9E3779B97F4A7C15
_SEGMENT_ID = re.compile(r"(0|[1-9][0-9]{0,18})")
_INSTANCE = re.compile(r"[0-9a-f]{16}")
_KEY = re.compile(rb"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class PauseReport:
    """What one attempt cost one producer: pause in ms (0: none), records held, strays sent again."""

    attempt: str
    pause_ms: int
    held: int
    strays: int


@dataclass(frozen=True, slots=True)
class Certificate:
    """What one producer did to one logical partition, said at its end.

    ``next_sequence``: how many numbers it gave. ``delivered``: how many records per segment id it reported as
    delivered. ``failed``: the numbers whose delivery it reported as failed (they may have been written).
    ``topic_id``: Kafka's id of the topic that it speaks of (None: not said); a topic made again has another.
    """

    next_sequence: int
    delivered: dict[str, int]
    failed: tuple[int, ...]
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class ProducerRegistration:
    """The whole record of one producer instance.

    ``generation``: which registration of the instance it is. ``ready`` and ``acknowledged`` map a logical
    partition (``orders/3``) to the attempt that was answered.
    """

    instance: int
    generation: int
    client_id: str
    transactional_id: str | None = None
    topics: tuple[str, ...] = ()
    ready: dict[str, str] = field(default_factory=dict)
    acknowledged: dict[str, str] = field(default_factory=dict)
    pauses: dict[str, PauseReport] = field(default_factory=dict)
    closed: bool = False
    certificates: dict[str, Certificate] = field(default_factory=dict)

    @property
    def key(self) -> bytes:
        """The record's key: another one for each registration of the instance."""
        number = self.instance + (self.generation - 1) * _KEY_STEP
        return instance_name(number % (1 << 64)).encode("ascii")

    def encode(self) -> bytes:
        """Raise RecordError if a field is over its limit, or the whole too large."""
        form = {
            **form_of(self),
            "v": VERSION,
            "instance": instance_name(self.instance),
            "pauses": {k: form_of(p) for k, p in self.pauses.items()},
            "certificates": {k: form_of(c) for k, c in self.certificates.items()},
        }
        return encode_readable(form, lambda data: decode_record(self.key, data))


@dataclass(frozen=True, slots=True)
class Removed:
    key: bytes


@dataclass(frozen=True, slots=True)
class Newer:
    """A registration of a newer version. Every version names its topics; nothing else is known of it."""

    key: bytes
    topics: tuple[str, ...]


Entry = ProducerRegistration | Removed | Newer
"""What can stand under a key of the producers topic."""


def is_registration_key(key: bytes | None) -> bool:
    """Return whether a registration can stand under a key: nobody writes others."""
    return _KEY.fullmatch(key or b"") is not None


def decode_entry(key: bytes | None, data: bytes | None) -> Entry:
    """Read what stands under a key; RecordError for what no version writes."""
    if data is None:
        return Removed(key or b"")
    try:
        return decode_record(key, data)
    except FutureVersionError:
        return Newer(key or b"", decode(data, _WHAT, ANY_VERSION).texts("topics", MAX_TOPIC_NAME))


def decode_record(key: bytes | None, data: bytes | None) -> ProducerRegistration:
    """Raise RecordError if malformed, FutureVersionError if a newer kpsplit wrote it."""
    if not is_registration_key(key):
        raise RecordError("producers topic: a key that kpsplit never writes")
    fields = decode(data, _WHAT, VERSION)
    if fields.version < VERSION:
        fields.fail(f"format version {fields.version} is no longer read")
    record = _record(fields)
    if record.key != key:
        fields.fail("the key is that of another registration")
    fields.done()
    return record


def _record(fields: Fields) -> ProducerRegistration:
    transactional_id = fields.optional_text("transactional_id", 10_000)
    if transactional_id is not None and not is_writers_id(transactional_id):
        fields.fail("transactional_id is none that a producer of data can have")
    instance = fields.text("instance", 16)
    if _INSTANCE.fullmatch(instance) is None:
        fields.fail("instance is not 16 hexadecimal digits")
    return ProducerRegistration(
        instance=int(instance, 16),
        generation=fields.integer("generation", 1),
        client_id=fields.text("client_id"),
        transactional_id=transactional_id,
        topics=fields.texts("topics", MAX_TOPIC_NAME),
        ready=fields.text_map("ready"),
        acknowledged=fields.text_map("acknowledged"),
        pauses=fields.object_map("pauses", _pause),
        closed=fields.boolean("closed"),
        certificates=fields.object_map("certificates", _certificate),
    )


def _pause(fields: Fields) -> PauseReport:
    return PauseReport(
        fields.text("attempt", 64),
        fields.integer("pause_ms"),
        fields.integer("held"),
        fields.integer("strays"),
    )


def _certificate(fields: Fields) -> Certificate:
    certificate = Certificate(
        fields.integer("next_sequence"),
        fields.number_map("delivered"),
        fields.integers("failed"),
        fields.optional_text("topic_id", 100),
    )
    if not all(map(_SEGMENT_ID.fullmatch, certificate.delivered)):
        fields.fail("delivered does not count by segment id")
    return certificate
