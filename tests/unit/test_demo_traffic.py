"""What the demo's writers write, and at which rate."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from kpsplit.demo.records import (
    LINE_HEADER,
    LONGEST_INTERVAL,
    PORTION,
    SHORTEST_INTERVAL,
    VALUE_BYTES,
    Keys,
    Line,
    Pacer,
    line_items,
    owner_of,
    partition_of,
    read_lines,
    sequence_in,
    skewed_items,
    value_of,
    writer_in,
)
from kpsplit.demo.scenario import OPERATIONS_SECONDS, WRITERS, Options
from kpsplit.demo.setup import rates_of, stocks_of
from kpsplit.errors import UsageError


@pytest.mark.parametrize("seed", range(5))
def test_one_partition_gets_far_more_than_its_share_and_no_key_is_too_hot(seed: int) -> None:
    keys = Keys.skewed(seed, 6)
    assert len(set(keys.names)) == len(keys.names)
    items = list(islice(skewed_items("writer-1", keys, 6, seed), 20_000))
    by_partition = Counter(item.partition for item in items)
    (hot, most), (_, second) = by_partition.most_common(2)
    assert most > 0.3 * len(items) > 1.5 * second or most > 1.5 * second
    in_hot = Counter(item.key for item in items if item.partition == hot)
    assert max(in_hot.values()) < 0.15 * most
    assert all(item.key is not None and item.partition == partition_of(item.key, 6) for item in items[:500])


def test_the_same_seed_gives_the_same_records() -> None:
    keys = Keys.skewed(3, 6)
    first, second = (list(islice(skewed_items("writer-1", keys, 6, 3), 100)) for _ in range(2))
    assert first == second
    assert first != list(islice(skewed_items("writer-2", keys, 6, 3), 100))


def test_values_say_who_sent_them_and_as_which_record() -> None:
    value = value_of("writer-3", 1234)
    assert (writer_in(value), sequence_in(value), len(value)) == ("writer-3", 1234, VALUE_BYTES)


def test_lines_have_the_first_group_as_their_key_and_none_without_a_match(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a 1\n b\n\na \xff\n")
    lines = read_lines(path, r"^(\S+)")
    assert [line.key for line in lines] == [b"a", None, None, b"a"]
    assert [line.text for line in lines] == [b"a 1", b" b", b"", b"a \xff"]


def test_an_empty_group_is_no_key(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"xyz\n")
    assert read_lines(path, "^(a*)")[0].key is None


@pytest.mark.parametrize(
    ("content", "expression", "message"),
    [(b"a\n", "(", "not a regular expression"), (b"a\n", "a", "no group"), (b"", "(a)", "is empty")],
)
def test_input_that_is_no_good_is_refused(
    tmp_path: Path, content: bytes, expression: str, message: str
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_lines(path, expression)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_lines(tmp_path / "none", "(a)")


def test_every_line_is_sent_by_one_writer_and_all_lines_of_a_key_by_the_same() -> None:
    lines = [Line(n, b"line %d" % n, None if n % 10 == 0 else b"key-%d" % (n % 37)) for n in range(500)]
    sent = {writer: list(line_items(writer, WRITERS, lines, 6)) for writer in WRITERS}
    numbers = [item.sequence for items in sent.values() for item in items]
    assert sorted(numbers) == list(range(500))
    assert all([i.sequence for i in items] == sorted(i.sequence for i in items) for items in sent.values())
    owners: dict[bytes, set[str]] = {}
    for line in lines:
        if line.key is not None:
            owners.setdefault(line.key, set()).add(owner_of(line, WRITERS))
    assert all(len(found) == 1 for found in owners.values())
    assert all(sent.values())


def test_a_line_is_sent_as_it_is_with_its_number_in_a_header() -> None:
    (item,) = line_items("w", ["w"], [Line(7, b"text", b"k")], 6)
    assert (item.value, item.headers, item.sequence) == (b"text", [(LINE_HEADER, b"7")], 7)


def options(**changed: float) -> Options:
    return Options(**{"duration": 18.0, "rate": 5000.0, "seed": 1, "html": Path("x"), **changed})  # type: ignore[arg-type]


def test_without_a_file_all_writers_have_the_same_rate() -> None:
    assert rates_of(options(), None) == dict.fromkeys(WRITERS, 1000.0)


def test_the_lines_of_a_file_last_for_the_whole_demo() -> None:
    stocks = stocks_of([Line(n, b"", None) for n in range(3000)])
    rates = rates_of(options(), stocks)
    assert sum(rates.values()) == pytest.approx(3000 / (options().duration + OPERATIONS_SECONDS))
    assert rates_of(options(rate=50.0), stocks)[WRITERS[0]] == pytest.approx(10)


def test_a_pacer_keeps_the_rate_over_time() -> None:
    pacer = Pacer(100.0, 10.0)
    assert pacer.due(10.0) == 0
    sent = [pacer.due(10.0 + i * 0.013) for i in range(1, 201)]
    assert sum(sent) == 260
    assert max(sent) <= 2


def test_a_pacer_does_not_catch_up_after_a_long_delay() -> None:
    pacer = Pacer(1000.0, 0.0)
    assert pacer.due(60.0) == pytest.approx(1000 * 2 * pacer.interval, abs=1)
    assert pacer.due(60.1) == pytest.approx(100, abs=1)


@pytest.mark.parametrize(
    ("rate", "interval"),
    [(10.0, LONGEST_INTERVAL), (PORTION / 0.4, 0.4), (100_000.0, SHORTEST_INTERVAL)],
)
def test_portions_are_large_enough_and_come_often_enough(rate: float, interval: float) -> None:
    assert Pacer(rate, 0.0).interval == pytest.approx(interval)


def test_a_pacer_with_a_stock_slows_down_and_has_some_left_for_long() -> None:
    pacer = Pacer(400.0, 0.0, 10_000)
    sent = [pacer.due(i * 0.25) for i in range(1, 4 * 120 + 1)]
    assert sum(sent[:4]) == pytest.approx(400, abs=10)
    assert 9_800 < sum(sent) < 10_000, "two minutes instead of 25 seconds"


def test_a_pacer_reaches_rates_below_one_record_per_delay() -> None:
    pacer = Pacer(0.5, 0.0)
    assert sum(pacer.due(i * 0.1) for i in range(101)) == 5
