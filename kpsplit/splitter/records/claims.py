"""Announcements of claims in the control topic (docs/wire-format.md): who is about to claim a partition."""

from __future__ import annotations

from dataclasses import dataclass

from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import partition_key
from kpsplit.splitter.records.strict_json import decode, encode_readable

VERSION = 1
_SUFFIX = b"/claim"
_MOST_ROUNDS = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Claim:
    """``revision``: of the state that the claimer saw. ``round``: of claims of that revision, from 1."""

    claimer: str
    revision: int
    round: int


def claim_key(parent: PhysicalPartition) -> bytes:
    """Return the key of the announcements for a logical partition."""
    return partition_key(parent) + _SUFFIX


def is_claim_key(key: bytes | None) -> bool:
    """Tell whether a record of the control topic is an announcement."""
    return key is not None and key.endswith(_SUFFIX)


def claimed_key(key: bytes) -> bytes:
    """Return the key of the states of the logical partition that an announcement is about."""
    return key.removesuffix(_SUFFIX)


def encode_claim(claim: Claim) -> bytes:
    """Return the value of an announcement."""
    form = {"v": VERSION, "claimer": claim.claimer, "revision": claim.revision, "round": claim.round}
    return encode_readable(form, decode_claim)


def decode_claim(data: bytes | None) -> Claim:
    """Read an announcement.

    Raises:
        RecordError: malformed. FutureVersionError: written by a newer kpsplit.
    """
    fields = decode(data, "claim", VERSION)
    claim = Claim(
        fields.text("claimer", 64), fields.integer("revision"), fields.integer("round", 1, _MOST_ROUNDS)
    )
    fields.done()
    return claim
