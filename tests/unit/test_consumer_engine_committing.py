"""What a commit of a member writes."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition

from kpsplit.consumer.commit.writes import (
    CommitMember,
    Processed,
    least,
    logical_position,
    outdated,
    plain_offsets,
    writes,
)
from kpsplit.consumer.fetch.batch import Batch
from kpsplit.consumer.slots.assigned import PieceProgress, after_record, further
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.group_slots import Mode, OwnedSlot
from kpsplit.splitter.key_range import KEY_SPACE, WHOLE, KeyRange
from kpsplit.splitter.lineage import MAX_OFFSET, PhysicalPartition
from kpsplit.splitter.reading import Cursor
from tests.unit.samples import PARENT, UNSPLIT, life

LIFE = life()
LOW, HIGH = KeyRange(0, KEY_SPACE // 2), KeyRange(KEY_SPACE // 2, KEY_SPACE)
TOKEN = PhysicalPartition("__kpsplit.slots.orders", 6)
ME = CommitMember("g", "me", 3)


def processed(*cursors, unchanged=(), mode=Mode.SLOTS, state=UNSPLIT):
    return Processed(state, mode, tuple(cursors), tuple(unchanged), TOKEN)


def folded(*cursors):
    """A fold of commits that another member wrote."""
    fold = CommitFold()
    wanted = writes([processed(*cursors)], CommitMember("g", "other", 1), CommitFold())
    assert wanted is not None
    for offset, record in enumerate(wanted.records):
        fold.fold(record.key, record.encode(), offset)
    return fold


def test_ordinary_offsets_are_the_least_of_every_members_ranges():
    fold = folded(Cursor(HIGH, {0: 20}))
    wanted = writes([processed(Cursor(LOW, {0: 30}))], ME, fold)
    assert wanted is not None
    assert wanted.offsets == {PARENT: 20}
    [record] = wanted.records
    assert (record.group, record.range, record.member, record.generation) == ("g", LOW, "me", 3)
    assert {s: p.next for s, p in record.positions.items()} == {0: 30}


def test_while_a_range_was_never_committed_ordinary_offsets_stay_as_they_are():
    wanted = writes([processed(Cursor(LOW, {0: 30}))], ME, CommitFold())
    assert wanted is not None
    assert wanted.offsets == {TOKEN: 0}


def test_ranges_of_the_member_that_did_not_move_count_as_they_are():
    wanted = writes([processed(Cursor(LOW, {0: 30}), unchanged=[Cursor(HIGH, {0: 5})])], ME, CommitFold())
    assert wanted is not None
    assert wanted.offsets == {PARENT: 5}
    assert [r.range for r in wanted.records] == [LOW]


OTHER = CommitMember("g", "other", 1)


def commits(fold, cursor, member, known=None):
    """Let a member commit that knows of the log what another fold has; return what it writes."""
    wanted = writes([processed(cursor)], member, fold if known is None else known)
    assert wanted is not None
    for record in wanted.records:
        fold.fold(record.key, record.encode(), fold.log_end)
        fold.log_end += 1
    return wanted


class Log(CommitFold):
    """A fold that knows where its log ends."""

    log_end = 0


def standing(position, range_=LOW):
    return processed(unchanged=[Cursor(range_, {0: position})])


def together():
    """Both halves at 10; then two members commit at the same time and see nothing of each other, I last."""
    log, before = Log(), Log()
    for fold in (log, before):
        commits(fold, Cursor(LOW, {0: 10}), ME)
        commits(fold, Cursor(HIGH, {0: 10}), OTHER)
    theirs = commits(log, Cursor(HIGH, {0: 40}), OTHER, known=before)
    mine = commits(log, Cursor(LOW, {0: 30}), ME, known=before)
    assert theirs.offsets == mine.offsets == {PARENT: 10}
    return log, before, mine, theirs


def test_who_committed_last_writes_ordinary_offsets_again_where_it_had_not_seen_the_commit_before():
    log, _, mine, _ = together()
    assert outdated(standing(30), ME, log, mine) == {LOW}
    again = commits(log, Cursor(LOW, {0: 30}), ME)
    assert again.offsets == {PARENT: 30}
    assert outdated(standing(30), ME, log, again) == frozenset()


def test_who_was_not_the_last_leaves_ordinary_offsets_to_who_was():
    log, _, _, theirs = together()
    assert outdated(standing(40, HIGH), OTHER, log, theirs) == frozenset()


def test_what_stands_elsewhere_than_the_latest_commit_says_is_not_written_again():
    """A commit whose outcome is not known may have gone further: written again, it would go back."""
    log, _, mine, _ = together()
    assert outdated(standing(20), ME, log, mine) == frozenset()
    nobody = CommitMember("g", "", 1)
    assert outdated(standing(30), nobody, log, mine) == frozenset()


def test_whether_ordinary_offsets_were_right_is_not_known_before_the_own_commit_was_read():
    _, before, mine, _ = together()
    assert outdated(standing(30), ME, before, mine) is None


def test_nothing_is_written_again_while_a_range_was_never_committed_or_the_view_is_old():
    log = Log()
    mine = commits(log, Cursor(LOW, {0: 30}), ME)
    assert outdated(standing(30), ME, log, mine) == frozenset()
    ahead = processed(unchanged=[Cursor(LOW, {9: 30})])
    assert outdated(ahead, ME, log, mine) == frozenset()


def test_keys_that_win_nowhere_any_more_are_withdrawn():
    fold = folded(Cursor(LOW, {0: 3}), Cursor(HIGH, {0: 3}))
    wanted = writes([processed(Cursor(WHOLE, {0: 30}))], ME, fold)
    assert wanted is not None
    assert [key.range for key in wanted.tombstones] == [LOW, HIGH]


def test_a_partition_that_is_not_enrolled_has_ordinary_offsets_only():
    plain = processed(Cursor(WHOLE, {0: 30}), mode=Mode.PLAIN)
    assert writes([plain], ME, CommitFold()) is None
    assert plain_offsets([plain]) == {PARENT: 30}


@pytest.mark.parametrize(("at", "offset"), [({0: 30}, 30), ({0: 1000}, 1001), ({2: 7}, 1001)])
def test_the_offset_of_a_plain_partition_is_of_its_own_log_although_it_is_split_by_now(at, offset):
    split = LIFE.split
    cursor = Cursor(WHOLE, at).settled(split.lineage)
    assert plain_offsets([Processed(split, Mode.PLAIN, (cursor,), (), split.parent)]) == {
        split.parent: offset
    }


def test_what_was_processed_by_a_newer_lineage_waits_for_the_view():
    assert writes([processed(Cursor(WHOLE, {9: 30}))], ME, CommitFold()) is None


def test_a_slot_is_read_from_the_least_of_its_pieces():
    lineage = LIFE.split.lineage
    pieces = [Cursor(LOW, {0: 900}), Cursor(HIGH, {4: 3, 5: 0, 1: 1001})]
    cursor = least(lineage, pieces)
    assert cursor.range == WHOLE
    assert cursor.readable(lineage) == {0: 900}
    assert cursor.pending(lineage)[4] == 3


class Message:
    """A record as far as passing over looks at it."""

    def __init__(self, key, offset):
        self._key, self._offset = key, offset

    def key(self):
        return self._key

    def offset(self):
        return self._offset

    def headers(self):
        return None

    def __len__(self):
        return 1


def test_records_that_a_piece_has_processed_are_passed_over():
    lineage = UNSPLIT.lineage
    ahead = PieceProgress([Cursor(LOW, {0: 5}), Cursor(HIGH, {0: 8})])
    messages = [Message(b"key-%d" % i, i) for i in range(5, 12)]
    slot = OwnedSlot(PARENT, 0, 1)
    batch = Batch(PARENT, lineage.get(0), (slot,), 5, 12, list(messages), 7)
    left = {m.offset() for m in ahead.without_processed(batch, lineage).messages}
    assert left >= set(range(8, 12))
    assert left < set(range(5, 12))


def test_no_commit_takes_a_piece_back_that_was_ahead():
    lineage = UNSPLIT.lineage
    ahead = PieceProgress([Cursor(LOW, {0: 5}), Cursor(HIGH, {0: 8})])
    now = [Cursor(WHOLE, {0: 6})]
    assert [(c.range, c.positions) for c in ahead.furthest(now, lineage)] == [(LOW, {0: 6}), (HIGH, {0: 8})]
    assert not ahead.caught_up(now, lineage)
    assert ahead.caught_up([Cursor(WHOLE, {0: 8})], lineage)


def test_one_number_per_partition_is_the_least_that_is_not_processed():
    lineage = LIFE.split.lineage
    assert logical_position(lineage, [Cursor(WHOLE, {0: 7})]) == 7
    cursor = Cursor(WHOLE, {1: 1001, 2: 4, 3: 4, 4: 7, 5: 9})
    assert logical_position(lineage, [cursor]) == lineage.get(1).logical(1001)
    assert logical_position(lineage, []) == lineage.next_logical()


def test_a_forged_position_has_a_logical_offset_that_clients_take():
    lineage = LIFE.split.lineage
    cursor = Cursor(WHOLE, {s.id: MAX_OFFSET for s in lineage if s.is_open})
    offset = logical_position(lineage, [cursor])
    assert TopicPartition("orders", 0, offset).offset == MAX_OFFSET


def test_a_record_of_a_phantom_says_that_its_predecessors_are_processed():
    lineage = LIFE.split.lineage
    before = Cursor(WHOLE, {0: 900})
    read = Cursor(WHOLE, {1: 1001, 2: 9, 3: 9, 4: 9, 5: 9})
    moved = after_record(lineage, before, read, 4, 8)
    assert moved.readable(lineage) == {1: 1001, 2: 0, 3: 0, 4: 8, 5: 0}


def test_a_record_behind_what_was_given_says_nothing():
    lineage = LIFE.split.lineage
    before = Cursor(WHOLE, {0: 900})
    assert after_record(lineage, before, Cursor(WHOLE, {0: 950}), 4, 8) == before
    low = Cursor(KeyRange(0, 10), {0: 900})
    assert after_record(lineage, low, low, 5, 8) == low


def test_an_older_record_takes_nothing_back():
    cursor = Cursor(WHOLE, {0: 900})
    assert after_record(UNSPLIT.lineage, cursor, cursor, 0, 100).positions == {0: 900}


def test_what_either_cursor_has_processed_is_processed():
    lineage = LIFE.split.lineage
    a, b = Cursor(WHOLE, {0: 900}), Cursor(WHOLE, {1: 1001, 2: 1, 3: 0, 4: 8, 5: 0})
    assert further(lineage, a, b) == further(lineage, b, a) == b.settled(lineage)


def test_a_record_says_nothing_of_what_was_not_handed_out():
    before, read = Cursor(WHOLE, {0: 20}), Cursor(WHOLE, {0: 30})
    assert after_record(UNSPLIT.lineage, before, read, 0, 100).positions == {0: 30}
    assert after_record(UNSPLIT.lineage, before, Cursor(WHOLE, {0: 10}), 0, 100) == before
