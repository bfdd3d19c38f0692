"""Bad input on real brokers: one clear line with the next step, the right exit code, nothing changed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from kpsplit.splitter.records.keys import PRODUCERS_TOPIC
from kpsplit.splitter.records.producers import ProducerRegistration
from tests.broker.consuming import wait_for

pytestmark = pytest.mark.broker

INSYNC = {"min.insync.replicas": "2"}


def test_an_unknown_topic_is_named(inline) -> None:
    for arguments in (
        ("split", "no-such/0", "--ranges", "2"),
        ("enroll", "no-such"),
        ("lineage", "no-such/0"),
        ("status", "no-such"),
        ("route", "no-such", "--key", "a"),
    ):
        ran = inline(*arguments)
        assert ran.code == 2
        assert "there is no topic no-such" in ran.error


def test_a_topic_that_is_not_enrolled_says_how_to_enrol_it(inline, make_topic) -> None:
    topic = make_topic(config=INSYNC)
    for arguments in (
        ("split", f"{topic}/0", "--ranges", "2"),
        ("read", f"{topic}/0"),
        ("status", topic),
        ("route", topic, "--key", "a"),
    ):
        ran = inline(*arguments)
        assert ran.code == 2
        assert f"topic {topic} is not enrolled" in ran.error
        assert f"run: kpsplit enroll {topic}" in ran.error


def test_a_compacted_topic_cannot_be_enrolled(inline, make_topic) -> None:
    ran = inline("enroll", make_topic(config={"cleanup.policy": "compact"}))
    assert ran.code == 2
    assert "compacted" in ran.error
    assert "nothing was changed" in ran.error


def test_a_topic_of_kpsplit_cannot_be_enrolled(inline) -> None:
    assert inline("enroll", "__kpsplit.control").code == 2


def test_a_partitioner_that_real_records_contradict_is_refused(inline, make_topic, bootstrap) -> None:
    topic = make_topic(partitions=4, config=INSYNC)
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for i in range(200):
        producer.produce(topic, "v", f"key-{i}")
    assert producer.flush(30) == 0
    ran = inline("enroll", topic)
    assert ran.code == 2
    assert "consistent_random" in ran.error
    assert "murmur2_random" in ran.error


@pytest.fixture(scope="module")
def enrolled(inline, new_topic, write_keys) -> str:
    """A topic with one partition, enrolled, with records of several keys. Nothing here changes its layout."""
    topic = new_topic("bad-input")
    write_keys(topic, {f"key-{i}": 10 for i in range(16)})
    inline.ok("enroll", topic, "--slots", "2")
    return topic


def test_a_hot_key_is_named_and_force_passes_over_it(inline, enrolled, write_keys) -> None:
    write_keys(enrolled, {"hot": 600})
    ran = inline("plan", f"{enrolled}/0", "--ranges", "4", "-o", "json")
    assert ran.code == 3
    assert "cannot be split usefully: key hash" in ran.error
    assert "hot" in ran.error
    assert ran.json["useful"] is False
    assert inline("plan", f"{enrolled}/0", "--ranges", "4", "--force").code == 0


def test_without_a_terminal_whatever_asks_needs_a_yes_and_changes_nothing(inline, enrolled) -> None:
    parent = f"{enrolled}/0"
    inline.ok("seek", parent, "--group", "asked", "--to", "earliest", "--new-group", "--yes")
    looks = ("status", parent, "-o", "json"), ("offsets", enrolled, "--group", "asked")
    before = [inline.ok(*look).out for look in looks]
    for verb in (
        ("split", parent, "--ranges", "2", "--even", "--force"),
        ("seek", parent, "--group", "asked", "--to", "latest"),
        ("forget", enrolled, "--group", "asked"),
        ("retire", parent),
        ("retire", parent, "--force"),
        ("resume", parent),
        ("resume", parent, "--thaw"),
        ("abort", parent),
    ):
        ran = inline(*verb)
        assert (ran.code, ran.out) == (2, ""), verb
        assert ran.error.endswith("no terminal to ask on; nothing was changed; pass --yes")
    assert [inline.ok(*look).out for look in looks] == before


@pytest.fixture(scope="module")
def halved(inline, new_topic, write_keys) -> str:
    """A topic whose one partition is split in two, and a group that has read nothing of it."""
    topic = new_topic("halved")
    write_keys(topic, {f"key-{i}": 10 for i in range(16)})
    inline.ok("enroll", topic, "--slots", "2")
    inline.ok("split", f"{topic}/0", "--ranges", "2", "--even", "--yes", "--force")
    inline.ok("seek", f"{topic}/0", "--group", "lagging", "--to", "earliest", "--new-group", "--yes")
    return topic


ROWS = """
split {whole}/7 --ranges 2 -y | 2 | 0 to 0; nothing was changed; choose one of them, not 7
split no-such/0 --ranges 2 -y | 2 | there is no topic no-such
split {whole}/0 --ranges 2 --of 0:10 -y | 2 | nothing was changed; name one: --of 00000000:100000000
split {halved}/0 --ranges 2 -y | 2 | split again: --of 00000000:80000000 or --of 80000000:100000000
split {sub}/0 --ranges 2 -y | 2 | of {halved}/0; nothing was changed; name the partition itself: {halved}/0
plan {sub}/0 --ranges 2 | 2 | is a sub-topic of {halved}/0
merge {sub}/0 -y | 2 | is a sub-topic of {halved}/0
merge {whole}/0 -y | 2 | is not split; nothing was changed
merge {halved}/0 --of 0:10 -y | 2 | does not begin and end where open ranges
merge {halved}/0 --of 0:80000000 -y | 2 | is one open range already; nothing was changed; name at least
enroll {sub} | 2 | is a sub-topic of {halved}/0
enroll {whole} --partitioner explicit | 5 | nothing was changed
enroll __kpsplit.control | 2 | is an internal topic
status {sub} | 2 | is a sub-topic of {halved}/0
status no-such | 2 | there is no topic no-such
status {whole}/7 | 2 | has no partition 7
lineage {sub}/0 | 2 | is a sub-topic of {halved}/0
lineage {whole}/7 | 2 | its partitions are 0 to 0
read {sub}/0 | 2 | is a sub-topic of {halved}/0
read no-such/0 | 2 | there is no topic no-such
route {sub} --key a | 2 | is a sub-topic of {halved}/0
route {whole} --key '' | 2 | name the partition with --partition
route {whole} --key a --partition 7 | 2 | its partitions are 0 to 0
offsets {halved} --group nobody | 2 | has committed nothing in
offsets {halved}/7 --group lagging | 2 | has no partition 7
seek {sub}/0 --group lagging --to latest -y | 2 | is a sub-topic of {halved}/0
seek {halved}/7 --group lagging --to latest -y | 2 | has no partition 7
seek {halved}/0 --group '' --to latest -y | 2 | no group named; nothing was changed; give --group NAME
seek {halved}/0 --group laging --to latest -y | 2 | nothing was changed
forget {halved} --group laging -y | 2 | has committed nothing in
forget {sub} --group lagging -y | 2 | {sub}
split {halved}/0 --plan {edited} -y | 5 | a segment to be closed is not open; nothing was changed; plan again
split {halved}/0 --plan {untiled} -y | 5 | do not tile the old ones; nothing was changed; plan again
split {halved}/0 --plan {old} -y | 5 | the plan was made for epoch 0; nothing was changed; plan again
retire {whole}/7 -y | 2 | has no partition 7; nothing was changed; its partitions are 0 to 0
resume {whole}/7 -y | 2 | has no partition 7; nothing was changed; its partitions are 0 to 0
abort {whole}/7 -y | 2 | has no partition 7; nothing was changed; its partitions are 0 to 0
retire {sub}/0 -y | 2 | is a sub-topic of {halved}/0
verify {sub} | 2 | is a sub-topic of {halved}/0
verify {whole} --group nobody | 2 | has no range commit
demo -b {brokers} --topic {whole} | 2 | there is a topic {whole} already; choose another
"""
CASES = [tuple(part.strip() for part in row.split(" | ")) for row in ROWS.strip().splitlines()]


@pytest.fixture(scope="module")
def names(inline, enrolled: str, halved: str, bootstrap: str, tmp_path_factory) -> dict[str, str]:
    """What rows name: topics, and plans that somebody has edited."""
    folder = tmp_path_factory.mktemp("plans")
    lower = ("plan", f"{halved}/0", "--ranges", "2", "--of", "0:80000000", "--even", "--force")
    inline.ok(*lower, "--save", str(folder / "good"))
    good = json.loads((folder / "good").read_text())
    first, second = good["ranges"]
    cut = {"lo": first["lo"], "hi": first["hi"] - 1}, {"lo": first["hi"] - 1, "hi": second["hi"] - 1}
    edits = {"edited": {"sources": [0]}, "untiled": {"ranges": cut}, "old": {"epoch": 0}}
    for name, edit in edits.items():
        (folder / name).write_text(json.dumps(good | edit))
    plans = {name: str(folder / name) for name in edits}
    return {"whole": enrolled, "halved": halved, "sub": f"{halved}.split-0-1", "brokers": bootstrap, **plans}


@pytest.fixture(scope="module")
def looked(inline, names) -> Callable[[], list[str]]:
    """How the topics and the group stand."""

    def look() -> list[str]:
        topics = [("status", f"{names[name]}/0", "-o", "json") for name in ("whole", "halved")]
        group = "offsets", names["halved"], "--group", "lagging", "-o", "json"
        return [inline.ok(*look).out for look in (*topics, group)]

    return look


@pytest.fixture(scope="module")
def before(looked) -> list[str]:
    """How they stood before any row."""
    return looked()


@pytest.mark.parametrize(("row", "code", "wanted"), CASES, ids=[row for row, *_ in CASES])
def test_what_a_cluster_refuses_is_one_line_with_the_next_step(
    row: str, code: str, wanted: str, inline, names, before
) -> None:
    ran = inline(*shlex.split(row.format(**names)))
    assert (ran.code, ran.out) == (int(code), "")
    assert wanted.format(**names) in ran.error
    assert ran.error.count("; ") >= 1


def test_none_of_the_rows_has_changed_anything(looked, before) -> None:
    assert looked() == before


def test_a_seek_behind_everything_says_where_it_ends(inline, halved) -> None:
    for target, told in (
        ("999999999", "offset 999999999"),
        ("2099-01-01T00:00:00Z", "2099-01-01 00:00:00 UTC"),
    ):
        ran = inline.ok("seek", f"{halved}/0", "--group", "far", "--to", target, "--new-group", "--dry-run")
        assert f"there is no record at or after {told}" in ran.out
        ran = inline.ok("seek", f"{halved}/0", "--group", "far", "--to", target, "--new-group", "--yes")
        assert f"group far is moved to {told} in" in ran.out
        assert f"there is no record at or after {told}" in ran.err


def test_setting_the_lease_again_says_what_it_is_now(inline, kpsplit) -> None:
    (lease,) = [line.split()[1] for line in inline.ok("init").out.splitlines() if line.startswith("lease:")]
    said = inline.ok("init", "--lease-ms", lease).out
    assert said == f"all topics exist already\nlease: {lease} ms, set now\n"


@pytest.mark.nightly
def test_what_is_kept_by_retire_is_said_in_full_and_by_the_exit_code(
    inline, kpsplit, new_topic, bootstrap, tmp_path
) -> None:
    """The first sub-topic is drained, the second is not: a wait for it ends when the group is moved on."""
    parent = f"{(topic := new_topic('kept'))}/0"
    group = "a-group-with-a-name-that-is-long-enough-to-be-cut-at-the-end-of-a-line"
    inline.ok("enroll", topic, "--slots", "2")
    subtopics = [f"{topic}.split-0-{number}" for number in (1, 2)]
    for name in subtopics:
        inline.ok("split", parent, "--ranges", "2", "--even", "--yes", "--force")
        producer = Producer({"bootstrap.servers": bootstrap})
        producer.produce(name, b"v", None, 0)
        assert producer.flush(30) == 0
        inline.ok("merge", parent, "--yes")
        if name == subtopics[0]:
            inline.ok("seek", parent, "--group", group, "--to", "latest", "--new-group", "--yes")
    ran = inline("retire", parent, "--yes", "-o", "json")
    assert ran.code == 3
    assert ran.error.endswith(
        f"1 of 2 sub-topics of {parent} had to be kept; something was changed; "
        "let the groups read on, or move them with kpsplit seek; then run it again"
    )
    place = f"{subtopics[1]}/0, which ends at 1"
    assert ran.json["deleted"] == subtopics[:1]
    assert ran.json["kept"] == {subtopics[1]: f"group {group} has no commit in {place}"}
    assert any(line.startswith("! kept") and line.endswith(place) for line in ran.err.splitlines())
    in_vain = inline("retire", parent, "--yes", "--wait", "200ms")
    assert (in_vain.code, in_vain.out) == (3, "")
    assert f"nothing was retired: {subtopics[1]}" in in_vain.error and place in in_vain.error
    said = tmp_path / "said"
    with (
        said.open("wb") as err,
        subprocess.Popen(
            [*kpsplit.command, "retire", parent, "--yes", "--wait", "120s", "-o", "json"],
            env=kpsplit.env,
            stdout=subprocess.PIPE,
            stderr=err,
        ) as waits,
    ):
        wait_for(lambda: "! waiting for a group" in said.read_text(), "the wait to begin")
        assert waits.poll() is None
        inline.ok("seek", parent, "--group", group, "--to", "latest", "--yes")
        assert json.loads(waits.communicate(timeout=120)[0])["deleted"] == subtopics[1:]
    assert waits.returncode == 0


def silent_producer(bootstrap: str, topic: str) -> None:
    """Register a producer that never answers, so that an operation waits for a whole lease."""
    record = ProducerRegistration(instance=os.getpid() << 20 | int(time.time()), generation=1,
                            client_id="silent", topics=(topic,))  # fmt: skip
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    producer.produce(PRODUCERS_TOPIC, record.encode(), record.key)
    assert producer.flush(30) == 0


LONG_LEASE = """
from kpsplit.admin_cli.main import main
from kpsplit.kafka.control_log import OperationLog

OperationLog.lease_seconds = lambda _: 3600.0
raise SystemExit(main())
"""
"""The command line, which waits so long for a producer that is silent."""


def test_an_operation_that_is_interrupted_is_rolled_back_and_says_so(kpsplit, enrolled, bootstrap) -> None:
    """It waits for a producer until it is interrupted; afterwards the partition is steady."""
    silent_producer(bootstrap, enrolled)
    split = subprocess.Popen(
        [sys.executable, "-c", LONG_LEASE, "split", f"{enrolled}/0", "--ranges", "2", "--yes", "--force",
         "--timeout", "1h"],
        env=kpsplit.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert split.stderr is not None
    for line in split.stderr:
        if "sub-topic created" in line:
            break
    split.send_signal(signal.SIGINT)
    rest = split.stderr.read()
    assert split.wait(180) == 130, rest
    assert "Traceback" not in rest
    assert rest.splitlines()[-1] == (
        f"kpsplit: interrupted; the operation was rolled back, {enrolled}/0 is steady at epoch 0"
    )
    (status,) = kpsplit.ok("status", f"{enrolled}/0", "-o", "json").json["partitions"]
    assert status["last"]["result"] == "rolled_back"


def test_a_pause_that_is_too_short_rolls_back_with_exit_code_4(inline, enrolled) -> None:
    ran = inline("split", f"{enrolled}/0", "--ranges", "2", "--max-pause", "1ms", "--force", "--yes")
    assert ran.code == 4
    assert "nothing was changed" in ran.error
    (status,) = inline.ok("status", f"{enrolled}/0", "-o", "json").json["partitions"]
    assert (status["epoch"], status["phase"]) == (0, "steady")
