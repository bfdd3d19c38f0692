"""Handlers in processes of their own (``executor="process"``): one for each worker, started by *spawn*.

A worker's thread sends a record through a pipe and waits for the answer, so a process that dies is known at
once, with the record that it was working on; a new one takes its place. Processes end with their pipe: none
outlives a parent that was killed. What is imported here is imported by every process: little.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from kpsplit.consumer.run.handlers import Output, Record, outputs_of
from kpsplit.errors import ConfigurationError, KpsplitError

START_SECONDS = 60.0
"""How long a process may take to import the handler's module."""
END_SECONDS = 2.0

_HINT = 'executor="process" needs a function at the top level of a module that can be imported'

_spawn = multiprocessing.get_context("spawn")


class GivenUpError(BaseException):
    """A call was ended from outside because the run ends: the handler did not fail."""


class WorkerDiedError(KpsplitError):
    """The process in which a handler ran is gone; how far the handler came is not known."""


class RemoteError(KpsplitError):
    """A handler in another process raised something that cannot be sent; the message names its class."""


class RemoteTracebackError(Exception):
    """The cause of an error from another process: its traceback there, as text."""


def packed(handler: Callable[[Any], Any]) -> bytes:
    """Return a handler as what is sent to processes.

    Raises:
        ConfigurationError: it cannot be imported there.
    """
    try:
        return pickle.dumps(handler)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"the handler cannot be sent to a process ({type(error).__name__})",
            hint=_HINT,
        ) from error


class RemoteHandler:
    """Calls a handler in a process of its own.

    One thread calls it. ``give_up`` may come from any thread meanwhile; the rest is for before and after.

    Args:
        handler: from ``packed``.
        transactional: whether the handler returns outputs.
    """

    def __init__(self, handler: bytes, *, transactional: bool) -> None:
        self._handler = handler
        self._transactional = transactional
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None
        self._given_up = False

    def start(self) -> None:
        """Start the process; it imports the handler while others start."""
        self._pipe, theirs = _spawn.Pipe()
        self._process = _spawn.Process(
            target=_serve,
            args=(theirs, self._handler, self._transactional),
            name="kpsplit-handler",
            daemon=True,
        )
        self._process.start()
        theirs.close()

    def ready(self) -> None:
        """Wait until the process has imported the handler.

        Raises:
            ConfigurationError: it could not.
        """
        problem: str | None = "it did not start"
        if self._pipe is not None:
            with suppress(EOFError, OSError):
                problem = self._pipe.recv() if self._pipe.poll(START_SECONDS) else "it took too long"
        if problem is not None:
            raise ConfigurationError(f"a process cannot use the handler: {problem}", hint=_HINT)

    def __call__(self, message: Any) -> tuple[Output, ...]:
        """Call the handler there.

        Raises:
            GivenUpError: ``give_up`` was called. WorkerDiedError: the process ended while it worked on the
                record. BaseException: what the handler raised.
        """
        record = Record.of(message)
        pipe = self._pipe or self._restarted()
        try:
            pipe.send(record)
        except OSError:  # it ended while it had nothing to do
            pipe = self._restarted()
            pipe.send(record)
        try:
            outputs, error, trace = pipe.recv()
        except (EOFError, OSError):
            raise self._died() from None
        if error is not None:
            raise _unpacked(error) from RemoteTracebackError(trace)
        return outputs  # type: ignore[no-any-return]

    def give_up(self) -> None:
        """End the process, whatever it works on."""
        self._given_up = True
        if self._process is not None:
            self._process.terminate()

    def close(self) -> None:
        """End the process, which has nothing to do."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._process is not None:
            self._process.join(END_SECONDS)
            self._process.kill()
            self._process.join()
            self._process = None

    def _restarted(self) -> Connection:
        self._check_given_up()
        self.close()
        self.start()
        self.ready()
        if self._pipe is None:
            raise WorkerDiedError("the process of a handler did not start", hint="see what it printed")
        return self._pipe

    def _died(self) -> WorkerDiedError:
        self._check_given_up()
        code = None
        if self._process is not None:
            self._process.join(END_SECONDS)
            code = self._process.exitcode
        self.close()
        return WorkerDiedError(
            f"the process of a handler ended with exit code {code}",
            hint="what it did with the record is not known; a new process takes its place",
            changed=None,
        )

    def _check_given_up(self) -> None:
        if self._given_up:
            raise GivenUpError


# -- in the process ----------------------------------------------------------------------------------


def _serve(pipe: Connection, packed_handler: bytes, transactional: bool) -> None:
    """Call the handler with each record that comes, until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to everybody; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        handler = pickle.loads(packed_handler)
    except BaseException as error:  # noqa: BLE001 - told by run()
        pipe.send(f"{type(error).__name__}: {error}")
        return
    pipe.send(None)
    with suppress(EOFError, OSError):
        while True:
            pipe.send(_called(handler, pipe.recv(), transactional))


def _called(
    handler: Callable[[Any], Any], record: Record, transactional: bool
) -> tuple[tuple[Output, ...], bytes | None, str]:
    try:
        returned = handler(record)
        return (outputs_of(returned) if transactional else ()), None, ""
    except BaseException as error:  # noqa: BLE001 - the parent's policy decides
        return (), _packed(error), "".join(traceback.format_exception(error))


def _packed(error: BaseException) -> bytes:
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # noqa: BLE001 - an exception class may do anything here
        return pickle.dumps(RemoteError(f"the handler raised {type(error).__name__}"))
    return data


def _unpacked(data: bytes) -> BaseException:
    try:
        error: BaseException = pickle.loads(data)
    except Exception as problem:  # noqa: BLE001 - as above
        return RemoteError(f"what the handler raised cannot be read ({type(problem).__name__})")
    return error
