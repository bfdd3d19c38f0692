"""An operator that sends itself a signal right after a given step; run as a process of its own.

python dying_operator.py BOOTSTRAP TOPIC PARTITION VERB MAX_PAUSE_MS STEP|none SIGKILL|SIGSTOP

VERB is split, merge, enroll or retire.

It ends with the exit code that the command line would have.
"""

from __future__ import annotations

import os
import signal
import sys

from kpsplit.admin import Admin
from kpsplit.errors import KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.driver import StepDone
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.control import Partitioner

PATIENCE_SECONDS = 180.0
"""For a whole operation: writers wait for no longer than its max-pause."""


def main(
    bootstrap: str, topic: str, partition: str, verb: str, max_pause_ms: str, last_step: str, sent: str
) -> int:
    parent = PhysicalPartition(topic, int(partition))
    left = [last_step]

    def observe(step: StepDone) -> None:
        print(step.name, flush=True)
        if step.name in left:
            left.clear()
            os.kill(os.getpid(), signal.Signals[sent])

    try:
        with Admin(Connection({"bootstrap.servers": bootstrap}), PATIENCE_SECONDS) as operations:
            if verb == "enroll":
                operations.enrol(topic, Partitioner.CONSISTENT_RANDOM, observe, slots=4)
            elif verb == "retire":
                operations.retire(parent, observer=observe)
            else:
                split = verb == "split"
                plan = operations.plan_split(parent, 4, even=True) if split else operations.plan_merge(parent)
                operations.run(plan, max_pause_ms=int(max_pause_ms), observer=observe, force=True)
    except KpsplitError as error:
        print(f"{type(error).__name__}: {error.message}", flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
