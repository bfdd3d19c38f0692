"""What must hold in every state of the fence's world, and at its ends; see ``fence_world``."""

from __future__ import annotations

from typing import Any, cast

from kpsplit.splitter import reading
from kpsplit.splitter.records.marker import Marker, MarkerKind
from kpsplit.splitter.records.stamp import Stamp
from kpsplit.splitter.states import Phase
from tests.sim.fence_real import RealCode
from tests.sim.fence_states import PARENT, Global, Held


class Judged(RealCode):
    """Finds what is wrong with a state."""

    def violation(self, world: Global) -> str | None:
        """Return what is wrong in a state, None if nothing is."""
        key = (world.control, world.logs, tuple(p.outcomes for p in world.producers))
        if key not in self._checked:
            self._checked[key] = self._wrong_delivery(world) or self._wrong_reading(world)
        return self._checked[key]

    def unfinished(self, world: Global) -> str | None:
        """Return what is missing in a state in which nothing happens by itself any more."""
        state = self.states[world.control[-1]]
        if state.phase is not Phase.STEADY or world.operator.running:
            return f"the operation stands still, {state.phase}"
        for index, producer in enumerate(world.producers):
            if None in producer.outcomes:
                return f"p{index} has no report for record {producer.outcomes.index(None)}"
        return None

    def _wrong_delivery(self, world: Global) -> str | None:
        state = world.control[-1]
        delivered: list[tuple[int, int, int, int, int]] = []
        for place, log in enumerate(world.logs):
            for offset, entry in enumerate(log):
                if entry[0] != "r":
                    continue
                verdict = self._classify(state, place, offset, entry, True)
                if isinstance(verdict, reading.Foreign):
                    return f"FOREIGN {entry} at {self.sources[place]}:{offset}: {verdict.reason}"
                if isinstance(verdict, reading.Deliver):
                    delivered.append((entry[1], verdict.logical_offset, entry[2], verdict.segment.id, offset))
        for index, producer in enumerate(world.producers):
            mine = sorted(d[1:] for d in delivered if d[0] == index)
            wrong = self._wrong_for(index, producer, mine, state)
            if wrong:
                return f"{wrong} (delivered: {mine}, reported: {producer.outcomes})"
        return None

    def _wrong_for(
        self, index: int, producer: Held, mine: list[tuple[int, int, int, int]], state: int
    ) -> str | None:
        numbers = [number for _, number, _, _ in mine]
        if len(set(numbers)) < len(numbers):
            return f"DUPLICATED p{index}"
        places = {number: (segment, offset) for _, number, segment, offset in mine}
        for number, outcome in enumerate(producer.outcomes):
            if outcome is None or outcome == "failed":
                continue
            if outcome[0] == "twice":
                return f"REPORTED TWICE p{index} #{number}"
            if number not in places:
                return f"LOST p{index} #{number}"
            if places[number] != outcome:
                return f"MISPLACED p{index} #{number}"
        keys = self.scope.keys[index]
        for key in set(keys):
            order = [n for n in numbers if keys[n] == key]
            if order != sorted(order):
                return f"OUT OF ORDER p{index}"
        lineage = self.states[state].lineage
        if any(keys[n] not in lineage.get(s).range for _, n, s, _ in mine):
            return f"WRONG SEGMENT p{index}"
        return None

    def _wrong_reading(self, world: Global) -> str | None:
        for place, log in enumerate(world.logs):
            key = (world.control, place, log)
            if key not in self._read:
                self._read[key] = self._wrong_reading_of(world.control, place, log)
            if self._read[key] is not None:
                return self._read[key]
        return None

    def _wrong_reading_of(self, control: tuple[int, ...], place: int, log: tuple[Any, ...]) -> str | None:
        """Let readers with every older view go through a log; none may decide otherwise than the latest view.

        A reader's view may be as old as it likes; where it is told to wait it reads the control topic to an
        end that it had when the record was there already, and does not go on before it is told what to do.
        """
        views = set(range(len(control)))
        for offset, entry in enumerate(log):
            final = self._classify(control[-1], place, offset, entry, True)
            onward: set[int] = set()
            earliest = self._earliest(control, entry)
            for view in views:
                said = self._classify(control[view], place, offset, entry, False)
                decided = [(view, said)]
                if isinstance(said, reading.Wait):
                    decided = [
                        (later, self._classify(control[later], place, offset, entry, True))
                        for later in range(max(view, earliest), len(control))
                    ]
                for later, verdict in decided:
                    if isinstance(verdict, reading.Wait):
                        continue
                    if not _agree(verdict, final):
                        at = f"{self.sources[place]}:{offset}"
                        return f"READER at view {later} of {at} {entry}: {verdict}, then {final}"
                    onward.update(range(later, len(control)))
            views = onward
            if not views:
                break
        return None

    def _earliest(self, control: tuple[int, ...], entry: Any) -> int:
        """Return a view that was there before the record was."""
        for index, number in enumerate(control):
            state = self.states[number]
            if entry[0] == "r" and state.epoch >= entry[3]:
                return index
            if entry[0] == "m" and state.attempt and state.attempt.id == entry[1] and state.fenced_segments():
                return index
        return len(control) - 1

    def _classify(self, state: int, place: int, offset: int, entry: Any, refreshed: bool) -> reading.Verdict:
        key = (state, place, offset, entry, refreshed)
        known = self._verdicts.get(key)
        if known is None:
            stamp = Stamp(entry[3], entry[1], entry[2]) if entry[0] == "r" else None
            kind = MarkerKind.SEAL if entry[-1] else MarkerKind.UNSEAL
            marker = Marker(kind, PARENT, entry[1]) if entry[0] == "m" else None
            known = self._verdicts[key] = reading.classify(
                self.states[state], self.sources[place], offset, stamp, marker, refreshed=refreshed
            )
        return cast(reading.Verdict, known)


def _agree(verdict: reading.Verdict, final: reading.Verdict) -> bool:
    if isinstance(final, reading.Wait):
        return True
    if isinstance(verdict, reading.Deliver) and isinstance(final, reading.Deliver):
        same = verdict.segment.id == final.segment.id
        return same and verdict.logical_offset == final.logical_offset
    return isinstance(verdict, reading.Deliver) == isinstance(final, reading.Deliver)
