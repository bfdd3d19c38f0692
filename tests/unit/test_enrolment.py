"""An enrolment that is broken off: what its error says, and when it does not even begin."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kpsplit.clock import Deadline
from kpsplit.control import enrolment
from kpsplit.control.enrolment import Enroller
from kpsplit.control.plans import Check
from kpsplit.errors import DeadlineExceededError, KpsplitError, UnreachableError
from kpsplit.kafka.cluster_admin import PartitionFacts, TopicFacts
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.records.control import Enrolment, Partitioner, Settings, decode_enrolment

TOPIC = cast(TopicFacts, type("Facts", (), {"name": "orders", "topic_id": "id"})())


@dataclass
class Tail:
    """The control topic as the enroller sees it. ``fails``: reading it does."""

    lease_ms: int
    view: ControlView = field(default_factory=ControlView)
    fails: str = ""

    def __post_init__(self) -> None:
        self.view.settings = Settings(self.lease_ms)

    def poll(self, _seconds: float) -> None:
        """Nothing comes."""

    def read_all(self, _deadline: Any) -> ControlView:
        if self.fails == "read_all":
            raise UnreachableError("no brokers")
        return self.view

    def read_to(self, _ends: Any, _deadline: Any) -> None:
        if self.fails == "read_to":
            raise DeadlineExceededError("waited for the control topic")


@dataclass
class World:
    """What an enrolment writes."""

    tail: Tail
    written: list[Enrolment] = field(default_factory=list)
    slots_topics: int = 0

    def write(self, _topic: str, _key: bytes, value: bytes, _deadline: Any) -> int:
        self.written.append(decode_enrolment(value))
        self.tail.view.enrolments["orders"] = self.written[-1]
        return len(self.written)

    def decide(self, *_: Any) -> int:
        return 4

    def ensure(self, *_: Any) -> bool:
        self.slots_topics += 1
        return False

    def enrol(self, seconds: float) -> Enrolment:
        session = SimpleNamespace(tail=lambda _: self.tail, writer=lambda: self)
        enroller = Enroller(cast(Any, session), cast(Any, self), lambda _: None)
        return enroller.enrol(TOPIC, Partitioner.EXPLICIT, None, None, Deadline(seconds))


def test_an_enrolment_that_cannot_be_settled_in_time_does_not_begin() -> None:
    world = World(Tail(lease_ms=60_000))
    with pytest.raises(DeadlineExceededError, match="takes a lease") as caught:
        world.enrol(60.0)
    assert caught.value.changed is False
    assert "--timeout of more than 76" in (caught.value.hint or "")
    assert (world.written, world.slots_topics) == ([], 0)


@pytest.mark.parametrize("fails", ["read_all", "read_to"])
def test_an_enrolment_that_is_broken_off_says_how_it_is_settled(fails: str) -> None:
    world = World(Tail(lease_ms=1, fails=fails))
    with pytest.raises(KpsplitError) as caught:
        world.enrol(60.0)
    assert caught.value.changed is True
    assert "run: kpsplit enroll orders" in (caught.value.hint or "")
    assert [e.settled for e in world.written] == [False]


def test_an_enrolment_is_settled_behind_a_lease() -> None:
    world = World(Tail(lease_ms=1))
    assert world.enrol(60.0).settled
    assert [(e.settled, e.slots) for e in world.written] == [(False, 4), (True, 4)]


class MadeAgain:
    """A topic that was deleted and made again, of whose old one groups have committed; ``done``: in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ids: dict[int, str] | KpsplitError) -> None:
        self.done: list[str] = []
        facts = TopicFacts("orders", "new", (PartitionFacts(0, (0,), (0,)),))
        view = ControlView()
        view.initialised = True
        view.enrolments["orders"] = Enrolment("orders", "old", Partitioner.EXPLICIT, True, slots=4)
        self.session: Any = SimpleNamespace(
            begin=lambda: Deadline(10),
            read=lambda _: view,
            connection=None,
            admin=SimpleNamespace(describe=lambda _: facts),
        )

        def named(_connection: object, _topic: str) -> dict[int, str]:
            if isinstance(ids, KpsplitError):
                raise ids
            return ids

        monkeypatch.setattr(enrolment, "topic_ids", named)
        monkeypatch.setattr(enrolment, "check_records", lambda *_: Check("", True, ""))
        monkeypatch.setattr(enrolment, "withdraw_commits", lambda *_: self.done.append("withdraw") or ("g",))
        enroller = SimpleNamespace(enrol=lambda *_: self.done.append("enrol"))
        monkeypatch.setattr(enrolment, "enroller", lambda *_: enroller)

    def enrol(self) -> None:
        enrolment.enrol(self.session, "orders", Partitioner.EXPLICIT, lambda _: None, None)


def test_what_groups_committed_is_withdrawn_where_every_broker_names_the_new_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = MadeAgain(monkeypatch, {1: "new", 2: "new", 3: "new"})
    world.enrol()
    assert world.done == ["withdraw", "enrol"]


@pytest.mark.parametrize(
    "ids",
    [{1: "new", 2: "old", 3: "new"}, {1: "new", 2: ""}, {}, UnreachableError("no answer in time")],
    ids=["a-stale-broker", "one-that-knows-none", "nobody", "no-answer"],
)
def test_nothing_is_withdrawn_because_one_broker_names_another_topic(
    monkeypatch: pytest.MonkeyPatch, ids: dict[int, str] | KpsplitError
) -> None:
    """It may be the stale one, and the topic the one that is enrolled."""
    world = MadeAgain(monkeypatch, ids)
    with pytest.raises(UnreachableError) as caught:
        world.enrol()
    assert (world.done, caught.value.changed) == ([], False)
