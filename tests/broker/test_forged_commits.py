"""A consumer with the least rights writes what it likes into the offset log: the other groups work on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer as Plain

from kpsplit import Consumer, Producer, SetAside
from kpsplit.admin import Admin
from kpsplit.consumer.slots import initializer as starter
from kpsplit.control.status import Basis
from kpsplit.devcluster.process import KafkaRuntime
from kpsplit.errors import CheckFailedError
from kpsplit.kafka.connection import Connection
from kpsplit.spark_jobs.gather import Gatherer
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.records.keys import OFFSETS_TOPIC, group_ids, offsets_partition
from kpsplit.splitter.records.offsets import CommitKey, Position, RangeCommit
from tests.broker.consuming import FAST, wait_for
from tests.broker.guarded import ADMIN, Guarded
from tests.broker.guarded_topic import GROUP, PARENT, TOPIC, guarded_topic, read_all, send
from tests.broker.operating import PAUSE_MS, commit, state_of

pytestmark = [pytest.mark.broker, pytest.mark.nightly]

VICTIM = "invoices"
PLACE = offsets_partition(PARENT, 16)


@pytest.fixture(scope="module")
def guarded(kafka_runtime: KafkaRuntime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A cluster with access lists and a topic that is split; the attacker is its consumer."""
    with guarded_topic(tmp_path_factory.mktemp("tls")) as guarded:
        yield guarded


@pytest.fixture
def operations(guarded: Guarded) -> Iterator[Admin]:
    with Admin(Connection(guarded.client("operator"))) as operations:
        yield operations


def forge(
    guarded: Guarded, *records: tuple[bytes, bytes | None], transactional_id: str | None = None
) -> Plain:
    """Write records with exactly the rights of `kpsplit acls --for consumer`; leave a transaction open."""
    config = guarded.client("consumer") | {"acks": "all"}
    if transactional_id is not None:
        config["transactional.id"] = transactional_id
    attacker, errors = Plain(config), []
    if transactional_id is not None:
        attacker.init_transactions(30)
        attacker.begin_transaction()
    for key, value in records:
        attacker.produce(OFFSETS_TOPIC, value, key, PLACE, lambda error, _: errors.append(error))
    attacker.flush(30)
    assert errors == [None] * len(records)
    return attacker


def unfit(operations: Admin) -> list[SetAside]:
    """What the doctor names in the offset log."""
    return [record for record in operations.findings().set_aside if record.topic == OFFSETS_TOPIC]


def victim(guarded: Guarded, **more: object) -> Consumer:
    """A member of a group that the attacker has no right on."""
    return Consumer({**guarded.client(ADMIN), **FAST, "group.id": VICTIM, **more})


def test_records_that_nobody_can_read_concern_no_other_group(guarded: Guarded, operations: Admin) -> None:
    with Producer(guarded.client("producer")) as producer:
        send(producer, "sealed")
    operations.run(operations.plan_merge(PARENT), max_pause_ms=PAUSE_MS, force=True)
    mine = CommitKey(GROUP, PARENT, WHOLE).encode()
    forge(
        guarded,
        (mine, b'{"v":99}'),
        (b"?", b"?"),
        (CommitKey(GROUP, PARENT, WHOLE.split_evenly(2)[0]).encode(), b"?"),
    )
    with Producer(guarded.client("producer")) as producer, victim(guarded) as member:
        member.subscribe([TOPIC])
        send(producer, "unread")
        read_all(member, ["sealed", "unread"])
        member.commit(asynchronous=False)
    with Admin(Connection(guarded.client(ADMIN))) as looking:
        (progress,) = looking.offsets(VICTIM, TOPIC)
        assert progress.lag == 0
        (spoilt,) = looking.offsets(GROUP, TOPIC)
        assert [r.basis for r in spoilt.ranges] == [Basis.NEWER]
    assert operations.status(TOPIC)
    with pytest.raises(CheckFailedError, match=f"group {GROUP} .*a newer kpsplit writes its range commits"):
        operations.retire(PARENT)
    snapshot = Gatherer(Connection(guarded.client("verifier")), TOPIC).snapshot(with_groups=True)
    assert VICTIM in {logged.key.group for logged in snapshot.commits}
    wrong = unfit(operations)
    assert {(r.check, r.partition) for r in wrong} == {("versions", PLACE), ("garbage", PLACE)}
    assert len(wrong) == 3
    assert any(
        c.name == "versions" and f"group {GROUP}" in c.message for c in operations.doctor() if not c.ok
    )
    operations.forget_records(wrong)
    assert unfit(operations) == []
    operations.run(operations.plan_split(PARENT, 2, even=True), max_pause_ms=PAUSE_MS, force=True)


def test_a_forged_range_commit_deletes_nothing_that_a_lagging_group_needs(
    guarded: Guarded, operations: Admin
) -> None:
    lagging = "archive"
    with Producer(guarded.client("producer")) as producer:
        send(producer, "needed")
    commit(guarded.client(ADMIN), lagging, {PARENT: 0})
    operations.run(operations.plan_merge(PARENT), max_pause_ms=PAUSE_MS, force=True)
    reopened = state_of(operations, PARENT).lineage.segments[-1]
    forged = RangeCommit(lagging, PARENT, WHOLE, {reopened.id: Position(reopened.start)}, "me", 1)
    forge(guarded, (forged.key, forged.encode()))
    with pytest.raises(CheckFailedError, match=f"group {lagging} has no commit in {TOPIC}.split-0-1"):
        operations.retire(PARENT)
    forge(guarded, (forged.key, None))


def test_an_open_transaction_holds_up_the_slots_of_its_partition_and_is_named(
    guarded: Guarded, operations: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starter, "UNDECIDED_SECONDS", 0.0)
    name, told = f"{group_ids('commit', GROUP)}open", []
    open_ = forge(guarded, (CommitKey(GROUP, PARENT, WHOLE).encode(), None), transactional_id=name)
    with Producer(guarded.client("producer")) as producer:
        send(producer, "held")
    with victim(guarded, error_cb=lambda error: told.append(error.str())) as member:
        member.subscribe([TOPIC])
        wait_for(lambda: not member.poll(0.1) and told, "the report", 60)
        assert f"{OFFSETS_TOPIC}/{PLACE}" in told[0] and "kpsplit doctor" in told[0]
        (check,) = [c for c in operations.doctor() if c.name == "transactions" and not c.ok]
        assert f"{OFFSETS_TOPIC}/{PLACE}" in check.message and "kafka-transactions.sh" in check.remedy
        Plain(guarded.client(ADMIN) | {"transactional.id": name}).init_transactions(30)  # ends it
        read_all(member, ["held"])
    del open_
