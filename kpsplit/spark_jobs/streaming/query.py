"""Where a streaming query stands: what Spark keeps in its checkpoint. Pure, versioned, strictly parsed.

    {"v":1,"topic":"orders","at":[{"p":3,"e":2,"s":{"4":1200,"5":7}}],"from":[]}

``at``: per logical partition ``p`` the epoch ``e`` of the view that the batch was planned with, and a cursor
of the whole key space ``s``, ``{segment id: next physical offset}`` (``splitter.cursor``: what is absent and
has something listed after it is drained). An empty ``at`` is the place before the first batch. The end of
that batch says in ``from`` where the query began, because Spark asks for the beginning again when a query
died in its first batch, and "latest" would then be another one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kpsplit.errors import RecordError
from kpsplit.spark_jobs.regions import Bound
from kpsplit.splitter.cursor import Cursor
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.records.strict_json import Fields, decode, encode


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """What is read. ``partitions``: the logical ones, all when None. ``patience`` in seconds."""

    topic: str
    partitions: tuple[int, ...] | None
    patience: float


@dataclass(frozen=True, slots=True)
class Query:
    """A query. ``properties``: the connection (librdkafka's); they may hold secrets.

    ``most``: offsets in a batch, None without a limit. ``fail_on_data_loss``: whether records that are gone
    before they were read end the query; else they are reported and passed over.
    """

    properties: Mapping[str, Any]
    settings: StreamSettings
    start: Bound
    most: int | None
    fail_on_data_loss: bool

    def __repr__(self) -> str:
        """Name the topic only."""
        return f"Query({self.settings.topic!r})"


VERSION = 1
_SEGMENT = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_WHAT = "the offset of the streaming query"


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Where one logical partition stands, and the epoch of the view that said so."""

    epoch: int
    cursor: Cursor


StreamPositions = Mapping[int, StreamPosition]
"""By logical partition."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The end of a micro-batch (``at`` empty: before the first); ``begun``: where the first one begins."""

    topic: str
    at: StreamPositions = field(default_factory=dict)
    begun: StreamPositions = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return it as Spark wants it: the same values always give the same text.

        Raises:
            RecordError: the topic has too long a history.
        """
        lists = {"at": _as_list(self.at), "from": _as_list(self.begun)}
        found: dict[str, Any] = json.loads(encode({"v": VERSION, "topic": self.topic, **lists}))
        return found

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> StreamOffset:
        """Return the offset that Spark read from a checkpoint.

        Raises:
            RecordError: it is none. FutureVersionError: a newer kpsplit wrote it.
        """
        if not isinstance(value, Mapping):
            raise RecordError(f"{_WHAT}: not a JSON object")
        try:
            text = json.dumps(dict(value))
        except (TypeError, ValueError, RecursionError) as error:
            raise RecordError(f"{_WHAT}: not JSON ({type(error).__name__})") from None
        fields = decode(text.encode(), _WHAT, VERSION)
        offset = cls(fields.text("topic"), _positions(fields, "at"), _positions(fields, "from"))
        fields.done()
        return offset


def _as_list(positions: StreamPositions) -> list[dict[str, Any]]:
    return [
        {"p": partition, "e": s.epoch, "s": {str(i): n for i, n in s.cursor.positions.items()}}
        for partition, s in sorted(positions.items())
    ]


def _positions(fields: Fields, name: str) -> StreamPositions:
    found = fields.objects(name, _position)
    positions = dict(found)
    if len(positions) < len(found):
        fields.fail(f"a partition stands twice in {name}")
    return positions


def _position(fields: Fields) -> tuple[int, StreamPosition]:
    positions = fields.number_map("s")
    if not all(_SEGMENT.fullmatch(name) for name in positions):
        fields.fail("a segment is not named by its number")
    cursor = Cursor(WHOLE, {int(name): position for name, position in positions.items()})
    return fields.integer("p"), StreamPosition(fields.integer("e"), cursor)
