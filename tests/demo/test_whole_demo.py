"""The whole demo, where every role has the rights that `kpsplit acls` prints, and no more; on real lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from kpsplit.devcluster.process import KafkaRuntime
from kpsplit.splitter.rights import Operation, Resource, Right, Role, rights_for
from tests.broker.guarded import AccessLists, Guarded, guarded_cluster, password_of
from tests.demo.playing import PASS, apache_logs, result_of, running

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

TOPIC = "demo"
GROUPS = ("demo-workers", "demo-readers")


@dataclass(frozen=True)
class Ended:
    """What a demo left. ``lines``: of the real input, None if it ran without."""

    code: int
    last: str
    told: str
    pages: tuple[str, str]
    lines: int | None


@pytest.fixture(scope="module")
def ended(kafka_runtime: KafkaRuntime, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """One whole demo under guard, on real lines where they are at hand."""
    folder, logs = tmp_path_factory.mktemp("demo"), apache_logs()
    given = ["--input", str(logs), "--key-regex", r"^(\S+)"] if logs.is_file() else ["--rate", "300"]
    with guarded_cluster(folder, brokers=3) as guarded:
        allow(guarded)
        roles = [
            word
            for role in (Role.PRODUCER, Role.CONSUMER, Role.VERIFIER)
            for word in ("--role-config", f"{role.value}={settings(guarded, role, folder)}")
        ]
        operator = ["--command-config", str(settings(guarded, Role.OPERATOR, folder))]
        arguments = [*operator, "--topic", TOPIC, "--duration", "4", "--seed", "11", *given, *roles]
        with running(guarded.cluster.bootstrap, folder, *arguments) as demo:
            code, last = result_of(demo, folder)
    told, *pages = (text_of(folder / name) for name in ("stderr", "page.html", "page-verification.html"))
    lines = len(logs.read_bytes().splitlines()) if logs.is_file() else None
    return Ended(code, last, told, (pages[0], pages[1]), lines)


def test_the_whole_demo_passes_with_the_least_rights(ended: Ended) -> None:
    match = PASS.fullmatch(ended.last)
    assert match is not None and ended.code == 0, f"{ended.last}\n{ended.told}"
    sent, delivered, strays = map(int, match.groups())
    assert sent == delivered > 1000
    assert strays > 0, "the suspended writer had nothing in flight"


def test_real_lines_come_back_complete_and_in_order_per_key(ended: Ended) -> None:
    if ended.lines is None:
        pytest.skip(f"no {apache_logs()}: set KPSPLIT_TEST_DATA to a folder with a file apache_logs")
    match = PASS.fullmatch(ended.last)
    assert match is not None, ended.last
    assert (int(match[1]), int(match[2])) == (ended.lines, ended.lines)


def test_it_tells_what_happened_to_the_group_and_draws_its_pages(ended: Ended) -> None:
    assert "refused: nothing was retired" in ended.told and "deleted " in ended.told
    for what in ("reader-1 is killed", "reader-2 is suspended", "the group has drained segment 0"):
        assert what in ended.told
    page, verification = ended.pages
    assert page.startswith("<!doctype html>") and ended.last in page
    assert "clean" in verification


def test_no_password_is_shown(ended: Ended) -> None:
    shown = (ended.told, *ended.pages)
    assert not [user for user in Role if any(password_of(user.value) in text for text in shown)]


def text_of(file: Path) -> str:
    """Its text; a demo that failed leaves no page."""
    return file.read_text() if file.is_file() else ""


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
