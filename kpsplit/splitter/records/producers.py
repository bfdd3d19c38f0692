"""Records of ``__kpsplit.producers``: registrations, answers, certificates, expiries (design, section 6).

Key ``<instance>``, written by the producer: its whole record. Key ``<instance>!``, written by operators: up
to which generation the registration has expired. A producer whose lease ran out registers again with the next
generation before it trusts its view again; so neither side ever overwrites what the other one wrote.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from kpsplit.errors import RecordError
from kpsplit.splitter.records.stamp import instance_name
from kpsplit.splitter.records.strict_json import Fields, decode, encode_readable

VERSION = 2
"""Of a producer's record; 1 had neither ``since`` nor ``fenced_below``."""
EXPIRY_VERSION = 1
_SEGMENT_ID = re.compile(r"(0|[1-9][0-9]{0,18})")
_KEY = re.compile(rb"([0-9a-f]{16})(!?)")


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
    """

    next_sequence: int
    delivered: dict[str, int]
    failed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """The whole record of one producer instance.

    ``ready`` and ``acknowledged`` map a logical partition (``orders/3``) to the attempt that was answered.
    ``since``: where our first record lies, None in that one. ``fenced_below``: whoever has our transactional
    id, and its first record below this offset, was fenced by Kafka: the topic ended there before we took the
    id.
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
    since: int | None = None
    fenced_below: int | None = None

    @property
    def key(self) -> bytes:
        """The record's key."""
        return instance_name(self.instance).encode("ascii")

    def encode(self) -> bytes:
        """Return the record's value.

        Raises:
            RecordError: a field is over its limit, or the record is too large.
        """
        return encode_readable(
            {
                "v": VERSION,
                "generation": self.generation,
                "client_id": self.client_id,
                "transactional_id": self.transactional_id,
                "since": self.since,
                "fenced_below": self.fenced_below,
                "topics": list(self.topics),
                "ready": self.ready,
                "acknowledged": self.acknowledged,
                "pauses": {k: _pause_to_json(p) for k, p in self.pauses.items()},
                "closed": self.closed,
                "certificates": {k: _certificate_to_json(c) for k, c in self.certificates.items()},
            },
            lambda data: decode_record(self.key, data),
        )


@dataclass(frozen=True, slots=True)
class Expiry:
    """Registrations of the instance up to this generation have expired."""

    instance: int
    generation: int

    @property
    def key(self) -> bytes:
        """The record's key."""
        return f"{instance_name(self.instance)}!".encode("ascii")

    def encode(self) -> bytes:
        """Return the record's value."""
        return encode_readable(
            {"v": EXPIRY_VERSION, "generation": self.generation}, lambda data: decode_record(self.key, data)
        )


def decode_record(key: bytes | None, data: bytes | None) -> ProducerRecord | Expiry:
    """Read a record of the producers topic.

    Raises:
        RecordError: malformed. FutureVersionError: written by a newer kpsplit.
    """
    match = _KEY.fullmatch(key or b"")
    if match is None:
        raise RecordError("producers topic: a key that kpsplit never writes")
    instance = int(match[1], 16)
    fields = decode(data, "producer record", EXPIRY_VERSION if match[2] else VERSION)
    record = Expiry(instance, fields.integer("generation")) if match[2] else _record(instance, fields)
    fields.done()
    return record


def _record(instance: int, fields: Fields) -> ProducerRecord:
    return ProducerRecord(
        instance=instance,
        generation=fields.integer("generation", 1),
        client_id=fields.text("client_id"),
        transactional_id=fields.optional_text("transactional_id", 10_000),
        since=fields.optional_integer("since") if fields.version > 1 else None,
        fenced_below=fields.optional_integer("fenced_below") if fields.version > 1 else None,
        topics=fields.texts("topics", 249),
        ready=fields.text_map("ready"),
        acknowledged=fields.text_map("acknowledged"),
        pauses=fields.object_map("pauses", _pause),
        closed=fields.boolean("closed"),
        certificates=fields.object_map("certificates", _certificate),
    )


def _pause_to_json(pause: PauseReport) -> dict[str, Any]:
    return {
        "attempt": pause.attempt,
        "pause_ms": pause.pause_ms,
        "held": pause.held,
        "strays": pause.strays,
    }


def _pause(fields: Fields) -> PauseReport:
    return PauseReport(
        fields.text("attempt", 64),
        fields.integer("pause_ms"),
        fields.integer("held"),
        fields.integer("strays"),
    )


def _certificate_to_json(certificate: Certificate) -> dict[str, Any]:
    return {
        "next_sequence": certificate.next_sequence,
        "delivered": certificate.delivered,
        "failed": list(certificate.failed),
    }


def _certificate(fields: Fields) -> Certificate:
    certificate = Certificate(
        fields.integer("next_sequence"), fields.number_map("delivered"), fields.integers("failed")
    )
    if not all(map(_SEGMENT_ID.fullmatch, certificate.delivered)):
        fields.fail("delivered does not count by segment id")
    return certificate
