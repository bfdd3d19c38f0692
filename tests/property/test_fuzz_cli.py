"""The command line: whatever is typed, set or written into a file, a value or one clear line."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kpsplit.admin_cli import options as types
from kpsplit.admin_cli.commands.seek import TARGET
from kpsplit.admin_cli.failures import exit_code_of, line_of
from kpsplit.admin_cli.main import cli
from kpsplit.admin_cli.settings import check_sendable
from kpsplit.control.seeking import SeekTarget, Whence
from kpsplit.errors import EXIT_OK, EXIT_USAGE, ConfigurationError
from kpsplit.kafka.connection import MOST_PROPERTIES, read_properties
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import MAX_OFFSET, PhysicalPartition
from tests.property.strategies import key_ranges

MOST_LINE, MOST_MESSAGE = 4500, 800
FEW = settings(max_examples=15)

NEARLY = (
    *("orders", "orders/3", "orders/03", "orders/2147483648", "/", "orders/", "__kpsplit.x/0", "a" * 300),
    *("0:10", "0x0:0x10", "[00000000,80000000)", "[,)", "0:100000000", "0:100000001", "0:1,1:2", ","),
    *("10s", "1.5m", "0.0001ms", "24h", "24.1h", "9" * 400, "9" * 5000, "1e5", "nan", "inf", "-1", "٣s"),
    *("0" * 5000, "0" * 30 + "7", "1" + "0" * 19, str(MAX_OFFSET), str(MAX_OFFSET + 1), "earliest", "latest"),
    *("2026-03-01T12:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-03-01", "2026"),
    *("a=b", "=", "sasl.password=x", "\ud800=\udfff", "a\0=b\0", "AA==", "A", "0x", "0xzz", "\x1b[2J"),
)  # fmt: skip
texts = (
    st.sampled_from(NEARLY)
    | st.text(max_size=30)
    | st.text(st.characters(categories=("Nd", "Cs", "Cc", "Cf", "Zs")), max_size=12)
    | st.text("0123456789abcdefx:,[)./-+TZ =", max_size=40)
    | st.sampled_from(NEARLY).flatmap(lambda t: st.text(max_size=3).map(lambda more: t[:60] + more))
)

TYPES: list[Any] = [
    *(types.PARTITION, types.TOPIC, types.TOPIC_OR_PARTITION, types.KEY_RANGE, types.KEY_RANGES),
    *(types.DURATION, types.PROPERTY, types.BASE64, types.HEX, types.RANGES, types.NAME, types.PRINTABLE),
    *(types.OFFSET, types.COUNT, types.PARTITION_NUMBER, TARGET, types.SINCE),
]
each_type = pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)


def check_line(line: str) -> None:
    """Fail unless this is one error line that is not of a defect."""
    assert line.isprintable(), ascii(line)
    assert len(line) <= MOST_LINE
    assert line.startswith("kpsplit: error: ")
    assert "defect" not in line


@each_type
@given(texts)
def test_any_text_is_a_value_or_a_usage_error_of_one_line(kind: Any, text: str) -> None:
    try:
        value = kind.convert(text, None, None)
    except click.UsageError as error:
        assert isinstance(kind, click.IntRange) or len(error.message) <= MOST_MESSAGE
        assert exit_code_of(error) == EXIT_USAGE
        check_line(line_of(error, "split"))
    else:
        check_value(value)
        assert kind.convert(value, None, None) == value


def check_value(value: Any) -> None:
    """Fail unless what was read keeps the limits that the rest of the code counts on."""
    match value:
        case SeekTarget(_, number) | int(number):
            assert 0 <= number <= MAX_OFFSET
        case float(seconds):
            assert 0 < seconds <= 24 * 3600
        case PhysicalPartition():
            assert types.PARTITION.read(str(value)) == value
        case KeyRange():
            assert types.KEY_RANGE.read(str(value)) == value
        case bytes():
            assert types.HEX.read(value.hex()) == value


@given(key_ranges())
def test_a_range_is_read_back_in_the_form_in_which_it_is_shown(range_: KeyRange) -> None:
    assert types.KEY_RANGE.read(str(range_)) == range_


@given(st.integers(0, MAX_OFFSET), st.integers(0, 6000))
def test_an_offset_is_the_same_number_whatever_zeros_stand_before_it(offset: int, zeros: int) -> None:
    assert TARGET.convert("0" * zeros + str(offset), None, None) == SeekTarget(Whence.OFFSET, offset)


@pytest.fixture(scope="module")
def file() -> Iterator[Path]:
    """A file that every example writes anew."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder, "file")


names = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="=#!"), min_size=1)
settings_texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\n"), max_size=20)


@given(st.dictionaries(names, settings_texts.map(str.strip), max_size=4))
@example({"sasl.password": "a\x85b\u2028c\x0bd"})
def test_properties_are_read_back_whatever_their_values_hold(file: Path, properties: dict[str, str]) -> None:
    file.write_bytes("".join(f"{k} = {v}\r\n" for k, v in properties.items()).encode())
    assert read_properties(file) == properties


@given(st.binary(max_size=60) | texts.map(lambda t: t.encode("utf-8", "surrogatepass")))
def test_any_file_of_properties_is_read_or_refused_without_showing_it(file: Path, data: bytes) -> None:
    file.write_bytes(b"secret" + data)
    try:
        read_properties(file)
    except ConfigurationError as error:
        check_line(line_of(error, None))
        assert "secret" not in error.message


def test_a_file_of_properties_without_end_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=f"more than {MOST_PROPERTIES} bytes"):
        read_properties(Path("/dev/zero"))


@pytest.mark.parametrize("text", ["a\0b", "\udcff", "\ud800"])
def test_a_property_that_the_client_library_would_cut_is_refused_without_its_value(text: str) -> None:
    for properties in ({"sasl.password": f"hunter2{text}"}, {f"x{text}": "hunter2"}):
        with pytest.raises(ConfigurationError) as refused:
            check_sendable(properties)
        assert "hunter2" not in str(refused.value)
        check_line(line_of(refused.value, None))


def run(arguments: list[str], env: dict[str, str] | None = None) -> int:
    """Run a command line that reaches no broker: it works, or one line says why not."""
    unset = {"KPSPLIT_BOOTSTRAP_SERVER": None, **(env or {})}
    result = CliRunner().invoke(cli, arguments, env=unset)
    assert result.exit_code in (EXIT_OK, EXIT_USAGE), result.stderr
    if result.exit_code == EXIT_USAGE and "Usage:" not in result.stderr:
        *traceback, line = result.stderr.splitlines()  # the variables may ask for -vv
        assert not traceback or traceback[0].startswith("Traceback")
        check_line(line)
        assert result.stdout == ""
    return result.exit_code


COMMANDS = (
    ("split", "{}", "--ranges", "{}", "--of", "{}", "--max-pause", "{}"),
    ("split", "orders/3", "--ranges", "4", "--of", "{}"),
    ("merge", "orders/3", "--of", "{}"),
    ("seek", "--group", "{}", "orders/3", "--to", "{}", "--keys", "0:10"),
    ("seek", "--group", "g", "orders/3", "--to", "{}"),
    ("forget", "{}", "--group", "{}"),
    ("offsets", "--group", "{}", "orders"),
    ("route", "orders", "--key", "{}"),
    ("route", "orders", "--key-base64", "{}", "--partition", "{}"),
    ("read", "orders/3", "--from", "{}", "--limit", "{}"),
    ("plan", "orders/3", "--ranges", "2", "--engine", "spark", "--since", "{}", "--memory", "{}"),
    ("status", "{}", "-o", "{}", "--timeout", "{}"),
    ("acls", "orders", "--for", "consumer", "--principal", "User:{}", "--group", "{}"),
    ("{}", "{}"),
)
arguments = texts.filter(lambda t: not t.startswith("-"))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"{command[0]}-{len(command)}".strip("{}-"))
@FEW
@given(st.data())
def test_a_command_line_works_or_is_refused_in_one_line(
    command: tuple[str, ...], data: st.DataObject
) -> None:
    run([word.replace("{}", data.draw(arguments)) if "{}" in word else word for word in command])


@FEW
@given(st.lists(texts, max_size=6))
def test_any_words_at_all_work_or_are_refused_in_one_line(words: list[str]) -> None:
    run(words)


VARIABLES = ("PROPERTIES", "TIMEOUT", "OUTPUT", "VERBOSE", "COMMAND_CONFIG", "ACLS_GROUP", "ACLS_STATE")


@FEW
@given(st.dictionaries(st.sampled_from(VARIABLES), texts.filter(lambda t: "\0" not in t and t.isprintable())))
@example({"PROPERTIES": "a=b\nnothing"})
@example({"VERBOSE": "9" * 5000})
@example({"TIMEOUT": "0" * 5000})
def test_any_environment_works_or_is_refused_in_one_line(variables: dict[str, str]) -> None:
    env = {f"KPSPLIT_{name}": value for name, value in variables.items()}
    run(["acls", "orders", "--for", "producer", "--principal", "User:app"], env)


@FEW
@given(
    st.binary(max_size=60)
    | st.sampled_from([b"{}", b'{"v":2}', b"[" * 5000, b'{"v":1,"topic":"\\u001b[2J"}'])
)
def test_any_plan_file_is_refused_in_one_line(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    assert run(["split", "orders/3", "--plan", str(file)]) == EXIT_USAGE
