"""One run of the way back to plain clients: what it does, in which order, and what its errors say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kpsplit.clock import Deadline
from kpsplit.control import session as session_module
from kpsplit.control import unenrolment as module
from kpsplit.control.unenrolment import Unenroller
from kpsplit.errors import CheckFailedError, ConflictError, DeadlineExceededError, FencedError, UsageError
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.driver import StepDone
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.control import Enrolment, Partitioner
from tests.unit.samples import PARENT, UNSPLIT, life
from tests.unit.test_commits import commit, folded

ENROLLED = Enrolment("orders", "id", Partitioner.CONSISTENT_RANDOM, True, 8)
LOWER, UPPER = WHOLE.split_evenly(2)
APART = folded(commit(LOWER, {0: 5}), commit(UPPER, {0: 6}))
TOGETHER = folded(commit(WHOLE, {0: 6}))


class Cluster:
    """A cluster with one enrolled topic; ``done``: what was done to it, in order.

    ``folds``: what the range commits are, look by look; the last stays. ``readers``: the groups that have a
    member on the slots topic, look by look; then nobody.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *folds: CommitFold) -> None:
        self.done: list[str] = []
        self.recorded = ENROLLED
        self.state: PartitionState = UNSPLIT
        self.folds, self.sharing = list(folds or (CommitFold(),)), list[str]()
        self.readers: list[list[str]] = []
        self.topics = {"orders": 1, "__kpsplit.slots.orders": 8}
        self.seconds = 60.0
        self.claims = 0
        self.meanwhile: list[Callable[[], None]] = []
        """What others do while a lease passes, lease by lease."""
        self.fenced: list[Enrolment] = []
        """For each withdrawal that is refused: what is recorded then."""
        self.session: Any = SimpleNamespace(
            admin=SimpleNamespace(
                topics=lambda: dict(self.topics),
                describe=lambda _: SimpleNamespace(topic_id="id"),
                delete=self._delete,
            ),
            connection=None,
            begin=lambda: Deadline(self.seconds),
            recorded=lambda *_: self.recorded,
            states=lambda *_: [self.state],
            tail=lambda _: None,
            enrolments=lambda *_: self,
        )
        for place, name, what in cast(
            "list[tuple[Any, str, Any]]",
            [
                (module, "LOOK_AGAIN_SECONDS", 0.0),
                (session_module, "LOOK_AGAIN_SECONDS", 0.0),
                (module, "lease_seconds", lambda _: 1.0),
                (module, "wait_a_lease", lambda *_: self._lease()),
                (module, "SlotsTopics", lambda _: SimpleNamespace(check_rights=lambda *_: None)),
                (module, "OperationLog", lambda _connection, parent: self._operation(parent)),
                (module, "readers_of", lambda *_: self.sharing),
                (module, "readers_of_topics", lambda *_: self.readers.pop(0) if self.readers else []),
                (module, "range_commits", lambda *_: self._fold()),
                (module, "known_groups", lambda *_: {"g": {PARENT: 6}}),
                (module, "withdraw_commits", lambda _admin, withdraw, *_: withdraw() or ("g",)),
            ],
        ):
            monkeypatch.setattr(place, name, what)

    def _lease(self) -> None:
        self.done.append("lease")
        if self.meanwhile:
            self.meanwhile.pop(0)()

    def others_record(self, count: int) -> None:
        """Another operator records the next steps of the return."""
        for _ in range(count):
            following = module.following(self.recorded)
            assert following is not None
            self.recorded = following

    def _fold(self) -> CommitFold:
        return self.folds.pop(0) if len(self.folds) > 1 else self.folds[0]

    def _delete(self, name: str, _seconds: float) -> bool:
        self.done.append(f"delete {name}")
        return self.topics.pop(name, None) is not None

    def _operation(self, parent: object) -> Any:
        def claim(_deadline: Deadline, fit: Callable[[PartitionState], bool]) -> PartitionState:
            if fit(self.state):
                self.done.append(f"claim {parent}")
            return self.state

        return SimpleNamespace(claim=claim, close=lambda: None)

    def look(self, _deadline: Deadline) -> Enrolment:
        return self.recorded

    def claim(self, deadline: Deadline) -> Enrolment:
        self.claims += 1
        return self.look(deadline)

    def withdraw(self) -> None:
        assert self.claims, "an operator that has not claimed the topic is refused by nobody"
        if self.fenced:
            self.claims, self.recorded = 0, self.fenced.pop(0)
            raise FencedError("another operator took over")
        self.done.append("withdraw")

    def record(self, enrolment: Enrolment, *_: object) -> None:
        self.recorded = enrolment
        self.done.append(f"record {enrolment.former_slots} {enrolment.settled}")

    def run(self, patience: float = 0.0) -> Enrolment:
        return Unenroller(self.session, "orders", self._observe, patience).run()

    def _observe(self, step: StepDone) -> None:
        if step.name == "Wait":
            self.done.append(step.detail)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


ALL = [
    "record 8 False",
    f"claim {PARENT}",
    "lease",
    "record 8 True",
    "delete __kpsplit.slots.orders",
    "record None False",
    "lease",
    "record None True",
    "withdraw",
]


def test_a_return_takes_all_its_steps_in_their_order(cluster: Cluster) -> None:
    assert cluster.run().left
    assert cluster.done == ALL


@pytest.mark.parametrize(("records", "left"), [(1, ALL[1:]), (2, ALL[4:]), (3, ALL[6:]), (4, ALL[8:])])
def test_a_run_goes_on_where_the_one_before_it_ended(cluster: Cluster, records: int, left: list[str]) -> None:
    for _ in range(records):
        following = module.following(cluster.recorded)
        assert following is not None
        cluster.recorded = following
    if records > 2:
        del cluster.topics["__kpsplit.slots.orders"]
    assert cluster.run().left
    assert cluster.done == left


def test_groups_are_waited_for_until_they_have_released_their_slots_and_stand_at_one_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(monkeypatch, APART, APART, APART, TOGETHER)
    cluster.sharing, cluster.readers = ["g"], [["g"], ["g"]]
    assert cluster.run().left
    waits = ["group g to release the slots of orders", f"group g in {PARENT}: its key ranges stand apart"]
    assert cluster.done == [*ALL[:4], waits[0], ALL[4], waits[1], *ALL[5:]]


def test_a_group_that_does_not_come_so_far_in_time_is_named_with_what_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(monkeypatch, APART)
    cluster.recorded = module.following(module.following(ENROLLED))  # type: ignore[arg-type, assignment]
    cluster.seconds = 0.2
    with pytest.raises(DeadlineExceededError, match="its key ranges stand apart") as caught:
        cluster.run()
    assert caught.value.changed is True
    hint = caught.value.hint or ""
    assert "kpsplit forget orders --group g" in hint and hint.endswith("run again: kpsplit unenroll orders")
    assert cluster.recorded.former_slots == 8


def test_a_stopped_group_that_stands_apart_forbids_the_return_and_nothing_is_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(monkeypatch, APART)
    for patience in (0.0, 0.05):
        with pytest.raises(CheckFailedError, match="its key ranges stand apart") as caught:
            cluster.run(patience)
        assert caught.value.changed is False
    assert cluster.recorded == ENROLLED and not [d for d in cluster.done if d.startswith("record")]


def test_a_group_may_be_waited_for_before_anything_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, APART, APART, TOGETHER)
    assert cluster.run(30.0).left
    assert cluster.done == [f"group g in {PARENT}: its key ranges stand apart", *ALL]


def test_a_split_that_came_in_between_ends_the_run_with_what_helps(cluster: Cluster) -> None:
    cluster.recorded = module.following(ENROLLED)  # type: ignore[assignment]
    cluster.state = life().split
    with pytest.raises(CheckFailedError, match="is split, into 4") as caught:
        cluster.run()
    assert (caught.value.changed, caught.value.hint) == (
        True,
        f"run: kpsplit merge {PARENT}, then kpsplit retire {PARENT}",
    )
    assert not cluster.done


def test_a_return_that_has_too_little_time_does_not_begin(cluster: Cluster) -> None:
    cluster.seconds = 5.0
    with pytest.raises(DeadlineExceededError, match="a return takes two leases and more"):
        cluster.run()
    assert not cluster.done


def test_the_time_that_is_asked_for_is_that_of_a_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --wait most of it may be over when the groups have come so far."""
    cluster, time = Cluster(monkeypatch, APART, TOGETHER), [0.0]
    cluster.session.begin = lambda: Deadline(60.0, lambda: time[0])
    fold = cluster._fold

    def folded_later() -> CommitFold:
        time[0] += 25.0
        return fold()

    cluster._fold = folded_later  # type: ignore[method-assign]
    with pytest.raises(DeadlineExceededError, match="12 s, and 10 s are left") as caught:
        cluster.run(300.0)
    assert caught.value.hint == "give a --timeout of more than 62"


def test_an_operator_that_another_fences_while_it_withdraws_claims_once_more(cluster: Cluster) -> None:
    cluster.recorded = Enrolment("orders", "id", ENROLLED.partitioner, True, None, 2, returning=True)
    assert cluster.recorded.left
    cluster.fenced = [cluster.recorded]
    assert cluster.run().left
    assert cluster.done == ["withdraw"]


def test_nothing_is_withdrawn_of_a_topic_that_is_enrolled_again_meanwhile(cluster: Cluster) -> None:
    cluster.recorded = Enrolment("orders", "id", ENROLLED.partitioner, True, None, 2, returning=True)
    cluster.fenced = [Enrolment("orders", "id", ENROLLED.partitioner, False, 8, 2)]
    with pytest.raises(FencedError):
        cluster.run()
    assert not cluster.done
    with pytest.raises(ConflictError, match="enrolled by another process"):
        cluster.recorded = Enrolment("orders", "id", ENROLLED.partitioner, True, None, 2, returning=True)
        cluster.look = lambda _: replace(cluster.recorded, slots=8, returning=False)  # type: ignore[method-assign]
        cluster.run()
    assert not cluster.done


def test_a_lease_that_passed_under_an_earlier_record_counts_for_no_later_one(cluster: Cluster) -> None:
    """Another operator, who began earlier, writes record (3) while this one lets the lease of (1) pass.

    Record (4) at once would let a member begin plainly while another one begins by a view from before (3).
    """
    cluster.topics.pop("__kpsplit.slots.orders")
    cluster.meanwhile = [lambda: cluster.others_record(2)]
    assert cluster.run().left
    assert cluster.done == [*ALL[:3], "lease", "record None True", "withdraw"]


def test_a_topic_that_is_enrolled_again_meanwhile_is_not_returned_once_more(cluster: Cluster) -> None:
    again = replace(ENROLLED, slots=4, generation=2)
    cluster.meanwhile = [lambda: setattr(cluster, "recorded", again)]
    with pytest.raises(ConflictError, match="was enrolled again by another process meanwhile") as caught:
        cluster.run()
    assert (caught.value.changed, cluster.recorded) == (True, again)
    assert caught.value.hint == "look at: kpsplit status"
    assert cluster.done == ALL[:3]


def test_two_operators_that_return_a_topic_at_the_same_time_do_not_refuse_each_other(
    cluster: Cluster,
) -> None:
    """The other one is two records further when this one comes to write."""
    del cluster.topics["__kpsplit.slots.orders"]
    cluster.others_record(1)
    record, looks = cluster.look, iter([cluster.recorded])

    def look(deadline: Deadline) -> Enrolment:
        if cluster.done == [f"claim {PARENT}", "lease"] and next(looks, None) is not None:
            cluster.others_record(2)
        return record(deadline)

    cluster.look = look  # type: ignore[method-assign]
    assert cluster.run().left
    assert cluster.done == [ALL[1], "lease", "lease", "record None True", "withdraw"]


def test_a_topic_that_is_enrolled_again_while_commits_are_withdrawn_is_not_returned(cluster: Cluster) -> None:
    cluster.others_record(4)
    withdraw = cluster.withdraw

    def enrolled_again() -> None:
        withdraw()
        cluster.recorded = replace(ENROLLED, slots=4, generation=2)

    cluster.withdraw = enrolled_again  # type: ignore[method-assign]
    with pytest.raises(ConflictError, match="was enrolled again by another process meanwhile"):
        cluster.run()
    assert cluster.done == ["withdraw"]


def test_a_topic_that_was_left_and_is_gone_is_no_return_to_go_on_with(cluster: Cluster) -> None:
    def gone(_: str) -> None:
        raise UsageError("there is no topic orders", hint="check the name")

    cluster.others_record(4)
    cluster.session.admin.describe = gone
    with pytest.raises(UsageError, match="there is no topic orders") as caught:
        cluster.run()
    assert (caught.value.changed, caught.value.hint) == (False, "check the name")
