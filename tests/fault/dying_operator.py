"""An operator that is killed by SIGKILL right after a given step; run as a process of its own.

python dying_operator.py BOOTSTRAP TOPIC PARTITION split|merge MAX_PAUSE_MS STEP|none
"""

from __future__ import annotations

import os
import signal
import sys

from kpsplit.kafka.connection import Connection
from kpsplit.kafka.operations import Operations
from kpsplit.splitter.driver import StepDone
from kpsplit.splitter.lineage import PhysicalPartition


def main(bootstrap: str, topic: str, partition: str, verb: str, max_pause_ms: str, last_step: str) -> None:
    parent = PhysicalPartition(topic, int(partition))

    def observe(step: StepDone) -> None:
        print(step.name, flush=True)
        if step.name == last_step:
            os.kill(os.getpid(), signal.SIGKILL)

    with Operations(Connection({"bootstrap.servers": bootstrap})) as operations:
        if verb == "split":
            plan = operations.plan_split(parent, 4, even=True)
        else:
            plan = operations.plan_merge(parent)
        operations.run(plan, max_pause_ms=int(max_pause_ms), observer=observe, force=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
