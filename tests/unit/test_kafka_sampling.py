"""Samples: what they say about keys, labels and the partitioner."""

from __future__ import annotations

from zlib import crc32

import pytest
from confluent_kafka import Message, murmur2

from kpsplit.control.plans import (
    LABEL_LENGTH,
    Sample,
    collected,
    label,
    partitioner_check,
    placed_by,
    writers_check,
)
from kpsplit.splitter.key_range import key_hash
from kpsplit.splitter.records.control import Partitioner
from kpsplit.splitter.records.data import Stamp

HOME = 77
CONSISTENT, MURMUR2 = Partitioner.CONSISTENT_RANDOM, Partitioner.MURMUR2_RANDOM


def sample(place, count: int = 200, partitions: int = 6, wanted: int = 3) -> Sample:
    """Keys that a partitioner puts into one partition."""
    taken = Sample()
    number = 0
    while taken.keyed < count:
        key = f"key-{number}".encode()
        number += 1
        if place(key, partitions) == wanted:
            taken.add(key, 10, wanted, partitions)
    return taken


def test_partitioners_place_keys_as_the_clients_do() -> None:
    assert placed_by(CONSISTENT, b"abc", 6) == crc32(b"abc") % 6
    assert placed_by(MURMUR2, b"abc", 6) == murmur2(b"abc", 6)
    assert placed_by(Partitioner.EXPLICIT, b"abc", 6) is None


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"order-17", "order-17"),
        ("käse".encode(), "käse"),
        (b"a\nb\x00", "a\\nb\\x00"),
        (b"\xff\xfe", "\\xff\\xfe"),
        (b"", ""),
    ],
)
def test_labels_are_printable(key: bytes, text: str) -> None:
    assert label(key) == text


def test_long_labels_are_cut_off() -> None:
    assert len(label(b"x" * 1000)) == LABEL_LENGTH


def test_records_without_a_key_have_no_place_in_the_key_space() -> None:
    taken = Sample()
    taken.add(None, 10, 3, 6)
    taken.add(b"", 5, 3, 6)
    assert (taken.records, taken.keyed, taken.points) == (2, 0, [(key_hash(b""), 5)])


def test_the_partitioner_that_explains_the_records_passes() -> None:
    assert partitioner_check(sample(lambda k, n: crc32(k) % n), CONSISTENT, 6).ok
    assert partitioner_check(sample(murmur2), MURMUR2, 6).ok


def test_another_partitioner_is_named() -> None:
    check = partitioner_check(sample(murmur2), CONSISTENT, 6)
    assert not check.ok and not check.forceable
    assert check.remedy == "use murmur2_random"


def test_records_that_no_partitioner_explains_were_placed_by_the_application() -> None:
    check = partitioner_check(sample(lambda _k, _n: 3), CONSISTENT, 6)
    assert not check.ok and check.remedy.startswith("use explicit")


def test_some_writers_of_another_kind_can_be_forced() -> None:
    taken = sample(lambda k, n: crc32(k) % n, 80)
    taken.merge(sample(lambda _k, _n: 3, 30))
    check = partitioner_check(taken, CONSISTENT, 6)
    assert not check.ok and check.forceable


def grown(place, before: int, now: int, partition: int, older: int, newer: int) -> Sample:
    """Records of a partition of a topic that had fewer partitions when the older ones were written."""
    numbers = iter(range(1_000_000))
    counts = [before] * older + [now] * newer
    keys = (next(k for n in numbers if place(k := b"key-%d" % n, c) == partition) for c in counts)
    return collected(
        (Message(topic="t", partition=partition, key=k, value=b"v") for k in keys), partition, now
    )


@pytest.mark.parametrize(("before", "now", "partition"), [(3, 4, 1), (6, 24, 5), (1, 6, 0)])
@pytest.mark.parametrize("partitioner", [CONSISTENT, MURMUR2])
def test_records_from_before_partitions_were_added_are_explained_by_the_number_of_that_time(
    before: int, now: int, partition: int, partitioner: Partitioner
) -> None:
    def place(key: bytes, partitions: int) -> int | None:
        return placed_by(partitioner, key, partitions)

    taken = grown(place, before, now, partition, 300, 40)
    assert partitioner_check(taken, partitioner, now).ok
    other = MURMUR2 if partitioner is CONSISTENT else CONSISTENT
    assert not partitioner_check(taken, other, now).ok


def test_a_topic_that_had_one_partition_is_judged_by_what_came_since() -> None:
    chosen_by_the_application = grown(lambda _k, _n: 0, 1, 6, 0, 300, 40)
    assert not partitioner_check(chosen_by_the_application, CONSISTENT, 6).ok


@pytest.mark.parametrize(("count", "partitions"), [(19, 6), (200, 1)])
def test_too_few_records_or_one_partition_say_nothing(count: int, partitions: int) -> None:
    taken = sample(lambda _k, _n: 3, count)
    assert partitioner_check(taken, CONSISTENT, partitions).ok
    assert partitioner_check(taken, Partitioner.EXPLICIT, 6).ok


def written(*names: str | None) -> Sample:
    """Records with one header each, or none."""
    return collected(
        (Message(topic="t", partition=0, key=b"k", value=b"v", headers=n and [(n, b"x")]) for n in names),
        0,
        1,
    )


def test_writers_that_do_not_use_kpsplit_are_named_with_their_share() -> None:
    check = writers_check(written("kps", None, "theirs", "kps"))
    assert check.ok, "their records are not lost: it is no reason against a split"
    assert "about 50% of the newest records" in check.message


def test_a_program_that_copies_records_with_their_stamps_is_one_that_does_not_use_kpsplit() -> None:
    """Its records go to the overflow as well: MirrorMaker must not be taken for a producer of ours."""
    stamps = [Stamp(0, 1, 0, HOME), Stamp(0, 1, 1, HOME + 1), Stamp(0, 1, 2), Stamp(3, 1, 0, HOME + 1)]
    values = [s.encode() for s in stamps]
    messages = [Message(topic="t", partition=0, key=b"k", value=b"v", headers=[("kps", v)]) for v in values]
    assert (collected(messages, 0, 1, HOME).stamped, collected(messages, 0, 1, HOME).strange) == (2, 2)
    assert collected(messages, 0, 1).stamped == 4


@pytest.mark.parametrize("names", [(), (None, None), (None, "kps", "kps"), ("kps", "kpsplit.marker")])
def test_what_was_written_before_the_first_stamp_is_nobodys(
    names: tuple[str | None, ...],
) -> None:
    assert "no writer was seen" in writers_check(written(*names)).message
