"""As whom each part of the demo connects."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kpsplit.admin_cli.commands.demo import cluster_given, command, open_connections, roles_given
from kpsplit.admin_cli.main import ENVIRONMENT, cli
from kpsplit.admin_cli.options import given_in
from kpsplit.demo.display import Display
from kpsplit.demo.setup import ROLES
from kpsplit.errors import ConfigurationError


def role_files(folder: Path, text: str = "sasl.username={}\n") -> tuple[str, ...]:
    for role in ROLES:
        (folder / role).write_text(text.format(role))
    return tuple(f"{role}={folder / role}" for role in ROLES)


def test_every_role_connects_with_its_own_settings_to_the_cluster_of_all(tmp_path: Path) -> None:
    everybody = {"bootstrap.servers": "b:1", "sasl.username": "operator", "client.id": "demo"}
    display = Display(sys.stderr)
    with open_connections(everybody, roles_given(role_files(tmp_path)), display) as connections:
        for role in ("operator", *ROLES):
            properties = getattr(connections, role).properties
            assert properties == {**everybody, "sasl.username": role}


@pytest.mark.parametrize("name", ["bootstrap.servers", "metadata.broker.list"])
def test_a_role_may_not_connect_to_another_cluster(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        roles_given(role_files(tmp_path, f"{name}=elsewhere:9\n"))


def test_a_role_has_its_settings_once_and_is_a_role(tmp_path: Path) -> None:
    pair = role_files(tmp_path)[0]
    with pytest.raises(ConfigurationError, match="twice"):
        roles_given((pair, pair))
    with pytest.raises(ConfigurationError, match="producer, consumer, verifier"):
        roles_given(("nobody=x",))


def given_by(before: tuple[str, ...], after: tuple[str, ...]) -> dict[str, str]:
    with cli.make_context("kpsplit", [*before, "demo"], auto_envvar_prefix=ENVIRONMENT) as root:
        return cluster_given(given_in(command.make_context("demo", [*after], parent=root)))


def test_the_cluster_is_the_one_that_is_typed_before_or_after_the_verb(tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("client.id=file\nsasl.username=me\n")
    options = ("--command-config", str(config), "-X", "client.id=typed", "-b", "b:1")
    wanted = {"bootstrap.servers": "b:1", "client.id": "typed", "sasl.username": "me"}
    assert given_by(options, ()) == wanted
    assert given_by((), options) == wanted
    assert given_by(options[:2], options[2:]) == wanted


def test_a_cluster_of_the_environment_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KPSPLIT_BOOTSTRAP_SERVER", "production:1")
    monkeypatch.setenv("KPSPLIT_PROPERTIES", "bootstrap.servers=production:1")
    assert given_by((), ()) == {}
    with pytest.raises(ConfigurationError, match="no brokers"):
        given_by((), ("-X", "client.id=demo"))
