"""A slot's state under any order of writes, commits, aborts and releases equals a plain dictionary's."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kpsplit.consumer.state.slot_state import OwnedState
from kpsplit.consumer.state.slots import SlotId
from kpsplit.consumer.state.storage import RestoreMarker, Storage

SLOT, NEIGHBOURS = SlotId("t", 1, 1, 4), [SlotId("t", 1, 0, 4), SlotId("t", 1, 2, 4)]
KEYS = st.binary(max_size=2)
VALUES = st.one_of(st.none(), st.binary(max_size=3))


class StateUnderCommits(RuleBasedStateMachine):
    """`now` is what handlers must see; `durable` what must be left when the process is gone."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.storage = Storage(self.directory / "state", "g")
        for slot in NEIGHBOURS:
            self.storage.apply(slot, {b"": b"x", b"\xff\xff\xff": b"y"}, RestoreMarker("id", 0, 0))
        self.storage.wipe(SLOT, RestoreMarker("id", 0, 0))
        self.now: dict[bytes, bytes] = {}
        self.durable: dict[bytes, bytes] = {}
        self.cut: dict[bytes, bytes | None] | None = None
        self.position = 0
        self.take()

    def take(self) -> None:
        self.owned = OwnedState(SLOT, self.storage)
        self.owned.marker = self.storage.marker(SLOT)

    @rule(key=KEYS, value=VALUES)
    def write(self, key: bytes, value: bytes | None) -> None:
        self.owned.add({key: value})
        _put(self.now, key, value)

    @rule(writes=st.dictionaries(KEYS, VALUES, max_size=4))
    def finish_a_unit_of_work(self, writes: dict[bytes, bytes | None]) -> None:
        self.owned.add(writes, object())
        for key, value in writes.items():
            _put(self.now, key, value)

    @rule()
    def begin_commit(self) -> None:
        if self.cut is None:
            self.cut = self.owned.cut(None)

    @rule()
    def commit(self) -> None:
        if self.cut is not None:
            self.position += len(self.cut)
            self.owned.committed(self.cut, self.position, 0)
            for key, value in self.cut.items():
                _put(self.durable, key, value)
            self.cut = None

    @rule()
    def abort(self) -> None:
        if self.cut is not None:
            self.owned.aborted()
            self.cut = None

    @rule()
    def lose_the_process(self) -> None:
        self.storage.close()
        self.storage = Storage(self.directory / "state", "g")
        self.cut = None
        self.now = dict(self.durable)
        self.take()

    @rule(lo=KEYS, hi=KEYS, own=st.dictionaries(KEYS, VALUES, max_size=3))
    def walk(self, lo: bytes, hi: bytes, own: dict[bytes, bytes | None]) -> None:
        seen = dict(self.now)
        for key, value in own.items():
            _put(seen, key, value)
        wanted = sorted((k, v) for k, v in seen.items() if lo <= k < hi)
        assert list(self.owned.items(lo, hi, own)) == wanted

    @invariant()
    def everything_is_as_in_a_dictionary(self) -> None:
        if hasattr(self, "owned"):
            assert list(self.owned.items(b"", None, {})) == sorted(self.now.items())
            assert all(self.owned.get(key) == value for key, value in self.now.items())
            assert dict(self.storage.items(SLOT, b"", None)) == self.durable
            marker = self.storage.marker(SLOT)
            assert marker is not None
            assert marker.position == self.position

    def teardown(self) -> None:
        if hasattr(self, "storage"):
            self.storage.close()
            shutil.rmtree(self.directory)


def _put(state: dict[bytes, bytes], key: bytes, value: bytes | None) -> None:
    if value is None:
        state.pop(key, None)
    else:
        state[key] = value


TestStateUnderCommits = StateUnderCommits.TestCase
