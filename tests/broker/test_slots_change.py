"""The number of slots of a topic is changed while its groups read it."""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any, Self

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit import Producer
from kpsplit.admin import Admin
from kpsplit.admin_cli.main import cli
from kpsplit.clock import Deadline
from kpsplit.errors import ConflictError, DeadlineExceededError, FencedError
from kpsplit.kafka import control_log
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import ControlTail, EnrolmentLog
from kpsplit.kafka.groups import range_commits
from kpsplit.kafka.offset_log import offset_log_partitions
from kpsplit.kafka.producers_log import AcknowledgedWriter
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.control import Enrolment, Partitioner, encode_enrolment
from kpsplit.splitter.records.keys import (
    CONTROL_TOPIC,
    OFFSETS_TOPIC,
    changelog_topic,
    enrolment_key,
    offsets_partition,
    slots_topic,
)
from kpsplit.splitter.records.offsets import Position, RangeCommit
from tests.broker.consuming import REMOTE, Log, Member, consumer, reading, shared, wait_for
from tests.broker.operating import DiedError, dying_after, operating, split
from tests.broker.sleeping import COUNT, PATIENCE, SHORT_SESSION_MS, Sleeper, send
from tests.conftest import MakeTopic
from tests.nights import others_at_night, protocols

pytestmark = pytest.mark.broker

KIND = Partitioner.CONSISTENT_RANDOM
KEYS = 40


def settings(protocol: str) -> dict[str, Any]:
    return dict(REMOTE) if protocol == "consumer" else {}


def topics(admin: AdminClient) -> dict[str, int]:
    listed = admin.list_topics(timeout=20).topics
    return {name: len(found.partitions) for name, found in listed.items()}


def numbers(*members: Member) -> set[int]:
    """By how many slots per partition members read."""
    return {slot.count for m in members for slot in m.consumer.slots() if slot.stage == "reading"}


def read_in(slots: int, *members: Member) -> bool:
    """Whether members read everything by so many slots per partition."""
    return sum(len(reading(member)) for member in members) == slots


class Writing(threading.Thread):
    """Writes records of some keys without a rest until it is told to stop; ``sent``: by key, in order."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True, name="writing")
        self.sent: dict[bytes, list[bytes]] = defaultdict(list)
        self.failed: list[str] = []
        self._servers, self._topic, self._over = bootstrap, topic, threading.Event()

    def run(self) -> None:
        with Producer({"bootstrap.servers": self._servers}) as producer:
            while not self._over.wait(0.02):
                for n in range(KEYS // 4):
                    key = b"key-%d" % ((n + 10 * (len(self.sent[b"key-0"]) % 4)) % KEYS)
                    value = b"%s:%d" % (key, len(self.sent[key]))
                    self.sent[key].append(value)
                    producer.produce(self._topic, value, key, on_delivery=self._told)
                producer.poll(0)
            producer.flush(60)

    def _told(self, error: object, _message: object) -> None:
        if error is not None:
            self.failed.append(str(error))

    @property
    def count(self) -> int:
        return sum(map(len, self.sent.values()))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join(90)


@contextmanager
def group(bootstrap: str, topic: str, log: Log, names: str, **more: Any) -> Iterator[list[Member]]:
    """Members of one group that poll; they close at the end."""
    with ExitStack() as stack:
        members = [Member(bootstrap, f"g-{topic}", [topic], log, name, **more) for name in names]
        for member in members:
            member.start()
            stack.callback(member.stop)
        yield members


@pytest.mark.parametrize("protocol", protocols("classic"))
def test_a_live_group_goes_over_to_other_numbers_of_slots_and_loses_doubles_and_reorders_nothing(
    bootstrap: str, operations: Admin, admin: AdminClient, make_topic: MakeTopic, protocol: str
) -> None:
    """2 slots, 8, then 3 while a partition is split, with two writers."""
    topic, log = make_topic(2), Log()
    parent = shared(operations, topic, slots=2)
    with group(bootstrap, topic, log, "abc", **settings(protocol)) as members:
        with Writing(bootstrap, topic) as writing:
            wait_for(lambda: read_in(4, *members), "the group to read by 2 slots")
            assert operations.enrol(topic, KIND, slots=8).former_slots is None
            wait_for(lambda: read_in(16, *members) and all(map(reading, members)), "each to read by 8 slots")
            assert numbers(*members) == {8}
            split(operations, parent, 3)
            assert operations.enrol(topic, KIND, slots=3).generation == 3
            wait_for(lambda: read_in(6, *members), "the group to read by 3 slots")
            assert numbers(*members) == {3}
        wait_for(lambda: log.distinct() == writing.count, "all records")
    assert not writing.failed
    log.check_order(writing.sent)
    assert log.duplicates() == 0, log.handed_out_again()
    names = {slots_topic(topic, generation) for generation in (1, 2, 3)}
    wait_for(lambda: names & topics(admin).keys() == {slots_topic(topic, 3)}, "the former slots to be gone")


@pytest.mark.nightly
@pytest.mark.parametrize("protocol", protocols("classic"))
def test_a_member_that_changes_its_topics_back_and_forth_reads_what_it_names_last_and_never_leaves(
    bootstrap: str, operations: Admin, make_topic: MakeTopic, protocol: str
) -> None:
    """Also where it names a topic that does not exist."""
    first, second = make_topic(), make_topic()
    shared(operations, first, slots=2)
    found: list[str] = []
    with consumer(bootstrap, f"g-{first}", **settings(protocol)) as member:

        def polls(condition: Callable[[], Any]) -> None:
            end = time.monotonic() + PATIENCE
            while not condition():
                assert time.monotonic() < end, dict(member.stats())
                message = member.poll(0.05)
                if message is not None and message.error() is None:
                    found.append((message.value() or b"").decode())

        def has(count: int) -> bool:
            return list(member.stats()["slots"].values()).count("reading") == count

        nothing = f"{first}-nothing"
        for number, (changes, count) in enumerate(
            (
                ([[first]], 2),
                ([[second], [first]], 2),
                ([[first, second]], 3),
                ([[first], [first, second]], 3),
                ([[first, second, nothing]], 3),
                ([[first, nothing], [first, second]], 3),
                ([[second]], 1),
                ([[first, second]], 3),
            )
        ):
            for wanted in changes:
                member.subscribe(wanted)
            polls(lambda count=count: has(count))  # type: ignore[misc]
            values = send(bootstrap, first, f"{number}-first") if first in wanted else set()
            values |= send(bootstrap, second, f"{number}-second") if second in wanted else set()
            polls(lambda values=values: values <= set(found))  # type: ignore[misc]
        assert not member.stats()["left_group"]
    assert len(found) == len(set(found))


STEPS = ["Slots", "Change", "Settled", "DeleteSlots", "Settle", "Release", "Changed"]


@pytest.mark.parametrize("step", others_at_night(STEPS, lambda step: step in STEPS[:2]))
def test_a_change_whose_operator_died_is_finished_by_the_next_enrol(
    operations: Admin, admin: AdminClient, make_topic: MakeTopic, step: str
) -> None:
    topic = make_topic(2)
    first = operations.enrol(topic, KIND, slots=2)
    with pytest.raises(DiedError):
        operations.enrol(topic, KIND, dying_after(step), slots=8)
    recorded = operations.view().enrolments[topic]
    assert (recorded.former_slots == 2) == (step in ("Change", "Settle", "Settled", "Release", "DeleteSlots"))
    if recorded.former_slots is not None:
        with pytest.raises(ConflictError, match="being changed from 2 to 8"):
            operations.enrol(topic, KIND, slots=4)
    found = operations.enrol(topic, KIND, slots=8 if step == "Slots" else None)
    assert found == replace(first, slots=8, generation=2) == operations.view().enrolments[topic]
    counts = {slots_topic(topic): None, slots_topic(topic, 2): 16}
    wait_for(lambda: {name: topics(admin).get(name) for name in counts} == counts, "the new slots alone")
    assert operations.enrol(topic, KIND) == found


@pytest.mark.nightly
def test_a_group_goes_over_although_the_operator_died_before_it_was_settled(
    bootstrap: str, operations: Admin, admin: AdminClient, make_topic: MakeTopic
) -> None:
    topic, log = make_topic(1), Log()
    shared(operations, topic, slots=2)
    with group(bootstrap, topic, log, "ab") as members, Writing(bootstrap, topic) as writing:
        wait_for(lambda: read_in(2, *members), "the group to read by 2 slots")
        with pytest.raises(DiedError):
            operations.enrol(topic, KIND, dying_after("Change"), slots=5)
        wait_for(lambda: read_in(5, *members), "the group to read by 5 slots")
        assert slots_topic(topic) in topics(admin) and not operations.view().enrolments[topic].settled
        assert operations.enrol(topic, KIND).former_slots is None
        wait_for(lambda: slots_topic(topic) not in topics(admin), "the former slots to be gone")
        assert read_in(5, *members)
        known = writing.count
        wait_for(lambda: log.distinct() > known, "records after it")
    assert log.duplicates() == 0, log.handed_out_again()


@pytest.mark.parametrize("protocol", protocols("classic"))
def test_a_member_that_slept_through_a_change_longer_than_its_session_hands_out_nothing_of_before(
    bootstrap: str, operations: Admin, make_topic: MakeTopic, protocol: str
) -> None:
    topic, log = make_topic(), Log()
    shared(operations, topic, slots=2)
    first = send(bootstrap, topic, "first")
    short = {"session_timeout_ms": SHORT_SESSION_MS} if protocol == "classic" else settings(protocol)
    with Sleeper(bootstrap, f"g-{topic}", topic, "poll", **short) as sleeper:
        sleeper.order("take 5")
        wait_for(lambda: len(sleeper.values) == 5, "the first records", PATIENCE)
        before = sleeper.filled()
        sleeper.signal(signal.SIGSTOP)
        with group(bootstrap, topic, log, "s", **settings(protocol)) as members:
            assert operations.enrol(topic, KIND, slots=8).former_slots is None
            wait_for(lambda: log.distinct() == COUNT, "the other to read everything", PATIENCE)
            assert numbers(*members) == {8}
            sleeper.order("go")
            sleeper.signal(signal.SIGCONT)
            later: set[str] = set()

            def works_again() -> bool:
                later.update(send(bootstrap, topic, f"later-{len(later)}"))
                return bool(later & set(sleeper.values))

            wait_for(works_again, "it to work again", PATIENCE)
            wait_for(lambda: later <= {*sleeper.values, *log.values()}, "all", PATIENCE)
            told = sleeper.end()
    assert before == 5 and told["held_after_sleep"]
    assert not first & set(sleeper.values[before:])
    assert log.duplicates() == 0 and not set(sleeper.values[before:]) & log.values()


@pytest.mark.parametrize("protocol", protocols("classic"))
def test_new_slots_wait_for_a_member_that_sleeps_for_less_than_its_session_and_nothing_is_read_twice(
    bootstrap: str, operations: Admin, make_topic: MakeTopic, protocol: str
) -> None:
    """It may be at work on a record of a former slot: it has seen nothing of the change."""
    topic, log = make_topic(), Log()
    shared(operations, topic, slots=2)
    values = send(bootstrap, topic, "first")
    with group(bootstrap, topic, log, "s", **settings(protocol)) as members:
        wait_for(lambda: log.distinct() == COUNT, "the first records", PATIENCE)
        with Sleeper(bootstrap, f"g-{topic}", topic, "poll", **settings(protocol)) as sleeper:
            sleeper.order("stats")
            wait_for(lambda: read_in(1, *members), "the slots to be shared", PATIENCE)
            second = send(bootstrap, topic, "second")
            sleeper.order("take 1")
            wait_for(lambda: len(sleeper.values) == 1, "its first record", PATIENCE)
            wait_for(lambda: len(log.values()) > COUNT, "records of the other's slot", PATIENCE)
            sleeper.signal(signal.SIGSTOP)
            slept = time.monotonic()
            with pytest.raises(DiedError):
                operations.enrol(topic, KIND, dying_after("Settled"), slots=4)
            known = log.count
            third = send(bootstrap, topic, "third")
            wait_for(lambda: time.monotonic() > slept + 4, "a while")  # less than its session
            waited = log.values() & third
            assert not numbers(*members) & {4}, "a slot began beside one that may be worked on"
            sleeper.order("go")
            sleeper.signal(signal.SIGCONT)
            everything = values | second | third
            wait_for(lambda: {*log.values(), *sleeper.values} == everything, "all records", PATIENCE)
            assert known >= COUNT and waited <= third
            finished = operations.enrol(topic, KIND)
            sleeper.end()
    assert (finished.slots, finished.former_slots) == (4, None)
    assert log.duplicates() == 0 and not log.values() & set(sleeper.values)
    assert len(sleeper.values) == len(set(sleeper.values))


def run(bootstrap: str, *arguments: str) -> tuple[int, str]:
    """The command line; what it says on stderr."""
    env = {"KPSPLIT_BOOTSTRAP_SERVER": bootstrap, "NO_COLOR": "1"}
    done = CliRunner().invoke(cli, list(arguments), env=env)
    return done.exit_code, " ".join(done.stderr.split())


def test_the_command_line_changes_the_slots_step_by_step_and_refuses_what_cannot_be_changed(
    bootstrap: str, operations: Admin, admin: AdminClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(1)
    operations.enrol(topic, KIND, slots=2)
    code, said = run(bootstrap, "enroll", topic, "--slots", "2")
    assert (code, said) == (0, "")
    code, said = run(bootstrap, "enroll", topic, "--slots", "4")
    assert code == 0
    steps = ["slots created", "another number of slots recorded", "known to every client", "in force"]
    steps += ["former slots released", "former slots deleted", "change of slots finished"]
    assert [said.index(step) for step in steps] == sorted(said.index(step) for step in steps)

    new = NewTopic(slots_topic(topic, 3), 5, 3)
    admin.create_topics([new], operation_timeout=30)[new.topic].result(30)
    code, said = run(bootstrap, "enroll", topic, "--slots", "8")
    assert code == 3 and f"topic {new.topic} exists, but it has 5 partitions, not 8" in said
    assert any(new.topic in c.message and not c.ok for c in operations.doctor())
    admin.delete_topics([new.topic], operation_timeout=30)[new.topic].result(30)

    kept = NewTopic(changelog_topic("billing", topic), 4, 3)
    admin.create_topics([kept], operation_timeout=30)[kept.topic].result(30)
    code, said = run(bootstrap, "enroll", topic, "--slots", "8")
    assert code == 3 and f"groups keep state of topic {topic} by its 4 slots: {kept.topic}" in said
    known = operations.view().enrolments[topic]
    assert (known.slots, known.generation, known.former_slots) == (4, 2, None)

    unfinished = replace(known, slots=8, generation=3, former_slots=4)
    writer = AcknowledgedWriter(Connection({"bootstrap.servers": bootstrap}), "tests")
    writer.write(CONTROL_TOPIC, enrolment_key(topic), encode_enrolment(unfinished), Deadline(60))
    code, said = run(bootstrap, "enroll", topic, "--slots", "2")
    assert code == 5 and "are being changed from 4 to 8" in said
    assert f"to finish that run: kpsplit enroll {topic}" in said
    assert any("being changed from 4 to 8" in c.message and not c.ok for c in operations.doctor())
    assert operations.status(topic)[0].enrolment.former_slots == 4
    assert run(bootstrap, "enroll", topic)[0] == 0
    assert operations.view().enrolments[topic] == replace(unfinished, former_slots=None)


def test_two_that_change_the_slots_at_the_same_time_agree_or_one_is_refused(
    bootstrap: str, operations: Admin, make_topic: MakeTopic
) -> None:
    topic = make_topic(1)
    operations.enrol(topic, KIND, slots=2)
    found: list[int | Exception] = []

    def change(slots: int) -> None:
        with operating(bootstrap) as mine:
            try:
                found.append(mine.enrol(topic, KIND, slots=slots).slots)
            except Exception as error:  # noqa: BLE001 - looked at below
                found.append(error)

    for slots in (4, 4, 8):
        threading.Thread(target=change, args=(slots,), daemon=True).start()
    wait_for(lambda: len(found) == 3, "all three to end")
    for error in (one for one in found if isinstance(one, Exception)):
        assert any(step in str(error) for step in ("run: kpsplit", "look at", "delete")), repr(error)
    final = operations.enrol(topic, KIND)
    assert final.former_slots is None and final.slots in (4, 8)
    assert final == operations.view().enrolments[topic]
    place = PhysicalPartition(topic, 0)
    assert operations.status(topic)[0].state.parent == place


@pytest.mark.parametrize("number", others_at_night([0, 1, 2], lambda number: number == 1))
def test_an_operator_that_slept_before_its_record_while_another_changed_the_slots_has_it_refused(
    bootstrap: str, operations: Admin, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """``number``: of the record (that of the change, the settled one, the last)."""
    topic, records, found = make_topic(1), list[Enrolment](), list[Enrolment]()
    operations.enrol(topic, KIND, slots=2)
    record = EnrolmentLog.record

    def slept(log: EnrolmentLog, enrolment: Enrolment, *more: Any) -> None:
        records.append(enrolment)
        if len(records) == number + 1:
            with operating(bootstrap) as other:
                for slots in (4, 8):
                    found.append(other.enrol(topic, KIND, slots=slots))
        record(log, enrolment, *more)

    monkeypatch.setattr(EnrolmentLog, "record", slept)
    with pytest.raises(FencedError, match="another operator took over") as caught:
        operations.enrol(topic, KIND, slots=4)
    assert caught.value.hint and caught.value.changed is (number > 0), "of what it had recorded before"
    with operating(bootstrap) as fresh:
        assert fresh.view().enrolments[topic] == found[-1]
        assert (found[-1].slots, found[-1].generation, found[-1].former_slots) == (8, 3, None)
        assert not [c for c in fresh.doctor() if not c.ok and topic in c.message]


def test_an_operator_that_slept_while_another_one_claimed_the_topic_withdraws_no_commit(
    bootstrap: str, operations: Admin, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_log, "MOST_WITHDRAWN", 1)
    connection, parent = Connection({"bootstrap.servers": bootstrap}), PhysicalPartition(make_topic(1), 0)
    known, admin = operations.enrol(parent.topic, KIND, slots=2), ClusterAdmin(connection)
    place = offsets_partition(parent, offset_log_partitions(admin))
    writer = AcknowledgedWriter(connection, "tests")
    commits = [RangeCommit("g", parent, half, {0: Position(77)}, "m", 1) for half in WHOLE.split_evenly(2)]
    for commit in commits:
        writer.write(OFFSETS_TOPIC, commit.key, commit.encode(), Deadline(60), partition=place)
    keys = [(place, commit.key) for commit in commits]
    with closing(ControlTail(connection)) as tail:
        first, second = (EnrolmentLog(connection, parent.topic, tail, writer) for _ in range(2))
        assert [log.claim(Deadline(60)) for log in (first, second)] == [known, known]
        with pytest.raises(FencedError) as caught:
            first.withdraw(keys, Deadline(60))
        assert caught.value.changed is False
        assert len(range_commits(admin, [parent], Deadline(60)).keys("g", parent)) == len(commits)
        second.withdraw(keys, Deadline(60))
        second.record(known, Deadline(60), "")
    assert not range_commits(admin, [parent], Deadline(60)).groups(parent)


class Impatient(EnrolmentLog):
    """Reads on for so many seconds from when it has written; what is hidden does not come meanwhile."""

    seconds = 2.0

    def _read_decided(self, end: int, deadline: Deadline) -> None:
        super()._read_decided(end, Deadline(min(self.seconds, deadline.left())))


@pytest.mark.nightly
def test_a_claim_of_a_topic_waits_for_a_strangers_transaction_that_hides_what_another_operator_wrote(
    bootstrap: str, operations: Admin, make_topic: MakeTopic
) -> None:
    topic, connection = make_topic(1), Connection({"bootstrap.servers": bootstrap})
    known = operations.enrol(topic, KIND, slots=2)
    changed = replace(known, settled=False, slots=4, generation=2, former_slots=2)
    stranger = connection.open_producer(
        "stranger", transactional_id=f"tests-{topic}", transaction_timeout_ms=600_000
    )
    stranger.init_transactions(60)
    with closing(ControlTail(connection)) as tail, closing(ControlTail(connection)) as later:
        writer = AcknowledgedWriter(connection, "tests")
        first, second = (Impatient(connection, topic, t, writer) for t in (tail, later))
        with ExitStack() as hidden:
            stranger.begin_transaction()
            hidden.callback(stranger.abort_transaction, 60)
            stranger.produce(CONTROL_TOPIC, None, b"tests", 0)
            assert stranger.flush(60) == 0
            with pytest.raises(DeadlineExceededError):
                first.claim(Deadline(60))
            with pytest.raises(DeadlineExceededError) as caught:
                first.record(changed, Deadline(60), "look again")
            assert (caught.value.changed, caught.value.hint) == (True, "look again")
            assert second.look(Deadline(60)) == known, "it is hidden"
            with pytest.raises(DeadlineExceededError):
                second.claim(Deadline(60))
        second.seconds = 60.0
        assert second.claim(Deadline(60)) == changed
        second.record(known, Deadline(60), "")
    assert operations.view().enrolments[topic] == known
