"""A member that runs transactionally in a process of its own, so that a test can kill it.

Copies every record to another topic, with the record's logical place in a header; prints one line per record.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from kpsplit import Consumer, Output
from kpsplit.demo.endpoints import die_with_parent
from tests.broker.running import config


def main(bootstrap: str, group: str, topic: str, target: str) -> None:
    """Run until SIGTERM."""

    def copy(record: Any) -> Output:
        time.sleep(0.002)
        print(record.offset(), flush=True)
        return Output(target, record.key(), record.value(), [("from", str(record.offset()).encode())])

    with Consumer(config(bootstrap, group, session_timeout_ms=6000)) as consumer:
        consumer.subscribe([topic])
        consumer.run(copy, workers=4, transactional=True, commit_seconds=0.2)


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
