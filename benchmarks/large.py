"""A large cluster: 10,000 logical partitions, 1,000 of them split in four, and 5,000 registered producers.

Without brokers: the memory of a view, and the time of its fold; once with a record for each partition that
is split, as operations leave it, and once with a record for every partition, as if each had been operated on.

With brokers: topics with so many partitions, and a control topic with their records. Then in turn: a reading
of the control topic to its end, by an operator's first call; what ``kpsplit status`` asks; the start of a
producer and of a consumer; what a producer costs that stands idle, with one topic and with all of them, to a
plain one (in percent of a core); a split. And how many records a split makes its producers write, by their
number.

The aims: the control topic read in 2 s; an idle producer 1 % of a core; a view 20 MB; records of a fence
linear in producers.

    python -m benchmarks.large [--partitions 10000] [--only view] [--bootstrap-server HOST:PORT]
"""

from __future__ import annotations

import argparse
import gc
import random
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import confluent_kafka
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

import kpsplit
from benchmarks.harness import MAX_PAUSE_MS, VALUE, brokers
from benchmarks.start import first_record, first_report
from kpsplit import Admin, Partitioner, PhysicalPartition
from kpsplit.clock import Deadline
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import ControlTail
from kpsplit.kafka.producers_log import AcknowledgedWriter
from kpsplit.splitter.control_plane import ControlView, Registrations
from kpsplit.splitter.driver import StepDone
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import (
    Abort,
    Attempt,
    Commit,
    Cut,
    EndedBy,
    Fence,
    Finish,
    OperationKind,
    PartitionState,
    Prepare,
    Target,
)
from kpsplit.splitter.records.control import Enrolment, encode_enrolment, encode_state
from kpsplit.splitter.records.keys import (
    CONTROL_TOPIC,
    PRODUCERS_TOPIC,
    control_partition,
    enrolment_key,
    partition_key,
    subtopic_name,
)
from kpsplit.splitter.records.producers import ProducerRegistration, decode_entry

PER_TOPIC, PARTS, SLOTS = 100, 4, 2
"""Partitions of each topic; into how many ranges a tenth of them is split; slots per partition."""
REGISTRATIONS = 5000
IDLE_SECONDS, WRITE_SECONDS, CALL_SECONDS = 20.0, 300.0, 180.0
CREATED_AT_ONCE = 50
FENCED = "large-fenced"
ID = "A" * 22
"""In the place of a topic's id where no brokers are asked."""

Ids = Mapping[str, str]
ControlRecord = tuple[int, bytes, bytes]
"""Partition of the control topic, key, value."""


def topics(partitions: int) -> list[str]:
    """Return the topics that have so many partitions together."""
    return [f"large-{number}" for number in range(partitions // PER_TOPIC)]


def split_ones(topic: str) -> list[PhysicalPartition]:
    """Return the partitions of a topic that are split."""
    return [PhysicalPartition(topic, number) for number in range(PER_TOPIC // 10)]


def prepared(state: PartitionState) -> tuple[PartitionState, str]:
    """Return the state in which a split is prepared, and its attempt."""
    attempt = Attempt(
        f"{random.getrandbits(64):016x}",
        OperationKind.SPLIT,
        "operator@host pid 12345",
        1,
        (0,),
        WHOLE.split_evenly(PARTS),
        Target.PHANTOMS,
        subtopic_name(state.parent, state.next_split),
        MAX_PAUSE_MS,
    )
    return apply(state, Prepare(attempt)), attempt.id


def split(parent: PhysicalPartition, ids: Ids) -> PartitionState:
    """Return the state of a partition that was split once."""
    state, attempt = prepared(PartitionState.unsplit(parent, ids.get(parent.topic, ID)))
    state = apply(state, Fence(attempt, ids.get(subtopic_name(parent, 1), ID)))
    return apply(apply(state, Commit(attempt, (Cut(0, 0, 0),))), Finish(attempt))


def rolled_back(parent: PhysicalPartition) -> PartitionState:
    """Return the state of a partition that is not split, and that has a record."""
    state, attempt = prepared(PartitionState.unsplit(parent, ID))
    return apply(state, Abort(attempt, EndedBy.OPERATOR, "a check failed"))


def control_records(names: Iterable[str], ids: Ids, *, every: bool = False) -> Iterator[ControlRecord]:
    """Yield the enrolments of topics and the states of their partitions; ``every``: all have a record."""
    for topic in names:
        enrolment = Enrolment(topic, ids.get(topic, ID), Partitioner.CONSISTENT_RANDOM, True, SLOTS)
        yield control_partition(topic), enrolment_key(topic), encode_enrolment(enrolment)
        states = [split(parent, ids) for parent in split_ones(topic)]
        if every:
            rest = range(len(states), PER_TOPIC)
            states += [rolled_back(PhysicalPartition(topic, number)) for number in rest]
        for state in states:
            yield control_partition(state.parent), partition_key(state.parent), encode_state(state)


def registrations(count: int, names: Sequence[str]) -> list[tuple[bytes, bytes]]:
    """Return the records of so many producers, each of one topic."""
    made = [
        ProducerRegistration(random.getrandbits(64), 1, "application", None, (names[n % len(names)],))
        for n in range(count)
    ]
    return [(record.key, record.encode()) for record in made]


def weighed(make: Callable[[], Any]) -> tuple[float, float]:
    """Return the processor seconds of a call, and the megabytes of what it returns."""
    gc.collect()
    began = time.process_time()
    make()
    seconds = time.process_time() - began
    gc.collect()
    tracemalloc.start()
    kept = make()
    gc.collect()
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del kept
    return seconds, memory / 1e6


def view_of(records: Iterable[ControlRecord]) -> ControlView:
    """Fold a control topic."""
    view = ControlView()
    for partition, key, value in records:
        view.fold(key, value, partition)
    return view


def registered(entries: Iterable[tuple[bytes, bytes]]) -> Registrations:
    """Fold a producers topic."""
    found = Registrations()
    for key, value in entries:
        found.fold(decode_entry(key, value))
    return found


def show(what: str, figures: str) -> None:
    """Print one line."""
    print(f"{what:64} {figures}", flush=True)


def show_step(step: StepDone) -> None:
    """Print a step of an enrolment or operation."""
    show(f"  {step.name}", f"{step.seconds:5.2f} s")


def without_brokers(partitions: int) -> None:
    """Measure views of a tenth of the partitions and of all of them."""
    for count in (partitions // 10, partitions):
        for every in (False, True):
            records = list(control_records(topics(count), {}, every=every))
            size = sum(len(key) + len(value) for _, key, value in records) / 1e6
            seconds, memory = weighed(partial(view_of, records))
            each = seconds / len(records) * 1e6
            show(
                f"a view of {count:,} partitions, {len(records):,} records of {size:.1f} MB",
                f"{seconds:5.2f} s ({each:.0f} µs each)  {memory:5.1f} MB",
            )
    for count in (REGISTRATIONS // 10, REGISTRATIONS):
        entries = registrations(count, topics(partitions))
        seconds, memory = weighed(partial(registered, entries))
        show(f"{count:,} registrations", f"{seconds:5.2f} s  {memory:5.1f} MB")


def create(bootstrap: str, names: Sequence[str], partitions: int) -> None:
    """Create topics with one replica: so many that three brokers on one machine can carry them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for first in range(0, len(names), CREATED_AT_ONCE):
        wanted = [NewTopic(name, partitions, 1) for name in names[first : first + CREATED_AT_ONCE]]
        asked = admin.create_topics(wanted, operation_timeout=CALL_SECONDS, request_timeout=CALL_SECONDS)
        for future in asked.values():
            future.result(CALL_SECONDS)


def ids_of(bootstrap: str, names: Sequence[str]) -> dict[str, str]:
    """Return Kafka's ids of topics."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = admin.describe_topics(TopicCollection(list(names)), request_timeout=CALL_SECONDS)
    return {name: str(future.result(CALL_SECONDS).topic_id) for name, future in asked.items()}


def write_cluster(bootstrap: str, names: Sequence[str], split_topics: Sequence[str]) -> None:
    """Create the topics, the marker of each split, and all records of kpsplit's own topics."""
    began = time.monotonic()
    with timed("topics are created"):
        create(bootstrap, names, PER_TOPIC)
        create(bootstrap, split_topics, PARTS)
        create(bootstrap, [FENCED], PER_TOPIC)
    plain = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for parent in (p for topic in names for p in split_ones(topic)):
        plain.produce(parent.topic, b"in the place of a marker", None, parent.partition)
    plain.flush(CALL_SECONDS)
    with Admin({"bootstrap.servers": bootstrap}, CALL_SECONDS) as operations:
        with timed("kpsplit init"):
            operations.initialise()
        for topic in (names[0], FENCED):
            with timed(f"kpsplit enroll {topic}, {PER_TOPIC} partitions"):
                operations.enrol(topic, Partitioner.CONSISTENT_RANDOM, show_step, slots=SLOTS)
    writer = AcknowledgedWriter(Connection({"bootstrap.servers": bootstrap}), "benchmark")
    by_place: dict[int, list[tuple[bytes, bytes]]] = {}
    for place, key, value in control_records(names, ids_of(bootstrap, [*names, *split_topics])):
        by_place.setdefault(place, []).append((key, value))
    for place, entries in by_place.items():
        writer.write_all(CONTROL_TOPIC, entries, Deadline(WRITE_SECONDS), partition=place)
    others = registrations(REGISTRATIONS, names[1:])
    writer.write_all(PRODUCERS_TOPIC, others, Deadline(WRITE_SECONDS))
    count = (len(names) + 1) * PER_TOPIC + len(split_topics) * PARTS
    show(f"a cluster of {count:,} partitions is made", f"{time.monotonic() - began:5.1f} s")


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print the seconds that a block takes, by the wall and of this process's processors."""
    began, cpu = time.monotonic(), time.process_time()
    yield
    show(what, f"{time.monotonic() - began:5.2f} s  (processor {time.process_time() - cpu:5.2f} s)")


def reads(bootstrap: str) -> None:
    """Measure what operators read."""
    connection = Connection({"bootstrap.servers": bootstrap})
    with timed("the control topic, read to its end"):
        tail = ControlTail(connection)
        tail.read_all(Deadline(CALL_SECONDS))
    tail.close()
    with Admin(connection, CALL_SECONDS) as operations:
        for call in ("first", "second"):
            with timed(f"kpsplit status of everything, {call} call"):
                found = operations.status()
        show("  partitions in it", f"{len(found):,}")
        with timed("kpsplit status of one topic"):
            operations.status(found[0].state.parent.topic)
        with timed("kpsplit doctor"):
            operations.doctor()
    admin = ClusterAdmin(connection)
    with timed("one question for all topics of the cluster"):
        admin.topics()
    admin.close()


def idle(make: Any, bootstrap: str, names: Sequence[str]) -> str:
    """Return what a producer costs that has written one record to each topic and stands idle."""
    producer = make({"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all"})
    began = time.monotonic()
    for name in names:
        producer.produce(name, VALUE, b"key")
    if producer.flush(CALL_SECONDS):
        raise SystemExit("not everything was delivered")
    ready = time.monotonic() - began
    time.sleep(2)
    cpu, began = time.process_time(), time.monotonic()
    while time.monotonic() < began + IDLE_SECONDS:
        time.sleep(0.5)
    share = 100 * (time.process_time() - cpu) / (time.monotonic() - began)
    ended = time.monotonic()
    if isinstance(producer, kpsplit.Producer):
        producer.close()
    return f"{share:5.2f} %  (first reports {ready:.2f} s, end {time.monotonic() - ended:.2f} s)"


def clients(bootstrap: str, names: Sequence[str]) -> None:
    """Measure the start of clients, and what idle producers cost."""
    for name, make in (("plain", confluent_kafka.Producer), ("kpsplit's", kpsplit.Producer)):
        run = first_report(make, bootstrap, names[0])
        show(f"{name} producer, to its first report", f"{run.wall:5.2f} s")
    for name, ours in (("plain", False), ("kpsplit's", True)):
        run = first_record(ours, bootstrap, names[0])
        show(f"{name} consumer, to its first record", f"{run.wall:5.2f} s  (processor {run.cpu:5.2f} s)")
    for wanted in (names[:1], names):
        for name, make in (("plain", confluent_kafka.Producer), ("kpsplit's", kpsplit.Producer)):
            what = f"{name} producer of {len(wanted) * PER_TOPIC:,} partitions, idle"
            show(what, idle(make, bootstrap, wanted))


def ends(bootstrap: str) -> dict[str, int]:
    """Return how many records kpsplit's own topics have had, markers included."""
    admin = ClusterAdmin(Connection({"bootstrap.servers": bootstrap}))
    places = [PhysicalPartition(PRODUCERS_TOPIC, 0)]
    places += [PhysicalPartition(CONTROL_TOPIC, p) for p in range(admin.partition_count(CONTROL_TOPIC))]
    found = admin.end_offsets(places)
    admin.close()
    count = {CONTROL_TOPIC: 0, PRODUCERS_TOPIC: 0}
    for place, end in found.items():
        count[place.topic] += end.offset
    return count


def operations(bootstrap: str, counts: Sequence[int]) -> None:
    """Measure splits beside so many producers, and count what each of them makes them write."""
    with ExitStack() as stack:
        operator = stack.enter_context(Admin({"bootstrap.servers": bootstrap}, CALL_SECONDS))
        running = 0
        for number, count in enumerate(counts):
            for _ in range(running, count):
                producer = stack.enter_context(kpsplit.Producer({"bootstrap.servers": bootstrap}))
                producer.produce(FENCED, VALUE, b"key")
                producer.flush(CALL_SECONDS)
            running = count
            before = ends(bootstrap)
            with timed(f"a plan beside {count} producers"):
                plan = operator.plan_split(PhysicalPartition(FENCED, number), PARTS, even=True)
            report = operator.run(plan, max_pause_ms=MAX_PAUSE_MS, force=True)
            time.sleep(1)  # the reports of pauses that come after the operation
            after = ends(bootstrap)
            written, held = (after[topic] - before[topic] for topic in before), report.pauses
            control, answers = written
            show(
                f"a split beside {count} producers",
                f"{report.seconds:5.2f} s  {control} records of the operator's, {answers} of producers "
                f"({answers / count:.1f} each), longest pause "
                f"{max((p.pause_ms for p in held.values()), default=0)} ms",
            )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--producers", default="1,10,100")
    parser.add_argument("--only", choices=("view", "reads", "clients", "operations"))
    parser.add_argument("--bootstrap-server")
    given = parser.parse_args()
    if given.only in (None, "view"):
        without_brokers(given.partitions)
    if given.only == "view":
        return
    names = topics(given.partitions)
    split_topics = [subtopic_name(parent, 1) for topic in names for parent in split_ones(topic)]
    with brokers(given.bootstrap_server) as bootstrap:
        write_cluster(bootstrap, names, split_topics)
        if given.only in (None, "reads"):
            reads(bootstrap)
        if given.only in (None, "clients"):
            clients(bootstrap, names)
        if given.only in (None, "operations"):
            operations(bootstrap, [int(count) for count in given.producers.split(",")])


if __name__ == "__main__":
    main()
