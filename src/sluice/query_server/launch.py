"""Finds the server of a query, or starts it, where Spark makes the query's writer.

Spark makes a writer for each micro-batch, in a Python process that it reuses or ends as it likes. The server
outlives that process, and ends with its parent: that is PySpark's daemon, which ends with the Spark context.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from sluice.channels.channel import Address, connect
from sluice.channels.processes import child_environment
from sluice.errors import SluiceError
from sluice.query_server.protocol import Ping, Pong, decode_from_server, encode
from sluice.query_server.rendezvous import Rendezvous, locked_directory, remove_leftovers
from sluice.query_server.server import ServerSetup, is_running

__all__ = [
    "ServerSettings",
    "find_or_start",
    "rendezvous_directory",
]

_log = logging.getLogger(__name__)

_ANSWER_TIMEOUT: Final = 3.0
_START_TIMEOUT: Final = 20.0
_ATTEMPTS: Final = 3
"""A server that ends may remove the directory while the next one is being started."""

_started: Final[list[subprocess.Popen[bytes]]] = []
"""Those that have ended leave the system's table of processes when they are asked for."""


@dataclass(frozen=True)
class ServerSettings:
    """The bucket of a query, and where its server listens.

    Attributes:
        rate: tokens a second.
        burst: the most that may be used at once.
        address: on which it listens, and tasks find it.
    """

    rate: float
    burst: float
    address: str


def rendezvous_directory() -> Path:
    """Where the rendezvous files of this user are."""
    return Path(tempfile.gettempdir(), f"sluice-{os.getuid()}")


def find_or_start(
    settings: ServerSettings, options: Mapping[str, str], *, owner: int | None = None
) -> Address | None:
    """Returns where the server of a query listens.

    Args:
        settings: of the server.
        options: all that the user gave. Queries with the same options share a server, but no bucket.
        owner: id of the process with which the server ends; None: our parent.

    Returns:
        None, after a warning, where there is no server and none can be started. The query goes on without.
    """
    owner = os.getppid() if owner is None else owner
    digest = hashlib.sha256(json.dumps(sorted(options.items())).encode()).hexdigest()
    directory = rendezvous_directory()
    rendezvous = Rendezvous(directory / f"{owner}-{digest[:32]}")
    for attempt in range(_ATTEMPTS):
        try:
            with locked_directory(directory):
                address = rendezvous.read()
                if address is None or not _answers(address):
                    remove_leftovers(directory, is_running)
                    address = _start(settings, owner, rendezvous)
                return address
        except FileNotFoundError as error:
            problem: Exception = error
        except (OSError, SluiceError) as error:
            problem = error
            break
        time.sleep(0.01 * attempt)
    _log.warning(
        "the token bucket of the query can't be started: each task goes on at a share of the rate, and the "
        "next batch tries again: %s",
        problem,
    )
    return None


def _answers(address: Address) -> bool:
    try:
        channel = connect(address, timeout=_ANSWER_TIMEOUT)
    except (OSError, EOFError, SluiceError):
        return False
    try:
        channel.send(encode(Ping()))
        return isinstance(decode_from_server(channel.receive()), Pong)
    except (OSError, EOFError, SluiceError, msgspec.MsgspecError):
        return False
    finally:
        channel.close()


def _start(settings: ServerSettings, owner: int, rendezvous: Rendezvous) -> Address:
    """Raises OSError or SluiceError: it has not started."""
    _started[:] = [process for process in _started if process.poll() is None]
    setup = ServerSetup(settings.rate, settings.burst, settings.address, owner, str(rendezvous.path))
    previous = rendezvous.read()
    ready, theirs = os.pipe()
    try:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            (sys.executable, "-m", "sluice.query_server", msgspec.json.encode(setup).decode()),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            start_new_session=True,  # no signal to Spark's processes ends it
            env=child_environment(),
        )
    except BaseException:
        os.close(ready)
        raise
    finally:
        os.close(theirs)
    poll = select.poll()
    poll.register(ready, select.POLLIN)
    poll.poll(_START_TIMEOUT * 1000)  # it has written when it listens, and closes its end when it fails
    os.close(ready)
    address = rendezvous.read()
    if address is None or address == previous:
        process.kill()
        process.wait()
        raise SluiceError(f"the server has not started at {settings.address} (tokenBucketAddress)")
    _started.append(process)
    _log.info("started the token bucket of the query at %s (process %d)", address, process.pid)
    return address
