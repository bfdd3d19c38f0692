"""Runs the command line as users do: as a process, with its own stdout and stderr."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from kpsplit.admin_cli.main import cli
from tests.broker.operating import operating
from tests.conftest import CreateTopic

WriteKeys = Callable[[str, Mapping[str, int]], None]


@dataclass(frozen=True)
class Ran:
    """How a process ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, as one JSON value."""
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line of its error."""
        lines = [line for line in self.err.splitlines() if line.startswith("kpsplit: ")]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0]


class Kpsplit:
    """Runs ``python -m kpsplit.admin_cli``; the brokers are given by the environment."""

    def __init__(self, bootstrap: str | None = None) -> None:
        self.command = [sys.executable, "-m", "kpsplit.admin_cli"]
        ours = {k: v for k, v in os.environ.items() if not k.startswith("KPSPLIT_")}
        ours |= {"PYTHONUTF8": "1", "NO_COLOR": "1"}
        self.env = ours if bootstrap is None else {**ours, "KPSPLIT_BOOTSTRAP_SERVER": bootstrap}

    def __call__(self, *arguments: str, env: Mapping[str, str] | None = None, timeout: float = 180) -> Ran:
        done = subprocess.run(
            [*self.command, *arguments],
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def ok(self, *arguments: str) -> Ran:
        """Run a command that must succeed."""
        ran = self(*arguments)
        assert ran.code == 0, ran.err
        return ran


@pytest.fixture(scope="session")
def offline() -> Kpsplit:
    """The command line without any broker."""
    return Kpsplit()


@pytest.fixture(scope="session")
def kpsplit(bootstrap: str) -> Kpsplit:
    """The command line on the cluster, where kpsplit is initialised."""
    with operating(bootstrap):
        return Kpsplit(bootstrap)


class Inline:
    """Runs the command line inside the test's own process: cheaper, where a process proves nothing more."""

    def __init__(self, bootstrap: str) -> None:
        self._runner = CliRunner()
        self._env = {"KPSPLIT_BOOTSTRAP_SERVER": bootstrap, "NO_COLOR": "1"}

    def __call__(self, *arguments: str) -> Ran:
        done = self._runner.invoke(cli, list(arguments), env=self._env)
        return Ran(done.exit_code, done.stdout, done.stderr)

    def ok(self, *arguments: str) -> Ran:
        """Run a command that must succeed."""
        ran = self(*arguments)
        assert ran.code == 0, ran.err
        return ran


@pytest.fixture(scope="session")
def inline(kpsplit: Kpsplit, bootstrap: str) -> Inline:
    """As ``kpsplit``, without a process."""
    return Inline(bootstrap)


@pytest.fixture(scope="session")
def write_keys(bootstrap: str) -> WriteKeys:
    """Writes so many records per key to partition 0 of a topic, as a program that does not know kpsplit."""

    def write(topic: str, keys: Mapping[str, int]) -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
        for key, count in keys.items():
            for i in range(count):
                producer.produce(topic, f"{key} {i}", key, 0)
        assert producer.flush(30) == 0

    return write


@pytest.fixture(scope="module")
def new_topic(create_topic: CreateTopic) -> Callable[[str], str]:
    """Creates a topic with one partition, as it has to be for a split; returns its name."""
    return lambda stem: create_topic(f"{stem}-{uuid.uuid4().hex[:8]}", config={"min.insync.replicas": "2"})
