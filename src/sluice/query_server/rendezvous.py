"""The file by which the writers of a query find its server.

It lies in a directory of this user alone, because it holds the server's secret, below the directory for
temporary files. The server removes it when it ends. What a killed server has left is removed when another one
starts.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from sluice.channels.channel import Address
from sluice.private_files import is_of_this_user_alone

__all__ = ["Rendezvous", "locked_directory", "remove_leftovers"]


class _Content(msgspec.Struct):
    """What is in the file."""

    host: str
    port: int
    secret: bytes
    start: bytes


class Rendezvous:
    """A rendezvous file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Address | None:
        """Where the server listens; None where there is no such file."""
        try:
            content = msgspec.json.decode(self.path.read_bytes(), type=_Content)
        except (OSError, msgspec.MsgspecError):
            return None
        return Address(content.host, content.port, content.secret, content.start)

    def write(self, address: Address) -> None:
        """Says where the server listens, in place of what was there.

        Raises:
            OSError: the directory is gone, or full.
        """
        content = _Content(address.host, address.port, address.secret, address.start)
        # Made with mode 600, and never seen half.
        descriptor, name = tempfile.mkstemp(dir=self.path.parent, prefix=f"{self.path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(content))
            Path(name).replace(self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def keep(self, address: Address) -> bool:
        """Whether the file names this server. If the file is gone, as a cleaner takes it, writes it again."""
        if self.read() is None:
            with contextlib.suppress(OSError), locked_directory(self.path.parent):
                if self.read() is None:
                    self.write(address)
        return self.read() == address

    def remove(self, address: Address) -> None:
        """Removes the file if it names this server, and the directory if it was the last one; or does not."""
        with contextlib.suppress(OSError), locked_directory(self.path.parent):
            if self.read() == address:
                self.path.unlink()
            self.path.parent.rmdir()


@contextlib.contextmanager
def locked_directory(directory: Path) -> Iterator[None]:
    """Makes the directory, and keeps all other processes of this user from it meanwhile.

    Raises:
        OSError: others can write there, or it can't be made.
    """
    import fcntl  # noqa: PLC0415 - Windows has none

    directory.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if not is_of_this_user_alone(os.fstat(descriptor)):
            raise PermissionError(f"{directory} is there, and is not a directory of this user alone")
        yield
    finally:
        os.close(descriptor)


def remove_leftovers(directory: Path, is_running: Callable[[int], bool]) -> None:
    """Removes the files whose owner, by whose process id their names begin, has ended."""
    for path in directory.iterdir():
        owner = path.name.partition("-")[0]
        if owner.isdigit() and not is_running(int(owner)):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
