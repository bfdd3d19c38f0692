"""Spark's master URL: what it may be, and whether somebody is there. Spark itself asks for a minute."""

from __future__ import annotations

import re
import socket

from kpsplit.errors import UnreachableError, UsageError

CONNECT_SECONDS = 5.0
_LOCAL = re.compile(r"local(\[(\*|[1-9][0-9]{0,3})\])?")
_ADDRESS = r"([^,/:\s\[\]]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}"
_STANDALONE = re.compile(rf"spark://{_ADDRESS}(,{_ADDRESS})*")
_OTHERS = re.compile(r"yarn|k8s://\S+")


def is_local(master: str) -> bool:
    """Tell whether everything is done in this process's own JVM."""
    return _LOCAL.fullmatch(master) is not None


def check_master(master: str) -> None:
    """Do nothing if Spark may be started there; blocks for some seconds at most.

    Raises:
        UsageError: it is no master URL.
        UnreachableError: nobody answers at any address of a standalone master.
    """
    if is_local(master) or _OTHERS.fullmatch(master):
        return
    if not _STANDALONE.fullmatch(master):
        raise UsageError(
            f"{master[:80]!r} is no master that Spark can be started on here",
            hint="write local[4], spark://host:7077, k8s://… or yarn",
        )
    addresses = [address.rpartition(":") for address in master.removeprefix("spark://").split(",")]
    refused = [
        why for host, _, port in addresses if (why := _refusal(host.strip("[]"), int(port))) is not None
    ]
    if len(refused) == len(addresses):
        raise UnreachableError(
            f"Spark's master {master} cannot be reached ({refused[0]})", hint="check --master and the network"
        )


def _refusal(host: str, port: int) -> str | None:
    """Return why nobody answers there, None if somebody does."""
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None
