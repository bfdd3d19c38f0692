"""A principal that may write one topic of its own does its worst in the producers topic; the others work on.

It has the rights that ``kpsplit acls --for producer`` prints for its topic, and none on that of the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit import Producer
from kpsplit.admin import Admin
from kpsplit.clock import Deadline, monotonic
from kpsplit.control import operations as operations_module
from kpsplit.control.doctor import diagnose
from kpsplit.devcluster.process import KafkaRuntime
from kpsplit.errors import ConflictError, DeadlineExceededError, FutureVersionError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import ControlTail
from kpsplit.splitter.driver import StepDone
from kpsplit.splitter.records.keys import PRODUCERS_TOPIC
from kpsplit.splitter.records.producers import ProducerRegistration
from kpsplit.splitter.rights import Role, rights_for
from tests.broker.guarded import ADMIN, AccessLists, Guarded, await_login, password_of, set_passwords
from tests.broker.guarded_topic import PARENT, TOPIC, consumer, guarded_topic, read_all, send
from tests.broker.operating import PAUSE_MS, state_of

pytestmark = pytest.mark.broker

ATTACKER, OWN = "attacker", "own"
FLOOD = 2_000


@pytest.fixture(scope="module")
def guarded(kafka_runtime: KafkaRuntime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A cluster with a topic that is split, and with one that is the attacker's."""
    with guarded_topic(tmp_path_factory.mktemp("tls")) as guarded:
        admin = AdminClient(guarded.client(ADMIN))
        admin.create_topics([NewTopic(OWN, 1, 1)])[OWN].result(20)
        set_passwords(admin, {ATTACKER: password_of(ATTACKER)})
        await_login(guarded.client(ATTACKER))
        AccessLists(guarded).give(ATTACKER, rights_for(Role.PRODUCER, OWN, transactional_id=OWN))
        yield guarded


@pytest.fixture
def operations(guarded: Guarded) -> Iterator[Admin]:
    """Operations of somebody who is an operator of the others' topic and no more."""
    with Admin(Connection(guarded.client("operator"))) as operations:
        yield operations


@pytest.fixture
def attacker(guarded: Guarded) -> confluent_kafka.Producer:
    """A plain client of the attacker."""
    return confluent_kafka.Producer({**guarded.client(ATTACKER), "acks": "all"})


def write(attacker: confluent_kafka.Producer, records: Mapping[bytes, bytes | None]) -> None:
    """Write to the producers topic, which every producer may."""
    refused: list[object] = []
    for key, value in records.items():
        attacker.produce(
            PRODUCERS_TOPIC, value, key, on_delivery=lambda error, _: refused.append(error) if error else None
        )
    assert attacker.flush(60) == 0
    assert not refused


def forged(record: ProducerRegistration, **changes: object) -> dict[bytes, bytes | None]:
    """What a producer would write, with fields that kpsplit would not write."""
    return {record.key: json.dumps(json.loads(record.encode()) | changes).encode()}


def silent(instance: int, topic: str = TOPIC) -> ProducerRegistration:
    return ProducerRegistration(instance, 1, "attacker", topics=(topic,))


def resized(operations: Admin, **options: object) -> None:
    """Merge the others' partition, or split it again, whichever is its turn."""
    is_split = len(state_of(operations, PARENT).lineage.open_segments()) > 1
    plan = operations.plan_merge(PARENT) if is_split else operations.plan_split(PARENT, 2, even=True)
    operations.run(plan, max_pause_ms=PAUSE_MS, force=True, **options)  # type: ignore[arg-type]


def others_work_on(guarded: Guarded, operations: Admin, name: str) -> None:
    """A producer, a consumer, `split`, `merge` and `status` do what they always do."""
    epoch, names = state_of(operations, PARENT).epoch, [f"{name}-{n}" for n in range(3)]
    with Producer(guarded.client("producer")) as producer, consumer(guarded) as member:
        member.subscribe([TOPIC])
        send(producer, names[0])
        resized(operations)
        send(producer, names[1])
        resized(operations)
        send(producer, names[2])
        (status,) = operations.status(TOPIC)
        assert status.state.epoch == epoch + 2
        read_all(member, names)
        member.commit(asynchronous=False)


def forget_all(operations: Admin) -> list[str]:
    """Remove what the doctor has set aside; return its names."""
    records = operations.findings().set_aside
    operations.forget_records(records)
    assert operations.findings().set_aside == ()
    return sorted({record.name for record in records})


STALE = (silent(0xBAD0), silent(0xBAD1), silent(0xBAD2))
RECORDS: dict[bytes, bytes | None] = {
    **forged(STALE[0], transactional_id="kpsplit.op.orders/0"),
    **forged(STALE[1], transactional_id=""),
    **forged(STALE[2], transactional_id="orders\0"),
    b"00000000000000f1": b'{"v":99}',
    b"any key": b'{"v":99,"topics":["orders"]}',
    b"": b"",
    b"\xff" * 9: b"\xff",
    b"00000000000000f2": b"[" * 100_000,
    silent(0xBAD3, "no-such-topic").key: silent(0xBAD3, "no-such-topic").encode(),
}


def test_records_that_no_producer_writes_hold_nobody_up_and_are_removed(
    guarded: Guarded, operations: Admin, attacker: confluent_kafka.Producer
) -> None:
    write(attacker, RECORDS)
    others_work_on(guarded, operations, "forged")
    checks = {check.name for check in diagnose(operations.findings()) if not check.ok}
    assert {"garbage", "registrations"} <= checks and "versions" not in checks
    assert len(forget_all(operations)) == len(RECORDS)
    assert not [c for c in operations.doctor() if not c.ok and c.name in ("garbage", "registrations")]


@pytest.mark.nightly
def test_what_is_written_over_a_producers_registration_does_not_take_its_place(
    guarded: Guarded, operations: Admin, attacker: confluent_kafka.Producer
) -> None:
    with Producer({**guarded.client("producer"), "client.id": "honest"}) as producer:
        send(producer, "before")
        (own,) = (r for r in operations.producers().open(TOPIC) if r.client_id == "honest")
        newer = b'{"v":99,"topics":["orders"]}'
        for over in (b"garbage", forged(own, transactional_id="kpsplit.x")[own.key], newer):
            write(attacker, {own.key: over})
            assert own in operations.producers().open(TOPIC)
            (check,) = [c for c in operations.doctor() if c.name == "garbage" and not c.ok]
            assert "--forget" not in (check.remedy or "")
        resized(operations)
        send(producer, "after")
        assert not operations.findings().set_aside, "its next answer stands there"


@pytest.mark.nightly
def test_a_newer_version_refuses_the_topics_it_names_until_it_is_forgotten(
    guarded: Guarded, operations: Admin, attacker: confluent_kafka.Producer
) -> None:
    write(attacker, {b"00000000000000f3": b'{"v":99,"topics":["other"]}'})
    others_work_on(guarded, operations, "newer-of-another-topic")
    before = state_of(operations, PARENT)
    write(attacker, {b"00000000000000f4": b'{"v":99,"topics":["orders"]}'})
    with pytest.raises(FutureVersionError, match="key 00000000000000f4") as refused:
        resized(operations)
    assert refused.value.changed is False and "kpsplit doctor" in (refused.value.hint or "")
    assert state_of(operations, PARENT) == before, "it was refused before anything"
    assert operations.status(TOPIC)[0].state.attempt is None
    with Producer(guarded.client("producer")) as producer:
        send(producer, "while it is refused")
    assert forget_all(operations) == ["producers/0:00000000000000f3", "producers/0:00000000000000f4"]
    others_work_on(guarded, operations, "newer-is-forgotten")


def test_what_is_another_record_by_now_is_not_forgotten(
    operations: Admin, attacker: confluent_kafka.Producer
) -> None:
    record = silent(0xBAD5)
    write(attacker, {record.key: b"garbage"})
    seen = operations.findings().set_aside
    write(attacker, {record.key: record.encode()})  # as its producer would, meanwhile
    with pytest.raises(ConflictError, match=f"producers/0:{record.key.decode()}"):
        operations.forget_records(seen)
    assert record in operations.producers().open(TOPIC)


@pytest.mark.nightly
def test_a_flood_of_registrations_costs_the_first_operation_a_lease_and_the_next_nothing(
    guarded: Guarded, operations: Admin, attacker: confluent_kafka.Producer
) -> None:
    flood = [  # two registrations of each instance
        replace(silent(0xF100D0000 + n // 2), generation=1 + n % 2, transactional_id=f"own-{n}")
        for n in range(FLOOD)
    ]
    write(attacker, {record.key: record.encode() for record in flood})
    answers: list[str] = []

    def note(done: StepDone) -> None:
        if done.name == "AwaitReady":
            answers.append(done.detail)

    resized(operations, observer=note)
    resized(operations, observer=note)
    silent_first = int(answers[0].removesuffix(" silent").rpartition(" ")[2])
    assert silent_first >= FLOOD and "silent" not in answers[1], answers
    assert operations.producers().open(TOPIC) == ()
    others_work_on(guarded, operations, "flood")


@pytest.mark.nightly
def test_an_open_transaction_hides_no_producer_and_is_named(guarded: Guarded, operations: Admin) -> None:
    """An operator that did not see a registration behind it would cut while that producer writes."""
    hung = confluent_kafka.Producer({**guarded.client(ATTACKER), "transactional.id": "own-hung"})
    hung.init_transactions(60)
    hung.begin_transaction()
    hung.produce(PRODUCERS_TOPIC, b"{}", b"of the open transaction")
    assert hung.flush(60) == 0
    try:
        with Producer({**guarded.client("producer"), "client.id": "behind it"}) as producer:
            send(producer, "behind it")
            assert [r.client_id for r in operations.producers().open(TOPIC)] == ["behind it"]
        others_work_on(guarded, operations, "hung")
        (found,) = (check for check in operations.doctor() if check.name == "transactions")
        assert not found.ok and f"{PRODUCERS_TOPIC}/0" in found.message
        assert f"--topic {PRODUCERS_TOPIC} --partition 0 --start-offset" in (found.remedy or "")
    finally:
        hung.abort_transaction(60)
    forget_all(operations)


class UntilNamed(Deadline):
    """Is over as soon as it is asked about nobody else than ``whom``, as a max-pause that passes then."""

    def __init__(self, seconds: float, whom: str) -> None:
        super().__init__(seconds)
        self._whom = f"(of {whom})"

    def check(self, what: str, *, hint: str | None = None) -> None:
        if self._whom in what:
            self.at = min(self.at, monotonic())
        super().check(what, hint=hint)


def test_who_answers_and_never_acknowledges_is_named_and_bounded_by_max_pause(
    guarded: Guarded,
    operations: Admin,
    attacker: confluent_kafka.Producer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit that stays: each try holds writers for max-pause while somebody goes on doing this."""
    record = replace(silent(0xBAD4), client_id="never acknowledges", transactional_id="any")
    whom = f"never acknowledges {record.key.decode()}"
    clock = SimpleNamespace(now=monotonic, deadline=partial(UntilNamed, whom=whom))
    monkeypatch.setattr(operations_module, "SystemClock", lambda: clock)
    write(attacker, {record.key: record.encode()})
    tail = ControlTail(Connection(guarded.client(ATTACKER)))

    def answer(done: StepDone) -> None:
        if done.name == "Prepare":
            attempt = tail.read_all(Deadline(60)).states[PARENT].attempt
            assert attempt is not None
            ready = replace(record, ready={str(PARENT): attempt.id})
            write(attacker, {record.key: ready.encode()})

    with Producer(guarded.client("producer")) as producer:
        send(producer, "before it")
        with pytest.raises(
            DeadlineExceededError, match=f"waited {PAUSE_MS // 1000} s for .*{whom}"
        ) as failed:
            resized(operations, observer=answer)
        assert failed.value.changed is False
        send(producer, "after it")
    tail.close()
    (named,) = operations.findings().set_aside
    assert "did not acknowledge" in named.why and named.key == record.key
    forget_all(operations)
    others_work_on(guarded, operations, "who never acknowledged is gone")
