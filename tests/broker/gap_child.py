"""A member that runs, and that is killed by a test while it is being told of a gap.

Its ``error_cb`` then prints one line and never returns; meanwhile its workers go on.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from kpsplit import Consumer
from kpsplit.demo.endpoints import die_with_parent
from tests.broker.running import config


def main(bootstrap: str, group: str, topic: str) -> None:
    """Run until killed."""

    def hear(error: object) -> None:
        if "cannot be read" in str(error):
            print("is being told", flush=True)
            threading.Event().wait()

    def work(_: Any) -> None:
        pass

    settings = config(bootstrap, group, session_timeout_ms=6000, kpsplit_gap_policy="skip-and-report")
    with Consumer({**settings, "error_cb": hear}) as consumer:
        consumer.subscribe([topic])
        consumer.run(work, workers=2, commit_seconds=0.2)


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
