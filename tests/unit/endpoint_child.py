"""A process of a scenario that does what its orders name as the topic; for ``test_demo_endpoints``."""

from __future__ import annotations

import os
import signal
import sys
import threading

from kpsplit.demo.endpoints import FINISH, Orders, WriterNews, WriterStage, first_line, listen, report

DONE = WriterNews(WriterStage.DONE)


def main() -> None:
    orders = Orders.decode(first_line())
    match orders.topic:
        case "end":
            report(DONE)
        case "report an error":
            report(WriterNews(error="no broker"))
            sys.exit(1)
        case "die":
            sys.exit("out of memory")
        case _:
            finished = threading.Event()
            listen(lambda command: obey(command, finished), finished.set)
            finished.wait()
            report(DONE)


def obey(command: str, finished: threading.Event) -> None:
    if command == FINISH:
        finished.set()
    else:
        os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    main()
