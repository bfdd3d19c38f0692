"""The way of a topic back to plain clients, step by step (protocol, section 10.16); pure."""

from __future__ import annotations

from dataclasses import replace

from kpsplit.splitter.records.control import Enrolment


def following(enrolment: Enrolment) -> Enrolment | None:
    """Return the next record of a topic's return, the first where it has not begun; None after the last."""
    if not enrolment.returning:
        number = enrolment.generation + 1
        begun = replace(enrolment, slots=None, former_slots=enrolment.slots, generation=number)
        return replace(begun, settled=False, returning=True)
    if enrolment.left:
        return None
    if not enrolment.settled:
        return replace(enrolment, settled=True)
    return replace(enrolment, former_slots=None, settled=False)
