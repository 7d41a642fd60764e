"""Finds the query server of a Spark application, or starts it, where Spark makes a query's writer.

Spark makes a writer for each micro-batch, in Python processes that it reuses or ends as it likes. The server
outlives them. It ends with their parent, PySpark's daemon, which ends with the Spark context.

Writers find the server by a file that only this user can read, because it holds the server's secret.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from sluice.channels.channel import Address, connect
from sluice.channels.processes import child_environment
from sluice.errors import ServiceError, SluiceError
from sluice.private_files import is_of_this_user_alone
from sluice.query_server.protocol import Ping, Pong, decode_from_server, encode

__all__ = ["LISTENING", "ServerSetup", "find_or_start", "read_address", "write_address"]

_log = logging.getLogger(__name__)

LISTENING: Final = b"listening"
"""What a server writes to standard output when tasks can connect. Anything else is why they cannot."""
_ANSWER_TIMEOUT: Final = 3.0
_START_TIMEOUT: Final = 20.0

_started: Final[list[subprocess.Popen[bytes]]] = []
"""Servers that this process has started. Polling an ended process removes it from the process table."""


class ServerSetup(msgspec.Struct, frozen=True):
    """The argument of a server.

    Attributes:
        address: to listen on, and where tasks find it.
        owner: id of the process with which the server ends.
        file: where to write the server's address.
    """

    address: str
    owner: int
    file: str


def find_or_start(address: str, *, owner: int | None = None) -> Address:
    """Returns where the query server listens.

    Args:
        address: the host's, for the server to listen on.
        owner: id of the process with which the server ends; None: our parent.

    Raises:
        ServiceError: no server can be started.
    """
    owner = os.getppid() if owner is None else owner
    directory = Path(tempfile.gettempdir(), f"sluice-{os.getuid()}")
    file = directory / f"{owner}-{address}"
    try:
        with _locked(directory):
            found = read_address(file)
            return found if found is not None and _answers(found) else _start(address, owner, file)
    except OSError as error:
        why = str(error)
    raise ServiceError(
        f"the token bucket of the query cannot be served: {why}. tokenBucketAddress must be an address of "
        "the driver host"
    )


def read_address(file: Path) -> Address | None:
    """Reads where a server listens; None if the file is missing or damaged."""
    try:
        return msgspec.msgpack.decode(file.read_bytes(), type=Address)
    except (OSError, msgspec.MsgspecError):
        return None


def write_address(file: Path, address: Address) -> None:
    """Writes where a server listens, over what another one has left.

    Raises:
        OSError: the directory is missing, or full.
    """
    # The file has mode 600, and is never read half-written.
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f"{file.name}.")
    try:
        with os.fdopen(descriptor, "wb") as written:
            written.write(msgspec.msgpack.encode(address))
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Makes the directory, and keeps other processes of this user from it.

    Raises:
        OSError: others can write there, or it cannot be made.
    """
    import fcntl  # noqa: PLC0415 - Windows has none

    directory.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if not is_of_this_user_alone(os.fstat(descriptor)):
            raise PermissionError(f"{directory} is not a directory of this user alone")
        yield
    finally:
        os.close(descriptor)


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


def _start(address: str, owner: int, file: Path) -> Address:
    """Raises OSError: the server does not start."""
    _started[:] = [process for process in _started if process.poll() is None]
    setup = ServerSetup(address, owner, str(file))
    output, theirs = os.pipe()
    try:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            (sys.executable, "-m", "sluice.query_server", msgspec.json.encode(setup).decode()),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            start_new_session=True,  # signals to Spark's processes do not reach it
            env=child_environment(),
        )
    except BaseException:
        os.close(output)
        raise
    finally:
        os.close(theirs)
    poll = select.poll()
    poll.register(output, select.POLLIN)
    said = os.read(output, 4096) if poll.poll(_START_TIMEOUT * 1000) else b"it does not answer"
    os.close(output)
    found = read_address(file) if said == LISTENING else None
    if found is None:
        process.kill()
        process.wait()
        raise OSError(f"{address}: {said.decode(errors='replace') or 'its process ends'}")
    _started.append(process)
    _log.info("started the query server at %s (process %d)", found, process.pid)
    return found
