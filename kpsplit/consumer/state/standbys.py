"""Which member keeps a warm copy of which slot (pure, deterministic)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def standbys(
    owners: Mapping[T, str], members: Iterable[str], copies: int, name: Callable[[T], str] = str
) -> dict[T, tuple[str, ...]]:
    """Return which members keep a warm copy of each slot: never its owner, ``copies`` of the others.

    Every member computes the same from the group's assignment alone, without knowing what was before: each
    slot has an order of all members of its own (by a hash of both names), and takes the first in it. When a
    member comes or goes, only copies that it takes or had are moved.

    Args:
        owners: the owner of each slot.
        members: of the group, by a name that lasts (``group.instance.id``, else the member id).
        copies: of each slot besides its owner's; fewer if there are not so many members.
        name: gives the name of a slot that is the same at every member.
    """
    everyone = sorted(set(members))
    placed = {}
    for slot, owner in owners.items():
        ranked = _ranked(everyone, name(slot))
        placed[slot] = tuple(member for member in ranked if member != owner)[: max(copies, 0)]
    return placed


def _ranked(members: list[str], slot: str) -> list[str]:
    return sorted(
        members, key=lambda member: hashlib.blake2b(f"{member}\0{slot}".encode(), digest_size=8).digest()
    )
