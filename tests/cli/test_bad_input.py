"""Bad input on real brokers: one clear line with the next step, the right exit code, nothing changed."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest
from confluent_kafka import Producer

from kpsplit.splitter.records.keys import PRODUCERS_TOPIC
from kpsplit.splitter.records.producers import ProducerRecord

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


def test_what_an_enrolled_topic_refuses(inline, enrolled) -> None:
    """Partition out of range, a range that is not open, nothing to merge, a hot key, a low min ISR."""
    out_of_range = inline("split", f"{enrolled}/7", "--ranges", "2")
    assert out_of_range.code == 2
    assert "0 to 0" in out_of_range.error
    no_such_range = inline("split", f"{enrolled}/0", "--ranges", "2", "--of", "0:10")
    assert no_such_range.code == 2
    assert "has no open range [00000000,00000010)" in no_such_range.error
    unsplit = inline("merge", f"{enrolled}/0")
    assert unsplit.code == 2
    assert "is not split" in unsplit.error
    other = inline("enroll", enrolled, "--partitioner", "explicit")
    assert other.code == 5
    (status,) = inline.ok("status", f"{enrolled}/0", "-o", "json").json["partitions"]
    assert (status["epoch"], status["last"]) == (0, None)


def test_a_hot_key_is_named_and_force_passes_over_it(inline, enrolled, write_keys) -> None:
    write_keys(enrolled, {"hot": 600})
    ran = inline("plan", f"{enrolled}/0", "--ranges", "4", "-o", "json")
    assert ran.code == 3
    assert "cannot be split usefully: key hash" in ran.error
    assert "hot" in ran.error
    assert ran.json["useful"] is False
    assert inline("plan", f"{enrolled}/0", "--ranges", "4", "--force").code == 0


def silent_producer(bootstrap: str, topic: str) -> None:
    """Register a producer that never answers, so that an operation waits for a whole lease."""
    record = ProducerRecord(instance=os.getpid() << 20 | int(time.time()), generation=1,
                            client_id="silent", topics=(topic,))  # fmt: skip
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    producer.produce(PRODUCERS_TOPIC, record.encode(), record.key)
    assert producer.flush(30) == 0


def test_an_operation_that_is_interrupted_is_rolled_back_and_says_so(kpsplit, enrolled, bootstrap) -> None:
    """Meanwhile a second operator is refused by name; afterwards the partition is steady."""
    silent_producer(bootstrap, enrolled)
    split = subprocess.Popen(
        [*kpsplit.command, "split", f"{enrolled}/0", "--ranges", "2", "--yes", "--force"],
        env=kpsplit.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert split.stderr is not None
    for line in split.stderr:
        if "sub-topic created" in line:
            break
    split.send_signal(signal.SIGINT)
    rest = split.stderr.read()
    assert split.wait(30) == 130
    assert "Traceback" not in rest
    assert rest.splitlines()[-1] == (
        f"kpsplit: interrupted; the operation was rolled back, {enrolled}/0 is steady at epoch 0"
    )
    (status,) = kpsplit.ok("status", f"{enrolled}/0", "-o", "json").json["partitions"]
    assert status["last"]["result"] == "rolled_back"


def test_a_pause_that_is_too_short_rolls_back_with_exit_code_4(inline, enrolled) -> None:
    ran = inline("split", f"{enrolled}/0", "--ranges", "2", "--max-pause", "1ms", "--force")
    assert ran.code == 4
    assert "nothing was changed" in ran.error
    (status,) = inline.ok("status", f"{enrolled}/0", "-o", "json").json["partitions"]
    assert (status["epoch"], status["phase"]) == (0, "steady")
