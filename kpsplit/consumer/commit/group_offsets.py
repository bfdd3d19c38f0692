"""The member's side of the offset log: where slots start, and commits. Used by one thread, the executor's.

A slot starts where the group's range commits say, read to an end that was asked for after the slot was
assigned: every commit of an earlier owner is decided then. Without a range commit it starts at the group's
ordinary committed offsets (the group read the plain topic before), and without those where
``auto.offset.reset`` says.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection

from kpsplit.clock import Deadline, monotonic
from kpsplit.consumer.broker_executor import QueryClient
from kpsplit.consumer.commit.writes import (
    CommitMember,
    CommitPayload,
    Processed,
    TransactionParticipant,
    Writes,
    least,
    of_partition,
    outdated,
    plain_offsets,
    writes,
)
from kpsplit.consumer.slots.assigned import (
    Found,
    NoOffsetError,
    SlotStart,
    StartError,
    StartRequest,
    StillOwnedError,
)
from kpsplit.errors import DeadlineExceededError, FutureVersionError, KpsplitError, UsageError
from kpsplit.kafka.cluster_admin import Absence, ClusterAdmin
from kpsplit.kafka.commit_writer import CommitWriter
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import MISSING, error_of, translated
from kpsplit.kafka.groups import Members, describe_members
from kpsplit.kafka.offset_log import OffsetTail, offset_log_partitions
from kpsplit.splitter.key_range import WHOLE, KeyRange
from kpsplit.splitter.lineage import Lineage, PhysicalPartition
from kpsplit.splitter.reading import Cursor
from kpsplit.splitter.records.keys import group_ids, offsets_partition

ANSWER_SECONDS = 10.0
OPEN_SECONDS = 10.0
MEMBERS_SECONDS = 4.0
"""Commits wait for the answer."""
LOOK_SECONDS = 0.5
"""How long a commit waits to learn which sub-topics there are."""
DELETION_SECONDS = 2.0
"""How long a commit waits until brokers know of a deletion that the coordinator knows of."""
DELETION_LOOK_SECONDS = 0.05
MOST_PIECES = 1000
"""A slot with more pieces is read from the least of them: no member writes so many."""
LOG_SECONDS = 3.0
"""How long the log is read at once; what is undecided then is asked for again."""
UNDECIDED_SECONDS = 45.0
"""A dead owner's open transaction is aborted by the broker within about 20 s."""

Pieces = list[tuple[KeyRange, Cursor | None]]
"""What tiles a range, each piece with its cursor; None: the group has no commit of it."""

Starts = dict[PhysicalPartition, Cursor | StartError]
Failed = dict[PhysicalPartition, KpsplitError]
Outdated = Mapping[PhysicalPartition, frozenset[KeyRange] | None]


class GroupOffsets:
    """See the module. The tail and the writer are made when an enrolled topic is met first."""

    def __init__(self, connection: Connection, query_client: QueryClient, group_id: str, reset: str) -> None:
        self._connection = connection
        self._query_client = query_client
        self._group_id = group_id
        self._reset = reset
        self._admin: ClusterAdmin | None = None
        self._tail: OffsetTail | None = None
        self._writer: CommitWriter | None = None
        self._output_writer: CommitWriter | None = None
        """For commits with outputs: its producer is made by ``run()``'s participant."""
        self._partitions = 0
        """Of the offset log; 0 until the tail is open."""
        self._wrote: dict[PhysicalPartition, Writes] = {}
        """What the latest commit wrote of each partition; nothing while its outcome is not known."""
        self._gone: frozenset[str] = frozenset()
        """Sub-topics that some broker does not know any more."""
        self._absences: dict[str, Absence] = {}
        """Topics that were missing at the latest look for the starts of their logs."""

    # -- where slots start -------------------------------------------------------------------------

    def starts(self, wanted: Sequence[StartRequest], me: str | None) -> list[Found]:
        """Return where slots of this member start, or why that is not known; no slot waits for another's.

        Raises:
            KpsplitError: nothing can be read now.
        """
        if self._output_writer is not None:
            # A new producer with the same id has the broker decide what the old one left open.
            self._output_writer.open(Deadline(OPEN_SECONDS))
        failed = self._not_read({w.lineage.parent for w in wanted if not w.mode.plain})
        # Before ordinary offsets are read: a member that still works on a partition commits them.
        failed |= self._worked_on([w for w in wanted if w.lineage.parent not in failed], me)
        read = [(w, failed.get(w.lineage.parent) or self._committed(w)) for w in wanted]
        bare = {w.lineage.parent: w for w, pieces in read if _lacks_commit(pieces)}
        fresh = self._fresh(bare.values())
        return [
            pieces if isinstance(pieces, KpsplitError) else _start(w, pieces, fresh.get(w.lineage.parent))
            for w, pieces in read
        ]

    def _not_read(self, parents: Collection[PhysicalPartition]) -> Failed:
        """Read what groups have committed of enrolled partitions; return those of which it is not known."""
        if not parents:
            return {}
        try:
            self.connect()  # as above: the log is read to a decided end
            return self._read_log(parents)
        except KpsplitError as error:
            return dict.fromkeys(parents, error)

    def _worked_on(self, wanted: Collection[StartRequest], me: str | None) -> Failed:
        """Return the partitions that some member may still read, or work on, by a predecessor of a slot.

        A member that owns one releases it when the record in hand is processed. Until then the coordinator
        names it as the owner, or as one that has something to release (``nobody_on``). Once a part of the
        partition was committed, some member has asked this before and found no owner of the partition itself,
        and no member begins to read it as a whole any more.
        """
        asked = {w.lineage.parent: before for w in wanted if w.predecessors and (before := self._before(w))}
        if not asked:
            return {}
        try:
            members = self._members(me)
        except KpsplitError as error:
            return dict.fromkeys(asked, error)
        free = {p for p, places in asked.items() if all(members.nobody_on(place) for place in places)}
        # Until then a member that has released former slots may have committed ranges.
        return {p: StillOwnedError(p) for p in asked if p not in free} | self._not_read(free)

    def _before(self, wanted: StartRequest) -> frozenset[PhysicalPartition]:
        """Return the predecessors of a slot that members may still have."""
        gone = {wanted.lineage.parent} if self._has_commits(wanted.lineage) else set()
        return wanted.predecessors - gone

    def _has_commits(self, lineage: Lineage) -> bool:
        """Return whether a part was committed; the whole may be by one that reads on by an old view."""
        return any(key.range != WHOLE for key in self._open().fold.keys(self._group_id, lineage.parent))

    def connect(self, seconds: float = OPEN_SECONDS) -> None:
        """Get ready to commit to the offset log; what was left open there is decided then."""
        self._commit_writer().open(Deadline(seconds))

    def _read_log(self, parents: Collection[PhysicalPartition]) -> Failed:
        """Read the offset log about some partitions; return those of which it was not read to its end."""
        tail = self._open()
        places = {parent: offsets_partition(parent, self._partitions) for parent in parents}
        tail.follow(places.values())
        failed = tail.read_each(set(places.values()), Deadline(LOG_SECONDS))
        return {parent: failed[place] for parent, place in places.items() if place in failed}

    def _open(self) -> OffsetTail:
        if self._tail is None:
            self._partitions = offset_log_partitions(self.admin)
            self._tail = OffsetTail(self._connection, self._partitions, group=self._group_id)
        return self._tail

    def _committed(self, wanted: StartRequest) -> Pieces | FutureVersionError:
        """Return what the log has for a range; or that a newer kpsplit has committed some of it."""
        if wanted.mode.plain:
            return [(wanted.range, None)]
        fold, parent, range_ = self._open().fold, wanted.lineage.parent, wanted.range
        newer = fold.newer(self._group_id, parent, range_)
        return newer or fold.cursor(self._group_id, parent, range_, wanted.lineage)

    def _fresh(self, missing: Collection[StartRequest]) -> Starts:
        """Return where ranges of partitions start that have no range commit; each question is asked once.

        Args: one for each partition.
        """
        if not missing:
            return {}
        try:
            with translated("read the group's committed offsets"):
                ordinary = self._query_client.committed(_sources(w.lineage for w in missing), ANSWER_SECONDS)
        except KpsplitError as error:
            return {w.lineage.parent: error for w in missing}
        found: Starts = {}
        bare: dict[str, list[StartRequest]] = {}
        for w, lineage in ((w, w.lineage) for w in missing):
            own = w.own(ordinary)
            if w.reset:
                bare.setdefault(self._reset, []).append(w)
            elif own:
                found[lineage.parent] = Cursor.from_positions(lineage, WHOLE, own)
            elif isinstance(w.given, Cursor):
                found[lineage.parent] = w.given
            else:
                bare.setdefault(w.given or self._reset, []).append(w)
        for where, wanted in bare.items():
            found |= self._resets(wanted, where)
        return found

    def reset(self, wanted: StartRequest, where: str) -> Cursor:
        """Return the earliest or latest position of a whole lineage.

        Raises:
            NoOffsetError: ``where`` is ``error``. KpsplitError: its logs do not answer.
        """
        found = self._resets([wanted], where)[wanted.lineage.parent]
        if isinstance(found, Cursor):
            return found
        raise found

    def _resets(self, wanted: Collection[StartRequest], where: str) -> Starts:
        lineages = [w.lineage for w in wanted]
        if where == "error":
            return {lineage.parent: NoOffsetError(lineage.parent) for lineage in lineages}
        failed: Failed = {}
        if where == "latest":
            asked = {s.source for lineage in lineages for s in lineage if s.is_open}
            ends = self.admin.end_offsets(asked, failed=failed)
            at_end = {source: end.offset for source, end in ends.items()}
            found = {li.parent: Cursor.at_end(li, WHOLE, _ends_in(li, at_end)) for li in lineages}
        else:
            asked = {source for w in wanted for source in w.lineage.sources(w.retired)}
            lows = self.admin.start_offsets(asked, failed=failed)
            failed |= self._uncertain(wanted, lows.keys() | failed.keys())
            found = {li.parent: _earliest(li, lows) for li in lineages}
        without = {li.parent: failed[s] for li in lineages for s in li.sources() if s in failed}
        return {**found, **without}

    def _uncertain(self, wanted: Iterable[StartRequest], known: Collection[PhysicalPartition]) -> Failed:
        """Return the logs of ended segments that one broker does not know, and that may be there still."""
        failed: Failed = {}
        for w in wanted:
            for source in {s.source for s in w.lineage if s.end is not None}:
                topic = source.topic
                if source in known or topic in w.retired:
                    self._absences.pop(topic, None)
                elif not self._absences.setdefault(topic, Absence(self._connection, topic)).denied():
                    failed[source] = DeadlineExceededError(f"brokers do not agree yet that {topic} is gone")
        return failed

    def ends(self, lineage: Lineage) -> dict[int, int]:
        """Return the log end of each open segment."""
        found = self.admin.end_offsets({s.source for s in lineage if s.is_open})
        return _ends_in(lineage, {source: end.offset for source, end in found.items()})

    @property
    def admin(self) -> ClusterAdmin:
        if self._admin is None:
            self._admin = ClusterAdmin(self._connection)
        return self._admin

    # -- commits -----------------------------------------------------------------------------------

    def commit(
        self,
        processed: Sequence[Processed],
        member: CommitMember,
        metadata: object,
        seconds: float,
        payload: CommitPayload | None = None,
    ) -> None:
        """Commit what was processed of enrolled partitions, all in one transaction, with its payload.

        ``metadata``: of the member that commits; None for what was assigned by hand.

        Raises:
            FencedError: the slots are another member's, or the group has members and this is none of them.
            KpsplitError: not committed, or not known.
        """
        deadline = Deadline(seconds)
        also = None if payload is None else _also(payload, deadline)

        def attempt(fence: object) -> None:
            wanted = self._writes(processed, member)
            if wanted is not None:
                self._commit_writer().commit(
                    wanted.records, wanted.tombstones, wanted.offsets, fence, deadline, also
                )
                self._wrote |= {p.parent: of_partition(wanted, p.parent, p.lineage) for p in processed}

        self._without_deleted(processed, deadline, attempt, metadata)

    def _without_deleted(
        self,
        processed: Sequence[Processed],
        deadline: Deadline,
        attempt: Callable[[object], None],
        metadata: object,
    ) -> None:
        """Commit; once more each time it turns out that a sub-topic is gone that the commit named.

        The coordinator may have heard of a deletion before the broker that was asked.
        """
        subtopics = {t.name for p in processed for t in p.state.subtopics if t.in_lineage}
        self._gone = self._missing(subtopics)
        while True:
            try:
                return self._query_client.as_nobody(attempt) if metadata is None else attempt(metadata)
            except UsageError as error:
                if not _is_missing(error.__cause__) or not self._more_deleted(subtopics, deadline):
                    raise

    def _more_deleted(self, subtopics: AbstractSet[str], deadline: Deadline) -> bool:
        """Wait until a broker knows of a deletion that the commit did not; return whether one does."""
        end = monotonic() + min(DELETION_SECONDS, deadline.left())
        while left := subtopics - self._gone:
            found = self._missing(left)
            if found:
                self._gone |= found
                return True
            if monotonic() >= end:
                return False
            deadline.pause(DELETION_LOOK_SECONDS)
        return False

    def outdated(self, processed: Sequence[Processed], member: CommitMember) -> Outdated:
        """Return where the latest commit's ordinary offsets were not right, by partition (``commit.writes``).

        Raises:
            KpsplitError: the offset log cannot be read.
        """
        ours = [p for p in processed if p.parent in self._wrote]
        if not ours:
            return {}
        fold = self._read_on().fold
        return {p.parent: outdated(p, member, fold, self._wrote[p.parent], self._gone) for p in ours}

    def commit_with_outputs(
        self,
        processed: Sequence[Processed],
        member: CommitMember,
        metadata: object,
        seconds: float,
        participant: TransactionParticipant,
        payload: CommitPayload,
    ) -> None:
        """Commit everything that was processed in one transaction, together with its outputs.

        Raises:
            FencedError: as ``commit``. UnknownOutcomeError: read the log. KpsplitError: not committed.
        """
        deadline = Deadline(seconds)
        enrolled = [p for p in processed if not p.mode.plain]

        def attempt(fence: object) -> None:
            wanted = self._writes(processed, member) if enrolled else None
            wanted = wanted or Writes((), (), {})
            if self._output_writer is None:
                name = f"{group_ids('run', self._group_id)}{secrets.token_hex(8)}"
                self._output_writer = CommitWriter(
                    self._connection, name, self._partitions, participant.make_producer, participant.abandon
                )
            offsets = {**plain_offsets(processed), **wanted.offsets}
            self._output_writer.commit(
                wanted.records, wanted.tombstones, offsets, fence, deadline, _also(payload, deadline)
            )

        self._without_deleted(enrolled, deadline, attempt, metadata)

    def _members(self, me: str | None) -> Members:
        """Return who is in the group, what each member owns, and what others had when they joined.

        Raises:
            KpsplitError: the coordinator could not be asked.
        """
        return describe_members(self.admin, self._group_id, MEMBERS_SECONDS, kept=True, me=me or "")

    def _writes(self, processed: Sequence[Processed], member: CommitMember) -> Writes | None:
        """Return what commits enrolled partitions, by what the log, which is followed, has of others now."""
        for parent in (p.parent for p in processed):
            self._wrote.pop(parent, None)  # known again when this commit is
        self._open().follow(offsets_partition(p.parent, self._partitions) for p in processed)
        return writes(processed, member, self._read_on().fold, self._gone)

    def _missing(self, subtopics: Collection[str]) -> frozenset[str]:
        """Return those of some sub-topics that a broker does not know, as far as it answers at once.

        A coordinator refuses a commit that names a topic that is gone. To leave out the offset of one that is
        there does no harm.
        """
        if not subtopics:
            return frozenset()
        asked, end = TopicCollection(sorted(subtopics)), monotonic() + LOOK_SECONDS
        futures = self.admin.client.describe_topics(asked, request_timeout=LOOK_SECONDS)
        return frozenset(topic for topic, answer in futures.items() if _says_missing(answer, end))

    def _read_on(self) -> OffsetTail:
        """Return the tail with what the log says now, as far as it has arrived."""
        tail = self._open()
        tail.poll(0)
        return tail

    def _commit_writer(self) -> CommitWriter:
        if self._writer is None:
            self._open()
            name = f"{group_ids('commit', self._group_id)}{secrets.token_hex(8)}"
            self._writer = CommitWriter(self._connection, name, self._partitions)
        return self._writer

    def committed(self, wanted: Sequence[StartRequest]) -> list[Pieces]:
        """Return what the group has committed for ranges, all members of it; None where nothing was."""
        enrolled = {w.lineage.parent for w in wanted if not w.mode.plain}
        for error in (self._read_log(enrolled) if enrolled else {}).values():
            raise error
        found = []
        for pieces in map(self._committed, wanted):
            if isinstance(pieces, KpsplitError):
                raise pieces
            found.append(pieces)
        return found

    @property
    def garbage(self) -> int:
        """How many records of the offset log could not be read."""
        return 0 if self._tail is None else self._tail.fold.garbage

    def close(self) -> None:
        """End the clients."""
        self._admin = None
        if self._tail is not None:
            self._tail.close()
        for writer in (self._writer, self._output_writer):
            if writer is not None:
                writer.close()


def _says_missing(answer: Future[Any], end: float) -> bool:
    try:
        answer.result(max(0.0, end - monotonic()))
    except KafkaException as exception:
        return _is_missing(exception)
    except TimeoutError:
        return False
    return False


def _is_missing(cause: BaseException | None) -> bool:
    error = error_of(cause) if isinstance(cause, KafkaException) else None
    return error is not None and error.code() in MISSING


def _sources(lineages: Iterable[Lineage]) -> list[PhysicalPartition]:
    return list(dict.fromkeys(source for lineage in lineages for source in lineage.sources()))


def _ends_in(lineage: Lineage, ends: Mapping[PhysicalPartition, int]) -> dict[int, int]:
    return {s.id: ends[s.source] for s in lineage if s.is_open and s.source in ends}


def _earliest(lineage: Lineage, lows: Mapping[PhysicalPartition, int]) -> Cursor:
    at = {s.source: lows.get(s.source, s.start if s.end is None else s.end) for s in lineage}
    return Cursor.from_positions(lineage, WHOLE, at)


def _also(payload: CommitPayload, deadline: Deadline) -> Callable[[Any], None]:
    return lambda producer: payload.write(producer, deadline)


def _lacks_commit(pieces: Pieces | KpsplitError) -> bool:
    return not isinstance(pieces, KpsplitError) and any(cursor is None for _, cursor in pieces)


def _start(
    wanted: StartRequest, pieces: Sequence[tuple[KeyRange, Cursor | None]], fresh: Cursor | StartError | None
) -> Found:
    """Return where a slot starts; ``fresh``: where its partition does that has no range commit."""
    if isinstance(fresh, StartError) and any(cursor is None for _, cursor in pieces):
        return fresh
    found = [
        (
            fresh.narrowed(range_).settled(wanted.lineage)
            if isinstance(fresh, Cursor)
            else Cursor.at_start(range_)
        )
        if cursor is None
        else cursor
        for range_, cursor in pieces
    ]
    stale = any(c.ahead_of(wanted.lineage) for c in found)
    if len(found) > MOST_PIECES and not stale:
        found = [least(wanted.lineage, found)]
    return SlotStart(tuple(found), stale, all(c is not None for _, c in pieces))


def reset_error(parent: PhysicalPartition) -> KafkaError:
    """Return the error event of a partition that has no start."""
    return KafkaError(KafkaError._AUTO_OFFSET_RESET, f"{parent} has no committed offset")
