"""What a streaming query was asked to do. Plain values: they travel as options, and to executors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kpsplit.spark_jobs.offsets import Bound


@dataclass(frozen=True, slots=True)
class Settings:
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
    settings: Settings
    start: Bound
    most: int | None
    fail_on_data_loss: bool

    def __repr__(self) -> str:
        """Name the topic only."""
        return f"Query({self.settings.topic!r})"
