"""When a reading of the control topic renews the lease."""

from __future__ import annotations

import pytest

from kpsplit.producer.lease import Renewal, owes, seen
from kpsplit.splitter.events import Prepare
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.machine import apply
from kpsplit.splitter.records.producers import ProducerRecord
from tests.unit.samples import PARENT, UNSPLIT, committed, fenced, split_attempt

SPLIT = split_attempt(UNSPLIT, 0, WHOLE.split_evenly(2))
PREPARING, FENCED = apply(UNSPLIT, Prepare(SPLIT)), fenced(UNSPLIT, SPLIT)
ME, MINE = str(PARENT), SPLIT.id


def own(ready: str | None = None, acknowledged: str | None = None) -> ProducerRecord:
    return ProducerRecord(
        instance=1,
        generation=1,
        client_id="c",
        topics=("orders",),
        ready={} if ready is None else {ME: ready},
        acknowledged={} if acknowledged is None else {ME: acknowledged},
    )


@pytest.mark.parametrize(
    ("state", "record", "expected"),
    [
        (UNSPLIT, own(), False),
        (PREPARING, own(), True),
        (PREPARING, own("older"), True),
        (PREPARING, own(MINE), False),
        (FENCED, own(), False),  # not asked in time: nobody waits for us
        (FENCED, own(MINE), True),
        (FENCED, own(MINE, "older"), True),
        (FENCED, own(MINE, MINE), False),
        (committed(UNSPLIT, SPLIT, {0: 3}), own(MINE), False),
    ],
)
def test_an_answer_is_owed_while_an_operator_waits_for_it(state, record, expected) -> None:
    assert owes([state], record) is expected


def test_a_valid_lease_is_renewed_as_it_is() -> None:
    rules, view = Renewal(), seen([UNSPLIT])
    assert not rules.must_register(lease_valid=True, owing=False)
    assert rules.renews(view, lease_valid=True, owing=False)
    assert not rules.renews(view, lease_valid=True, owing=True)


def test_a_lapsed_lease_needs_a_registration_in_the_same_view() -> None:
    rules, view = Renewal(), seen([UNSPLIT])
    assert rules.must_register(lease_valid=False, owing=False)
    assert not rules.renews(view, lease_valid=False, owing=False)
    rules.registering(view)
    assert rules.renews(view, lease_valid=False, owing=False)
    assert not rules.renews(view, lease_valid=False, owing=False), "a registration counts once"
    rules.registering(view)
    assert not rules.renews(seen([PREPARING]), lease_valid=False, owing=False)


def test_nobody_registers_again_while_an_answer_is_owed() -> None:
    rules = Renewal()
    assert not rules.must_register(lease_valid=False, owing=True)
    rules.registering(seen([PREPARING]))
    assert not rules.renews(seen([PREPARING]), lease_valid=False, owing=True)
