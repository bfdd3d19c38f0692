"""The verified state as a versioned JSON document, strictly parsed. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from kpsplit.spark_jobs.schemas import Fate
from kpsplit.spark_jobs.snapshot import LoggedCommit
from kpsplit.spark_jobs.verification.counted import Total
from kpsplit.spark_jobs.verification.ledger import Held, Ledger
from kpsplit.spark_jobs.verification.numbers import Run
from kpsplit.spark_jobs.verification.state import PartitionPast, State
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.offsets import MAX_GROUP, CommitKey, decode_range_commit
from kpsplit.splitter.records.strict_json import MAX_BYTES, Fields, decode, encode

VERSION = 1
MOST_BYTES = 256 << 20
_MOST_NUMBERS = MOST_BYTES // 2
_WHAT = "state of a verification"
_PRODUCER = re.compile(r"[0-9a-f]{16}")
_TOPIC = 249
_MOST_PARTITIONS = 1 << 31


def encode_state(state: State) -> bytes:
    """Return the document.

    Raises:
        RecordError: it would be too large to be read again.
    """
    data = encode(
        {
            "v": VERSION,
            "cluster": state.cluster,
            "topic": state.topic,
            "groups": None if state.groups is None else {"named": list(state.groups)},
            "made_ms": state.made_ms,
            "partitions": [_partition(n, past) for n, past in sorted(state.partitions.items())],
        },
        MOST_BYTES,
    )
    decode_state(data)
    return data


def decode_state(data: bytes) -> State:
    """Read a document.

    Raises:
        RecordError: it is none. FutureVersionError: a newer kpsplit wrote it.
    """
    fields = decode(data, _WHAT, VERSION, MOST_BYTES)
    cluster, topic = fields.text("cluster"), fields.text("topic", _TOPIC)
    groups = fields.optional_object("groups", lambda named: named.texts("named", MAX_GROUP))
    made_ms = fields.integer("made_ms", 1)
    parts = fields.objects("partitions", lambda part: _read_partition(part, topic))
    if len(dict(parts)) != len(parts):
        fields.fail("a partition is there twice")
    fields.done()
    return State(cluster, topic, groups, made_ms, dict(parts))


def _partition(number: int, past: PartitionPast) -> dict[str, Any]:
    return {
        "partition": number,
        "topic_id": past.topic_id,
        "read": [
            {"topic": place.topic, "partition": place.partition, "behind": behind}
            for place, behind in sorted(past.read.items())
        ],
        "totals": [_total(t) for t in past.totals],
        "producers": {name: _ledger(ledger) for name, ledger in past.ledgers.items()},
        "commits": [_commit(c) for c in past.commits],
        "commits_read": past.commits_read,
        "told": past.told,
        "unread": past.unread,
    }


def _read_partition(fields: Fields, topic: str) -> tuple[int, PartitionPast]:
    number = fields.integer("partition", 0, _MOST_PARTITIONS)
    parent = PhysicalPartition(topic, number)
    ledgers = fields.object_map("producers", _read_ledger)
    if not all(map(_PRODUCER.fullmatch, ledgers)):
        fields.fail("producers are not named as producers are")
    places = fields.objects("read", _read_place)
    if len(dict(places)) != len(places):
        fields.fail("a log is there twice")
    return number, PartitionPast(
        topic_id=fields.text("topic_id", 100),
        read=dict(places),
        totals=fields.objects("totals", lambda t: _read_total(t, number)),
        ledgers=ledgers,
        commits=fields.objects("commits", lambda c: _read_commit(c, parent)),
        commits_read=fields.integer("commits_read"),
        told=fields.integer("told"),
        unread=fields.boolean("unread"),
    )


def _read_place(fields: Fields) -> tuple[PhysicalPartition, int]:
    place = PhysicalPartition(fields.text("topic", _TOPIC), fields.integer("partition", 0, _MOST_PARTITIONS))
    return place, fields.integer("behind")


def _total(t: Total) -> dict[str, Any]:
    return {
        "segment": t.segment,
        "fate": t.fate.name,
        "stamped": t.stamped,
        "records": t.records,
        "wrong": t.wrong,
        "first": t.first,
        "last": t.last,
    }


def _read_total(fields: Fields, partition: int) -> Total:
    name = fields.text("fate", 40)
    if name not in Fate.__members__:
        fields.fail("fate is none")
    return Total(
        *(partition, fields.optional_integer("segment"), Fate[name], fields.boolean("stamped")),
        *(fields.integer(n) for n in ("records", "wrong", "first", "last")),
    )


def _ledger(ledger: Ledger) -> dict[str, Any]:
    return {
        "next": ledger.next,
        "fresh": _flat(ledger.fresh),
        "doubted": _flat(ledger.doubted),
        "gone": _flat(ledger.gone),
        "strays": _flat(ledger.strays),
        "doubtful": ledger.doubtful,
        "closed": ledger.closed,
        "segments": _flat((i, h.records, h.first, h.last) for i, h in sorted(ledger.segments.items())),
    }


def _read_ledger(fields: Fields) -> Ledger:
    held = _tuples(fields, "segments", 4)
    if len({segment for segment, *_ in held}) != len(held):
        fields.fail("a segment is there twice")
    return Ledger(
        next=fields.integer("next"),
        fresh=_runs(fields, "fresh"),
        doubted=_runs(fields, "doubted"),
        gone=_runs(fields, "gone"),
        strays=_runs(fields, "strays"),
        doubtful=fields.boolean("doubtful"),
        closed=fields.boolean("closed"),
        segments={segment: Held(*rest) for segment, *rest in held},
    )


def _flat(groups: Iterable[tuple[int, ...]]) -> list[int]:
    return [number for group in groups for number in group]


def _tuples(fields: Fields, name: str, width: int) -> list[tuple[int, ...]]:
    flat = fields.integers(name, longest=_MOST_NUMBERS)
    if len(flat) % width:
        fields.fail(f"{name} does not come in groups of {width}")
    return [flat[i : i + width] for i in range(0, len(flat), width)]


def _runs(fields: Fields, name: str) -> tuple[Run, ...]:
    runs = tuple((first, last) for first, last in _tuples(fields, name, 2))
    if any(a > b for a, b in runs) or any(a[1] >= b[0] for a, b in pairwise(runs)):
        fields.fail(f"{name} is no rising runs of numbers")
    return runs


def _commit(logged: LoggedCommit) -> dict[str, Any]:
    return {
        "group": logged.group,
        "lo": logged.range.lo,
        "hi": logged.range.hi,
        "value": "" if logged.commit is None else logged.commit.encode().decode("ascii"),
        "log_partition": logged.log_partition,
        "log_offset": logged.log_offset,
    }


def _read_commit(fields: Fields, parent: PhysicalPartition) -> LoggedCommit:
    group, lo, hi = fields.text("group", MAX_GROUP), fields.integer("lo"), fields.integer("hi")
    range_ = fields.guard(lambda: KeyRange(lo, hi))
    value = fields.text("value", MAX_BYTES).encode()
    commit = decode_range_commit(CommitKey(group, parent, range_), value)
    place = fields.integer("log_partition"), fields.integer("log_offset")
    return LoggedCommit(group, parent, range_, commit, *place)
