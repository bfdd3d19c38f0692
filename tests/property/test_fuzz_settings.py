"""Every setting of an application and every checkpoint of a query: taken, or one clear refusal."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpsplit.consumer import config as consumer_config
from kpsplit.errors import ConfigurationError, KpsplitError, RecordError
from kpsplit.producer import config as producer_config
from kpsplit.spark_jobs.streaming.plan import StreamOffset, StreamPosition
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.reading import Cursor
from tests.property.fuzzing import MOST_TEXT, documents, json_values, mutations, texts, written

CONSUMER = (
    *sorted(consumer_config._OWN_KEYS),
    *("kpsplit.unknown", "enable.auto.commit", "auto.commit.interval.ms", "enable.auto.offset.store"),
    *("auto.offset.reset", "max.poll.interval.ms", "session.timeout.ms", "heartbeat.interval.ms"),
    *("queued.max.messages.kbytes", "group.id", "group.protocol", "partition.assignment.strategy"),
    *("enable.partition.eof", "topic.metadata.refresh.interval.ms", "default.topic.config"),
)
PRODUCER = (
    *sorted(producer_config._OWN_KEYS),
    *sorted(producer_config._ENFORCED),
    *("kpsplit.unknown", "partitioner", "client.id", "transactional.id", "message.timeout.ms"),
    *("delivery.timeout.ms", "transaction.timeout.ms", "queue.buffering.max.messages"),
    *("queue.buffering.max.kbytes", "delivery.report.only.error", "default.topic.config"),
)
sound = st.sampled_from(
    ["true", "false", "1", " 30000 ", "latest", "logical", "error", "all", 0, 1, 45_000, True]
)
numbers = st.sampled_from([0, -1, 1, 2**31, 2**63, 10**400, -(10**400), "9" * 5000]) | st.integers()
odd = (
    st.none()
    | numbers
    | st.floats()
    | st.booleans()
    | texts
    | st.binary(max_size=4)
    | st.builds(object)
    | st.recursive(
        numbers | texts | st.floats(),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
        max_leaves=4,
    )
)
Split = Callable[[Mapping[str, Any]], tuple[dict[str, Any], Any]]


def configurations(names: tuple[str, ...]) -> st.SearchStrategy[dict[Any, Any]]:
    """Some settings, of which some are what they should be; now and then a name is none."""
    known = st.dictionaries(st.sampled_from(names), sound | odd, max_size=4)
    return known | st.dictionaries(
        st.sampled_from(names) | st.integers() | st.none(), sound | odd, max_size=3
    )


def taken_or_refused(split: Split, config: dict[Any, Any]) -> None:
    try:
        passed, _ = split(config)
    except ConfigurationError as refused:
        said = str(refused)
        assert said and len(said) <= MOST_TEXT and said.isprintable(), said[:MOST_TEXT]
    else:
        assert not any(str(name).startswith("kpsplit.") for name in passed)


@given(configurations(CONSUMER))
def test_any_setting_of_a_consumer_is_taken_or_refused_in_clear_words(config: dict[Any, Any]) -> None:
    taken_or_refused(consumer_config.split_config, config)


@given(configurations(PRODUCER))
def test_any_setting_of_a_producer_is_taken_or_refused_in_clear_words(config: dict[Any, Any]) -> None:
    taken_or_refused(producer_config.split_config, config)


@pytest.mark.parametrize(
    ("split", "name"),
    [
        *((consumer_config.split_config, name) for name in sorted(consumer_config._OWN_KEYS)),
        *((producer_config.split_config, name) for name in sorted(producer_config._OWN_KEYS)),
    ],
)
@pytest.mark.parametrize(
    "value",
    [[], {}, object(), float("inf"), float("nan"), 1.5, 10**400, 10**5000, "\x1b[2J", "x" * 10**6, b"1"],
    ids=lambda value: str(type(value).__name__),
)
def test_what_is_no_value_of_a_setting_is_refused_by_its_name(split: Split, name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name) as caught:
        split({name: value})
    assert len(str(caught.value)) <= MOST_TEXT and str(caught.value).isprintable()


# -- what Spark keeps in a checkpoint -----------------------------------------------------------------

STANDING = StreamPosition(2, Cursor(WHOLE, {4: 1200, 5: 7}))
OFFSETS = (StreamOffset("orders"), StreamOffset("orders", {3: STANDING, 0: STANDING}, {3: STANDING}))


def sound_or_refused(value: Any) -> None:
    try:
        offset = StreamOffset.parse(value)
    except RecordError as refused:
        assert len(refused.message) <= MOST_TEXT and refused.message.isprintable()
    else:
        assert StreamOffset.parse(offset.as_json()) == offset


def as_spark_reads(data: bytes) -> Any:
    """What Spark's worker makes of the text in a checkpoint; it stops at what is not even that."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


@given(documents() | json_values.map(lambda value: written(value).encode()))
def test_any_json_in_a_checkpoint_is_an_offset_or_refused(data: bytes) -> None:
    sound_or_refused(as_spark_reads(data))


@pytest.mark.parametrize("offset", OFFSETS, ids=["nothing read", "two partitions"])
def test_a_checkpoint_with_one_thing_wrong_is_an_offset_or_refused(offset: StreamOffset) -> None:
    for changed in mutations(json.dumps(offset.as_json()).encode()):
        sound_or_refused(as_spark_reads(changed))


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"at": value}
    return value


@pytest.mark.parametrize(
    "value",
    [
        *(None, 5, "text", [], [1], [[1, 2]], nested(100_000), {"v": 1, 5: 1}, {"v": 2}),
        {"v": 1, "topic": "t", "at": [{"p": 0, "e": 0, "s": {"9" * 5000: 1}}], "from": []},
        {"v": 1, "topic": "t", "at": [{"p": 0, "e": 0, "s": {"1": 1, "01": 2}}], "from": []},
        {"v": 1, "topic": "t", "at": [{"p": 0, "e": 0, "s": {"\u0663": 1}}], "from": []},
        {"v": 1, "topic": "t", "at": [{"p": 0, "e": 0, "s": {}}, {"p": 0, "e": 1, "s": {}}], "from": []},
        {"v": 1, "topic": "\ud800", "at": [], "from": []},
        {"v": 1, "topic": "t", "at": float("nan"), "from": []},
        {"v": 1, "topic": "t", "at": object(), "from": []},
    ],
    ids=lambda value: repr(value)[:30] if not isinstance(value, dict) or len(value) > 2 else "object",
)
def test_what_is_no_checkpoint_is_refused(value: Any) -> None:
    with pytest.raises(KpsplitError) as caught:
        StreamOffset.parse(value)
    assert isinstance(caught.value, RecordError) and caught.value.message.isprintable()
