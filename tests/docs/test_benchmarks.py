"""docs/benchmarks.md is made of a recorded run, and the table says what the values say."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import harness, hot_partition, page, parallel_consumer, table
from kpsplit.devcluster import jars
from kpsplit.errors import KpsplitError

ROOT = Path(__file__).parents[2]
RATIO = page.Row("some.ratio", "a ratio", 0.9)
TIME = page.Row("some.time", "a time", 100.0, at_most=True, unit="ms", quantile=0.99)

EVERYWHERE = page.Row("some.least", "the least ratio", 1.0, quantile=0.0)


def record(**rows: page.Values) -> page.Record:
    """A run that found these values."""
    names = {name.replace("_", "."): values for name, values in rows.items()}
    versions = {"kpsplit": "0.1.0", "Kafka": "4.1.2"}
    return page.Record("2026-01-31 12:00 UTC", 31.4, versions, "2 cores, 8 GiB", names)


def line_of(text: str, what: str) -> list[str]:
    """The cells of the first line of the table with this text."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {what} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_page_is_the_one_that_its_record_makes() -> None:
    committed = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    assert committed == page.render(page.recorded_in(committed)), "python -m benchmarks.table --again"


def test_readme_shows_the_headline_rows_of_the_record_that_the_page_holds() -> None:
    recorded = page.recorded_in((ROOT / "docs" / "benchmarks.md").read_text("utf-8"))
    readme = (ROOT / "README.md").read_text("utf-8")
    assert readme == page.with_summary(readme, recorded), "python -m benchmarks.table --again"
    found = record(commit=page.Values((1.25,)))
    assert line_of(page.with_summary(readme, found), page.SUMMARY["commit"])[1:] == [
        *("1.25 (1.25 to 1.25)", "at most 1.10")
    ]
    assert set(page.SUMMARY) <= {row.name for _, row in page.rows()}


def test_a_page_made_of_what_a_page_recorded_is_the_same_page() -> None:
    found = record(handover=page.Values((1.1, 1.3), (), "closes --> a comment\nand has | lines"))
    found = replace(found, failed={"start": "exit code 1; no --> brokers"})
    text = page.render(found)
    assert page.recorded_in(text) == found
    assert page.render(page.recorded_in(text)) == text


def test_rows_of_a_later_run_take_the_place_of_a_records_own_and_say_when_they_were_measured() -> None:
    known = replace(
        record(commit=page.Values((1.0,)), handover=page.Values((2.0,))),
        failed={"groups": "exit code 1; no brokers", "start": "exit code 1; no brokers"},
    )
    found = record(commit=page.Values((1.5,), (), "quick"), hot_4=page.Values((3.9,)))
    later = replace(found, date="2026-02-01 09:00 UTC")
    joined = page.joined(known, later)
    assert (joined.date, joined.rows["handover"]) == (known.date, known.rows["handover"])
    assert joined.rows["commit"] == page.Values((1.5,), (), "quick; measured 2026-02-01 09:00 UTC")
    assert joined.rows["hot.4"].note == "measured 2026-02-01 09:00 UTC"
    assert joined.failed.keys() == {"start"}


def test_rows_of_another_version_or_machine_are_not_put_into_a_record() -> None:
    with pytest.raises(ValueError, match="run make bench"):
        page.joined(record(), replace(record(), machine="64 cores"))
    with pytest.raises(ValueError, match="run make bench"):
        page.joined(record(), replace(record(), versions={"Kafka": "4.2.0"}))


def test_a_page_without_a_record_is_refused() -> None:
    with pytest.raises(ValueError, match="make bench"):
        page.recorded_in("| 1.00 |")


def test_a_row_shows_the_median_with_the_smallest_and_the_greatest_by_the_wall_and_by_cpu() -> None:
    text = page.render(record(read_poll_unsplit=page.Values((1.2, 0.9, 1.1), (0.7, 0.8, 0.6))))
    cells = line_of(text, "`poll()`, not split")
    assert cells[1:5] == ["1.10 (0.90 to 1.20)", "0.70 (0.60 to 0.80)", "3", "at least 1.00"]
    assert cells[5] == "wall met, CPU **missed by 0.300**"


def test_a_row_without_values_is_not_measured() -> None:
    assert line_of(page.render(page.NOTHING), "range commit")[1:] == [*"–––", "at most 1.10", "not measured"]


def test_a_row_that_has_no_peer_here_says_so() -> None:
    bench = harness.Bench("", False, "")
    bench.note("run.threads.5", (), note="there is no peer here: no Java")
    text = page.render(replace(record(), rows=bench.found))
    what = next(row.what for _, row in page.rows() if row.name == "run.threads.5")
    assert line_of(text, what)[5] == "not measured"
    assert f"* {what}: there is no peer here: no Java" in text
    assert "0 of 0 meet their aim" in text


def test_rows_say_why_the_brokers_disk_cannot_be_slowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_partition.shutil, "which", lambda _: None)
    bench = harness.Bench("", False, "")
    hot_partition.measure(bench)
    assert [values.wall for values in bench.found.values()] == [(), ()]
    assert all("cc" in values.note for values in bench.found.values())


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'Exception in thread: java.lang.InternalError: no compiler' >&2", "no compiler"),
        ("exit 1", "it gave no reason"),
    ],
)
def test_a_runtime_that_cannot_run_the_peer_is_an_error_with_its_reason(
    script: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    monkeypatch.setattr(parallel_consumer, "find_java", lambda: jars.Java(java, 17))
    monkeypatch.setattr(parallel_consumer, "ensure", lambda *_: tmp_path)
    with (
        pytest.raises(KpsplitError, match=reason),
        parallel_consumer.parallel_consumer("localhost:1", "no-topic"),
    ):
        pass


@pytest.mark.parametrize(
    ("row", "wall", "cpu", "said"),
    [
        (RATIO, (0.9, 0.8, 1.0), (), "met"),
        (RATIO, (0.95,), (0.95,), "met"),
        (RATIO, (0.85, 0.85, 2.0), (), "**missed by 0.050**"),
        (RATIO, (0.85,), (0.7,), "wall **missed by 0.050**, CPU **missed by 0.200**"),
        (RATIO, (0.95,), (0.8996,), "wall met, CPU **missed by 0.001**"),
        (TIME, (10.0,) * 99 + (500.0,), (), "met"),
        (TIME, (10.0,) * 98 + (300.0, 500.0), (), "**missed by 200.0 ms**"),
        (EVERYWHERE, (1.2, 1.0, 1.3), (), "met"),
        (EVERYWHERE, (1.2, 0.7, 1.3), (2.0, 0.9, 3.0), "wall **missed by 0.300**, CPU **missed by 0.100**"),
    ],
)
def test_an_aim_is_met_by_the_value_that_it_is_about_or_missed_by_so_much(
    row: page.Row, wall: tuple[float, ...], cpu: tuple[float, ...], said: str
) -> None:
    assert page.verdict(row, page.Values(wall, cpu)) == said


def test_the_page_names_what_failed_and_what_it_does_not_measure() -> None:
    text = page.render(replace(record(), failed={"groups": "exit code 1; no brokers"}))
    section = text.partition("## Groups")[2].partition("\n## ")[0]
    assert "* The script failed: exit code 1; no brokers" in section
    left_out = text.partition("## Not measured here")[2]
    assert all(f"* {line}" in left_out for line in page.NOT_MEASURED)


def test_the_page_says_when_with_what_and_on_which_machine() -> None:
    text = page.render(record(commit=page.Values((1.0,), (1.2,)), handover=page.Values((2.0,))))
    assert "2026-01-31 12:00 UTC, 31 minutes" in text
    assert "| Kafka | 4.1.2 |" in text
    assert "| machine | 2 cores, 8 GiB |" in text
    assert "1 of 2 meet their aim by the wall, and of those with a processor time 0 of 1." in text
    assert table.versions().keys() == {
        *("kpsplit", "confluent-kafka", "librdkafka", "Kafka", "Python", "PySpark")
    }


def test_a_name_stands_for_one_row_and_every_script_is_there() -> None:
    names = [row.name for _, row in page.rows()]
    assert len(names) == len(set(names))
    for script in page.scripts():
        source = (ROOT / "benchmarks" / f"{script}.py").read_text("utf-8")
        assert re.search(r"^    run_script\(__doc__, measure\b", source, re.MULTILINE)


def test_every_script_is_in_the_table_or_named_where_the_page_and_make_say_what_is_left_out() -> None:
    sources = {path.stem: path.read_text("utf-8") for path in (ROOT / "benchmarks").glob("*.py")}
    runnable = {name for name, source in sources.items() if "__main__" in source} - {"table"}
    left_out = set(re.findall(r"`make bench BENCH=(\w+)`", " ".join(page.NOT_MEASURED)))
    assert set(page.scripts()) | left_out == runnable
    named = re.search(r"BENCH=([\w, ]+): what it leaves out", (ROOT / "Makefile").read_text("utf-8"))
    assert named is not None and set(named[1].split(", ")) == left_out


def test_a_part_of_the_table_runs_the_scripts_that_have_such_rows() -> None:
    by_script = {"a": ["read.poll"], "b": ["commit", "read.consume"], "c": ["start"]}
    assert table.scripts_of(by_script, "read") == ("a", "b")
    assert table.scripts_of(by_script, "") == ("a", "b", "c")


def test_which_side_begins_alternates_and_each_pair_is_ours_then_the_peers() -> None:
    order: list[str] = []
    sides = (lambda: order.append("ours") or 1, lambda: order.append("peer") or 2)
    assert list(harness.in_turn(*sides, 3)) == [(1, 2)] * 3
    assert order == ["peer", "ours", "ours", "peer", "peer", "ours"]


def test_where_the_time_is_over_the_least_number_of_pairs_is_enough() -> None:
    assert list(harness.within(7, 0)) == list(range(harness.LEAST_PAIRS))
    assert list(harness.within(2, 0)) == [0, 1]
    assert list(harness.within(7, 60)) == list(range(7))


def test_a_least_aim_compares_speeds_and_a_greatest_aim_times() -> None:
    bench, runs = harness.Bench("", False, ""), [(harness.Run(2, 4), harness.Run(1, 1))]
    bench.note_runs("read.poll.unsplit", runs)
    bench.note_runs("commit", runs)
    assert bench.found["read.poll.unsplit"] == page.Values((0.5,), (0.25,))
    assert bench.found["commit"] == page.Values((2.0,), (4.0,))


def test_the_reason_of_a_failure_is_the_last_line_of_the_errors() -> None:
    assert table.failure(0, "a warning") is None
    assert table.failure(1, "Traceback\n  KafkaException: no brokers\n\n%3|FAIL|rdkafka\n") == (
        "exit code 1; KafkaException: no brokers"
    )
    assert table.failure(-9, "") == "exit code -9; no message"


def test_make_bench_runs_the_table_and_readme_points_to_the_page() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert re.search(r"^BENCH \?= table$", makefile, re.MULTILINE)
    assert "-m benchmarks.$(BENCH) $(BENCH_ARGS)" in makefile
    assert "(docs/benchmarks.md)" in (ROOT / "README.md").read_text("utf-8")
