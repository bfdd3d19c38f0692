"""The whole demo where every role has the rights that `kpsplit acls` prints, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from kpsplit.devcluster.jvm import KafkaRuntime
from kpsplit.splitter.rights import Operation, Resource, Right, Role, rights_for
from tests.broker.guarded import AccessLists, Guarded, guarded_cluster, password_of
from tests.demo.test_demo import PASS, result_of, running

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

TOPIC = "demo"
GROUPS = ("demo-workers", "demo-readers")


def test_the_whole_demo_passes_with_the_least_rights_draws_its_pages_and_tells_no_secret(
    kafka_runtime: KafkaRuntime, tmp_path: Path
) -> None:
    with guarded_cluster(tmp_path, brokers=3) as guarded:
        allow(guarded)
        roles = [
            word
            for role in (Role.PRODUCER, Role.CONSUMER, Role.VERIFIER)
            for word in ("--role-config", f"{role.value}={settings(guarded, role, tmp_path)}")
        ]
        config = settings(guarded, Role.OPERATOR, tmp_path)
        arguments = [
            "--command-config",
            str(config),
            "--topic",
            TOPIC,
            "--duration",
            "4",
            "--rate",
            "300",
            "--seed",
            "11",
            *roles,
        ]
        with running(guarded.cluster.bootstrap, tmp_path, *arguments) as demo:
            code, last = result_of(demo, tmp_path)
    told = (tmp_path / "stderr").read_text()
    match = PASS.fullmatch(last)
    assert match is not None and code == 0, f"{last}\n{told}"
    sent, delivered, strays = map(int, match.groups())
    assert sent == delivered > 1000
    assert strays > 0, "the suspended writer had nothing in flight"
    assert "refused: nothing was retired" in told and "deleted " in told
    for what in ("reader-1 is killed", "reader-2 is suspended", "the group has drained segment 0"):
        assert what in told
    page, verification = ((tmp_path / name).read_text() for name in ("page.html", "page-verification.html"))
    assert page.startswith("<!doctype html>") and last in page
    assert "clean" in verification
    shown = (told, page, verification)
    assert not [user for user in Role if any(password_of(user.value) in text for text in shown)]


def allow(guarded: Guarded) -> None:
    """Give each role its rights, and the operator that to make the demo's topic."""
    lists = AccessLists(guarded)
    for role in Role:
        for group in GROUPS if role is Role.CONSUMER else GROUPS[:1]:
            lists.give(role.value, rights_for(role, TOPIC, group=group))
    lists.give(Role.OPERATOR.value, [Right(Resource.TOPIC, TOPIC, False, Operation.CREATE)])


def settings(guarded: Guarded, role: Role, folder: Path) -> Path:
    """Write into a file how a role shows who it is."""
    file = folder / f"{role.value}.properties"
    config = guarded.client(role.value)
    del config["bootstrap.servers"]
    file.write_text("".join(f"{name}={value}\n" for name, value in config.items()))
    return file
