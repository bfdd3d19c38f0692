"""The form of a changelog record: key and value are the application's bytes, a header says whose they are.

Header ``kpc``, 9 bytes, big-endian: format version (1), partition (4), slots per partition (2), index (2). A
null value is a tombstone. The version stands in a header and not in the key, so that a record in a newer form
still replaces an older one of the same key when the topic is compacted.
"""

from __future__ import annotations

from collections.abc import Sequence

from kpsplit.consumer.state.slots import SlotId, place_of
from kpsplit.errors import CheckFailedError, FutureVersionError, RecordError

VERSION = 1
HEADER = "kpc"
MAX_RECORD_BYTES = 900_000
"""Key and value together: below the changelog's ``max.message.bytes`` with all that Kafka adds."""


def headers_for(slot: SlotId) -> list[tuple[str, str | bytes | None]]:
    """Return the headers of the changelog records of a slot."""
    return [(HEADER, bytes([VERSION]) + slot.place)]


def check_record(
    slot: SlotId, key: bytes | None, headers: Sequence[tuple[str, str | bytes | None]] | None
) -> None:
    """Do nothing if a record read from a slot's changelog partition is one of that slot.

    Raises:
        RecordError: not written by kpsplit, or malformed: to be counted and skipped.
        FutureVersionError: written by a newer kpsplit: reading on would be guessing.
        CheckFailedError: written for another number of slots per partition.
    """
    found = [value for name, value in headers or () if name == HEADER]
    header = found[0] if len(found) == 1 else None
    if key is None or not isinstance(header, bytes) or not header:
        raise RecordError("changelog: a record that kpsplit never writes")
    version, place = header[0], header[1:]
    if version > VERSION:
        raise FutureVersionError(
            f"changelog of {slot}: format version {version} is newer than {VERSION}", hint="upgrade kpsplit"
        )
    if version != VERSION:
        raise RecordError("changelog: malformed header")
    try:
        partition, slots, index = place_of(place)
    except ValueError:
        raise RecordError("changelog: malformed header") from None
    if slots != slot.slots:
        raise wrong_slots(slot, slots)
    if (partition, index) != (slot.partition, slot.index):
        raise RecordError("changelog: a record of another slot")


def wrong_slots(slot: SlotId, found: int | str) -> CheckFailedError:
    """Return the error for a changelog that was written with another number of slots per partition."""
    return CheckFailedError(
        f"the changelog of {slot} was written with {found} slots per partition, now there are {slot.slots}",
        hint="state is not divided anew: use another group, or delete the changelog and rebuild the state",
    )
