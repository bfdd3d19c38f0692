"""A record as readers of a logical partition see it, and what kpsplit wrote into its headers."""

from __future__ import annotations

from dataclasses import dataclass

from kpsplit.errors import FutureVersionError, RecordError
from kpsplit.kafka.logical_message import Headers
from kpsplit.splitter.records.data import MARKER_HEADER, STAMP_HEADER, Marker, Stamp


@dataclass(frozen=True, slots=True)
class LogicalRecord:
    """One delivered record: its logical place, its content, and where it is stored.

    ``epoch`` is the epoch that opened its segment. ``headers`` are without the stamp. ``timestamp`` is in
    milliseconds since 1970, None if the record has none. ``stamp`` is None for a record that kpsplit's
    producers did not write here: one of another writer, or a copy of a record that stood elsewhere.
    """

    logical_offset: int
    segment: int
    epoch: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    source_topic: str
    source_partition: int
    source_offset: int
    timestamp: int | None
    stamp: Stamp | None

    @property
    def keyless(self) -> bool:
        """Return whether the record has no key."""
        return self.key is None


@dataclass(frozen=True, slots=True)
class OurHeaders:
    """What kpsplit wrote into a record's headers. ``malformed``: there is garbage under one of our names."""

    stamp: Stamp | None = None
    marker: Marker | None = None
    malformed: bool = False


NONE_OF_OURS = OurHeaders()


def read_headers(headers: Headers | None) -> OurHeaders:
    """Find the stamp and the marker among a record's headers. Garbage is neither: no data are lost by it.

    Raises:
        FutureVersionError: a newer kpsplit wrote them.
    """
    if not headers:
        return NONE_OF_OURS
    stamp: Stamp | None = None
    marker: Marker | None = None
    malformed = False
    for name, value in headers:
        try:
            if name == STAMP_HEADER:
                stamp = Stamp.decode(value)
            elif name == MARKER_HEADER:
                marker = Marker.decode(value)
        except FutureVersionError:
            raise
        except RecordError:
            malformed = True
    return OurHeaders(stamp, marker, malformed)


def without_stamp(headers: Headers | None) -> tuple[tuple[str, bytes | None], ...]:
    """Return the application's own headers."""
    return tuple((name, value) for name, value in headers or () if name != STAMP_HEADER)
