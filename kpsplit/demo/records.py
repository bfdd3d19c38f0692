"""What the writers write, and the journals of what became of it.

Writers write records with skewed keys, or the lines of a file. Journals are appended to; their reader leaves
out a torn entry at the end, where a process was killed.

A writer's journal says what it sent, when, and what became of it: lines of JSON.

    ["S", sequence, key, logical partition, time]      a record is about to be given to produce()
    ["O", sequence, delivered, partition, offset, time]      its delivery report arrived

Times are seconds of the monotonic clock that all processes of a machine share. A record that has an S and no
O has an unknown outcome.

A member's journal has every record that it worked on, and when. It is written at once, so a kill loses
nothing. Entries, little-endian: time (8), key hash (8, -1: no key), logical offset (8), logical partition
(2), segment (4).
"""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, count
from pathlib import Path
from typing import NamedTuple, Self
from zlib import crc32

from kpsplit.errors import RecordError, UsageError
from kpsplit.splitter.key_range import key_hash
from kpsplit.testing import SendOutcome

KEYS = 2000
POPULAR = 60
"""So many of the most popular keys; two of three share the hot partition, as it happens in real life."""
FLATTENING = 8
"""Zipf's law with its head cut off: no single key is too hot to be worth a split."""
VALUE_BYTES = 120
_DRAWN_AT_ONCE = 256

LINE_HEADER = "line"
"""The header that carries the number of a line; the value is the line itself, untouched."""


class Item(NamedTuple):
    """One record to be sent. ``partition`` is the logical one."""

    sequence: int
    key: bytes | None
    value: bytes
    partition: int
    headers: list[tuple[str, bytes]] | None


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys and their cumulated weights, most popular first."""

    names: tuple[bytes, ...]
    weights: tuple[float, ...]

    @classmethod
    def skewed(cls, seed: int, partitions: int) -> Keys:
        """Return keys by a law like Zipf's, of which one partition gets far more than its share."""
        hot = random.Random(seed).randrange(partitions)
        ordinary = (b"customer-%05d" % i for i in count(1))
        names = [next(_where(ordinary, hot, partitions, rank)) for rank in range(POPULAR)]
        names += [next(ordinary) for _ in range(KEYS - POPULAR)]
        weights = accumulate(1 / (rank + FLATTENING) for rank in range(KEYS))
        return cls(tuple(names), tuple(weights))


def _where(names: Iterator[bytes], hot: int, partitions: int, rank: int) -> Iterator[bytes]:
    """Filter names for one rank: two of three popular ones belong to the hot partition."""
    wanted = rank % 3 != 2
    return (n for n in names if (partition_of(n, partitions) == hot) is wanted)


def partition_of(key: bytes, partitions: int) -> int:
    """Return the logical partition of a key, as librdkafka's default partitioner chooses it."""
    return crc32(key) % partitions


def skewed_items(writer: str, keys: Keys, partitions: int, seed: int) -> Iterator[Item]:
    """Yield records without end; each value has its writer and sequence number."""
    chance = random.Random(f"{seed}/{writer}")
    places = {name: partition_of(name, partitions) for name in keys.names}
    numbers = count()
    while True:
        for key in chance.choices(keys.names, cum_weights=keys.weights, k=_DRAWN_AT_ONCE):
            number = next(numbers)
            yield Item(number, key, value_of(writer, number), places[key], None)


def value_of(writer: str, sequence: int) -> bytes:
    """Return the value of a writer's record: its id, padded."""
    return b"%s:%010d:" % (writer.encode(), sequence) + b"." * (VALUE_BYTES - len(writer) - 12)


def sequence_in(value: bytes) -> int:
    return int(value[value.index(b":") + 1 :][:10])


def writer_in(value: bytes) -> str:
    return value[: value.index(b":")].decode()


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the input, without its end; ``key`` is the first group of the expression."""

    number: int
    text: bytes
    key: bytes | None


def read_lines(path: Path, expression: str) -> list[Line]:
    """Read the whole input. Raises UsageError: the file or the expression is no good."""
    try:
        pattern = re.compile(expression.encode())
    except re.error as error:
        raise UsageError(f"--key-regex is not a regular expression: {error}") from None
    if pattern.groups < 1:
        raise UsageError("--key-regex has no group", hint="put the key into brackets, e.g. '^(\\S+)'")
    try:
        texts = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="choose another --input") from None
    if not texts:
        raise UsageError(f"{path} is empty")
    return [Line(number, text, _key_of(pattern, text)) for number, text in enumerate(texts)]


def _key_of(pattern: re.Pattern[bytes], text: bytes) -> bytes | None:
    match = pattern.search(text)
    return match[1] or None if match else None


def owner_of(line: Line, writers: Sequence[str]) -> str:
    """Return the one writer that sends a line: all lines of a key have the same one, so the file's order."""
    if line.key is None:
        return writers[line.number % len(writers)]
    digest = blake2b(line.key, digest_size=8).digest()
    return writers[int.from_bytes(digest, "big") % len(writers)]


def line_items(writer: str, writers: Sequence[str], lines: Sequence[Line], partitions: int) -> Iterator[Item]:
    """Yield the lines that a writer owns, in the file's order; the sequence number is the line's."""
    for line in lines:
        if owner_of(line, writers) != writer:
            continue
        place = line.number % partitions if line.key is None else partition_of(line.key, partitions)
        yield Item(line.number, line.key, line.text, place, [(LINE_HEADER, b"%d" % line.number)])


# -- a steady rate, or one that falls as a stock runs low ------------------------------------------


PORTION = 100
"""Records sent at once, within the intervals below: brokers are busy with requests, not with records."""
SHORTEST_INTERVAL = 0.25
LONGEST_INTERVAL = 1.0


class Pacer:
    """Counts how many records are due. Times are monotonic seconds, given by the caller.

    ``stock``: how many records there are; None: no end. The rate falls with what is left of them, so some are
    left however long it takes.
    """

    def __init__(self, rate: float, now: float, stock: int | None = None) -> None:
        self._rate = rate
        self._stock = stock
        self._left = stock or 0
        self._paid_until = now
        self.interval = min(max(PORTION / rate, SHORTEST_INTERVAL), LONGEST_INTERVAL)
        """Seconds from one portion to the next."""

    def due(self, now: float) -> int:
        """Return how many records are to be sent now; they count as sent.

        Whoever was held up for two intervals (or records) does not catch up: that would be another load.
        """
        rate = self._rate if self._stock is None else self._rate * max(self._left, 1) / self._stock
        self._paid_until = max(self._paid_until, now - 2 * max(self.interval, 1 / rate))
        number = int((now - self._paid_until) * rate)
        self._paid_until += number / rate
        self._left -= number
        return number


# -- a writer's journal ----------------------------------------------------------------------------


_BUFFER_BYTES = 1 << 20


class JournalEntry(NamedTuple):
    """One record's life. ``offset`` and ``reported_at`` are None where no report (or no place) was given."""

    sequence: int
    key: bytes | None
    partition: int
    sent_at: float
    outcome: SendOutcome
    reported_partition: int | None
    offset: int | None
    reported_at: float | None

    @property
    def latency(self) -> float | None:
        """Seconds from produce() to its report."""
        return None if self.reported_at is None else self.reported_at - self.sent_at


class JournalWriter:
    """Appends to a journal; a context manager. A kill loses what came after the latest ``flush``."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=_BUFFER_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def flush(self) -> None:
        """Hand everything to the system: it survives a SIGKILL of this process."""
        self._file.flush()

    def sent(self, sequence: int, key: bytes | None, partition: int, at: float) -> None:
        self._write("S", sequence, None if key is None else key.decode("latin-1"), partition, at)

    def reported(self, sequence: int, ok: bool, partition: int | None, offset: int | None, at: float) -> None:
        where = None if partition is None or partition < 0 else partition
        place = None if offset is None or offset < 0 else offset
        self._write("O", sequence, ok, where, place, at)

    def _write(self, *entry: object) -> None:
        self._file.write(json.dumps(entry) + "\n")


def read_journal(path: Path) -> list[JournalEntry]:
    """Return every record of a journal in the order of sending. Raises RecordError: it is none."""
    entries: dict[int, JournalEntry] = {}
    *lines, _torn = path.read_bytes().split(b"\n")
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            raise RecordError(f"{path} is not the journal of a writer") from None
        match entry:
            case ["S", sequence, key, partition, at]:
                sent = None if key is None else key.encode("latin-1")
                entries[sequence] = JournalEntry(
                    sequence, sent, partition, at, SendOutcome.UNKNOWN, None, None, None
                )
            case ["O", sequence, ok, partition, offset, at]:
                entries[sequence] = entries[sequence]._replace(
                    outcome=SendOutcome.OK if ok else SendOutcome.FAILED,
                    reported_partition=partition,
                    offset=offset,
                    reported_at=at,
                )
    return list(entries.values())


# -- a member's journal ----------------------------------------------------------------------------


_WORKED = struct.Struct("<dqqHI")
NO_KEY_HASH = -1


class Worked(NamedTuple):
    """One record that a member worked on."""

    at: float
    key_hash: int
    offset: int
    partition: int
    segment: int


def pack(at: float, key: bytes | None, offset: int, partition: int, segment: int) -> bytes:
    return _WORKED.pack(at, NO_KEY_HASH if key is None else key_hash(key), offset, partition, segment)


def read_worked(path: Path) -> Iterator[Worked]:
    """Yield the entries of a journal; none if there is no file."""
    data = path.read_bytes() if path.exists() else b""
    whole = len(data) - len(data) % _WORKED.size
    return map(Worked._make, _WORKED.iter_unpack(data[:whole]))
