"""Runs an operation: asks ``decide`` for the next step, does it through the ports (protocol, 5, 7, 8).

The driver can be killed at any line: nothing is kept but what the control topic says. It never decides an
order of steps itself, and never repeats a write whose outcome is unknown without reading the log back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kpsplit.errors import (
    CheckFailedError,
    ConflictError,
    DeadlineExceededError,
    FencedError,
    KpsplitError,
    UnknownOutcomeError,
    UnreachableError,
    after_a_change,
    many,
)
from kpsplit.splitter import control_plane, steps
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import (
    Attempt,
    Commit,
    EndedBy,
    Event,
    Fence,
    Outcome,
    PartitionState,
    Phase,
    Prepare,
    Result,
    Retire,
)
from kpsplit.splitter.records.producers import ProducerRegistration
from kpsplit.splitter.steps import AttemptProgress, Clock, ControlPort, Fit, Step, TopicsPort, WritersPort

if TYPE_CHECKING:  # it is handed its deadlines and makes none: the core has no clock
    from kpsplit.clock import Deadline

CLEANUP_SECONDS = 30.0
"""How long a claim, and rolling back after it, may take once the attempt's own deadline has passed."""
TIDY_SECONDS = 10.0
"""The same for deleting what it leaves behind, which can wait for ``retire``."""

ANSWER_POLL_SECONDS = 0.25
"""How often answers are looked at again when no record wakes us."""


@dataclass(frozen=True, slots=True)
class Ports:
    control: ControlPort
    writers: WritersPort
    topics: TopicsPort
    clock: Clock


@dataclass(frozen=True, slots=True)
class StepDone:
    """What the observer gets after each step: its name, how long it took, what is worth knowing."""

    name: str
    seconds: float
    detail: str = ""


Observer = Callable[[StepDone], None]
"""Called with each step that is done, in the thread that runs the operation."""

Missing = Callable[[Iterable[ProducerRegistration], str, str], tuple[ProducerRegistration, ...]]


class Driver:
    """Runs operations on one logical partition. One thread; not reusable after an error.

    ``begun``: told of an attempt, by its id, when it has the claim and nothing of it is on record.
    """

    def __init__(
        self, ports: Ports, observer: Observer = lambda _: None, begun: Callable[[str], None] = lambda _: None
    ) -> None:
        self._ports, self._observe, self._begun = ports, observer, begun
        self._committing = False
        """Whether a COMMIT was sent: before that an attempt cannot have taken effect."""
        self._left_over = ""

    def run(self, attempt: Attempt, epoch: int, deadline: Deadline, fit: Fit | None = None) -> Outcome:
        """Run an attempt that was planned for an epoch, to its end.

        ``fit`` is given the state before anybody is fenced, and raises if the attempt is not for it: so an
        attempt of a live operator is not touched. Without it what stands there is taken over.

        Raises:
            ConflictError: the epoch has moved on, or another operator took over.
            DeadlineExceededError: the fence or the whole call took too long; it was rolled back.
            KpsplitError: a step failed; ``changed`` says whether anything was changed, and ``hint`` what.
        """
        found = self._claim(deadline, fit)
        if found.phase is Phase.FROZEN:
            raise _frozen(found)
        state = self._settle(found, EndedBy.TAKEOVER, "a newer operation took over", deadline)
        with after_a_change(done=state != found):
            if state.epoch != epoch:
                raise ConflictError(
                    f"{state.parent} is at epoch {state.epoch}; the plan was made for epoch {epoch}",
                    hint="plan again",
                )
            return self._begin(state, steps.numbered(attempt, state), deadline)

    def resume(
        self,
        renew: Callable[[PartitionState, Attempt], Attempt],
        deadline: Deadline,
        fit: Fit | None = None,
    ) -> Outcome | None:
        """Finish what a dead operator left; None if there is nothing.

        A committed attempt goes forward. One that was not committed is rolled back and begun anew as the
        attempt that ``renew`` makes of it. ``fit``: as for ``run``.
        """
        found = self._claim(deadline, fit)
        if found.phase is Phase.FROZEN:
            raise _frozen(found)
        if found.attempt is not None and found.phase is Phase.COMMITTED:
            return self._drive(found, AttemptProgress(found.attempt.id), deadline)
        state = self._settle(found, EndedBy.TAKEOVER, "taken over by resume", deadline)
        last = state.last
        if last is None or last.result is Result.COMMITTED or last.ended_by is not EndedBy.TAKEOVER:
            return None
        with after_a_change(done=state != found):
            return self._begin(state, renew(state, last.attempt), deadline)

    def abort(
        self, ended_by: EndedBy, reason: str, deadline: Deadline, fit: Fit | None = None
    ) -> Outcome | None:
        """Roll back the attempt under way; None if there is none, or none that is ``fit``.

        Raises:
            ConflictError: it is committed and can only go forward; nobody is fenced.
        """

        def may_be_aborted(now: PartitionState) -> bool:
            if fit is not None and not fit(now):
                return False
            if now.phase is Phase.COMMITTED and now.attempt is not None:
                raise ConflictError(
                    f"{now.parent}: attempt {now.attempt.id} is committed and can only go forward",
                    hint=f"if its operator is dead run: kpsplit resume {now.parent}",
                )
            return True

        state = self._claim(deadline, may_be_aborted)
        if not may_be_aborted(state):
            return None
        settled = self._settle(state, ended_by, reason, deadline)
        return settled.last if settled != state else None

    def _begin(self, state: PartitionState, attempt: Attempt, deadline: Deadline) -> Outcome:
        before = state
        self._begun(attempt.id)
        with self._rolled_back_on_error(attempt.id, before):
            try:
                state = self._record(before, Prepare(attempt), deadline)
            except UnknownOutcomeError:
                state = self._claim_unless_over(attempt.id, deadline, on_record=False)
                if state == before:
                    state = self._record(before, Prepare(attempt), deadline)
        return self._drive(state, AttemptProgress(attempt.id), deadline)

    def _drive(self, state: PartitionState, progress: AttemptProgress, deadline: Deadline) -> Outcome:
        limit = deadline
        with self._rolled_back_on_error(progress.attempt_id):
            while True:
                step = steps.decide(state, progress)
                if isinstance(step, steps.Done):
                    return step.outcome
                if isinstance(step, steps.RecordEvent) and isinstance(step.event, Fence):
                    limit = self._pause_limit(state, deadline)
                try:
                    state, progress = self._do(state, progress, step, limit)
                except UnknownOutcomeError:
                    cleanup = self._ports.clock.deadline(CLEANUP_SECONDS)
                    state = self._claim_unless_over(progress.attempt_id, cleanup, on_record=True)
                if state.phase is Phase.COMMITTED:
                    limit = deadline

    @contextmanager
    def _rolled_back_on_error(self, attempt_id: str, before: PartitionState | None = None) -> Iterator[None]:
        """Roll back on any error but a newer operator's; an interruption in C code comes as a SystemError.

        An operator that wakes from a sleep finds first that its time is over: that is no reason where
        somebody else has ended its attempt, or was at work. And brokers also fence an operator whose
        transaction took too long: its attempt has no successor. ``before``: see ``steps.taken_over``.
        """
        try:
            yield
        except FencedError as error:
            hint = error.hint
            state = self._roll_back(attempt_id, error, on_record=True) if before is None else None
            if state is not None and not steps.had_successor(state, attempt_id):
                raise DeadlineExceededError(
                    f"{state.parent}: the brokers ended a transaction of attempt {attempt_id}",
                    hint=error.hint,
                    changed=error.changed,
                ) from error
            error.hint = hint
            error.changed = self._took_effect(attempt_id) if self._committing else False
            raise
        except (Exception, KeyboardInterrupt) as error:
            state = self._roll_back(attempt_id, error, on_record=before is None)
            lost = state is not None and steps.taken_over(state, attempt_id, before)
            if state is None or not lost or not isinstance(error, KpsplitError):
                raise
            ended = f"attempt {attempt_id} was ended by another process"
            what = ended if before is None else "another operator was at work meanwhile"
            raise FencedError(
                f"{state.parent}: {what} ({error.message})",
                hint=f"look at: kpsplit status {state.parent}",
                changed=steps.took_effect(state, attempt_id) if self._committing else False,
            ) from error

    def _took_effect(self, attempt_id: str) -> bool | None:
        """Return whether an attempt that we lost took effect; None where the log does not say, or not yet."""
        try:
            state = self._ports.control.peek(self._ports.clock.deadline(TIDY_SECONDS))
        except KpsplitError:
            return None
        effect = steps.took_effect(state, attempt_id)
        return effect if effect or _is_over(state, attempt_id) else None

    def _pause_limit(self, state: PartitionState, deadline: Deadline) -> Deadline:
        if state.attempt is None:
            return deadline
        return self._ports.clock.deadline(min(deadline.left(), state.attempt.max_pause_ms / 1000))

    def _do(
        self, state: PartitionState, progress: AttemptProgress, step: Step, limit: Deadline
    ) -> tuple[PartitionState, AttemptProgress]:
        started = self._ports.clock.now()
        detail = ""
        topics = self._ports.topics
        match step:
            case steps.RecordEvent(event):
                if isinstance(event, Commit):
                    limit.check("the commit")
                    self._committing = True
                return self._record(state, event, limit), progress
            case steps.CreateSubTopic(attempt):
                topic_id = topics.create_subtopic(attempt, state.parent, limit)
                progress, detail = replace(progress, subtopic_id=topic_id), attempt.subtopic or ""
            case steps.CoLocateLeaders(sources):
                topics.co_locate(state.parent, sources, limit)
                progress = replace(progress, colocated=True)
            case steps.AwaitReady(attempt):
                detail = self._await_ready(state, attempt, limit)
                progress = replace(progress, ready=True)
            case steps.AwaitAcknowledged(attempt):
                detail = self._await_acknowledged(state, attempt, limit)
                progress = replace(progress, acknowledged=True)
            case steps.AppendMarkers(markers):
                progress = replace(progress, cuts=topics.append_markers(markers, limit))
                detail = ", ".join(f"{c.segment} ends at {c.offset}" for c in progress.cuts or ())
            case steps.SealSubTopics(subtopics):
                limit.check("the seal of the sub-topics")  # its outcome may stay unknown for ever
                topics.seal(subtopics, limit)
                progress, detail = replace(progress, sealed=True), ", ".join(t.name for t in subtopics)
            case steps.Done():
                pass
        self._observe(StepDone(type(step).__name__, self._ports.clock.now() - started, detail))
        return state, progress

    def _await_ready(self, state: PartitionState, attempt: Attempt, limit: Deadline) -> str:
        """Wait for answers to PREPARE; go on without those that are silent for a lease."""
        asked, silent, silence = self._await_answers(
            state, attempt, control_plane.not_ready, "readiness", limit
        )
        if not silent:
            return f"{many(asked, 'producer')} ready"
        self._remove_ended(silent, silence, attempt)
        return f"{many(asked - len(silent), 'producer')} ready, {len(silent)} silent"

    def _await_acknowledged(self, state: PartitionState, attempt: Attempt, limit: Deadline) -> str:
        """Wait for acknowledgements of the fence; a lease that has run out is as good as one.

        Not so for a producer with transactions: one that is open may be committed after the cut.
        """
        _, silent, _ = self._await_answers(
            state, attempt, control_plane.not_acknowledged, control_plane.ACKNOWLEDGEMENT, limit
        )
        return f"the leases of {many(len(silent), 'producer')} ran out" if silent else "all producers hold"

    def _await_answers(
        self, state: PartitionState, attempt: Attempt, missing: Missing, what: str, limit: Deadline
    ) -> tuple[int, tuple[ProducerRegistration, ...], control_plane.Silence]:
        """Wait until nobody's answer is missing, or a lease has certainly run out.

        Returns how many were asked, which stayed silent, and for how long.
        """
        silence = control_plane.Silence(self._ports.control.lease_seconds() * control_plane.LEASE_MARGIN)
        waiting: tuple[ProducerRegistration, ...] = ()
        while True:
            awaited = f"the producers' {what}{control_plane.named(waiting)}"
            limit.check(awaited)
            began = self._ports.clock.now()
            known = self._read_registrations(limit, awaited)
            if known is None:
                self._await_change(min(ANSWER_POLL_SECONDS, limit.left()))
                continue
            asked = known.to_ask(state.parent.topic)
            silence.reading(began, self._ports.clock.now(), asked)
            waiting = missing(asked, str(state.parent), attempt.id)
            left = silence.left()
            if not waiting or (left <= 0 and not control_plane.in_doubt(state, waiting)):
                return len(asked), waiting, silence
            patience = ANSWER_POLL_SECONDS if left <= 0 else min(left, ANSWER_POLL_SECONDS)
            self._await_change(min(patience, limit.left()))

    def _await_change(self, seconds: float) -> None:
        self._ports.topics.keep_warm()
        self._ports.writers.await_change(seconds)

    def _read_registrations(self, limit: Deadline, what: str) -> control_plane.Registrations | None:
        """Read the registrations; None if the brokers cannot be asked now. That is nobody's silence."""
        try:
            return self._ports.writers.read(limit)
        except UnreachableError:
            limit.check(what)  # the time is over: that is what happened
            return None

    def _remove_ended(
        self, silent: Iterable[ProducerRegistration], silence: control_plane.Silence, attempt: Attempt
    ) -> None:
        """Remove the registrations of dead producers, so that nobody waits for them again.

        This operation does not depend on it: what fails here is left to the next one.
        """
        deadline = self._ports.clock.deadline(TIDY_SECONDS)
        try:
            ended = silence.ended(silent, self._ports.control.peek(deadline), attempt.id)
            if ended:
                self._ports.writers.remove(ended, deadline)
        except KpsplitError as error:
            self._observe(StepDone("LeftOver", 0.0, f"dead registrations stay: {error.message}"))

    def _claim(self, deadline: Deadline, fit: Fit | None = None) -> PartitionState:
        started = self._ports.clock.now()
        state = self._ports.control.claim(deadline, fit)
        self._observe(StepDone("Claim", self._ports.clock.now() - started))
        return state

    def _claim_unless_over(self, attempt_id: str, deadline: Deadline, *, on_record: bool) -> PartitionState:
        """Claim anew, for a write of ours may be under way; return what stands there.

        Not where the attempt is over, or another one is under way: that would fence the operator at work.
        """
        return self._claim(deadline, lambda now: not _is_over(now, attempt_id, on_record=on_record))

    def _record(
        self, state: PartitionState, event: Event, deadline: Deadline, *, decided: bool = False
    ) -> PartitionState:
        """``decided``: a write of unknown outcome is decided by another claim before this returns."""
        started, control = self._ports.clock.now(), self._ports.control
        if decided:
            after = record_decided(control, state, event, deadline)
        else:
            after = control.record(state, event, deadline)
        self._observe(StepDone(type(event).__name__, self._ports.clock.now() - started))
        return after

    def _settle(
        self, state: PartitionState, ended_by: EndedBy, reason: str, deadline: Deadline
    ) -> PartitionState:
        """Roll back what a dead operator left before its commit; finish what it left after it."""
        event = steps.settle(state, ended_by, reason)
        if event is not None:
            attempt = state.attempt
            state = self._record(state, event, deadline, decided=True)
            if attempt is not None and attempt.subtopic is not None:
                with after_a_change():
                    state = self._delete_quietly(state, attempt.subtopic)
        elif state.phase is Phase.COMMITTED and state.attempt is not None:
            self._drive(state, AttemptProgress(state.attempt.id), deadline)
            with after_a_change():
                state = self._claim(deadline, _nothing_under_way)
        return state

    def _roll_back(self, attempt_id: str, cause: BaseException, *, on_record: bool) -> PartitionState | None:
        """Roll back our attempt unless the log says that it is committed; say in ``cause`` what became of it.

        Returns what stands there then, None if it cannot be had.
        """
        state: PartitionState | None = None
        reason = cause.message if isinstance(cause, KpsplitError) else "interrupted"
        hint: str | None = None
        try:
            cleanup = self._ports.clock.deadline(CLEANUP_SECONDS)
            state = self._claim_unless_over(attempt_id, cleanup, on_record=on_record)
            changed = steps.took_effect(state, attempt_id)
            if changed is None and not on_record:
                changed = False
            if changed and state.phase is Phase.COMMITTED:
                hint = f"the new layout is in force; finish with: kpsplit resume {state.parent}"
            event = steps.settle(state, EndedBy.OPERATOR, reason[:1000])
            if event is not None and state.attempt is not None and state.attempt.id == attempt_id:
                subtopic = state.attempt.subtopic
                deadline = self._ports.clock.deadline(CLEANUP_SECONDS)
                state = self._record(state, event, deadline, decided=True)
                if subtopic is not None:
                    with suppress(KpsplitError):  # it is rolled back, whatever becomes of the sub-topic
                        state = self._delete_quietly(state, subtopic)
            if self._left_over:
                changed = True
                hint = f"the old layout stays; {self._left_over} is left over: kpsplit retire deletes it"
        except KpsplitError as error:
            changed = None if self._committing else True
            hint = f"rolling back failed too ({error.message}); the next claim rolls it back"
        if isinstance(cause, KpsplitError):
            cause.changed = changed
            cause.hint = hint or cause.hint
        return state

    def _delete_quietly(self, state: PartitionState, name: str) -> PartitionState:
        """Delete the sub-topic of an attempt that was rolled back; a left-over one does no harm."""
        try:
            deadline = self._ports.clock.deadline(TIDY_SECONDS)
            self._ports.topics.delete_abandoned(name, deadline)
        except FencedError:
            raise
        except CheckFailedError as refusal:  # it is somebody else's
            self._observe(StepDone("LeftOver", 0.0, refusal.message))
            return state
        except KpsplitError:  # a deletion of unknown outcome as well: nothing depends on it
            self._left_over = name
            self._observe(StepDone("LeftOver", 0.0, f"{name} is left over; kpsplit doctor lists it"))
            return state
        try:
            return self._record(state, Retire(name), deadline)
        except (DeadlineExceededError, UnknownOutcomeError):
            # It may be written: only the log says which state is the last one.
            cleanup = self._ports.clock.deadline(CLEANUP_SECONDS)
            return self._claim(cleanup, _nothing_under_way)


def record_decided(
    log: ControlPort, before: PartitionState, event: Event, deadline: Deadline
) -> PartitionState:
    """Record an event as ``ControlPort.record`` does; the next claim decides a write of unknown outcome.

    Where anything else was written meanwhile its writer is at work, and is not fenced.

    Raises:
        FencedError: another operator has written meanwhile. UnknownOutcomeError: no time is left to decide.
        KpsplitError: as ``record`` and ``claim``. ``changed`` is None where the event may be written.
    """
    after = apply(before, event)
    while True:
        try:
            return log.record(before, event, deadline)
        except UnknownOutcomeError:
            if deadline.left() <= 0:
                raise
        with after_a_change(done=None):
            found = log.claim(deadline, lambda now: now in (before, after))
        if found == after:
            return found
        if found != before:
            raise FencedError(
                f"{before.parent}: another operator was at work meanwhile",
                hint=f"look at: kpsplit status {before.parent}",
                changed=None,
            )


def _frozen(state: PartitionState) -> ConflictError:
    return ConflictError(
        f"{state.parent} is frozen: {state.frozen_reason}",
        hint=f"look at kpsplit doctor, then run: kpsplit resume {state.parent} --thaw",
    )


def _is_over(state: PartitionState, attempt_id: str, *, on_record: bool = True) -> bool:
    """Return whether nothing is left to do about an attempt. ``on_record``: its PREPARE was read back."""
    if state.attempt is not None:
        return state.attempt.id != attempt_id
    return on_record or steps.took_effect(state, attempt_id) is not None


def _nothing_under_way(state: PartitionState) -> bool:
    """Refuse a claim that would fence an operator that has begun since we settled what we found."""
    if state.attempt is not None:
        raise FencedError(
            f"{state.parent}: attempt {state.attempt.id} of {state.attempt.operator} is under way",
            hint=f"look at: kpsplit status {state.parent}",
        )
    return True
