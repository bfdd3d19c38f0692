"""Workers that are processes: threads that hand each record to a process of their own (``remote``)."""

from __future__ import annotations

from kpsplit.consumer.run.dead_letters import Letters
from kpsplit.consumer.run.remote import RemoteHandler
from kpsplit.consumer.run.threads import ThreadWorkers
from kpsplit.consumer.run.work_queue import Desk
from kpsplit.kafka.clock import Deadline


class ProcessWorkers(ThreadWorkers):
    """``handler`` is from ``remote.packed``; the processes are started, all at once, by ``start``."""

    def __init__(
        self, desk: Desk, count: int, handler: bytes, letters: Letters, *, transactional: bool
    ) -> None:
        self._handlers = [RemoteHandler(handler, transactional=transactional) for _ in range(count)]
        super().__init__(desk, self._handlers, letters)

    def start(self) -> None:
        """Start the processes, then the threads.

        Raises:
            ConfigurationError: the handler cannot be imported there.
        """
        try:
            for handler in self._handlers:
                handler.start()
            for handler in self._handlers:
                handler.ready()
        except BaseException:
            self._close()
            raise
        super().start()

    def join(self, deadline: Deadline) -> bool:
        """Wait until every worker has ended after ``desk.end()``; False if some were not in time."""
        ended = super().join(deadline)
        if ended:
            self._close()
        return ended

    def abandon(self) -> None:
        """End the processes; what they work on is not committed."""
        for handler in self._handlers:
            handler.give_up()

    def _close(self) -> None:
        for handler in self._handlers:
            handler.close()
