"""What the operator of the fence's world does next, and those that died; see ``fence_world``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kpsplit.splitter import control_plane, steps
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import (
    Abort,
    Attempt,
    Cut,
    EndedBy,
    Event,
    Finish,
    OperationKind,
    PartitionState,
    Phase,
    Prepare,
    Target,
)
from kpsplit.splitter.records.data import MarkerKind
from kpsplit.splitter.records.producers import ProducerRegistration
from tests.sim.fence_real import NOBODY, PARENT, STALE, Global, Move, Operator, RealCode, marker_entry, put


class OperatorMoves(RealCode):
    """The moves of the operator."""

    def _operate(self, world: Global) -> Iterator[Move]:
        operator = world.operator
        state = self.states[world.control[-1]]
        yield from self._late_markers(world)
        for index in operator.over:
            producers = put(world.producers, index, world.producers[index]._replace(removed=True))
            after = world._replace(
                producers=producers, operator=operator._replace(over=operator.over - {index})
            )
            yield f"p{index}'s registration is removed", False, after
        if self.scope.neighbours:
            yield from self._removed_by_others(world)
        if operator.asleep is not None:
            attempt_id, since, first = operator.asleep
            if self._patience_over(world, since, first):
                silent = control_plane.not_ready(self._live(world.producers), str(PARENT), attempt_id)
                over = operator.over | self._removable(world, first, silent, attempt_id)
                text = f"the operator of {attempt_id} wakes and removes {sorted(over)}"
                yield text, True, world._replace(operator=operator._replace(asleep=None, over=over))
        if not operator.running:
            done = state.epoch - len(self.scope.begin)
            if state.phase is Phase.STEADY and done < len(self.scope.operations):
                attempt = self._attempt(state, self.scope.operations[done], operator.attempts + 1)
                after = self._recorded(world, Prepare(attempt))
                running = operator._replace(attempts=operator.attempts + 1, running=True)
                yield f"PREPARE {attempt.id}", False, after._replace(operator=running)
            return
        if operator.aborted < self.scope.aborts and state.phase in (Phase.PREPARING, Phase.FENCED):
            yield self._aborted(world, state)
        yield from self._next_step(world, state)

    def _removed_by_others(self, world: Global) -> Iterator[Move]:
        """A registration whose lease is over was silent at the PREPARE of another partition."""
        for index, producer in enumerate(world.producers):
            if producer.registered and not producer.removed and producer.lease < 0 and not producer.fresh:
                producers = put(world.producers, index, producer._replace(removed=True))
                text = f"another partition's operator removes p{index}'s registration"
                yield text, True, world._replace(producers=producers)

    def _next_step(self, world: Global, state: PartitionState) -> Iterator[Move]:
        operator = world.operator
        attempt = state.attempt
        assert attempt is not None
        progress = steps.AttemptProgress(
            attempt.id,
            subtopic_id=attempt.subtopic and "id",
            colocated=True,
            ready=operator.ready,
            acknowledged=operator.acknowledged,
            cuts=self._complete(state, attempt, operator),
            sealed=operator.sealed,
        )
        match steps.decide(state, progress):
            case steps.RecordEvent(event):
                after = self._recorded(world, event)
                over = isinstance(event, Finish)
                fresh = Operator(
                    operator.attempts,
                    operator.aborted,
                    late=operator.late,
                    asleep=operator.asleep,
                    over=operator.over,
                )
                yield (
                    type(event).__name__.upper(),
                    False,
                    after._replace(operator=fresh if over else operator),
                )
            case steps.AwaitReady(waited):
                yield from self._await(world, waited, control_plane.not_ready, "ready")
            case steps.AwaitAcknowledged(waited):
                yield from self._await(world, waited, control_plane.not_acknowledged, "acknowledged")
            case steps.AppendMarkers(markers):
                yield self._cut(world, markers)
            case steps.SealSubTopics(subtopics):
                names = {t.name for t in subtopics}
                places = {i for i, s in enumerate(self.sources) if s.topic in names}
                yield (
                    "SEAL SUB-TOPICS",
                    False,
                    world._replace(sealed=world.sealed | places, operator=operator._replace(sealed=True)),
                )
            case other:
                raise AssertionError(f"a world does not know {other}")

    def _await(
        self, world: Global, attempt: Attempt, who: Callable[..., tuple[ProducerRegistration, ...]], what: str
    ) -> Iterator[Move]:
        operator = world.operator
        if what == "ready" and operator.first is None:
            first = frozenset(r.instance for r in self._live(world.producers))
            yield "looks who is registered", False, world._replace(operator=operator._replace(first=first))
            return
        state, silent = (
            self.states[world.control[-1]],
            who(self._live(world.producers), str(PARENT), attempt.id),
        )
        done = operator._replace(**{what: True})  # type: ignore[arg-type]
        if not silent:
            yield f"all {what}", False, world._replace(operator=done)
        elif control_plane.in_doubt(state, silent):
            return
        elif self._patience_over(world, len(world.control) - 1, operator.first if what == "ready" else None):
            if what == "ready":
                over = self._removable(world, operator.first or NOBODY, silent, attempt.id)
                done = done._replace(over=done.over | over)
            waiting = sorted(r.instance for r in silent)
            yield f"patience is over with {waiting}", False, world._replace(operator=done)

    def _removable(
        self, world: Global, first: frozenset[int], silent: tuple[ProducerRegistration, ...], attempt_id: str
    ) -> frozenset[int]:
        """Return whose registrations are over, as the driver decides it."""
        silence = control_plane.Silence(1.0)
        known = [self._record(i, p) for i, p in enumerate(world.producers) if i in first]
        silence.reading(0.0, 0.0, known)
        state = self.states[world.control[-1]]
        return frozenset(r.instance for r in silence.ended(silent, state, attempt_id))

    def _patience_over(self, world: Global, since: int, first: frozenset[int] | None) -> bool:
        """Return whether a lease may have passed since a record, and since ``first`` were seen."""
        if not self.scope.lapses:
            return False
        asked = [p.lease for p in world.producers if p.lease >= 0]
        asked += [p.asking for p in world.producers if p.asking is not None]
        return all(a > since for a in asked) and not any(world.producers[i].fresh for i in first or NOBODY)

    def _cut(self, world: Global, markers: tuple[steps.PlannedMarker, ...]) -> Move:
        operator = world.operator
        done = {c[0] for c in operator.cuts}
        left = [m for m in markers if m.segment not in done]
        cuts, logs = list(operator.cuts), world.logs
        for planned in left[:1] if self.scope.one_by_one else left:
            place = self._source_ids[planned.source]
            cuts.append((planned.segment, len(logs[place])))
            logs = put(logs, place, (*logs[place], marker_entry(planned.marker)))
        after = world._replace(logs=logs, operator=operator._replace(cuts=tuple(cuts)))
        return f"CUT {[c for c in cuts if c[0] not in done]}", False, after

    def _complete(
        self, state: PartitionState, attempt: Attempt, operator: Operator
    ) -> tuple[Cut, ...] | None:
        if len(operator.cuts) < len(state.closing_segments()) or not operator.cuts:
            return None
        return tuple(Cut(segment, offset, 0) for segment, offset in operator.cuts)

    def _aborted(self, world: Global, state: PartitionState) -> Move:
        operator = world.operator
        attempt = state.attempt
        assert attempt is not None
        late = operator.late
        if self.scope.one_by_one and state.phase is Phase.FENCED:
            done = {c[0] for c in operator.cuts}
            planned = [m for m in steps.planned_markers(state, attempt) if m.segment not in done]
            late += tuple(
                (self._source_ids[m.source], attempt.id, m.marker.kind is MarkerKind.SEAL)
                for m in planned[:1]
            )
        after = self._recorded(world, Abort(attempt.id, EndedBy.TAKEOVER, "gone"))
        asleep = operator.asleep
        if self.scope.zombie and state.phase is Phase.PREPARING:
            asleep = (attempt.id, len(world.control) - 1, operator.first or NOBODY)
        dead = Operator(operator.attempts, operator.aborted + 1, late=late, asleep=asleep, over=operator.over)
        return f"ABORT {attempt.id}", True, after._replace(operator=dead)

    def _late_markers(self, world: Global) -> Iterator[Move]:
        for place, attempt_id, seal in world.operator.late:
            if place in world.sealed:
                continue
            logs = put(world.logs, place, (*world.logs[place], ("m", attempt_id, seal)))
            left = tuple(m for m in world.operator.late if m != (place, attempt_id, seal))
            yield (
                f"late marker of {attempt_id}",
                True,
                world._replace(logs=logs, operator=world.operator._replace(late=left)),
            )

    def _attempt(self, state: PartitionState, operation: str, number: int) -> Attempt:
        segments = tuple(s.id for s in state.lineage.open_segments())
        name = f"a{number}"
        if operation == "split":
            ranges = WHOLE.split_evenly(2)
            subtopic = f"t.split-0-{number}"
            return Attempt(
                name, OperationKind.SPLIT, "o", 0, segments, ranges, Target.PHANTOMS, subtopic, 500
            )
        return Attempt(name, OperationKind.MERGE, "o", 0, segments, (WHOLE,), Target.PARENT, None, 500)

    def _recorded(self, world: Global, event: Event) -> Global:
        before = world.control[-1]
        key = (before, event)
        if key not in self._after:
            self._after[key] = self._state_id(apply(self.states[before], event))
        control = (*world.control, self._after[key])
        producers = tuple(p._replace(lease=self._aged(p.lease, len(control))) for p in world.producers)
        return world._replace(control=control, producers=producers)

    def _aged(self, lease: int, length: int) -> int:
        """Return a lease as it is where the control topic is so long; a zombie waits from an older record."""
        return STALE if 0 <= lease < length and not self.scope.zombie else lease
