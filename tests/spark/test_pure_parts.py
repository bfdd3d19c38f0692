"""The parts of the Spark side that need no Spark: bits, offsets, options, lineage arithmetic, the report."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpsplit import __version__
from kpsplit.errors import ConfigurationError, KpsplitError, UsageError
from kpsplit.kafka.connection import Connection
from kpsplit.pages import columns, lineage_picture
from kpsplit.spark_jobs.connector_options import kafka_options
from kpsplit.spark_jobs.gather import held_up
from kpsplit.spark_jobs.jars import connector_coordinates
from kpsplit.spark_jobs.regions import (
    Bound,
    all_regions,
    check_batch_bounds,
    limit,
    ranges_to_scan,
    timestamp_ms,
    wanted,
)
from kpsplit.spark_jobs.report import Times, beginnings, report_page
from kpsplit.spark_jobs.session import reason
from kpsplit.spark_jobs.snapshot import LogEnds, Snapshot
from kpsplit.spark_jobs.verification import job
from kpsplit.spark_jobs.verification.checks import (
    boundaries_agree,
    first_shared,
    marker_findings,
    segment_totals,
)
from kpsplit.spark_jobs.verification.commit_checks import drained
from kpsplit.spark_jobs.verification.counts import members
from kpsplit.spark_jobs.verification.findings import (
    MOST,
    Finding,
    Severity,
    Verdict,
    limited,
    result_line,
    summary_lines,
)
from kpsplit.spark_jobs.verification.start import JudgedFrom
from kpsplit.spark_jobs.verification.verifier import MEANINGS, VerifyCheck
from kpsplit.spark_jobs.view import certificate_rows, commit_rows, lineage_rows
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import MAX_OFFSET, Lineage, PhysicalPartition, Progression, Segment, SegmentKind
from kpsplit.splitter.reading import GapReason, wrong_topic
from kpsplit.splitter.records.producers import PauseReport
from tests.spark.histories import World, lived
from tests.unit.samples import life


@given(st.sets(st.integers(0, 63)))
def test_the_members_of_a_bucket_are_its_bits(numbers) -> None:
    assert list(members(3, sum(1 << n for n in numbers))) == sorted(192 + n for n in numbers)


def segment(number: int, base: int, stride: int, length: int) -> Segment:
    place = PhysicalPartition("orders.split-3-1", number)
    numbers = Progression(base, stride)
    return Segment(number, SegmentKind.PHANTOM, WHOLE, place, 0, numbers, 1, end=length, closed_epoch=2)


NUMBERS = st.tuples(st.integers(0, 60), st.integers(1, 9), st.integers(0, 30))


@given(NUMBERS, NUMBERS)
def test_the_first_number_of_two_progressions_is_found_by_arithmetic(a, b) -> None:
    one, other = segment(1, *a), segment(2, *b)
    both = {a[0] + a[1] * i for i in range(a[2])} & {b[0] + b[1] * i for i in range(b[2])}
    assert first_shared(one, other) == min(both, default=None)


def test_regions_tile_every_physical_partition() -> None:
    for source, regions in _by_source(lived(0)).items():
        edges = [(r.first, r.behind) for r in regions]
        assert edges[0][0] == 0, source
        assert edges[-1][1] == MAX_OFFSET
        assert all(a[1] == b[0] for a, b in pairwise(edges))


def _by_source(world: World):
    found: dict[PhysicalPartition, list] = {}
    for region in all_regions(world.state):
        found.setdefault(region.source, []).append(region)
    return found


def test_the_scan_of_a_read_between_logical_offsets_leaves_the_rest_alone() -> None:
    world = lived(0)
    snapshot = world.snapshot()
    lineage = world.state.lineage
    first = lineage.segments[0]
    everything = limit("earliest", None, {0})
    until_split = limit({0: first.logical(first.end)}, None, {0})
    regions = wanted(snapshot, everything, until_split)
    assert ranges_to_scan(regions) == {world.parent: (0, first.end)}
    after = wanted(snapshot, until_split, limit("latest", None, {0}))
    assert after
    assert all(r.segment.id != 0 for r in after)
    with pytest.raises(UsageError, match="partition 7"):
        limit({7: 1}, None, {0})


def test_offsets_that_are_gone_are_refused_and_earliest_is_what_there_is() -> None:
    world = lived(0)
    world.lows[world.parent] = 20
    snapshot = world.snapshot()
    latest = limit("latest", None, {0})
    with pytest.raises(UsageError, match="gone"):
        wanted(snapshot, limit({0: 19}, None, {0}), latest)
    wanted(snapshot, limit({0: 20}, None, {0}), latest)
    regions = wanted(snapshot, limit("earliest", None, {0}), latest)
    assert regions[0].first == 20


@pytest.mark.parametrize(
    ("bound", "found"),
    [("earliest", None), ({0: 5}, None), (datetime(2026, 1, 1, tzinfo=UTC), 1767225600000), (17, 17)],
)
def test_a_bound_is_a_word_a_time_or_offsets(bound, found) -> None:
    assert timestamp_ms(bound) == found


@pytest.mark.parametrize("bound", ["newest", True, 1.5])
def test_what_says_no_offset_is_refused(bound) -> None:
    with pytest.raises(UsageError, match="neither an offset nor a time"):
        timestamp_ms(bound)


@pytest.mark.parametrize(("start", "end"), [("latest", "latest"), ("latest", 5), ("earliest", "earliest")])
def test_a_batch_between_the_wrong_ends_is_refused_not_read_whole(start: Bound, end: Bound) -> None:
    check_batch_bounds("earliest", "latest")
    with pytest.raises(UsageError, match="a batch cannot"):
        check_batch_bounds(start, end)


def test_a_topic_that_is_gone_has_a_reason() -> None:
    state = lived(0).state
    phantom = next(s.source for s in state.lineage if s.kind is SegmentKind.PHANTOM)
    assert wrong_topic(state, state.parent, "id") is None
    assert wrong_topic(state, state.parent, "another") is GapReason.MADE_ANEW
    assert wrong_topic(state, phantom, None) is GapReason.MISSING


def test_security_settings_are_said_in_javas_words(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("-----BEGIN CERTIFICATE-----")
    connection = Connection(
        {
            "bootstrap.servers": "SASL_SSL://one:1,two:2",
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "me",
            "sasl.password": 'a"b\\c',
            "ssl.ca.location": str(ca),
            "ssl.endpoint.identification.algorithm": "none",
        }
    )
    options = kafka_options(connection)
    jaas = options.pop("kafka.sasl.jaas.config")
    assert jaas.endswith('ScramLoginModule required username="me" password="a\\"b\\\\c";')
    assert options == {
        "kafka.bootstrap.servers": "one:1,two:2",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.ssl.truststore.certificates": "-----BEGIN CERTIFICATE-----",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.endpoint.identification.algorithm": "",
        "kafka.max.poll.records": "5000",
        "kafka.isolation.level": "read_committed",
    }


@pytest.mark.parametrize(
    "setting", [{"sasl.mechanism": "GSSAPI"}, {"ssl.engine.location": "x"}, {"ssl.ca.location": "/no/such"}]
)
def test_what_cannot_be_said_is_refused_without_its_value_unless_javas_words_are_given(setting) -> None:
    connection = Connection({"bootstrap.servers": "one:1", "sasl.password": "hunter2", **setting})
    with pytest.raises(ConfigurationError) as caught:
        kafka_options(connection)
    assert "hunter2" not in str(caught.value)
    own = {"kafka.security.protocol": "SASL_PLAINTEXT"}
    assert kafka_options(connection, own)["kafka.security.protocol"] == "SASL_PLAINTEXT"


def test_how_many_records_a_poll_is_for_can_be_said() -> None:
    own = {"kafka.max.poll.records": "50"}
    assert kafka_options(Connection({"bootstrap.servers": "one:1"}), own) == {
        "kafka.bootstrap.servers": "one:1",
        "kafka.isolation.level": "read_committed",
        **own,
    }


def test_small_tables_have_a_row_per_segment_commit_and_certificate() -> None:
    snapshot = lived(0).snapshot()
    assert len(list(lineage_rows(snapshot))) == len(snapshot.states[0].lineage.segments)
    assert len(list(commit_rows(snapshot))) == sum(len(c.commit.positions) for c in snapshot.commits)
    assert {row[0] for row in certificate_rows(snapshot)} == {"00000000a11a0000", "ffffffff00000000"}


RUN = "sys.argv[1:] = ['4.1.2']; runpy.run_module('kpsplit.spark_jobs.jars', None, '__main__')"


@pytest.mark.parametrize(
    "how",
    [
        ["-m", "kpsplit.spark_jobs.jars", "4.1.2"],
        ["-c", f"import runpy, sys; sys.modules['pyspark'] = None; {RUN}"],
    ],
    ids=["with PySpark", "without PySpark"],
)
def test_the_coordinates_for_another_spark_are_printed(how) -> None:
    done = subprocess.run([sys.executable, *how], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, connector_coordinates("4.1.2"))
    assert done.stderr == ""


def test_a_group_that_has_read_everything_has_drained() -> None:
    (one,) = drained(lived(0).snapshot())
    assert (one.group, one.share, one.left) == ("readers", 1.0, 0)


def verdict(*findings: Finding) -> Verdict:
    world = lived(0)
    return Verdict("orders", (0,), world.snapshot(), findings, groups=("readers",), checks=MEANINGS)


LOST = Finding(
    Severity.FINDING,
    PhysicalPartition("orders", 0),
    "<number 7> is not there",
    first=7,
    last=7,
    check=VerifyCheck.SEQUENCES_COMPLETE,
)


def test_the_page_on_spark_says_what_each_check_proves() -> None:
    page = Path("docs/spark.md").read_text()
    assert [check for check in VerifyCheck if f"`{check}`" not in page] == []


def test_the_summary_names_each_check_and_its_findings() -> None:
    lines = list(summary_lines(verdict(LOST)))
    assert any(line.startswith("FOUND") and "sequences_complete" in line for line in lines)
    assert any("<number 7> is not there" in line for line in lines)
    assert lines[-1] == "orders: 1 finding in sequences_complete"
    assert result_line(verdict()) == "orders: clean"


def test_exit_codes_tell_findings_from_what_could_not_be_judged() -> None:
    unproven = replace(LOST, severity=Severity.UNPROVEN)
    note = replace(LOST, severity=Severity.NOTE)
    codes = [verdict(*f).exit_code for f in [(), (note,), (unproven,), (unproven, LOST)]]
    assert codes == [0, 0, 1, 3]


TIMES = Times(1_700_006_400_000, cluster="abc (b1:9092)")


def test_the_report_is_one_page_that_needs_nothing_else() -> None:
    page = report_page(verdict(LOST), TIMES)
    assert page.count("<svg") == 1
    assert "&lt;number 7&gt; is not there" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert "<td>readers</td><td>orders/0</td><td>100%</td>" in page
    assert 'name="viewport"' in page and "prefers-color-scheme: dark" in page


def test_the_report_names_its_cluster_version_and_time_and_the_clients_of_its_producers() -> None:
    found = verdict(replace(LOST, producer=f"{0xA11A0000:016x}"))
    page = report_page(found, TIMES)
    assert f"kpsplit {__version__} at 2023-11-15 00:00:00 UTC from the cluster abc (b1:9092)." in page
    (producer, _) = found.snapshot.producers
    paused = replace(producer, client_id="billing", pauses={"orders/0": PauseReport("a", 64, 7, 0)})
    paused_page = report_page(replace(found, snapshot=replace(found.snapshot, producers=(paused,))), TIMES)
    assert paused_page.count("<td>billing</td><td>00000000a11a0000</td>") == 2, "pauses and findings"


def test_the_report_says_why_something_was_not_judged_at_all() -> None:
    frozen = replace(verdict(), unjudged=("orders/0: it is frozen",))
    assert "orders/0: it is frozen" in report_page(frozen, TIMES)


def test_a_segment_that_is_gone_is_drawn_and_listed_as_gone() -> None:
    world = lived(0)
    assert "stroke-dasharray" not in report_page(verdict(), TIMES)
    world.retired = {s.source for s in world.state.lineage if s.kind is SegmentKind.PHANTOM}
    totals = segment_totals(world.snapshot(), [])
    after = Verdict("orders", (0,), world.snapshot(), (), segments=totals, checks=MEANINGS)
    page = report_page(after, TIMES)
    gone = [s for s in world.state.lineage if s.source in world.retired]
    assert page.count("stroke-dasharray") == len(gone)
    assert page.count("<td>the sub-topic was retired</td>") == len(gone)


def test_the_unit_of_the_time_axis_does_not_stand_on_the_first_date() -> None:
    day = 1_700_006_400_000
    drawn = lineage_picture(
        lived(0).state.lineage, {}, times={0: day, 1: day, 2: day, 3: day}, taken_ms=day + 9
    )
    (unit,) = re.findall(r'<text x="([\d.]+)"[^>]*text-anchor="end"[^>]*>UTC<', drawn)
    (first, *_) = re.findall(r'<text x="([\d.]+)"[^>]*text-anchor="start"[^>]*>2023-', drawn)
    assert float(unit) < float(first)


def test_the_lineage_has_a_time_axis_where_times_are_known() -> None:
    world = lived(0)
    begins = {1: 0, 2: 0, 3: 0}
    assert {epoch for epoch, _, _ in beginnings(world.snapshot(), world.state)} == {0, *begins}
    day = 1_700_006_400_000
    plain = lineage_picture(world.state.lineage, {})
    times = {0: day, 1: day + 1_000, 2: day + 3_600_000, 3: day + 2 * 3_600_000}
    drawn = lineage_picture(world.state.lineage, {}, times=times, taken_ms=day + 86_400_000)
    assert "UTC" not in plain
    assert all(told in drawn for told in ("UTC", "2023-11-15 00:00:00", "2023-11-16 00:00:00"))
    assert "1970" not in drawn


@pytest.mark.parametrize("wrong", [1_700_006_400_000_000, -(1 << 62), (1 << 63) - 1])
def test_a_timestamp_that_no_calendar_has_is_left_out_of_the_picture(wrong) -> None:
    """As of a producer that gives microseconds for milliseconds."""
    lineage, day = lived(0).state.lineage, 1_700_006_400_000
    times = {0: day, 1: wrong, 2: day + 2_000, 3: day + 3_000}
    drawn = lineage_picture(lineage, {}, times=times, taken_ms=day + 4_000)
    del times[1]
    left_out = lineage_picture(lineage, {}, times=times, taken_ms=day + 4_000)
    assert drawn == left_out
    assert lineage_picture(lineage, {}, times={0: wrong}) == lineage_picture(lineage, {})


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, OSError])
def test_findings_that_are_interrupted_leave_no_half_folder(error, tmp_path, monkeypatch) -> None:
    class Writer:
        def coalesce(self, _: int) -> Writer:
            return self

        @property
        def write(self) -> Writer:
            return self

        def parquet(self, path: str) -> None:
            Path(path, "_temporary").mkdir(parents=True)
            raise error

    monkeypatch.setattr(job, "findings_frame", lambda *_: Writer())
    with pytest.raises(KpsplitError if error is OSError else error):
        job.write_findings(None, verdict(LOST), tmp_path / "findings")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("offsets", "tasks"), [(10, 1), (3 << 18, 3), (1 << 40, 8)])
def test_a_long_log_is_read_by_more_tasks_than_one_and_a_short_one_by_one(offsets, tasks) -> None:
    stretches = {PhysicalPartition("orders", 0): (7, 7 + offsets), PhysicalPartition("orders", 1): (5, 5)}
    assert job.least_tasks(stretches, 4) == tasks


CALL = "An error occurred while calling o85.collectToPython.\n: "
ABORTED = (
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, "
    "most recent failure: Lost task 0.0 in stage 1.0 (TID 3) (host executor driver): "
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{CALL}a.b.C: x\n\tat f\nCaused by: c.D: y\nCaused by: e.F$G: no room\n", "F$G: no room"),
        (f"{CALL}{ABORTED}java.lang.OutOfMemoryError: heap\n\tat f", "OutOfMemoryError: heap"),
        ("[CAST] The value 'hunter2' of the type \"INT\"", "[CAST] The value '…' of the type '…'"),
        (f"{CALL}a.B: it isn't there, nor wasn't", "B: it isn't there, nor wasn't"),
        (f"{CALL}a.B: {'x' * 400}", f"B: {'x' * 296}…"),
        ("", ""),
    ],
)
def test_of_a_page_of_java_the_innermost_cause_is_told_without_what_it_quotes(text, told) -> None:
    assert reason(text) == told


def test_columns_of_the_lineage_are_as_wide_as_their_time_but_never_too_narrow() -> None:
    assert columns([0, 10, 100], 1000.0) == [0.0, 300.0, 1000.0]
    assert columns([0, None, 100], 1000.0) == [0.0, 500.0, 1000.0]
    assert columns([5, 5, 5], 1000.0) == [0.0, 500.0, 1000.0]
    assert columns([9, 5, 10], 1000.0) == [0.0, 250.0, 1000.0]


def test_findings_beyond_the_limit_are_counted() -> None:
    found = limited([LOST] * (MOST + 5))
    assert len(found) == MOST + 1
    assert found[-1].count == 5


def test_a_closed_segment_behind_an_open_transaction_is_waited_for() -> None:
    world = lived(0)
    bounds = dict(world.snapshot().bounds)
    assert held_up((world.state,), bounds) is None
    first = world.state.lineage.segments[0]
    bounds[world.parent] = replace(bounds[world.parent], stable=first.end)
    assert held_up((world.state,), bounds) == world.parent


def test_a_log_that_ends_before_its_segment_is_cut_off() -> None:
    world = lived(0)
    snapshot = world.snapshot()
    whole = [s for s in world.state.lineage if s.kind is SegmentKind.PHANTOM and s.opened_epoch == 1][-1]
    place, end = whole.source, whole.end
    shorter = {**snapshot.bounds, place: LogEnds(0, end - 1, end - 1)}
    (lost,) = replace(snapshot, bounds=shorter).lost()
    assert (lost.first, lost.behind, lost.reason) == (end - 1, end + 1, GapReason.CUT_OFF)


@pytest.mark.parametrize(
    ("low", "gone", "told"),
    [
        (0, None, True),
        (0, GapReason.RETIRED, False),
        (1000, None, False),
    ],
    ids=["there", "went with its sub-topic", "expired"],
)
def test_the_marker_of_an_empty_segment_is_missed_only_where_it_could_be_read(low, gone, told) -> None:
    state = life().merged
    empty = next(s for s in state.lineage if s.kind is SegmentKind.PHANTOM and s.end is not None)
    nothing = replace(empty, end=empty.start)
    alone = replace(state, lineage=Lineage(state.parent, (nothing,)))
    bounds = {empty.source: LogEnds(low, 2000, 2000)}
    snapshot = Snapshot(state.parent.topic, (alone,), bounds, {empty.source: gone} if gone else {})
    found = list(marker_findings(snapshot, [], JudgedFrom()))
    assert bool(found) is told


def test_a_marker_is_missed_also_where_retention_took_the_beginning_of_its_segment() -> None:
    world = lived(0)
    first = world.state.lineage.segments[0]
    world.lows[first.source] = first.start + 1
    snapshot = world.snapshot()
    (lost,) = [x for x in snapshot.lost() if x.segment.id == first.id]
    assert lost.reason is GapReason.EXPIRED
    missed = {f.segment: f.first for f in marker_findings(snapshot, [], JudgedFrom())}
    assert missed[first.id] == first.end


def test_an_operation_that_only_the_offset_log_knows_was_lost_by_the_control_topic() -> None:
    """Both are written in one transaction. What lies in the new sub-topic would not even be read."""
    world = World(0)
    before = world.state
    world.split(0, 2)
    snapshot = replace(world.snapshot(), states=(before,))
    found = list(boundaries_agree(snapshot))
    assert [(f.severity, f.segment) for f in found] == [
        (Severity.FINDING, b.opened_segment) for b in world.boundaries
    ]
    assert "in epoch 1 is newer than the control topic, which ends at epoch 0" in found[0].message
