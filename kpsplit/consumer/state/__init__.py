"""State of handlers: a local store per process, restored from changelog topics when slots move."""

from kpsplit.consumer.state.hooks import StateCommit, StateHooks
from kpsplit.consumer.state.owned import SlotGoneError
from kpsplit.consumer.state.slot_view import BYTES, JSON, TEXT, UNSIGNED, Serde, SlotView, Work
from kpsplit.consumer.state.slots import SlotId
from kpsplit.consumer.state.store import StateStore

__all__ = [
    "StateStore",
    "SlotView",
    "Serde",
    "BYTES",
    "TEXT",
    "JSON",
    "UNSIGNED",
    "Work",
    "SlotGoneError",
    "SlotId",
    "StateHooks",
    "StateCommit",
]
