"""What the streaming reader answers Spark, asked as Spark asks it; real brokers, no session."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka import Producer as PlainProducer
from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit import Producer
from kpsplit.clock import Deadline
from kpsplit.consumer.fetch.physical_reader import PhysicalReader
from kpsplit.errors import ConfigurationError, ConflictError, KpsplitError, UsageError
from kpsplit.kafka.cluster_admin import ClusterAdmin, ask_every_broker, await_served
from kpsplit.kafka.connection import Connection
from kpsplit.spark_jobs.regions import Bound
from kpsplit.spark_jobs.streaming import source as fetching
from kpsplit.spark_jobs.streaming.plan import Query
from kpsplit.spark_jobs.streaming.source import LogicalStreamReader, options_of, query_of
from kpsplit.splitter.lineage import PhysicalPartition
from tests.broker.operating import (
    PAUSE_MS,
    DiedError,
    dying_after,
    enrolled,
    log_end,
    merge,
    operating,
    split,
)

pytestmark = [pytest.mark.broker]

Open = Callable[..., "Asker"]


class Asker:
    """Asks a reader as Spark does, through JSON, and reads what it is told to."""

    def __init__(self, query: Query) -> None:
        self.reader = LogicalStreamReader(query_of(options_of(query)))
        self.end: dict[str, Any] = {}

    def latest(self) -> dict[str, Any]:
        """Ask until brokers have answered: else the reader repeats itself, for as long as its patience."""
        while True:
            self.end = json.loads(json.dumps(self.reader.latestOffset()))
            if self.reader._trouble_since is None:
                return self.end

    def resume(self, offset: dict[str, Any]) -> None:
        assert self.reader.partitions(offset, offset) == []

    def tasks(self, start: dict[str, Any] | None = None) -> list[list[int]]:
        """The physical offsets that the tasks of a batch up to ``end`` read."""
        planned = self.reader.partitions(start or self.reader.initialOffset(), self.end)
        return [
            [o for batch in self.reader.read(task) for o in batch.column("offset").to_pylist()]
            for task in planned
        ]

    def batch(self, start: dict[str, Any] | None = None) -> int:
        self.latest()
        return sum(len(t) for t in self.tasks(start))


@pytest.fixture
def ask(bootstrap: str):
    opened: list[Asker] = []

    def make(
        topic: str,
        start: Bound = "earliest",
        most: int | None = None,
        strict: bool = True,
    ) -> Asker:
        connection = {"bootstrap.servers": bootstrap}
        opened.append(Asker(Query(connection, topic, None, 20.0, start, most, strict)))
        return opened[-1]

    yield make
    for asker in opened:
        asker.reader.stop()


@pytest.fixture
def topic(operations, make_topic) -> str:
    name = make_topic()
    enrolled(operations, name)
    return name


@pytest.fixture
def send(bootstrap: str, topic: str):
    with Producer({"bootstrap.servers": bootstrap}) as producer:

        def write(count: int) -> None:
            for i in range(count):
                producer.produce(topic, b"v", b"key-%d" % (i % 16))
            assert producer.flush(30) == 0

        yield write


def test_a_query_that_died_in_its_first_batch_begins_it_again_where_it_began(ask: Open, topic, send) -> None:
    """What is the latest is another place by then."""
    send(10)
    first = ask(topic, "latest")
    assert first.batch() == 0
    send(7)
    again = ask(topic, "latest")
    again.resume(first.end)
    again.end = first.end
    assert again.tasks() == [], "the batch that was written down held nothing"
    assert again.batch(first.end) == 7


def test_a_task_goes_on_with_the_reader_that_the_one_before_left(ask: Open, topic, send, monkeypatch) -> None:
    """It fetches about as many records ahead as a task reads; one that is not read to its end leaves none."""
    made: list[PhysicalReader] = []

    class Noted(PhysicalReader):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(fetching, "PhysicalReader", Noted)
    monkeypatch.setattr(fetching, "_kept", {})
    query = ask(topic)
    for count in (10, 20):
        send(count)
        before = query.end or None
        assert query.batch(before) == count
    assert [reader.ahead for reader in made] == [1_000]
    send(10)
    before = query.end
    query.latest()
    (task,) = query.reader.partitions(before, query.end)
    query.reader.read(task).close()  # never begun
    begun = query.reader.read(task)
    assert next(begun).num_rows == 10
    begun.close()
    assert fetching._kept == {}
    assert sum(map(len, query.tasks(before))) == 10
    assert len(made) == 2


def test_a_reader_of_few_records_does_not_fetch_megabytes_ahead(bootstrap, make_topic) -> None:
    place = PhysicalPartition(make_topic(), 0)
    plain = PlainProducer({"bootstrap.servers": bootstrap})
    for _ in range(2_000):
        plain.produce(place.topic, bytes(10_000), partition=0)
        plain.poll(0)
    assert plain.flush(60) == 0

    def fetched(most: int) -> int:
        """Return the bytes that a reader has fetched one second after it read ten records.

        Nobody polls in that second: each record that is polled makes room for more. What the client reports
        comes with the polls after it, with the time at which it was true.
        """
        seen: list[tuple[float, int]] = []

        def note(text: str) -> None:
            stats = json.loads(text)
            fetched = stats["topics"].get(place.topic, {}).get("partitions", {}).get("0", {})
            seen.append((stats["ts"] / 1e6, fetched.get("rxbytes", 0)))

        config = {"bootstrap.servers": bootstrap, "statistics.interval.ms": 100, "stats_cb": note}
        reader, limit = PhysicalReader(Connection(config), 20.0, most), Deadline(30)
        try:
            assert len(list(reader.records(place, 0, 10))) == 10
            time.sleep(1.0)
            untouched = time.monotonic()
            while not seen or seen[-1][0] <= untouched:
                limit.check("the client's statistics")
                reader._consumer.poll(0.1)
            return max(size for at, size in seen if at <= untouched)
        finally:
            reader.close()

    assert fetched(10) < 3_000_000


def test_the_first_batch_says_where_it_began(ask: Open, topic, send) -> None:
    send(10)
    first = ask(topic, most=4)
    assert first.batch() == 4
    send(3)
    again = ask(topic, "latest", most=4)
    again.resume(first.end)
    again.end = first.end
    assert [len(t) for t in again.tasks()] == [4]


def test_nothing_new_is_the_same_offset(ask: Open, topic, send) -> None:
    send(3)
    asker = ask(topic)
    assert asker.latest() == asker.latest()


def test_no_batch_goes_beyond_a_fence_until_its_outcome_is_known(
    ask: Open, topic, send, bootstrap, operations, admin
) -> None:
    """The marker is in the log, and its operator is gone: the attempt is rolled back, so it means nothing."""
    send(10)
    asker = ask(topic)
    assert asker.batch() == 10
    before = asker.end
    parent = PhysicalPartition(topic, 0)
    with operating(bootstrap) as dying, pytest.raises(DiedError):
        plan = dying.plan_split(parent, 2, even=True)
        dying.run(plan, max_pause_ms=PAUSE_MS, observer=dying_after("AppendMarkers"))
    assert log_end(admin, parent) == 11, "the marker"
    assert asker.latest() == before
    operations.abort(parent, "the operator is gone")
    send(4)
    assert asker.batch(before) == 5, "the marker, for the expressions behind to skip, and what came after"
    before = asker.end
    split(operations, parent, 2)
    send(6)
    assert asker.batch(before) == 6


def test_batches_of_a_limited_size_read_everything_predecessors_first(
    ask: Open, topic, send, operations
) -> None:
    parent = PhysicalPartition(topic, 0)
    send(20)
    split(operations, parent, 4)
    send(20)
    merge(operations, parent)
    send(20)
    asker, sizes, before = ask(topic, most=7), [], None
    while asker.latest() != before:
        sizes.append(sum(len(t) for t in asker.tasks(before)))
        before = asker.end
    assert sum(sizes) == 60 and max(sizes) <= 7


def test_what_retention_took_ends_the_query_or_is_passed_over(ask: Open, topic, send, admin) -> None:
    send(30)
    place = TopicPartition(topic, 0, 12)
    admin.delete_records([place])[place].result(20)
    strict = ask(topic, {0: 5})
    strict.latest()
    with pytest.raises(
        KpsplitError,
        match="lost: .* offsets 5 to 11 of .*: retention .* fail_on_data_loss=False",
    ):
        strict.tasks()
    lenient = ask(topic, {0: 5}, strict=False)
    lenient.resume(strict.end)
    lenient.end = strict.end
    assert lenient.tasks() == [list(range(12, 30))]
    assert ask(topic).batch() == 18, "earliest is what there is"


def test_records_that_vanish_between_planning_and_reading_are_noticed(ask: Open, topic, send, admin) -> None:
    send(30)
    strict, lenient = ask(topic), ask(topic, strict=False)
    planned = {}
    for asker in (strict, lenient):
        asker.latest()
        planned[asker] = asker.reader.partitions(asker.reader.initialOffset(), asker.end)
    place = TopicPartition(topic, 0, 12)
    admin.delete_records([place])[place].result(20)
    with pytest.raises(KpsplitError, match="offsets 0 to 11 of .* are gone"):
        strict.tasks()
    assert lenient.tasks() == [list(range(12, 30))]


def test_a_sub_topic_retired_before_it_was_read_ends_the_query_or_is_passed_over(
    ask: Open, topic, send, operations
) -> None:
    parent = PhysicalPartition(topic, 0)
    send(8)
    strict, lenient = ask(topic), ask(topic, strict=False)
    assert strict.batch() == 8
    before = strict.end
    split(operations, parent, 2)
    send(6)
    merge(operations, parent)
    operations.retire(parent, force=True)
    send(4)
    strict.latest()
    with pytest.raises(KpsplitError, match="are lost: .*: the sub-topic was retired"):
        strict.tasks(before)
    lenient.resume(before)
    lenient.end = strict.end
    assert [len(t) for t in lenient.tasks(before)] == [4]


def test_a_topic_that_was_made_anew_ends_the_query(ask: Open, topic, send, admin, bootstrap) -> None:
    """Its log is shorter than what was read; for a moment that may be a leader that lags behind."""
    send(10)
    asker = ask(topic)
    assert asker.batch() == 10
    asker.reader._plan()._cluster.short_patience = 1.0
    limit = Deadline(180)
    make_again(admin, Connection({"bootstrap.servers": bootstrap}), topic, limit)
    with pytest.raises(
        KpsplitError, match="does not hold what .* read of it: the topic was deleted and made"
    ):
        while not limit.expired():
            asker.latest()


@pytest.mark.nightly
def test_a_topic_that_returns_to_plain_clients_ends_the_query_which_goes_on_if_it_is_enrolled_again(
    ask: Open, topic, send, operations, admin
) -> None:
    parent = PhysicalPartition(topic, 0)
    send(20)
    split(operations, parent, 2)
    send(20)
    merge(operations, parent)
    send(20)
    query, slow = ask(topic), ask(topic, most=4)
    assert (query.batch(), slow.batch()) == (60, 4)
    done, behind, at = query.end, slow.end, log_end(admin, parent)
    operations.retire(parent)
    send(3)
    assert operations.unenrol(topic).left
    send(4)
    again = ask(topic)
    again.resume(done)
    for asker in (query, again):
        with pytest.raises(ConflictError) as caught:
            asker.latest()
        assert f'it stands at {{"{topic}": {{"0": {at}}}}}' in caught.value.message
    with pytest.raises(ConflictError, match=f"before this query had read {parent} up to its latest merge"):
        slow.latest()
    enrolled(operations, topic)
    send(2)
    assert again.batch(done) == 3 + 4 + 2
    slow.latest()
    with pytest.raises(KpsplitError, match="are lost: .*: the sub-topic was retired"):
        while slow.tasks(behind):
            behind = slow.end
            slow.latest()


def make_again(admin: AdminClient, connection: Connection, topic: str, limit: Deadline) -> None:
    """Delete a topic and make it anew; no broker takes the old one for the new one any more."""
    admin.delete_topics([topic])[topic].result(30)
    while not ask_every_broker(connection).all_lack(topic):
        limit.check("every broker to hear that the topic is gone")
    while not made(admin, topic):
        limit.check("the topic to be made again")
    await_served(ClusterAdmin(connection), {topic: 1}, limit)


def made(admin: AdminClient, topic: str) -> bool:
    try:
        admin.create_topics([NewTopic(topic, 1, 3)], operation_timeout=30)[topic].result(30)
    except KafkaException:
        return False  # the old one is still being deleted
    return True


def test_a_checkpoint_of_another_topic_or_of_a_newer_layout_is_refused(ask: Open, topic, send) -> None:
    send(3)
    asker = ask(topic)
    end = asker.latest()
    with pytest.raises(ConflictError, match="the checkpoint is of topic other"):
        asker.reader.partitions(end | {"topic": "other"}, end)
    newer = {**end, "at": [{"p": 0, "e": 9, "s": {"44": 3}}]}
    asker.end = newer
    with pytest.raises(ConflictError, match="is at epoch 0, the checkpoint at 9"):
        asker.tasks(end)


@pytest.mark.parametrize("at", [{"e": 9, "s": {"0": 3}}, {"e": 0, "s": {"44": 3}}], ids=["epoch", "segment"])
def test_a_checkpoint_that_the_control_topic_does_not_know_is_refused_by_every_trigger(
    ask: Open, topic, send, at
) -> None:
    """The control topic was begun anew: not waited for until it comes that far, and not read again."""
    send(3)
    known = ask(topic).latest()
    unknown = {**known, "at": [{"p": 0, **at}]}
    steady = ask(topic)
    steady.resume(unknown)
    with pytest.raises(ConflictError, match="the checkpoint belongs to another cluster"):
        steady.latest()
    now = ask(topic)
    now.latest()
    with pytest.raises(ConflictError, match="the checkpoint belongs to another cluster"):
        now.tasks(unknown)


def test_available_now_with_a_limit_is_refused_where_it_would_go_back(ask: Open, topic, send) -> None:
    """Spark asks for the end before it says where the query stands."""
    send(30)
    first = ask(topic, most=20)
    first.latest()
    again = ask(topic, most=10)
    again.latest()
    with pytest.raises(ConflictError, match=r"the batch would end before it begins; nothing was read"):
        again.tasks(first.end)


def test_a_start_that_makes_no_sense_is_refused(ask: Open, topic, make_topic) -> None:
    with pytest.raises(UsageError, match="partition 7, which is not read"):
        ask(topic, {7: 1}, most=1).latest()
    with pytest.raises(UsageError, match="neither an offset nor a time"):
        ask(topic, "yesterday")
    with pytest.raises(UsageError, match="at least 1"):
        ask(topic, most=0)
    with pytest.raises(UsageError, match="not enrolled"):
        ask(make_topic()).latest()


def test_certificates_travel_by_content_and_callbacks_do_not_travel(tmp_path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("-----BEGIN CERTIFICATE-----")
    asked = "orders", None, 1.0, "latest", None, True
    brokers = {"bootstrap.servers": "127.0.0.1:1"}
    query = Query({**brokers, "ssl.ca.location": str(ca)}, *asked)
    assert query_of(options_of(query)).properties == {**brokers, "ssl.ca.pem": "-----BEGIN CERTIFICATE-----"}
    with pytest.raises(ConfigurationError, match="oauth_cb cannot travel"):
        options_of(Query({**brokers, "oauth_cb": print}, *asked))
