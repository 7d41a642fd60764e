"""Remembers consumers that ``load()`` has registered (``consumerRegistration=eager``) for queries to come.

A query that is loaded twice before it starts, or whose application fails between ``load()`` and ``start()``,
finds at its next ``load()`` a consumer that it has registered itself. If it took that one for somebody
else's, nothing would ever deregister it, and it would be paid for. So each ``load()`` leaves a note for its
consumer, an empty file in a directory of this user alone, below the directory for temporary files. The query
that starts with the consumer takes the note away, as its agent and its offset log know from then on.

Nothing depends on it: without a note a consumer counts as registered by somebody else, and stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from sluice.private_files import is_of_this_user_alone

__all__ = ["forget", "is_noted", "note"]


def note(arn: str) -> None:
    """A ``load()`` has registered the consumer. Errors of the file system are ignored."""
    directory = _directory()
    with contextlib.suppress(OSError):
        directory.mkdir(mode=0o700, exist_ok=True)
        if is_of_this_user_alone(directory.lstat()):
            _file(directory, arn).touch(mode=0o600)


def is_noted(arn: str) -> bool:
    """Whether a ``load()`` of this user on this host has registered the consumer, and no query has begun."""
    directory = _directory()
    with contextlib.suppress(OSError):
        return is_of_this_user_alone(directory.lstat()) and _file(directory, arn).exists()
    return False


def forget(arn: str) -> None:
    """A query begins that reads with the consumer, or it is gone. Errors of the file system are ignored."""
    directory = _directory()
    with contextlib.suppress(OSError):
        _file(directory, arn).unlink(missing_ok=True)
        directory.rmdir()  # if it was the last one


def _directory() -> Path:
    return Path(tempfile.gettempdir(), f"sluice-loads-{os.getuid()}")


def _file(directory: Path, arn: str) -> Path:
    # An ARN has the time of its consumer's registration: another consumer of the name has another one.
    return directory / hashlib.sha256(arn.encode()).hexdigest()
