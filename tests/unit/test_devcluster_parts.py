"""The parts of the embedded cluster that need no broker: ports, folders, identities, progress."""

from __future__ import annotations

import inspect
import io
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from kpsplit.admin_cli.commands.cluster import up
from kpsplit.devcluster import DevCluster, storage
from kpsplit.devcluster.daemon import ProcessIdentity, RunningBroker, RunningCluster
from kpsplit.devcluster.jars import DownloadProgress
from kpsplit.devcluster.process import ManagedProcess, SupervisorClient
from kpsplit.devcluster.storage import HOST, ClusterIdentity, NodeAddress, PortReservation, can_share
from kpsplit.errors import ConflictError, KpsplitError, UsageError

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_reserved_ports_are_given_to_nobody_else() -> None:
    with PortReservation() as ports, PortReservation() as others:
        mine = {ports.any_free() for _ in range(50)}
        assert mine.isdisjoint({others.any_free() for _ in range(50)})
        assert len(mine) == 50


def test_a_server_can_listen_on_a_port_reserved_for_it() -> None:
    with PortReservation() as ports:
        port = ports.any_free()
        ports.before_start(NodeAddress(0, port, ports.any_free()))
        with socket.create_server((HOST, port)), socket.create_connection((HOST, port)):
            pass
        if can_share():  # it is still reserved when that server is gone
            with pytest.raises(OSError, match=r"in use"), socket.socket() as plain:
                plain.bind((HOST, port))


def test_a_remembered_port_that_is_taken_is_refused() -> None:
    with socket.create_server((HOST, 0)) as foreign, PortReservation() as ports:
        with pytest.raises(ConflictError, match="used by another process"):
            ports.exactly(foreign.getsockname()[1])


def test_an_identity_is_read_back_as_it_was_saved(tmp_path: Path) -> None:
    identity = ClusterIdentity(storage.new_id(), (NodeAddress(0, 1, 2), NodeAddress(1, 3, 4)))
    assert ClusterIdentity.load(tmp_path) is None
    identity.save(tmp_path)
    assert ClusterIdentity.load(tmp_path) == identity


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cluster_id": "x", "nodes": [{"port": 1}]}'])
def test_a_foreign_file_is_not_taken_for_an_identity(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(UsageError, match="not the description of an embedded cluster"):
        ClusterIdentity.load(tmp_path)


def test_a_folder_is_locked_for_others_until_it_is_let_go(tmp_path: Path) -> None:
    lock, taken = tmp_path / "cluster.lock", ConflictError("taken")
    with storage.locked(lock, taken):
        with pytest.raises(ConflictError, match="taken"), storage.locked(lock, taken):
            pass
    with storage.locked(lock, taken):
        pass


def test_an_identity_ends_with_its_process() -> None:
    with subprocess.Popen(SLEEPER) as process:
        identity = ProcessIdentity.of(process.pid)
        assert identity is not None and identity.alive
        assert not ProcessIdentity(process.pid, "another start time").alive
        process.kill()
        process.wait()
        assert not identity.alive


def test_only_a_cluster_whose_owner_lives_counts_as_running(tmp_path: Path) -> None:
    me = ProcessIdentity.of(os.getpid())
    assert me is not None
    running = RunningCluster("127.0.0.1:1", me, (RunningBroker(0, 1, me, "log"),), None)
    assert RunningCluster.load(tmp_path) is None
    running.save(tmp_path)
    assert RunningCluster.load(tmp_path) == running
    RunningCluster("127.0.0.1:1", ProcessIdentity(me.pid, "earlier"), (), None).save(tmp_path)
    assert RunningCluster.load(tmp_path) is None


def test_the_supervisor_starts_signals_and_ends_processes(tmp_path: Path) -> None:
    supervisor = SupervisorClient(temporary=tmp_path / "data")
    (tmp_path / "data").mkdir()
    first = ManagedProcess(supervisor, "first", SLEEPER, tmp_path / "log")
    second = ManagedProcess(supervisor, "second", SLEEPER, tmp_path / "log")
    first.kill()
    assert (first.exit_code, second.exit_code) == (-9, None)
    supervisor.close()
    assert ProcessIdentity.of(second.pid) is None
    assert not (tmp_path / "data").exists()


BUSY = """
import threading
def work():
    while True: pass
for _ in range(24): threading.Thread(target=work).start()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")
def test_a_stopped_process_has_no_thread_that_still_runs(tmp_path: Path) -> None:
    """Linux stops a process one thread after the other: a broker "stopped" too soon still answers."""
    supervisor = SupervisorClient()
    try:
        process = ManagedProcess(supervisor, "busy", [sys.executable, "-c", BUSY], tmp_path / "log")
        for _ in range(30):
            assert process.send(signal.SIGSTOP) and process.paused
            assert thread_states(process.pid) == {"T"}
            assert process.send(signal.SIGCONT) and not process.paused
    finally:
        supervisor.close()


def thread_states(pid: int) -> set[str]:
    stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return {stat.rpartition(")")[2].split()[0] for stat in stats}


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_the_supervisor_ends_though_a_forked_copy_holds_its_pipe_open(tmp_path: Path) -> None:
    supervisor = SupervisorClient()
    process = ManagedProcess(supervisor, "first", SLEEPER, tmp_path / "log")
    copy = os.fork()
    if copy == 0:
        time.sleep(600)
        os._exit(0)
    try:
        supervisor.close()
        assert ProcessIdentity.of(process.pid) is None
        assert ProcessIdentity.of(supervisor.pid) is None
    finally:
        os.kill(copy, signal.SIGKILL)
        os.waitpid(copy, 0)


def test_the_supervisor_reports_what_it_cannot_do(tmp_path: Path) -> None:
    supervisor = SupervisorClient()
    try:
        with pytest.raises(KpsplitError, match="FileNotFoundError"):
            ManagedProcess(supervisor, "none", ["/no/such/program"], tmp_path / "log")
        with pytest.raises(KpsplitError, match="KeyError"):
            supervisor.request(op="dance")
    finally:
        supervisor.close()
    with pytest.raises(KpsplitError, match="supervisor of the embedded cluster has ended"):
        supervisor.request(op="status")


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    supervisor = SupervisorClient()
    try:
        process = ManagedProcess(supervisor, "x", [sys.executable, "-c", stubborn], tmp_path / "log")
        process.terminate(grace=0.2)
        assert process.exit_code is not None
    finally:
        supervisor.close()


def test_progress_in_a_log_is_a_line_for_every_tenth_step() -> None:
    stream = io.StringIO()
    with DownloadProgress("fetching", total=12, stream=stream) as progress:
        for _ in range(12):
            progress.step()
    assert stream.getvalue().splitlines() == [f"fetching: {n} of 12 files" for n in (0, 10, 12)]


def test_the_command_line_waits_for_a_cluster_as_long_as_the_library_does() -> None:
    wait = inspect.signature(DevCluster.start).parameters["timeout"].default
    (timeout,) = (option for option in up.params if option.name == "timeout")
    assert timeout.type_cast_value(click.Context(up), timeout.default) == wait
