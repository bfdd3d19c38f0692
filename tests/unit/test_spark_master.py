"""Where Spark works: what a master URL may be, and that one where nobody is costs no minute."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from kpsplit.admin_cli.main import cli
from kpsplit.errors import UnreachableError, UsageError
from kpsplit.spark_jobs.session import check_master, is_local


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that nobody else can take, and on which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.parametrize("master", ["local", "local[*]", "local[4]", "yarn", "k8s://https://10.0.0.1:6443"])
def test_masters_that_spark_alone_can_reach_are_taken(master: str) -> None:
    check_master(master)
    assert is_local(master) is master.startswith("local")


@pytest.mark.parametrize(
    "master",
    ["", "here", "spark://::1:7077", "local[0]", "spark://host", "sc://host:15002", "spark://h:1 -x"],
)
def test_what_is_no_master_is_refused(master: str) -> None:
    with pytest.raises(UsageError, match="not a master URL"):
        check_master(master)


def test_a_standalone_master_is_there_if_one_address_answers(closed_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_master(f"spark://127.0.0.1:{closed_port},127.0.0.1:{server.getsockname()[1]}")
    with pytest.raises(UnreachableError, match="Connection refused"):
        check_master(f"spark://127.0.0.1:{closed_port}")
    with pytest.raises(UnreachableError):
        check_master("spark://127.0.0.1:99999")


@pytest.mark.parametrize(
    "verb", [["verify", "orders"], ["plan", "orders/0", "--ranges", "2", "--engine", "spark"]]
)
def test_a_master_that_cannot_be_used_is_one_line(verb: list[str], closed_port: int) -> None:
    for master, code, reason in (
        (["--master", f"spark://127.0.0.1:{closed_port}"], 1, "cannot be reached"),
        (["--master", "nonsense"], 2, "not a master URL"),
        (["--master", "local[2]", "--cores", "2"], 2, "leave one of them out"),
    ):
        ran = CliRunner().invoke(cli, ["-b", "127.0.0.1:1", *verb, *master])
        assert ran.exit_code == code, ran.output
        assert reason in ran.stderr
        assert len(ran.stderr.splitlines()) == 1
