"""What the command line makes of text, numbers and secrets."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from kpsplit.admin_cli.main import cli, run
from kpsplit.admin_cli.options import Given
from kpsplit.admin_cli.render.text import bar, one_line, percent, safe, shorten, show_bytes
from kpsplit.admin_cli.settings import MASK, redactor, redactor_for
from kpsplit.errors import EXIT_CHECK, KpsplitError, duration, many
from kpsplit.kafka.connection import is_secret


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text", "plain text"),
        ("naïve ключ 鍵", "naïve ключ 鍵"),
        ("a\x1b[31mred", "a\\x1b[31mred"),
        ("bell\x07 del\x7f c1\x9b", "bell\\x07 del\\x7f c1\\x9b"),
        ("line\nreturn\rtab\t", "line\\nreturn\\rtab\\t"),
        ("right-to-left \u202e override", "right-to-left \\u202e override"),
        ("tag \U000e0041", "tag \\U000e0041"),
    ],
)
def test_what_could_control_a_terminal_is_escaped(text, shown) -> None:
    assert safe(text) == shown


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (None, "null"),
        (b"", ""),
        (b"key-17", "key-17"),
        (b"\xff\x00", "0xff00"),
        ("é".encode() * 50, "é" * 9 + "…"),
        (b"\x1b]0;title\x07", "\\x1b]0;ti…"),
    ],
)
def test_bytes_are_shown_as_text_or_hexadecimal_and_cut(data, shown) -> None:
    assert show_bytes(data, 10)[: len(shown)] == shown
    assert len(show_bytes(data, 10)) <= 10


def test_text_that_is_cut_inside_a_character_is_still_text() -> None:
    assert show_bytes("aé".encode() * 100, 8) == "aéaéaéa…"


def test_an_error_is_one_line_whatever_it_holds() -> None:
    assert one_line("first\nsecond\x1b[2J  third") == "first second\\x1b[2J third"


def test_cutting_leaves_short_text_alone() -> None:
    assert shorten("abc", 3) == "abc"
    assert shorten("abcd", 3) == "ab…"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0 ms"),
        (0.0123, "12 ms"),
        (3.44, "3.4 s"),
        (42.4, "42 s"),
        (125, "2 min 5 s"),
        (3600, "1 h"),
        (3840, "1 h 4 min"),
        (2 * 86400 + 7300, "2 d 2 h"),
        (604_800, "7 d"),
    ],
)
def test_durations_are_for_people(seconds, shown) -> None:
    assert duration(seconds) == shown


def test_numbers_are_for_people() -> None:
    assert many(1, "record") == "1 record"
    assert many(2000, "record") == "2,000 records"
    assert [percent(s) for s in (0.0, 0.004, 0.25, 1.0)] == ["0 %", "0.4 %", "25 %", "100 %"]


def test_a_bar_is_as_long_as_its_share() -> None:
    assert bar(0.0, 8) == ""
    assert bar(1.0, 8) == "█" * 8
    assert bar(7.0, 8) == "█" * 8
    assert bar(0.5 + 1 / 16, 8) == "████▌"


def test_secrets_are_masked_in_every_form_they_can_take() -> None:
    secret = 'p"a\\s\ns1'
    given = Given(properties={"sasl.password": secret, "client.id": "visible"})
    text = f"plain {secret} repr {secret!r} other visible"
    shown = redactor_for(given)(text)
    assert secret not in shown
    assert repr(secret)[1:-1] not in shown
    assert "visible" in shown
    assert MASK in shown


@pytest.mark.parametrize("secret", ["two  blanks", "a\ttab", "an\x1bescape", "\xa0no-break"])
def test_a_secret_is_masked_also_where_a_message_was_made_one_line(secret: str) -> None:
    """Errors are made one line before they are masked."""
    shown = one_line(f"cannot log in with {secret}.")
    assert redactor([secret])(shown) == f"cannot log in with {MASK}."


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password",
        "ssl.key.password",
        "ssl.key.pem",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.assertion.private.key.pem",
        "sasl.oauthbearer.assertion.private.key.passphrase",
    ],
)
def test_every_property_of_the_client_that_holds_a_secret_is_known(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("settings", [["--role-config", "consumer={}"], ["--command-config", "{}"]])
def test_secrets_that_only_the_demo_reads_are_masked_in_what_it_prints(
    settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.properties"
    file.write_text("sasl.password=hunter2 \x1band-more\n")

    def failing(*_: object) -> NoReturn:
        raise KpsplitError("the library says hunter2 \x1band-more")

    monkeypatch.setattr("kpsplit.admin_cli.commands.demo.run_demo", failing)
    page = str(tmp_path / "page.html")
    code = run(cli, ["demo", "-b", "x:1", "--html", page, *(a.format(file) for a in settings)])
    assert (code, capsys.readouterr().out) == (EXIT_CHECK, f"FAIL reason=the library says {MASK}\n")


def test_a_password_that_is_part_of_another_one_does_not_reveal_its_rest() -> None:
    assert redactor(["abc", "abcdef"])("x abcdef y") == f"x {MASK} y"
