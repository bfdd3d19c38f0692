"""What arguments and options accept, and how they refuse."""

from __future__ import annotations

import click
import pytest

from kpsplit.admin_cli import options as types
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
