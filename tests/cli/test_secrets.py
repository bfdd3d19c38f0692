"""Unreachable brokers and wrong credentials: said long before the time is over, and without a secret."""

from __future__ import annotations

import socket
import time

import pytest

from tests.measured import measured

SECRET = "hunter2-and-more"
HOUR = ("--timeout", "1h")
"""Far longer than these tests wait for a process."""
UNREACHABLE = "to report brokers that cannot be used (bound: 10 s)", 10.0

SASL = ("-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=PLAIN", "-X", "sasl.username=me")


def test_brokers_that_cannot_be_reached_are_reported_long_before_the_time_is_over(
    offline, record_property
) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        began, nobody = time.monotonic(), f"127.0.0.1:{reserved.getsockname()[1]}"
        ran = offline("-b", nobody, "split", "orders/3", "--ranges", "2", *HOUR)
        record_property(*measured(UNREACHABLE[0], "nobody listens", time.monotonic() - began, UNREACHABLE[1]))
    assert ran.code == 1
    assert "Connection refused" in ran.error
    assert "nothing was changed; check -b/--bootstrap-server" in ran.error


@pytest.mark.parametrize("way", ["option", "file", "environment", "glued"])
def test_no_secret_appears_in_any_output_even_with_vv(way, offline, tmp_path) -> None:
    """The brokers are not there, so every part of the error path has its say; librdkafka logs all it can."""
    file = tmp_path / "client.properties"
    file.write_text(f"sasl.password={SECRET}\nssl.key.password={SECRET}x\n")
    given = {
        "option": ("-X", f"sasl.password={SECRET}"),
        "glued": (f"-Xsasl.password={SECRET}", f"--property=ssl.key.password={SECRET}"),
        "file": ("--command-config", str(file)),
        "environment": (),
    }[way]
    env = {"KPSPLIT_PROPERTIES": f"sasl.password={SECRET}"} if way == "environment" else {}
    ran = offline(
        "-vv", "-b", "127.0.0.1:1", *SASL, "-X", "debug=all", *given, "status", "--timeout", "1s", env=env
    )
    assert ran.code == 1, ran.err
    assert "Traceback" in ran.err
    assert SECRET not in ran.out + ran.err


def test_a_secret_in_a_setting_that_is_refused_does_not_appear(offline) -> None:
    ran = offline(
        "-vv",
        "-b",
        "x",
        "-X",
        f"sasl.password={SECRET}",
        "-X",
        f"sasl.mechanism={SECRET}",
        "status",
        "--timeout",
        "1s",
    )
    assert ran.code in (1, 2)
    assert SECRET not in ran.out + ran.err


@pytest.mark.broker
def test_a_secret_does_not_appear_in_the_output_of_a_command_that_works(kpsplit) -> None:
    ran = kpsplit("-vv", "-X", f"sasl.password={SECRET}", "-X", "debug=conf", "doctor")
    assert ran.code in (0, 3)
    assert SECRET not in ran.out + ran.err


@pytest.mark.broker
def test_brokers_that_do_not_speak_sasl_are_reported_long_before_the_time_is_over(
    kpsplit, record_property
) -> None:
    began = time.monotonic()
    ran = kpsplit(*SASL, "-X", f"sasl.password={SECRET}", "status", *HOUR)
    record_property(*measured(UNREACHABLE[0], "no SASL", time.monotonic() - began, UNREACHABLE[1]))
    assert ran.code == 1
    assert SECRET not in ran.error
