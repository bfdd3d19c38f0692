"""The drop-in DeserializingConsumer: reads bytes along the lineage, then deserialises them."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import confluent_kafka
from confluent_kafka import Message

from kpsplit.consumer.client import Consumer
from kpsplit.kafka.logical_message import headers_of

if TYPE_CHECKING:
    from kpsplit.consumer.state.hooks import StateHooks


K = TypeVar("K")
V = TypeVar("V")


class _ReadableHeaders(Consumer):
    """Hands out records whose headers deserialisers can ask for."""

    def poll(self, timeout: float | None = -1) -> Message | None:
        message = super().poll(timeout)
        if message is not None:
            headers_of(message)
        return message


class DeserializingConsumer(  # type: ignore[misc]
    confluent_kafka.DeserializingConsumer, _ReadableHeaders, Generic[K, V]
):
    """Drop-in for ``confluent_kafka.DeserializingConsumer``, with the same deserialiser settings.

    Args:
        conf: the application's configuration.
        state: as for ``Consumer``. A key that was deserialised does not tell the record's slot: handlers of
            ``run()`` find their state, whoever polls uses ``Consumer``.
    """

    def __init__(self, conf: dict[str, Any], *, state: StateHooks | None = None) -> None:
        super().__init__(conf)
        self._keep(state)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        """Close."""
        self.close()
