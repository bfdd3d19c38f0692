"""The member's side of the offset log: where slots start, and commits. Used by one thread, the errands'.

A slot starts where the group's range commits say, read to an end that was asked for after the slot was
assigned: every commit of an earlier owner is decided then. Without a range commit it starts at the group's
ordinary committed offsets (the group read the plain topic before), and without those where
``auto.offset.reset`` says.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError

from kpsplit.consumer.asking import Asker
from kpsplit.consumer.carrier import Carrier, Load
from kpsplit.consumer.committing import (
    Member,
    Processed,
    Writes,
    least,
    of_partition,
    outdated,
    plain_offsets,
    writes,
)
from kpsplit.consumer.given import GivenStart
from kpsplit.consumer.subscriptions import Mode
from kpsplit.kafka.clock import Deadline
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.commit_writer import CommitWriter
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import offsets_partition
from kpsplit.kafka.error_map import translated
from kpsplit.kafka.group_members import Members, describe_members
from kpsplit.kafka.offset_log import OffsetTail, offset_log_partitions
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.cursor import Cursor
from kpsplit.splitter.key_range import WHOLE, KeyRange
from kpsplit.splitter.lineage import Lineage, PhysicalPartition
from kpsplit.splitter.records.offsets import CommitKey, RangeCommit

ANSWER_SECONDS = 10.0
OPEN_SECONDS = 10.0
MEMBERS_SECONDS = 2.0
"""Commits wait behind this question."""
LOG_SECONDS = 3.0
"""How long the log is read at once; what is undecided then is asked for again."""
UNDECIDED_SECONDS = 45.0
"""A dead owner's open transaction is aborted by the broker within about 20 s."""


class NoOffsetError(Exception):
    """A partition has no committed offset, and ``auto.offset.reset`` is ``error``."""

    def __init__(self, parent: PhysicalPartition) -> None:
        super().__init__(str(parent))
        self.parent = parent


@dataclass(frozen=True, slots=True)
class Wanted:
    """A slot whose start is asked for; ``given``: where its partition begins if the group has no commit."""

    lineage: Lineage
    mode: Mode
    range: KeyRange
    given: GivenStart | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Where a slot starts: one cursor per piece that was committed on its own.

    ``stale``: the commits are of a newer lineage than the view's. ``committed``: the log says so already.
    """

    pieces: tuple[Cursor, ...]
    stale: bool = False
    committed: bool = False


Outdated = Mapping[PhysicalPartition, frozenset[KeyRange] | None]


class Ledger:
    """See the module. The tail and the writer are made when an enrolled topic is met first."""

    def __init__(self, connection: Connection, asker: Asker, group_id: str, reset: str) -> None:
        self._connection = connection
        self._asker = asker
        self._group_id = group_id
        self._reset = reset
        self._admin: ClusterAdmin | None = None
        self._tail: OffsetTail | None = None
        self._writer: CommitWriter | None = None
        self._carrying: CommitWriter | None = None
        self._partitions = 0
        self._wrote: dict[PhysicalPartition, Writes] = {}

    # -- where slots start -------------------------------------------------------------------------

    def starts(self, wanted: Sequence[Wanted]) -> list[Start]:
        """Return where slots start.

        Raises:
            KpsplitError: the offset log or the coordinator cannot be read now, or the log is unfit.
            NoOffsetError: see there.
        """
        enrolled = [w for w in wanted if w.mode is not Mode.PLAIN]
        if enrolled:
            self._commit_writer().open(Deadline(OPEN_SECONDS))
        if self._carrying is not None:
            self._carrying.open(Deadline(OPEN_SECONDS))
        if enrolled:  # what they have thrown away is decided now
            self._read_log({w.lineage.parent for w in enrolled})
        found = [self._committed(w) for w in wanted]
        missing = [w for w, pieces in zip(wanted, found, strict=True) if any(c is None for _, c in pieces)]
        fresh = self._fresh_starts({w.lineage.parent: w for w in missing}.values())
        return [
            _start(w, pieces, fresh.get(w.lineage.parent)) for w, pieces in zip(wanted, found, strict=True)
        ]

    def _read_log(self, parents: set[PhysicalPartition]) -> None:
        tail = self._open()
        tail.follow({offsets_partition(p, self._partitions) for p in parents})
        tail.read_to_end(Deadline(LOG_SECONDS))

    def _open(self) -> OffsetTail:
        if self._tail is None:
            self._partitions = offset_log_partitions(self.admin)
            self._tail = OffsetTail(self._connection)
        return self._tail

    def _committed(self, wanted: Wanted) -> list[tuple[KeyRange, Cursor | None]]:
        if wanted.mode is Mode.PLAIN:
            return [(wanted.range, None)]
        return self._open().fold.cursor(self._group_id, wanted.lineage.parent, wanted.range, wanted.lineage)

    def _fresh_starts(self, missing: Collection[Wanted]) -> dict[PhysicalPartition, Cursor]:
        """Return where ranges of partitions start that have no range commit; each question is asked once.

        Args: one for each partition.
        """
        if not missing:
            return {}
        with translated("read the group's committed offsets"):
            ordinary = self._asker.committed(_sources(w.lineage for w in missing), ANSWER_SECONDS)
        found: dict[PhysicalPartition, Cursor] = {}
        bare: dict[str, list[Lineage]] = {}
        for lineage, given in ((w.lineage, w.given) for w in missing):
            own = {source: ordinary[source] for source in lineage.sources() if source in ordinary}
            if own:
                found[lineage.parent] = Cursor.from_positions(lineage, WHOLE, own)
            elif isinstance(given, Cursor):
                found[lineage.parent] = given
            else:
                bare.setdefault(given or self._reset, []).append(lineage)
        for where, lineages in bare.items():
            found |= self._resets(lineages, where)
        return found

    def reset(self, lineage: Lineage, where: str) -> Cursor:
        """Return the earliest or latest position of a whole lineage.

        Raises:
            NoOffsetError: ``where`` is ``error``.
        """
        return self._resets([lineage], where)[lineage.parent]

    def _resets(self, lineages: Collection[Lineage], where: str) -> dict[PhysicalPartition, Cursor]:
        if not lineages:
            return {}
        if where == "error":
            raise NoOffsetError(next(iter(lineages)).parent)
        if where == "latest":
            ends = self._log_ends(lineages)
            return {li.parent: Cursor.at_end(li, WHOLE, _ends_in(li, ends)) for li in lineages}
        lows = self.admin.start_offsets(_sources(lineages))
        return {li.parent: _earliest(li, lows) for li in lineages}

    def ends(self, lineage: Lineage) -> dict[int, int]:
        """Return the log end of each open segment."""
        return _ends_in(lineage, self._log_ends([lineage]))

    def _log_ends(self, lineages: Iterable[Lineage]) -> dict[PhysicalPartition, int]:
        asked = {s.source for lineage in lineages for s in lineage if s.is_open}
        return {source: end.offset for source, end in self.admin.end_offsets(asked).items()}

    @property
    def admin(self) -> ClusterAdmin:
        """For questions about logs."""
        if self._admin is None:
            self._admin = ClusterAdmin(self._connection)
        return self._admin

    # -- commits -----------------------------------------------------------------------------------

    def commit(
        self,
        processed: Sequence[Processed],
        member: Member,
        metadata: object,
        seconds: float,
        load: Load | None = None,
    ) -> None:
        """Commit what was processed of enrolled partitions, all in one transaction, with a load.

        Raises:
            FencedError: the slots are another member's. KpsplitError: not committed, or not known.
        """
        wanted, deadline = self._writes(processed, member), Deadline(seconds)
        if wanted is not None:
            also = None if load is None else _also(load, deadline)
            self._commit_writer().commit(
                wanted.records, wanted.tombstones, wanted.offsets, metadata, deadline, also
            )
            self._wrote |= {p.parent: of_partition(wanted, p.parent, p.lineage) for p in processed}

    def outdated(self, processed: Sequence[Processed], member: Member) -> Outdated:
        """Tell where the latest commit's ordinary offsets were not right, by partition: see ``committing``.

        Raises:
            KpsplitError: the offset log cannot be read.
        """
        ours = [p for p in processed if p.parent in self._wrote]
        if not ours:
            return {}
        fold = self._read_on()
        return {p.parent: outdated(p, member, fold, self._wrote[p.parent]) for p in ours}

    def commit_loaded(
        self,
        processed: Sequence[Processed],
        member: Member,
        metadata: object,
        seconds: float,
        carrier: Carrier,
        load: Load,
    ) -> None:
        """Commit everything that was processed in one transaction, together with what the commit carries.

        Raises:
            FencedError: the slots are another member's. UnknownOutcomeError: read the log. KpsplitError: not
                committed.
        """
        deadline = Deadline(seconds)
        offsets = plain_offsets(processed)
        records: tuple[RangeCommit, ...] = ()
        tombstones: tuple[CommitKey, ...] = ()
        if any(p.mode is not Mode.PLAIN for p in processed):
            wanted = self._writes(processed, member)
            if wanted is not None:
                records, tombstones = wanted.records, wanted.tombstones
                offsets = {**offsets, **wanted.offsets}
        if self._carrying is None:
            name = f"kpsplit.run.{self._group_id}.{secrets.token_hex(8)}"
            self._carrying = CommitWriter(
                self._connection, name, self._partitions, carrier.make_producer, carrier.abandon
            )
        self._carrying.commit(records, tombstones, offsets, metadata, deadline, _also(load, deadline))

    def members(self) -> Members:
        """Return who is in the group, and what each member owns.

        Raises:
            KpsplitError: the coordinator could not be asked.
        """
        return describe_members(self.admin, self._group_id, MEMBERS_SECONDS)

    def _writes(self, processed: Sequence[Processed], member: Member) -> Writes | None:
        """Return what commits enrolled partitions, by what the log has of other members now."""
        for parent in (p.parent for p in processed):
            self._wrote.pop(parent, None)  # known again when this commit is
        return writes(processed, member, self._read_on())

    def _read_on(self) -> CommitFold:
        """Return what the log says now, as far as it has arrived."""
        tail = self._open()
        tail.poll(0)
        return tail.fold

    def _commit_writer(self) -> CommitWriter:
        if self._writer is None:
            self._open()
            name = f"kpsplit.commit.{self._group_id}.{secrets.token_hex(8)}"
            self._writer = CommitWriter(self._connection, name, self._partitions)
        return self._writer

    def committed(self, wanted: Sequence[Wanted]) -> list[list[tuple[KeyRange, Cursor | None]]]:
        """Return what the group has committed for ranges, whoever owns them; None where nothing was."""
        enrolled = {w.lineage.parent for w in wanted if w.mode is not Mode.PLAIN}
        if enrolled:
            self._read_log(enrolled)
        return [self._committed(w) for w in wanted]

    @property
    def garbage(self) -> int:
        """How many records of the offset log could not be read."""
        return 0 if self._tail is None else self._tail.fold.garbage

    def close(self) -> None:
        """End the clients."""
        if self._tail is not None:
            self._tail.close()
        for writer in (self._writer, self._carrying):
            if writer is not None:
                writer.close()


def _sources(lineages: Iterable[Lineage]) -> list[PhysicalPartition]:
    return list(dict.fromkeys(source for lineage in lineages for source in lineage.sources()))


def _ends_in(lineage: Lineage, ends: Mapping[PhysicalPartition, int]) -> dict[int, int]:
    return {s.id: ends[s.source] for s in lineage if s.is_open and s.source in ends}


def _earliest(lineage: Lineage, lows: Mapping[PhysicalPartition, int]) -> Cursor:
    own = {source: lows[source] for source in lineage.sources() if source in lows}
    gone = {s.source: s.end for s in lineage if s.end is not None and s.source not in lows}
    return Cursor.from_positions(lineage, WHOLE, {**gone, **own})


def _also(load: Load, deadline: Deadline) -> Callable[[Any], None]:
    return lambda producer: load.write(producer, deadline)


def _start(wanted: Wanted, pieces: Sequence[tuple[KeyRange, Cursor | None]], fresh: Cursor | None) -> Start:
    found = [
        (fresh.narrowed(range_).settled(wanted.lineage) if fresh is not None else Cursor.at_start(range_))
        if cursor is None
        else cursor
        for range_, cursor in pieces
    ]
    stale = any(c.ahead_of(wanted.lineage) for c in found)
    return Start(tuple(found), stale, all(c is not None for _, c in pieces))


def merged(lineage: Lineage, start: Start) -> Cursor:
    """Return the one cursor from which a slot is read."""
    return start.pieces[0] if len(start.pieces) == 1 else least(lineage, start.pieces)


def reset_error(parent: PhysicalPartition) -> KafkaError:
    """Return what poll() tells of a partition without a start."""
    return KafkaError(KafkaError._AUTO_OFFSET_RESET, f"{parent} has no committed offset")
