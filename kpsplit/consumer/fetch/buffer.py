"""The records in hand of an application that polls (protocol, section 10). A sink.

When none is left, ``wait`` reads on in the application's own thread: what is in hand came with one fetch.
The engine takes records back from here: those of slots that leave, are moved or are paused.

The application's thread takes records from ``_ready`` without a lock; everything else is done with it. Why
that is safe:

* ``deque.popleft`` and ``deque.pop`` are atomic, so each record goes to exactly one thread. They are taken
  back from the *right* until nothing is left, so what the application got is a prefix of what was there.
* Records are numbered in order, so their number tells what was handed out: what was ever added less what is
  left. Nothing is counted per record.
* Records count as processed when the next call asks for more. ``_last`` is how many the latest call may
  have handed out. The application's thread writes it *before* it takes the first record; the engine's
  thread reads it *after* it has read how many are left: then ``handed out - _last`` is never more than what
  is processed. It may be less for a moment; the progress never goes back.
* Nothing is handed out after the moment ``_open_until``: the end of the lease on the slots, or a moment that
  has passed while the application's thread is asked for attention.
* What a ``consume()`` that waits for more has taken is *unreturned* besides: it is not processed whatever is
  called meanwhile, and goes back into the buffer if nobody gets it. Changed with the lock held.
* Whatever exception ends a change, what was handed out is known, so reading can begin there again: ``torn``
  says that it has to, ``start_over`` where. For that the number of the first record that is left tells what
  was handed out, not a count kept on the way.

The interpreter lock makes these reads and writes happen in program order. Without it (free-threaded Python)
nothing promises that, and taking goes through the lock.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import repeat, starmap
from math import inf
from operator import length_hint

from confluent_kafka import Message

from kpsplit import compiled
from kpsplit.clock import monotonic
from kpsplit.consumer.fetch.batch import NOWHERE, SHUT, Backpressured, Batch
from kpsplit.consumer.fetch.progress import HandoutProgress, without
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.reading import Cursor

FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()
NOTHING: frozenset[OwnedSlot] = frozenset()

Poll = Callable[[float | None], Message | None]
Fetch = Callable[[float], bool | None]
"""Reads on, waiting so long for a record. False: nothing can be read now. None: this thread reads already."""

SLICE_SECONDS = 0.01
"""How long one look for records takes at most: in between, others change what is read."""

PORTION = 320


def portion() -> int:
    """Return how many records are read at once for ``poll()``.

    A record that waits is two objects, Kafka's message and ours; one where the compiled part makes it ours.
    The interpreter's garbage collector runs when 700 are new, and now and then it goes through all that the
    application has. Fewer than that are in hand, and they are gone before the next come: so reading does not
    make it run.
    """
    return PORTION if compiled.messages is None else 2 * PORTION


class FetchBuffer:
    """Implements ``Sink`` for ``poll()`` and ``consume()``.

    Threads: ``take``, ``consume``, ``wait`` and ``attended`` are for the application's, ``mark`` and
    ``attention`` for both; everything else for whoever holds the engine's lock. The lock of this class is
    never held while anybody else's code runs.
    """

    def __init__(self, *, locked: bool = FREE_THREADED) -> None:
        self.fetch: Fetch = lambda _seconds: False
        """Reads the next records into here."""
        self.full: Callable[[], bool] = lambda: False
        """Whether nothing is handed out before a commit: asked with every turn of the engine."""
        self.attention = False
        """Whether the application's thread is asked for attention, and handed out nothing until then."""
        self.most = portion()
        """See ``RecordSink``: as many as the application asks for, where ``portion()`` is less."""
        self.looks = 0
        """It grows while the application's thread waits."""
        self._ready: deque[Message] = deque()
        self._last = [0]
        self._unreturned = 0
        self._never_returned: int | None = None
        """The mark from which on records go back into the buffer, while they do."""
        self._torn = False
        self._wanted = False
        self._lease = inf
        self._open_until = [inf]
        self._progress = HandoutProgress()
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._locked = locked
        self._guard: AbstractContextManager[object] = self._lock if locked else nullcontext()
        self._released = NOTHING
        self.take: Callable[[], Message] = self._locked_taker() if locked else self._taker()
        """Return the next record; IndexError if there is none, or not now: then ``wait``."""

    # the application's thread

    def poller(self, slowly: Poll) -> Poll:
        """Return ``poll``: the next record; where there is none, or not now, what ``slowly`` returns.

        It is ``take`` written out: one call less per record. The compiled one takes a record that is in hand.
        """
        if self._locked:
            return _poller(self.take, slowly)
        last, popleft, until, now = self._last, self._ready.popleft, self._open_until, monotonic

        def poll(timeout: float | None = -1) -> Message | None:
            last[0] = 1
            if now() <= until[0]:
                try:
                    return popleft()
                except IndexError:
                    pass
            return slowly(timeout)

        if compiled.messages is None:
            return poll
        clock, its_id = compiled.SYSTEM_CLOCK
        made: Poll = compiled.messages.poll(poll, last, popleft, until, now, its_id if now is clock else -1)
        return made

    def consume(self, count: int) -> list[Message]:
        """Return up to so many of the records that are there, none if attention is asked for, or not now."""
        records: list[Message] = []
        if monotonic() > self._open_until[0]:
            return records
        with self._guard:
            self._last[0] = count
            with suppress(IndexError):  # what was taken before it was raised stays in the list
                records.extend(starmap(self._ready.popleft, repeat((), count)))
            self._last[0] = len(records)
        return records

    def keep(self, count: int) -> None:
        """So many records, the last that were handed out, are not returned before more have come."""
        with self._lock:
            self._unreturned = count
            self._last[0] = 0

    def returned(self) -> None:
        """What was kept goes to the application, and what was handed out since."""
        with self._lock:
            self._last[0], self._unreturned = self._last[0] + self._unreturned, 0
            self._wanted = False

    def give_back(self, mark: int) -> None:
        """What was handed out since a mark was never returned: hand it out again."""
        with self._lock:
            self._never_returned = mark
            self._rearrange(lambda later: [without(b, self._released) for b in self._nobodys()] + later)
            self._wanted = False

    @property
    def wanted(self) -> bool:
        """Whether what is kept has to be returned now: a slot waits until it is processed."""
        return self._wanted

    def processed(self) -> None:
        """Count everything that was handed out as processed, except for what is kept."""
        with self._lock:
            self._last[0] = 0

    def wait(self, seconds: float | None, count: int = 1) -> bool:
        """Read on, wait for records, for a call for attention, or until what is kept is wanted.

        False if none came. What was handed out counts as processed from now on, except for what is kept.
        Inside a signal handler that interrupts reading in the same thread nothing is waited for.
        ``count``: how many records the application asks for.
        """
        self.most = max(portion(), count)
        deadline = inf if seconds is None else monotonic() + seconds
        self.processed()
        while not self._worth_waking():
            self.looks += 1
            left = min(deadline - monotonic(), SLICE_SECONDS)
            fetched = False if self._ready else self.fetch(max(left, 0.0))
            if fetched is None or left <= 0:
                return self._worth_waking()
            if not fetched:
                with self._arrived:
                    self._arrived.wait_for(self._worth_waking, left)
        return True

    def mark(self) -> int:
        """Return the mark after everything that was returned: what an explicit commit covers."""
        with self._lock:
            return self._progress.added - len(self._ready) - self._unreturned

    def attended(self) -> None:
        """The application's thread has done what attention was asked for: hand out records again."""
        with self._lock:
            self.attention = False
            self._open_until[0] = self._lease
            self._arrived.notify_all()

    # with the engine's lock: what a sink is

    def taken(self, slot: OwnedSlot, cursor: Cursor) -> None:
        """A slot arrives, or is moved by a seek: what was offered of it before counts for nothing."""
        with self._lock:
            if slot in self._progress.slots:
                self._keep(lambda batch: without(batch, frozenset([slot])))
            self._released -= {slot}
            self._progress.taken(slot, cursor)

    def offer(self, batch: Batch) -> None:
        """Take records, to be handed out in the order of the offers."""
        with self._lock:
            if self._released:
                batch = without(batch, self._released)
            self._put([batch])
            if batch.messages:
                self._arrived.notify_all()

    def waiting_bytes(self) -> int:
        """Return what the batches take that were not wholly handed out."""
        with self._lock:
            self._advance(len(self._ready))
            return self._progress.waiting_bytes

    def backpressured(self) -> Backpressured:
        """See ``Sink``: an application that polls takes the records in their order."""
        return NOWHERE

    def keep_open(self, until: float) -> None:
        """Hand out nothing once this moment has passed, until a later one is named."""
        with self._lock:
            self._lease = SHUT if self.full() else until
            if not self.attention:
                self._open_until[0] = self._lease
                if self._ready:
                    self._arrived.notify_all()

    def cursor(self, slot: OwnedSlot) -> Sequence[Cursor]:
        """Return what of a slot is processed."""
        with self._lock:
            self._advance(len(self._ready))
            return [self._progress.cursor(slot)]

    def level(self, slot: OwnedSlot) -> bool:
        """One record after the other is handed out."""
        return True

    def release(self, slots: Iterable[OwnedSlot]) -> bool:
        """Hand out nothing more of slots; True when nothing of them is being worked on."""
        known = [slot for slot in slots if slot in self._progress.slots]
        with self._lock:
            new = frozenset(known) - self._released
            if new:
                self._released |= new
                self._keep(lambda batch: without(batch, new))
            self._advance(len(self._ready))
            done = not any(self._progress.in_work(slot) for slot in known)
            self._want(not done)
            return done

    def passed(self, mark: int) -> bool:
        """Return whether everything before a mark is processed."""
        with self._lock:
            self._advance(len(self._ready))
            done = self._progress.processed >= mark
            self._want(not done)
            return done

    def dropped(self, slots: Iterable[OwnedSlot]) -> None:
        """Forget slots and what waits of them."""
        gone = frozenset(slots)
        with self._lock:
            self._keep(lambda batch: without(batch, gone))
            self._released -= gone
            self._progress.drop(gone)

    # with the engine's lock: what polling needs besides

    def cursor_at(self, slot: OwnedSlot, mark: int) -> Cursor:
        """Return what of a slot is processed when everything before a mark is."""
        with self._lock:
            self._advance(len(self._ready))
            return self._progress.cursor(slot, mark)

    def pause(self, parents: Collection[PhysicalPartition]) -> Mapping[OwnedSlot, Cursor]:
        """Forget what waits of them."""
        chosen = frozenset(parents)
        with self._lock:
            self._keep(lambda batch: None if batch.parent in chosen else batch)
            mine = [s for s in self._progress.slots if s.parent in chosen and s not in self._released]
            return {slot: self._progress.cursor(slot, self._progress.handed_out) for slot in mine}

    def resume(self, parents: Collection[PhysicalPartition]) -> None:
        """What is read from now on is handed out as ever."""

    @property
    def torn(self) -> bool:
        """See ``Sink``; with the lock, so that no change of the application's thread is under way."""
        with self._lock:
            return self._torn

    def start_over(self) -> Mapping[OwnedSlot, Cursor]:
        """See ``Sink``: forget everything that was not handed out."""
        with self._lock:
            self._taken_back()
            self._nobodys()
            self._torn = False
            mine = [slot for slot in self._progress.slots if slot not in self._released]
            return {slot: self._progress.cursor(slot, self._progress.handed_out) for slot in mine}

    def ask_attention(self) -> None:
        """Make the application come out of ``wait``, and hand out nothing until it has ``attended``."""
        with self._lock:
            self.attention = True
            self._open_until[0] = SHUT
            self._arrived.notify_all()

    @property
    def handed_out(self) -> int:
        """How many records were handed out: it grows while the application polls and there are any."""
        with self._lock:
            self._advance(len(self._ready))
            return self._progress.handed_out

    def _want(self, waits: bool) -> None:
        """Have what is kept returned where somebody waits until it is processed."""
        if waits and self._unreturned:
            self._wanted = True
            self._arrived.notify_all()

    def _worth_waking(self) -> bool:
        return self.attention or self._wanted or (bool(self._ready) and monotonic() <= self._open_until[0])

    def _advance(self, left: int) -> None:
        self._advance_to(self._progress.added - left)

    def _advance_to(self, handed_out: int) -> None:
        self._progress.advance(handed_out, handed_out - self._unreturned - self._last[0])

    def _put(self, batches: Iterable[Batch]) -> None:
        """Add batches; of one that an exception interrupts what the application can take stays added."""
        for batch in batches:
            before, count, messages = self._progress.added, len(batch.messages), iter(batch.messages)
            try:
                self._progress.add(batch)
                self._ready.extend(messages)
            except BaseException as error:
                taken = count - length_hint(messages)
                found_no_room = isinstance(error, MemoryError) and taken > 0  # the last that was taken
                self._progress.cut(before + taken - found_no_room)
                raise

    def _taken_back(self) -> list[Batch]:
        """Take everything that was not handed out out of the application's reach."""
        first: list[Message | None] = [None]
        try:
            self._empty(first)
            self._advance_to(self._progress.number_of(first[0]))
            return self._progress.withdraw()
        except BaseException:
            self._empty(first)
            self._progress.cut(self._progress.number_of(first[0]))
            raise

    def _empty(self, first: list[Message | None]) -> None:
        """Take records from the right until none is left; ``first`` is the last one that was taken."""
        pop = self._ready.pop
        with suppress(IndexError):
            while True:
                first[0] = pop()

    def _nobodys(self) -> list[Batch]:
        """Take back what was handed out and never returned, if that is being done."""
        if self._never_returned is None:
            return []
        batches = self._progress.give_back(self._never_returned)
        self._last[0] = self._unreturned = 0
        self._never_returned = None
        return batches

    def _keep(self, change: Callable[[Batch], Batch | None]) -> None:
        """Change what was not handed out, or leave it out."""
        self._rearrange(lambda batches: [new for batch in batches if (new := change(batch)) is not None])

    def _rearrange(self, change: Callable[[list[Batch]], list[Batch]]) -> None:
        """Put others in the place of the batches that were not handed out."""
        before, self._torn = self._torn, True
        self._put(change(self._taken_back()))
        self._torn = before  # unless an exception came before it

    def _taker(self) -> Callable[[], Message]:
        last, popleft, until, now = self._last, self._ready.popleft, self._open_until, monotonic

        def take() -> Message:
            last[0] = 1
            if now() > until[0]:
                raise IndexError
            return popleft()

        return take

    def _locked_taker(self) -> Callable[[], Message]:
        take, lock = self._taker(), self._lock

        def locked() -> Message:
            with lock:
                return take()

        return locked


def _poller(take: Callable[[], Message], slowly: Poll) -> Poll:
    def poll(timeout: float | None = -1) -> Message | None:
        try:
            return take()
        except IndexError:
            return slowly(timeout)

    return poll
