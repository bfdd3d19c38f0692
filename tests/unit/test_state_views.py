"""What handlers see: views of a slot's state, types, units of work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kpsplit.consumer.commit.writes import RecordPlace
from kpsplit.consumer.state.slot_state import (
    BYTES,
    JSON,
    TEXT,
    UNSIGNED,
    OwnedState,
    SlotGoneError,
    SlotView,
    Work,
    WorkAttempt,
)
from kpsplit.consumer.state.slots import SlotId
from kpsplit.consumer.state.storage import RestoreMarker, Storage
from kpsplit.errors import ConflictError, UsageError

SLOT, OTHER = SlotId("orders", 0, 0, 2), SlotId("orders", 0, 1, 2)

View = Callable[[SlotId], SlotView[bytes, bytes]]


@pytest.fixture
def states(tmp_path: Path) -> Iterator[dict[SlotId, OwnedState]]:
    storage = Storage(tmp_path / "state", "g")
    found = {slot: OwnedState(slot, storage) for slot in (SLOT, OTHER)}
    for owned in found.values():
        owned.marker = RestoreMarker("id", 0, 0)
    yield found
    storage.close()


@pytest.fixture
def view(states: dict[SlotId, OwnedState]) -> View:
    return lambda slot: SlotView(slot, lambda wanted: states[wanted].usable(), BYTES, BYTES)


def test_put_get_and_delete(view: View) -> None:
    state = view(SLOT)
    state.put(b"k", b"v")
    assert state.get(b"k") == b"v"
    state.delete(b"k")
    state.delete(b"never there")
    assert state.get(b"k") is None
    assert state.get(b"k", b"default") == b"default"


def test_slots_do_not_see_each_other(view: View) -> None:
    view(SLOT).put(b"k", b"v")
    assert view(OTHER).get(b"k") is None
    assert list(view(OTHER).items()) == []


def test_types_are_encoded_and_numbers_keep_their_order(view: View) -> None:
    state = view(SLOT).typed(UNSIGNED, JSON)
    for number in (300, 2, 70_000):
        state.put(number, {"n": number})
    assert list(state.range(2, 70_000)) == [(2, {"n": 2}), (300, {"n": 300})]
    assert [key for key, _ in state.range(300)] == [300, 70_000]


def test_items_are_those_with_the_prefix_in_order(view: View) -> None:
    state = view(SLOT).typed(TEXT, TEXT)
    for key in ("b/2", "a", "b/1", "b0", "c"):
        state.put(key, key.upper())
    assert list(state.items(b"b/")) == [("b/1", "B/1"), ("b/2", "B/2")]


def test_a_unit_of_work_sees_its_own_writes_and_others_see_them_when_it_ends(
    view: View, states: dict[SlotId, OwnedState]
) -> None:
    state = view(SLOT)
    state.put(b"k", b"old")
    with ThreadPoolExecutor(1) as elsewhere:
        with Work(states[SLOT]):
            state.put(b"k", b"new")
            state.put(b"k2", b"new")
            assert state.get(b"k") == b"new"
            assert list(state.items()) == [(b"k", b"new"), (b"k2", b"new")]
            assert elsewhere.submit(state.get, b"k").result() == b"old"
        assert elsewhere.submit(state.get, b"k").result() == b"new"


def test_a_unit_of_work_that_fails_leaves_nothing(view: View, states: dict[SlotId, OwnedState]) -> None:
    state = view(SLOT)
    with pytest.raises(RuntimeError), Work(states[SLOT]):
        state.put(b"k", b"half")
        raise RuntimeError
    assert state.get(b"k") is None


def test_a_unit_of_work_may_read_another_slot_but_not_write_it(
    view: View, states: dict[SlotId, OwnedState]
) -> None:
    view(OTHER).put(b"k", b"v")
    with Work(states[SLOT]):
        assert view(OTHER).get(b"k") == b"v"
        with pytest.raises(UsageError, match=r"orders/0#0of2.*orders/0#1of2"):
            view(OTHER).put(b"k", b"v")


def test_units_of_work_of_asyncio_tasks_are_apart(view: View, states: dict[SlotId, OwnedState]) -> None:
    state = view(SLOT)

    async def handle(key: bytes, barrier: asyncio.Barrier) -> bytes | None:
        with Work(states[SLOT]):
            state.put(key, b"mine")
            await barrier.wait()
            other = state.get(b"b" if key == b"a" else b"a")
            await barrier.wait()
        return other

    async def both() -> list[bytes | None]:
        barrier = asyncio.Barrier(2)
        return list(await asyncio.gather(handle(b"a", barrier), handle(b"b", barrier)))

    assert asyncio.run(both()) == [None, None]
    assert list(state.items()) == [(b"a", b"mine"), (b"b", b"mine")]


def test_a_slot_that_is_gone_refuses_everything_and_drops_what_is_under_way(
    view: View, states: dict[SlotId, OwnedState]
) -> None:
    state = view(SLOT)
    state.put(b"k", b"v")
    with pytest.raises(SlotGoneError), Work(states[SLOT]):
        state.put(b"k", b"w")
        states[SLOT].leave()
    for call in (lambda: state.get(b"k"), lambda: state.put(b"k", b"v"), lambda: list(state.items())):
        with pytest.raises(SlotGoneError, match="orders/0#0of2"):
            call()
    assert states[SLOT].pending.bytes == 0


def test_a_slot_that_is_being_restored_refuses(states: dict[SlotId, OwnedState], view: View) -> None:
    states[SLOT].marker = None
    with pytest.raises(ConflictError, match="being restored"):
        view(SLOT).get(b"k")


def test_a_value_that_would_not_fit_into_the_changelog_is_refused(view: View) -> None:
    with pytest.raises(UsageError, match="over the limit of 900000"):
        view(SLOT).put(b"k", bytes(900_000))
    view(SLOT).put(b"k", bytes(899_999))


def test_workers_on_different_keys_of_one_slot_lose_nothing(
    view: View, states: dict[SlotId, OwnedState]
) -> None:
    counters = view(SLOT).typed(TEXT, UNSIGNED)

    def count(key: str) -> None:
        for _ in range(300):
            with Work(states[SLOT]):
                counters.put(key, (counters.get(key) or 0) + 1)

    with ThreadPoolExecutor(8) as workers:
        running = [workers.submit(count, f"key-{i}") for i in range(8)]
        position = 0
        while not all(worker.done() for worker in running):
            writes = states[SLOT].cut(None)
            position += len(writes)
            states[SLOT].committed(writes, position, 0)
        for worker in running:
            worker.result()
    assert list(counters.items()) == [(f"key-{i}", 300) for i in range(8)]


def test_a_try_is_seen_by_others_when_its_record_counts_and_then_cannot_be_changed(
    view: View, states: dict[SlotId, OwnedState]
) -> None:
    state, attempt = view(SLOT), WorkAttempt(states[SLOT], RecordPlace(0, 0, 7))
    with attempt:
        state.put(b"k", b"v")
    assert state.get(b"k") is None
    attempt.publish()
    assert state.get(b"k") == b"v"
    assert states[SLOT].cut(lambda place: place.offset < 7) == {}


def test_a_task_that_outlives_its_handler_cannot_write(view: View, states: dict[SlotId, OwnedState]) -> None:
    state = view(SLOT)

    async def late() -> None:
        await asyncio.sleep(0)
        state.put(b"k", b"late")

    async def handle() -> asyncio.Task[None]:
        with Work(states[SLOT]):
            return asyncio.ensure_future(late())

    async def both() -> None:
        with pytest.raises(UsageError, match="returned already"):
            await (await handle())

    asyncio.run(both())
    assert states[SLOT].pending.bytes == 0


def test_a_unit_inside_a_try_counts_with_the_try(view: View, states: dict[SlotId, OwnedState]) -> None:
    state, attempt = view(SLOT), WorkAttempt(states[SLOT], RecordPlace(0, 0, 7))
    with attempt:
        with Work(states[SLOT]):
            state.put(b"k", b"v")
        assert state.get(b"k") == b"v"
    assert state.get(b"k") is None


def test_a_unit_of_a_slot_that_was_lost_and_came_back_cannot_write(
    view: View, states: dict[SlotId, OwnedState], tmp_path: Path
) -> None:
    lost, state = states[SLOT], view(SLOT)
    with Work(lost):
        lost.leave()
        states[SLOT] = OwnedState(SLOT, lost._storage)
        states[SLOT].marker = lost.marker
        with pytest.raises(SlotGoneError):
            state.put(b"k", b"v")


def test_a_unit_of_another_slot_inside_a_unit_is_refused(
    states: dict[SlotId, OwnedState], view: View
) -> None:
    with pytest.raises(UsageError, match="cannot be written"), Work(states[SLOT]):
        with Work(states[OTHER]) as inner:
            inner.write(b"k", b"v")
    assert view(OTHER).get(b"k") is None and not states[OTHER].pending


def test_a_view_made_in_a_unit_belongs_to_it_in_other_threads_too(states: dict[SlotId, OwnedState]) -> None:
    owned = states[SLOT]
    with ThreadPoolExecutor(1) as pool, pytest.raises(ZeroDivisionError):
        with Work(owned) as unit:
            mine = SlotView(SLOT, lambda _: owned.usable(), BYTES, BYTES, work=unit)
            pool.submit(mine.put, b"k", b"v").result()
            assert mine.get(b"k") == b"v"
            raise ZeroDivisionError
    assert owned.get(b"k") is None and not owned.pending
    with pytest.raises(UsageError, match="returned already"):
        mine.put(b"k", b"late")


def test_an_empty_key_waits_as_any_other(states: dict[SlotId, OwnedState], view: View) -> None:
    view(SLOT).delete(b"")
    assert states[SLOT].pending


class Written(dict[bytes, bytes | None]):
    """What a unit has written, while another of its threads writes on."""

    def items(self) -> Any:
        for item in super().items():
            yield item
            self[b"meanwhile"] = b"v"


def test_a_unit_may_be_walked_while_its_other_threads_write(states: dict[SlotId, OwnedState]) -> None:
    own = Written({b"a": b"1", b"b": b"2"})
    assert list(states[SLOT].items(b"", None, own)) == [(b"a", b"1"), (b"b", b"2")]


def test_a_unit_does_not_swallow_what_is_written_to_the_same_slot_of_another_store(
    view: View, states: dict[SlotId, OwnedState]
) -> None:
    elsewhere = OwnedState(SLOT, states[SLOT]._storage)
    elsewhere.marker = RestoreMarker("id", 0, 0)
    with Work(elsewhere), pytest.raises(UsageError, match="may not write"):
        view(SLOT).put(b"k", b"v")
