"""The whole line on real brokers: enrol, plan, split, look, read, merge, retire, each as users call it."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

from kpsplit.splitter.key_range import KEY_SPACE, key_hash

pytestmark = [pytest.mark.broker, pytest.mark.slow]

KEYS = {f"key-{i}": 20 + i for i in range(24)}
LATER = {"key-1": 3, "key-2": 3}
SECONDS = 180.0


class Line:
    """One topic on its way through a split, a nested split, a merge and retirement; what each step said."""

    def __init__(self, topic: str, kpsplit: Any, produce: Callable[..., None], folder: Any) -> None:
        self.topic = topic
        self.parent = f"{topic}/0"
        self.said: dict[str, Any] = {}
        self._kpsplit, self._produce, self._plan = kpsplit, produce, str(folder / "plan.json")

    def go(self) -> None:
        """Take every step."""
        self._produce(self.topic, KEYS)
        self._step("enroll", "enroll", self.topic)
        self._step("plan", "plan", self.parent, "--ranges", "4", "--save", self._plan)
        self._step("dry run", "split", self.parent, "--plan", self._plan, "--dry-run")
        self._step("still unsplit", "status", self.parent)
        self._step("split", "split", self.parent, "--plan", self._plan, "--yes")
        self.said["again"] = self._kpsplit("split", self.parent, "--plan", self._plan)
        self.said["no range named"] = self._kpsplit("split", self.parent, "--ranges", "2")
        first = self.said["split"]["ranges"][0]["range"]
        self._step("nested", "split", self.parent, "--ranges", "2", "--of", f"{first[0]:x}:{first[1]:x}",
                   "--even", "--force", "--yes")  # fmt: skip
        self._step("route", "route", self.topic, "--key", "key-1")
        self._produce(self.topic, LATER)
        self._step("status", "status", self.parent)
        self._step("all", "status")
        self._step("lineage", "lineage", self.parent)
        self.said["merge unasked"] = self._kpsplit("merge", self.parent)
        self._step("merge", "merge", self.parent, "--yes")
        self.said["records"] = self._lines("read", self.parent)
        self._step("retire, dry", "retire", self.parent, "--dry-run")
        self._step("retire", "retire", self.parent, "--yes")
        self._step("merged lineage", "lineage", self.parent)
        self.said["tail"] = self._lines("read", self.parent, "--from", "5", "--limit", "3")
        self.said["table"] = self._kpsplit.ok("read", self.parent, "--limit", "2")
        self.said["doctor"] = self._kpsplit("doctor", "-o", "json")

    def _step(self, name: str, *arguments: str) -> None:
        self.said[name] = self._kpsplit.ok(*arguments, "-o", "json").json

    def _lines(self, *arguments: str) -> list[Any]:
        return [json.loads(line) for line in self._kpsplit.ok(*arguments, "-o", "json").out.splitlines()]


@pytest.fixture(scope="module")
def line(kpsplit, new_topic, write_keys, tmp_path_factory) -> Line:
    """The line, taken once for all tests here."""
    taken = Line(new_topic("full-line"), kpsplit, write_keys, tmp_path_factory.mktemp("plan"))
    taken.go()
    return taken


def test_enrolling_settles_the_topic(line) -> None:
    assert line.said["enroll"]["settled"] is True
    assert line.said["enroll"]["partitioner"] == "consistent_random"


def test_a_plan_covers_the_key_space_and_predicts_the_load(line) -> None:
    plan = line.said["plan"]
    bounds = [(r["lo"], r["hi"]) for r in plan["ranges"]]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == KEY_SPACE
    assert all(a[1] == b[0] for a, b in pairwise(bounds))
    assert sum(plan["shares"]["ppm"]) == pytest.approx(1_000_000, abs=10)
    assert all(check["ok"] for check in plan["checks"])


def test_a_dry_run_shows_the_plan_and_changes_nothing(line) -> None:
    assert line.said["dry run"]["ranges"] == line.said["plan"]["ranges"]
    (status,) = line.said["still unsplit"]["partitions"]
    assert (status["epoch"], status["phase"], status["last"]) == (0, "steady", None)


def test_a_split_takes_effect_with_the_planned_ranges(line) -> None:
    split = line.said["split"]
    assert (split["result"], split["epoch"], split["kind"]) == ("committed", 1, "split")
    assert [r["range"] for r in split["ranges"]] == [[r["lo"], r["hi"]] for r in line.said["plan"]["ranges"]]


def test_a_saved_plan_runs_only_at_the_epoch_that_it_was_made_for(line) -> None:
    assert line.said["again"].code == 5
    assert "the plan was made for epoch 0; nothing was changed; plan again" in line.said["again"].error


def test_a_partition_that_is_split_needs_the_range_to_split_again(line) -> None:
    assert line.said["no range named"].code == 2
    assert "name the range to split again: --of 00000000:" in line.said["no range named"].error


def test_a_merge_without_a_terminal_needs_a_yes(line) -> None:
    assert line.said["merge unasked"].code == 2
    assert "nothing was changed; pass --yes" in line.said["merge unasked"].error


def test_a_key_is_routed_to_the_open_segment_of_its_hash(line) -> None:
    route = line.said["route"]
    assert route["key_hash"] == key_hash(b"key-1")
    assert route["range"][0] <= route["key_hash"] < route["range"][1]
    assert route["epoch"] == 2
    assert route["source_topic"].startswith(f"{line.topic}.split-0-")


def test_status_shows_every_open_range_with_its_place_and_end(line) -> None:
    (status,) = line.said["status"]["partitions"]
    assert (status["epoch"], status["phase"]) == (2, "steady")
    kinds = [r["kind"] for r in status["ranges"]]
    assert kinds.count("phantom") == 5
    assert kinds.count("overflow") == 2
    parent = next(r for r in status["ranges"] if r["source_topic"] == line.topic)
    assert parent["log_end"] == sum(KEYS.values()) + 1 + sum(LATER.values())
    assert line.parent in {f"{p['topic']}/{p['partition']}" for p in line.said["all"]["partitions"]}


def test_the_lineage_has_every_segment_with_its_predecessors(line) -> None:
    segments = line.said["lineage"]["segments"]
    assert [s["kind"] for s in segments] == [
        "parent",
        "overflow",
        *["phantom"] * 4,
        "overflow",
        *["phantom"] * 2,
    ]
    assert segments[0]["end"] == sum(KEYS.values())
    assert segments[7]["predecessors"] == [2]
    reopened = line.said["merged lineage"]["segments"][-1]
    assert (reopened["kind"], reopened["range"]) == ("parent", [0, KEY_SPACE])


def test_the_first_logical_offset_of_every_phantom_is_beyond_the_parents_end(line) -> None:
    segments = line.said["lineage"]["segments"]
    for segment in segments[1:]:
        assert segment["base"] >= segments[0]["end"]


def test_every_record_is_read_once_and_in_the_order_of_its_key(line) -> None:
    """The records that came while it was split, from a writer that does not know kpsplit, are there too."""
    records = line.said["records"]
    assert len(records) == sum(KEYS.values()) + sum(LATER.values())
    numbers = [r["logical_offset"] for r in records]
    assert len(set(numbers)) == len(numbers)
    for key, count in KEYS.items():
        mine = [r for r in records if r["key"] == key]
        wanted = [f"{key} {i}" for i in range(count)] + [f"{key} {i}" for i in range(LATER.get(key, 0))]
        assert [r["value"] for r in mine] == wanted
        assert [r["logical_offset"] for r in mine] == sorted(r["logical_offset"] for r in mine)


def test_reading_begins_and_ends_where_it_is_told(line) -> None:
    assert [r["logical_offset"] for r in line.said["tail"]] == [5, 6, 7]
    table = line.said["table"]
    assert len(table.out.splitlines()) == 3
    assert table.out.startswith("logical offset")
    assert table.err.strip() == "2 records"


def test_retiring_deletes_the_emptied_sub_topics(line, admin) -> None:
    deleted = line.said["retire"]["deleted"]
    assert (line.said["retire, dry"]["would_delete"], line.said["retire, dry"]["would_keep"]) == (deleted, {})
    assert sorted(deleted) == [f"{line.topic}.split-0-1", f"{line.topic}.split-0-2"]
    assert not set(deleted) & set(admin.list_topics(timeout=10).topics)


def test_the_doctor_answers_with_named_checks_and_finds_nothing_wrong_with_the_line(line) -> None:
    """Other tests of the session leave broken partitions behind: it may find those, and exit with 3."""
    ran = line.said["doctor"]
    checks = ran.json["checks"]
    assert all(set(c) == {"name", "ok", "message", "remedy"} for c in checks)
    wrong = [c for c in checks if not c["ok"]]
    assert ran.code == (3 if wrong else 0)
    assert not [c for c in wrong if line.topic in c["message"]]


def test_progress_goes_to_stderr_and_data_to_stdout(line, kpsplit) -> None:
    ran = kpsplit("plan", line.parent, "--ranges", "2", "--force")
    assert ran.code == 0
    assert ran.out.startswith(f"{line.parent} at epoch 3: split into 2 ranges")
    assert ran.err == ""
    aborted = kpsplit.ok("abort", line.parent, "--yes", "-o", "json")
    assert aborted.json["result"] is None
    assert kpsplit.ok("resume", line.parent, "--yes", "-o", "json").json["result"] is None


def test_a_reader_that_stops_early_is_no_error(line, kpsplit) -> None:
    reader = subprocess.Popen(
        [*kpsplit.command, "read", line.parent, "-o", "json"],
        env=kpsplit.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert reader.stdout is not None
    assert reader.stderr is not None
    reader.stdout.close()
    assert reader.stderr.read() == b""
    assert reader.wait(30) == 141


def test_on_a_terminal_it_asks_first_and_no_changes_nothing(line, kpsplit) -> None:
    terminal, theirs = pty.openpty()
    asked = subprocess.Popen(
        [*kpsplit.command, "split", line.parent, "--ranges", "2", "--force"],
        env=kpsplit.env, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    limit = time.monotonic() + SECONDS
    while b"now? [y/N]" not in shown:
        assert time.monotonic() < limit, shown
        if select.select([terminal], [], [], 1)[0]:
            shown += os.read(terminal, 4096)
    os.write(terminal, b"n\n")
    code = asked.wait(SECONDS)
    said = b""
    with suppress(OSError):  # it fails when all was read of a process that has ended
        while more := os.read(terminal, 4096):
            said += more
    os.close(terminal)
    assert code == 1, said
    assert b"not confirmed; nothing was changed" in said
    (status,) = kpsplit.ok("status", line.parent, "-o", "json").json["partitions"]
    assert status["epoch"] == 3
