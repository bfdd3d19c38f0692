"""What the doctor finds in the offset log."""

from __future__ import annotations

from kpsplit.kafka.offset_log import OffsetExamination, UnfitRecord
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.records.keys import offsets_partition
from kpsplit.splitter.records.offsets import CommitKey, Position, RangeCommit, boundaries
from tests.unit.samples import PARENT, life

PARTITIONS = 16
PLACE = offsets_partition(PARENT, PARTITIONS)
STATE = life().split
MINE = CommitKey("g", PARENT, WHOLE).encode()


def commit(segment: int) -> bytes:
    return RangeCommit("g", PARENT, WHOLE, {segment: Position(7)}, "m", 1).encode()


def found(*records: tuple[bytes, bytes | None], partition: int = PLACE) -> list[UnfitRecord]:
    examination = OffsetExamination(PARTITIONS)
    for key, value in records:
        examination.take(partition, key, value)
    return list(examination.unfit(lambda parent: {s.id for s in STATE.lineage} if parent == PARENT else None))


def test_what_honest_clients_write_is_fit() -> None:
    assert found((MINE, commit(0)), *((b.key, b.encode()) for b in boundaries(STATE))) == []


def test_each_unfit_record_is_named_with_whose_it_is_and_why() -> None:
    (boundary, *_) = boundaries(STATE)
    for key, value, newer, why in (
        (MINE, b'{"v":99}', True, "the commit of group g for orders/3: written by a newer kpsplit"),
        (MINE, b"?", False, "the commit of group g for orders/3: range commit: not strict JSON"),
        (
            MINE,
            commit(99),
            False,
            "the commit of group g for orders/3: it lists a segment that does not exist",
        ),
        (b"?", b"?", False, "offset log key: not strict JSON"),
        (boundary.key, b'{"v":99}', True, "boundary: format version 99 is newer"),
    ):
        (record,) = found((key, value))
        assert (record.partition, record.key, record.newer) == (PLACE, key, newer)
        assert record.why.startswith(why)
    (astray,) = found((MINE, commit(0)), partition=(PLACE + 1) % PARTITIONS)
    assert "in a partition of the topic that is not for it" in astray.why


def test_what_was_written_over_or_withdrawn_is_not_named() -> None:
    assert found((MINE, b"?"), (MINE, commit(0))) == []
    assert found((MINE, b'{"v":99}'), (MINE, None)) == []
