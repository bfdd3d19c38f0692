"""``Consumer.run``: records worked on by several workers at once, by key range.

======================  =================================================================================
``lanes``               which record is worked on next; pure
``policies``            what happens when a handler fails; pure
``outbox``              which outputs belong to a commit; pure
``work_queue``          the lanes under a lock: a sink for the engine, work for the workers
``workers``             threads, threads with a process each (``remote``), tasks of an event loop
``handlers``            what handlers are, what they get and return
``outputs``             dead letters, and outputs in the transaction of their commit
``runner``              one call of ``run()``
======================  =================================================================================

The names are resolved on first use: processes of handlers load little of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpsplit.lazy import lazy_names

if TYPE_CHECKING:
    from kpsplit.consumer.run.handlers import Output, Record
    from kpsplit.consumer.run.policies import DeadLetter, HandlerError, Retry, Skip, Stop
    from kpsplit.consumer.run.remote import WorkerDiedError
    from kpsplit.consumer.run.runner import run
    from kpsplit.consumer.run.work_queue import RunStats

__all__ = [
    "run",
    "Retry",
    "Stop",
    "Skip",
    "DeadLetter",
    "Output",
    "Record",
    "RunStats",
    "HandlerError",
    "WorkerDiedError",
]

__getattr__ = lazy_names(
    __name__,
    {
        "run": "kpsplit.consumer.run.runner",
        **dict.fromkeys(
            ("Retry", "Stop", "Skip", "DeadLetter", "HandlerError"), "kpsplit.consumer.run.policies"
        ),
        "Output": "kpsplit.consumer.run.handlers",
        "Record": "kpsplit.consumer.run.handlers",
        "RunStats": "kpsplit.consumer.run.work_queue",
        "WorkerDiedError": "kpsplit.consumer.run.remote",
    },
)
