"""What ``status`` asks and looks through: each topic's producers once, however many partitions it has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kpsplit.clock import Deadline
from kpsplit.control.status import statuses
from kpsplit.kafka.log_ends import LogEnd
from kpsplit.splitter.control_plane import ControlView, Registrations
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.control import Enrolment, Partitioner
from kpsplit.splitter.records.producers import ProducerRegistration

COUNTS = {"orders": 50, "bills": 30, "plain": 4, "__kpsplit.slots.orders": 160, "__kpsplit.slots.bills": 120}


class Cluster:
    """An admin that counts its questions for log ends."""

    def __init__(self) -> None:
        self.asked: list[set[PhysicalPartition]] = []

    def topics(self) -> dict[str, int]:
        return dict(COUNTS)

    def end_offsets(self, places: Iterable[PhysicalPartition]) -> dict[PhysicalPartition, LogEnd]:
        self.asked.append(set(places))
        return {place: LogEnd(place.partition, 0) for place in self.asked[-1]}


class Counted(Registrations):
    """Registrations that count how often they are gone through."""

    looks = 0

    def all(self) -> tuple[ProducerRegistration, ...]:
        self.looks += 1
        return super().all()


def looked(topic: str | None = None) -> tuple[list[Any], Cluster, Counted]:
    view, registrations, cluster = ControlView(), Counted(), Cluster()
    for name in ("orders", "bills"):
        view.enrolments[name] = Enrolment(name, "id", Partitioner.CONSISTENT_RANDOM, True, 4)
        registrations.fold(ProducerRegistration(len(name), 1, f"writes {name}", None, (name,)))
    admin: Any = cluster
    return statuses(admin, view, registrations, topic, None, Deadline(1)), cluster, registrations


def test_everything_is_asked_at_once_and_producers_are_looked_up_by_topic() -> None:
    found, cluster, registrations = looked()
    assert len(found) == COUNTS["orders"] + COUNTS["bills"]
    assert len(cluster.asked) == 1 and registrations.looks == 2
    assert {(s.state.parent.topic, w.client_id) for s in found for w in s.writers} == {
        ("orders", "writes orders"),
        ("bills", "writes bills"),
    }


def test_partitions_without_slots_are_unread() -> None:
    unread = [str(s.state.parent) for s in looked()[0] if s.unread]
    assert unread == [f"orders/{number}" for number in range(40, 50)]


def test_one_topic_is_asked_for_alone() -> None:
    found, cluster, registrations = looked("bills")
    assert {s.state.parent.topic for s in found} == {"bills"} == {p.topic for p in cluster.asked[0]}
    assert registrations.looks == 1 and found[7].ends == {0: 7}
