"""Plans: a file that reads back as it was written, strict about everything else."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kpsplit.control.planning import numbered, refuse_moved_on
from kpsplit.control.plans import Check, Drain, HotKey, Plan, Stretch
from kpsplit.errors import ConflictError, FutureVersionError, RecordError
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import Abort, EndedBy, OperationKind, Prepare, Target
from tests.unit.samples import PARENT, UNSPLIT, committed, split_attempt

PLAN = Plan(
    parent=PARENT,
    kind=OperationKind.SPLIT,
    epoch=0,
    topic_id="id-of-orders",
    sources=(0,),
    ranges=WHOLE.split_evenly(2),
    target=Target.PHANTOMS,
    subtopic="orders.split-3-1",
    shares=(0.25, 0.75),
    heaviest=(HotKey(7, 0.6, "käse\\n"),),
    sampled=100,
    useful=False,
    note="cannot be split usefully",
    checks=(
        Check("useful", False, "no", "force it", forceable=True),
        Check("in sync", False, "behind", "wait"),
        Check("topic", True, "there"),
    ),
    made_ms=1_700_000_000_000,
    drains=(Drain("idle", 7), Drain("busy", 300, 20)),
)


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        replace(PLAN, stretch=Stretch(5, 9)),
        replace(PLAN, stretch=Stretch(None, 9)),
        replace(PLAN, shares=None, subtopic=None, heaviest=(), checks=(), drains=()),
    ],
)
def test_a_plan_reads_back_as_it_was_written(plan: Plan) -> None:
    assert Plan.decode(plan.encode()) == plan


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"v": 2}, FutureVersionError),
        ({"surprise": 1}, RecordError),
        ({"stretch": {"since_ms": 5}}, RecordError),
        ({"ranges": []}, RecordError),
        ({"ranges": [{"lo": 5, "hi": 5}, {"lo": 5, "hi": 9}]}, RecordError),
        ({"shares": {"ppm": [1_000_000]}}, RecordError),
        ({"subtopic": "no/name"}, RecordError),
        ({"kind": "explode"}, RecordError),
        ({"epoch": 0.5}, RecordError),
    ],
)
def test_anything_else_is_rejected(change: dict[str, object], error: type[Exception]) -> None:
    data = {**json.loads(PLAN.encode()), **change}
    with pytest.raises(error):
        Plan.decode(json.dumps(data).encode())


def test_force_passes_over_forceable_checks_only() -> None:
    """The first one is reported. Who reads "or pass --force" must not be refused once more then."""
    assert [c.name for c in PLAN.problems()] == ["in sync", "useful"]
    assert [c.name for c in PLAN.problems(force=True)] == ["in sync"]


def test_each_attempt_has_an_id_of_its_own() -> None:
    first, second = PLAN.attempt("me", 500), PLAN.attempt("me", 500)
    assert first.id != second.id
    assert (first.sources, first.ranges, first.max_pause_ms) == (PLAN.sources, PLAN.ranges, 500)


def test_a_plan_runs_only_at_its_epoch_on_its_topic_with_nobody_at_work() -> None:
    refuse_moved_on(PLAN, UNSPLIT)
    attempt = split_attempt(UNSPLIT, 0, WHOLE.split_evenly(2))
    for state, message in [
        (committed(UNSPLIT, attempt, {0: 5}), "a split by me@here is in progress since 2023-11-14"),
        (apply(UNSPLIT, Prepare(attempt)), r"in progress since .* \(preparing\)"),
        (replace(UNSPLIT, topic_id="another"), "not the one of the plan"),
        (replace(UNSPLIT, epoch=3), "is at epoch 3; the plan was made for epoch 0"),
    ]:
        with pytest.raises(ConflictError, match=message):
            refuse_moved_on(PLAN, state)


def test_the_number_of_the_subtopic_is_the_next_free_one_when_the_plan_is_run() -> None:
    attempt = split_attempt(UNSPLIT, 0, WHOLE.split_evenly(2))
    again = apply(apply(UNSPLIT, Prepare(attempt)), Abort(attempt.id, EndedBy.OPERATOR, ""))
    assert numbered(PLAN.attempt("me", 500), again).subtopic == "orders.split-3-2"
