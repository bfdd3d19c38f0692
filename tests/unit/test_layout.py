"""Which open segment takes a key."""

from __future__ import annotations

import pytest

from kpsplit.errors import InvariantError
from kpsplit.splitter.key_range import KEY_SPACE
from kpsplit.splitter.lineage import Layout, Lineage
from tests.unit.samples import PARENT, life

NESTED = Layout.of(life().nested.lineage)


@pytest.mark.parametrize(
    ("key_hash", "segment"),
    [
        (0, 2),
        (0x3FFFFFFF, 2),
        (0x40000000, 3),
        (0x80000000, 7),
        (0x9FFFFFFF, 7),
        (0xA0000000, 8),
        (0xC0000000, 5),
        (KEY_SPACE - 1, 5),
    ],
)
def test_a_key_goes_to_the_segment_whose_half_open_range_holds_it(key_hash: int, segment: int) -> None:
    assert NESTED.segment_for(key_hash).id == segment


def test_an_overflow_takes_no_keys() -> None:
    assert {s.id for s in NESTED.segments} == {2, 3, 5, 7, 8}


def test_open_ranges_that_leave_a_hole_make_no_layout() -> None:
    nested = life().nested.lineage
    with pytest.raises(InvariantError):
        Layout.of(Lineage(PARENT, nested.segments[:-1]))
