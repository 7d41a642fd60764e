"""Files by which processes beside the driver report to listeners in the application.

Spark's progress events carry nothing of a Python sink, and before 4.2 nothing of a Python source. A listener
runs in the application's process, while commits and planning run in others, on the same host and mostly as
the same user. So a listener makes a letterbox: a directory below one that only this user can open, in the
directory for temporary files. The other processes put their letters into every letterbox. Without listeners
nothing is written. A listener locks its letterbox for as long as it lives; a letterbox without a lock is left
over, and other processes remove it.

Nothing depends on it: where a letter does not arrive, figures are unknown.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from sluice.private_files import is_of_this_user_alone

__all__ = ["Letterbox", "post"]

_LOCK: Final = "lock"
_ENDING: Final = ".json"
_MOST_LETTERS: Final = 2_000
"""Letters in one letterbox, at most, so that a listener which takes none does not fill the disk."""
_MADE_WITHIN: Final = 60.0
"""Seconds in which a new letterbox gets its lock."""

_ATTEMPTS: Final = 10
"""How often a letterbox is made again because the directory of all was removed meanwhile."""

_numbers: Final = itertools.count()


def _directory() -> Path | None:
    """The directory of all letterboxes of this user; None on systems without users and locks."""
    return Path(tempfile.gettempdir(), f"sluice-listeners-{os.getuid()}") if os.name == "posix" else None


class Letterbox:
    """The letterbox of one listener. If it cannot be made, no letters come.

    Args:
        directory: the directory of all letterboxes; None: this user's.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._box: Path | None = None
        self._lock: int | None = None
        parent = directory or _directory()
        if parent is None:
            return
        import fcntl  # noqa: PLC0415 - Windows has none

        with contextlib.suppress(OSError):
            box = _make_box(parent)
            if box is not None:
                self._lock = os.open(box / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._box = box

    def take(self) -> list[Mapping[str, Any]]:
        """The letters that have come since the last call, in their order."""
        if self._box is None:
            return []
        letters: list[Mapping[str, Any]] = []
        with contextlib.suppress(OSError):
            for path in sorted(self._box.glob(f"*{_ENDING}")):
                with contextlib.suppress(OSError, ValueError):
                    letter = json.loads(path.read_bytes())
                    if isinstance(letter, dict):
                        letters.append(letter)
                path.unlink(missing_ok=True)
        return letters

    def close(self) -> None:
        """Removes the letterbox, and the directory of all if it was the last one."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._box is not None:
            shutil.rmtree(self._box, ignore_errors=True)
            with contextlib.suppress(OSError):
                self._box.parent.rmdir()
            self._box = None


def _make_box(parent: Path) -> Path | None:
    """A new letterbox; None if others than this user can open the directory of all."""
    for _ in range(_ATTEMPTS):
        parent.mkdir(mode=0o700, exist_ok=True)
        # The process that closes the last letterbox removes the directory.
        with contextlib.suppress(FileNotFoundError):
            if not is_of_this_user_alone(parent.lstat()):
                return None
            box = parent / uuid.uuid4().hex
            box.mkdir(mode=0o700)
            return box
    return None


def post(write: Callable[[], Mapping[str, Any]], directory: Path | None = None) -> int:
    """Puts a letter into every letterbox. Errors of the file system are ignored.

    Args:
        write: makes the letter, an object of JSON with its ``kind``. Called only if there is a letterbox.

    Returns:
        How many letterboxes have got it.
    """
    parent = directory or _directory()
    posted, text = 0, ""
    if parent is not None:
        for box in _boxes(parent):
            text = text or json.dumps(write())
            name = f"{time.time_ns():020}-{os.getpid()}-{next(_numbers)}"
            with contextlib.suppress(OSError):
                hidden = box / f".{name}"
                hidden.write_text(text)
                hidden.rename(box / f"{name}{_ENDING}")
                posted += 1
    return posted


def _boxes(parent: Path) -> Iterator[Path]:
    """The letterboxes that listeners hold and that are not full. Removes those that are left over."""
    import fcntl  # noqa: PLC0415 - Windows has none

    try:
        if not is_of_this_user_alone(parent.lstat()):
            return
        boxes = sorted(parent.iterdir())
    except OSError:
        return
    for box in boxes:
        try:
            lock = os.open(box / _LOCK, os.O_RDWR)
        except OSError:
            with contextlib.suppress(OSError):
                if time.time() - box.stat().st_mtime > _MADE_WITHIN:
                    shutil.rmtree(box, ignore_errors=True)
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # its listener lives
            with contextlib.suppress(OSError):
                if sum(1 for _ in box.iterdir()) < _MOST_LETTERS:
                    yield box
        else:
            shutil.rmtree(box, ignore_errors=True)
        finally:
            os.close(lock)
