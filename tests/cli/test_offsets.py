"""`kpsplit offsets` and `kpsplit seek` on a split partition, with a group that has members and without."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kpsplit.clock import Deadline
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import slots_topic
from tests.broker.committing import SECONDS, Member, await_owned, commit_of, member, writer
from tests.broker.operating import commit as commit_ordinary
from tests.cli.conftest import Inline, WriteKeys

pytestmark = pytest.mark.broker

LEFT, RIGHT = WHOLE.split_evenly(2)
SLOTS = 4


@dataclass(frozen=True)
class Hot:
    """`topic/0`, split in two at 100: segment 0, overflow 1, phantoms 2 (3 records) and 3 (4 records)."""

    topic: str
    bootstrap: str

    @property
    def parent(self) -> PhysicalPartition:
        return PhysicalPartition(self.topic, 0)

    @property
    def name(self) -> str:
        return str(self.parent)

    def phantom(self, index: int) -> PhysicalPartition:
        return PhysicalPartition(f"{self.topic}.split-0-1", index)


@pytest.fixture(scope="module")
def hot(inline: Inline, new_topic: Callable[[str], str], write_keys: WriteKeys, bootstrap: str) -> Hot:
    topic = new_topic("offsets")
    write_keys(topic, {f"key-{i}": 10 for i in range(10)})
    assert inline.ok("enroll", topic, "--slots", str(SLOTS), "-o", "json").json["slots"] == SLOTS
    inline.ok("split", f"{topic}/0", "--ranges", "2", "--even", "--yes", "--force")
    made = Hot(topic, bootstrap)
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for index, count in ((0, 3), (1, 4)):
        for _ in range(count):
            producer.produce(made.phantom(index).topic, b"v", None, index)
    assert producer.flush(30) == 0
    return made


@pytest.fixture
def active(hot: Hot, request: pytest.FixtureRequest) -> Iterator[Member]:
    """A member that owns all slots; its group is named after the test."""
    group = f"{hot.topic}-{request.node.originalname}"
    with member(hot.bootstrap, group, slots_topic(hot.topic), "classic") as owner:
        await_owned([(owner, SLOTS)])
        yield owner


def commit(hot: Hot, owner: Member) -> None:
    """The left half has 5 records before the split left; the right half has read one of its phantom."""
    records = [
        commit_of(owner.group, hot.parent, {0: 95}, LEFT),
        commit_of(owner.group, hot.parent, {1: 101, 3: 1}, RIGHT),
    ]
    writer(hot.bootstrap).commit(records, [], {hot.parent: 95}, owner.metadata(), Deadline(SECONDS))


def test_ranges_owners_positions_lags_and_what_is_to_drain_are_shown(
    inline: Inline, hot: Hot, active: Member
) -> None:
    commit(hot, active)
    (shown,) = inline.ok("offsets", "--group", active.group, hot.topic, "-o", "json").json["partitions"]
    left, right = shown["ranges"]
    assert (shown["topic"], shown["partition"], shown["epoch"]) == (hot.topic, 0, 1)
    assert (left["range"], left["to_drain"], left["basis"]) == ([LEFT.lo, LEFT.hi], [0], "range_commit")
    assert left["owner"]["member"] == active.consumer.memberid()
    assert left["committed_by"] == {"member": "a test", "generation": 1, "cause": "progress"}
    assert left["lag"] == 5 + 3
    assert right["positions"] == [
        {
            "segment": 1,
            "topic": hot.topic,
            "partition": 0,
            "offset": 101,
            "logical_offset": 100,
            "lag": 0,
            "readable": True,
            "closed": False,
        },
        {
            "segment": 3,
            "topic": hot.phantom(1).topic,
            "partition": 1,
            "offset": 1,
            "logical_offset": 105,
            "lag": 3,
            "readable": True,
            "closed": False,
        },
    ]
    assert shown["lag"] == 5 + 3 + 3
    table = inline.ok("offsets", "--group", active.group, hot.name).out
    assert "drains" in table
    owner = left["owner"]
    assert owner["member"].startswith("rdkafka-") and len(owner["member"]) > 16
    assert f"{owner['member'][:16]}@127.0.0.1" in table, "its client id, the begin of its member id, its host"


def test_without_a_group_every_group_of_the_topic_has_a_line(
    inline: Inline, hot: Hot, active: Member
) -> None:
    commit(hot, active)
    commit_ordinary(hot.bootstrap, f"{hot.topic}-plain", {hot.parent: 7})
    found = inline.ok("offsets", hot.topic, "-o", "json").json["groups"]
    by_name = {one["group"]: one["partitions"][0] for one in found}
    assert by_name[active.group]["lag"] == 5 + 3 + 3
    assert by_name[f"{hot.topic}-plain"]["ranges"][0]["basis"] == "ordinary_commit"
    states = [by_name[group]["group_state"] for group in (active.group, f"{hot.topic}-plain")]
    assert states == ["stable", "empty"]
    lines = inline.ok("offsets", hot.name).out.splitlines()
    (line,) = [line for line in lines if line.lstrip().startswith(active.group)]
    assert line.split()[1:4] == [hot.name, "1", "11"] and "segment 0" in line


def test_the_details_of_a_partition_name_who_drains_a_closed_segment(
    inline: Inline, hot: Hot, active: Member
) -> None:
    commit(hot, active)
    (shown,) = inline.ok("status", hot.name, "-o", "json").json["partitions"]
    (drain,) = [one for one in shown["drains"] if one["group"] == active.group]
    assert (drain["segment"], drain["left"], drain["seconds"]) == (0, 5, None)
    assert drain["owner"]["member"].startswith("rdkafka-")
    assert f"group {active.group} has 5 offsets to read, not moving" in " ".join(
        inline.ok("status", hot.name).out.split()
    )


def test_a_seek_is_refused_while_the_group_is_active(inline: Inline, hot: Hot, active: Member) -> None:
    ran = inline("seek", "--group", active.group, hot.name, "--to", "earliest", "--yes")
    assert ran.code == 5
    assert "has active members" in ran.error
    assert "nothing was changed" in ran.err


def position(inline: Inline, hot: Hot, group: str) -> list[tuple[int, dict[int, int]]]:
    """Per range: its lower end, and the offset in every segment that it has before it."""
    (shown,) = inline.ok("offsets", "--group", group, hot.name, "-o", "json").json["partitions"]
    return [(r["range"][0], {p["segment"]: p["offset"] for p in r["positions"]}) for r in shown["ranges"]]


def test_a_seek_moves_only_its_key_range_and_the_ordinary_offsets_follow(inline: Inline, hot: Hot) -> None:
    group = f"{hot.topic}-moved"
    ran = inline.ok(
        "seek", "--group", group, hot.name, "--to", "latest", "--new-group", "--yes", "-o", "json"
    )
    assert ran.json["written"] is True
    at_end = {1: 101, 2: 3, 3: 4}
    assert position(inline, hot, group) == [(0, at_end)]
    quarter = f"{RIGHT.lo:x}:{RIGHT.lo + 0x40000000:x}"
    inline.ok("seek", "--group", group, hot.name, "--to", "60", "--keys", quarter, "--yes")
    assert position(inline, hot, group) == [
        (0, {1: 101, 2: 3}),
        (RIGHT.lo, {0: 60, 1: 101, 3: 0}),
        (RIGHT.lo + 0x40000000, {1: 101, 3: 4}),
    ]
    with member(hot.bootstrap, group, slots_topic(hot.topic), "classic") as owner:
        await_owned([(owner, SLOTS)])
        assert owner.committed(hot.parent) == 60
        assert owner.committed(hot.phantom(0)) == 3
        assert owner.committed(hot.phantom(1)) == 0


def test_a_dry_run_shows_the_positions_and_changes_nothing(inline: Inline, hot: Hot) -> None:
    group = f"{hot.topic}-dry"
    ran = inline.ok(
        "seek", "--group", group, hot.name, "--to", "105", "--new-group", "--dry-run", "-o", "json"
    )
    assert ran.json["written"] is False
    assert {p["segment"]: p["offset"] for p in ran.json["positions"]} == {1: 101, 2: 2, 3: 1}
    assert "dry run: nothing was changed" in ran.err
    assert inline("offsets", "--group", group, hot.name).code == 2


def test_a_seek_to_a_time_stands_at_the_first_records_that_are_not_older(inline: Inline, hot: Hot) -> None:
    group = f"{hot.topic}-time"
    inline.ok("seek", "--group", group, hot.name, "--to", "2001-01-01T00:00:00Z", "--new-group", "--yes")
    assert position(inline, hot, group) == [(0, {0: 0, 1: 101, 2: 0, 3: 0})]
    later = datetime.fromtimestamp(time.time() + 3600, UTC).isoformat()
    inline.ok("seek", "--group", group, hot.name, "--to", later, "--yes")
    assert position(inline, hot, group) == [(0, {1: 101, 2: 3, 3: 4})]


def test_a_group_of_ordinary_commits_is_shown_by_them_also_on_a_topic_that_is_not_enrolled(
    inline: Inline, hot: Hot, new_topic: Callable[[str], str], write_keys: WriteKeys
) -> None:
    group = f"{hot.topic}-plain"
    commit_ordinary(hot.bootstrap, group, {hot.parent: 101})
    (shown,) = inline.ok("offsets", "--group", group, hot.topic, "-o", "json").json["partitions"]
    assert [r["basis"] for r in shown["ranges"]] == ["ordinary_commit"]
    assert position(inline, hot, group) == [(0, {1: 101, 2: 0, 3: 0})]
    plain = new_topic("plain")
    write_keys(plain, {"a": 5})
    commit_ordinary(hot.bootstrap, group, {PhysicalPartition(plain, 0): 2})
    (shown,) = inline.ok("offsets", "--group", group, plain, "-o", "json").json["partitions"]
    assert shown["lag"] == 3
    refused = inline("seek", "--group", group, f"{plain}/0", "--to", "earliest")
    assert refused.code == 2
    assert f"run: kpsplit enroll {plain}" in refused.error


def test_a_seek_of_a_group_that_nobody_knows_is_refused_and_names_the_nearest(
    inline: Inline, hot: Hot
) -> None:
    known = f"{hot.topic}-billing"
    commit_ordinary(hot.bootstrap, known, {hot.parent: 5})
    typo = inline("seek", "--group", f"{known}s", hot.name, "--to", "latest", "--yes")
    assert typo.code == 2
    assert f"there is no group {known}s" in typo.error and f"did you mean {known}?" in typo.error
    assert "give --new-group" in typo.error
    assert inline("offsets", "--group", f"{known}s", hot.name).code == 2
    inline.ok("seek", "--group", known, hot.name, "--to", "latest", "--yes")


def test_a_group_is_forgotten_with_all_that_it_has_committed(inline: Inline, hot: Hot) -> None:
    group = f"{hot.topic}-typo"
    inline.ok("seek", "--group", group, hot.name, "--to", "earliest", "--new-group", "--yes")
    planned = inline.ok("forget", hot.topic, "--group", group, "--dry-run", "-o", "json").json
    assert planned["removed"] is False and position(inline, hot, group)
    done = inline.ok("forget", hot.topic, "--group", group, "--yes", "-o", "json").json
    assert done["removed"] is True and done["range_commits"] == planned["range_commits"]
    assert done["range_commits"] == [{"partition": 0, "range": [WHOLE.lo, WHOLE.hi]}]
    assert {hot.topic, hot.phantom(0).topic} <= {place["topic"] for place in done["offsets"]}
    assert inline("offsets", "--group", group, hot.name).code == 2
    again = inline("forget", hot.topic, "--group", group, "--yes")
    assert again.code == 2 and "has committed nothing in" in again.error


def test_groups_that_brokers_know_nothing_of_are_forgotten_together_and_no_others(
    inline: Inline, hot: Hot, active: Member, admin: AdminClient
) -> None:
    commit(hot, active)
    gone, stopped = f"{hot.topic}-gone", f"{hot.topic}-stopped"
    for group in (gone, stopped):
        inline.ok("seek", "--group", group, hot.name, "--to", "earliest", "--new-group", "--yes")
    for name, deleted in admin.delete_consumer_groups([gone]).items():
        assert deleted.result(SECONDS) is None, name
    (planned,) = inline.ok("forget", hot.topic, "--expired", "--dry-run", "-o", "json").json["groups"]
    assert (planned["group"], planned["offsets"], planned["removed"]) == (gone, [], False)
    assert position(inline, hot, gone), "its place is kept until somebody says so"
    told = inline.ok("forget", hot.topic, "--expired", "--yes").out
    assert f"group {gone} on {hot.topic}: 1 range commit and 0 ordinary offsets are removed" in told
    assert "nothing of an expired group" in inline.ok("forget", hot.topic, "--expired", "--yes").out
    assert inline("offsets", "--group", gone, hot.name).code == 2
    assert position(inline, hot, stopped) and position(inline, hot, active.group)


def test_either_a_group_is_named_or_the_expired_ones(inline: Inline, hot: Hot) -> None:
    for arguments in ((), ("--group", "g", "--expired")):
        ran = inline("forget", hot.topic, *arguments, "--yes")
        assert ran.code == 2 and "give either --group NAME or --expired" in ran.err


def test_a_group_with_members_is_not_forgotten(inline: Inline, hot: Hot, active: Member) -> None:
    before = position(inline, hot, active.group)
    ran = inline("forget", hot.topic, "--group", active.group, "--yes")
    assert ran.code == 5 and "has active members" in ran.error and "nothing was changed" in ran.err
    assert position(inline, hot, active.group) == before


def test_names_that_do_not_exist_are_usage_errors(inline: Inline, hot: Hot) -> None:
    for arguments, text in (
        (("offsets", "--group", "nobody-of-this-name", hot.topic), "has committed nothing in"),
        (("offsets", "--group", "g", "no-such-topic"), "there is no topic no-such-topic"),
        (("offsets", "--group", "g", f"{hot.topic}/1"), "has no partition 1"),
        (("seek", "--group", "g", f"{hot.topic}/1", "--to", "latest"), "has no partition 1"),
        (("seek", "--group", "g", "no-such-topic/0", "--to", "latest"), "there is no topic no-such-topic"),
        (("seek", "--group", "", hot.name, "--to", "latest"), "no group named"),
        (("forget", "no-such-topic", "--group", "g"), "there is no topic no-such-topic"),
        (("forget", hot.topic, "--group", ""), "no group named"),
    ):
        ran = inline(*arguments)
        assert ran.code == 2, arguments
        assert text in ran.error
