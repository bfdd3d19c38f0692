"""What the demo shows while it runs."""

from __future__ import annotations

import io

from kpsplit.demo.display import Display


def test_every_few_seconds_a_line_names_the_busy_partitions() -> None:
    stream = io.StringIO()
    display = Display(stream)
    for _ in range(2):
        display.show("merge", 2500, {"orders/3": 120.0, "split-3-1/0": 0.2})
    (line,) = stream.getvalue().splitlines()
    assert line.endswith("merge: 2,500 sent; records/s by partition: 3:120")
