"""What arguments and options accept, and how they refuse."""

from __future__ import annotations

from datetime import UTC, datetime

import click
import pytest

from kpsplit.admin_cli import options as types
from kpsplit.admin_cli.main import BY_NAME, load
from kpsplit.control.operations import LONGEST_PAUSE_MS
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import PhysicalPartition


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (types.PARTITION, "orders/3", PhysicalPartition("orders", 3)),
        (types.TOPIC, "orders", "orders"),
        (types.TOPIC_OR_PARTITION, "orders", ("orders", None)),
        (types.TOPIC_OR_PARTITION, "orders/0", ("orders", 0)),
        (types.KEY_RANGE, "0:40000000", KeyRange(0, 0x40000000)),
        (types.KEY_RANGE, "0x80000000:0x100000000", KeyRange(1 << 31, 1 << 32)),
        (types.KEY_RANGES, "0:10,10:20", (KeyRange(0, 16), KeyRange(16, 32))),
        (types.KEY_RANGES, "00000000:00000010,10:20", (KeyRange(0, 16), KeyRange(16, 32))),
        (types.DURATION, "250ms", 0.25),
        (types.DURATION, "10s", 10.0),
        (types.DURATION, "1.5m", 90.0),
        (types.DURATION, "7", 7.0),
        (types.DURATION, "24h", 86_400.0),
        (types.PAUSE, "1ms", 0.001),
        (types.PAUSE, "10m", 600.0),
        (types.SINCE, "2026-11-14T00:00:00Z", 1_794_614_400_000),
        (types.PROPERTY, "a.b=c=d", ("a.b", "c=d")),
        (types.BASE64, "AP8=", b"\x00\xff"),
        (types.HEX, "0x00ff", b"\x00\xff"),
    ],
)
def test_good_input_is_read(kind, text, value) -> None:
    assert kind.convert(text, None, None) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (types.PARTITION, "orders"),
        (types.PARTITION, "orders/-1"),
        (types.PARTITION, "orders/03"),
        (types.PARTITION, "or ders/3"),
        (types.TOPIC, ""),
        (types.TOPIC, "a" * 250),
        (types.TOPIC, ".."),
        (types.TOPIC_OR_PARTITION, "orders/x"),
        (types.KEY_RANGE, "5:5"),
        (types.KEY_RANGE, "0:100000001"),
        (types.KEY_RANGE, "zz:1"),
        (types.DURATION, "0"),
        (types.DURATION, "-1s"),
        (types.DURATION, "2d"),
        (types.DURATION, "99999h"),
        (types.PAUSE, "0.4ms"),
        (types.PAUSE, "10.1m"),
        (types.PAUSE, "25h"),
        (types.PAUSE, "soon"),
        (types.SINCE, "48h"),
        (types.BASE64, "?"),
        (types.HEX, "abc"),
    ],
)
def test_bad_input_is_a_usage_error(kind, text) -> None:
    with pytest.raises(click.BadParameter):
        kind.convert(text, None, None)


def test_a_property_without_a_value_is_refused_without_being_shown() -> None:
    with pytest.raises(click.BadParameter) as refused:
        types.PROPERTY.convert("hunter2", None, None)
    assert "hunter2" not in refused.value.format_message()


@pytest.mark.parametrize(
    "text", ["2026-11-14", "20261114", "2026-11-14T10", "2026-11-14 10:00:00.5", "2026-W46-6"]
)
def test_the_example_for_a_time_without_a_zone_is_the_same_time_and_is_taken(text) -> None:
    with pytest.raises(click.BadParameter) as refused:
        types.SINCE.convert(text, None, None)
    example = refused.value.format_message().rpartition("write for example ")[2]
    at = datetime.fromisoformat(text).replace(tzinfo=UTC)
    assert types.SINCE.convert(example, None, None) == at.timestamp() * 1000


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (types.DURATION, "25h", "'25h' is longer than a day; write at most 24h"),
        (types.DURATION, "9" * 400 + "h", "is longer than a day"),
        (types.DURATION, "2d", "'2d' is not a duration"),
        (types.SINCE, "48h", "'48h' is longer than a day; write the time instead"),
        (types.SINCE, "2d", "'2d' is not a time"),
        (types.PAUSE, "15m", "out of bounds; write 1ms to 10m"),
    ],
)
def test_what_is_too_long_is_told_from_what_is_no_duration(kind, text, said) -> None:
    with pytest.raises(click.BadParameter) as refused:
        kind.convert(text, None, None)
    assert said in refused.value.format_message()


def test_the_help_names_the_longest_pause() -> None:
    for verb in ("split", "merge", "resume"):
        (option,) = (p for p in load(BY_NAME[verb]).params if p.name == "max_pause")
        assert "(at most 10m)" in option.help
    assert LONGEST_PAUSE_MS == 10 * 60_000
