"""Files by which planning and commits report figures to listeners in the application.

Planning and commits run in other processes on the driver host, and Spark's progress events do not carry
their figures. So each listener makes a letterbox: a directory for temporary files that only this user can
open. The other processes put their letters into every letterbox. The listener locks its letterbox, and makes
it again if something removes it. Processes remove letterboxes without a lock. If a letter is lost, figures
are unknown; nothing else depends on it.
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

_ENDING: Final = ".json"
_MOST_LETTERS: Final = 2_000
"""The most letters in a letterbox: a listener that takes none must not fill the disk."""
_MOST_BYTES: Final = 64 * 1024 * 1024
"""The most bytes in a letterbox. A letter about 10,000 shards has 1 MiB."""
_MADE_WITHIN: Final = 60.0
"""Seconds after which an unfinished letterbox or letter, whose name begins with a dot, is removed."""

_ATTEMPTS: Final = 10
"""How often making a letterbox is tried, because another process may remove its parent."""

_numbers: Final = itertools.count()


def _directory() -> Path | None:
    """The directory of all letterboxes of this user; None on systems without users and locks."""
    return Path(tempfile.gettempdir(), f"sluice-listeners-{os.getuid()}") if os.name == "posix" else None


class Letterbox:
    """The letterbox of one listener. While it cannot be made, no letters arrive.

    Args:
        directory: of all letterboxes; None: the default one of this user.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._parent = directory or _directory()
        self._box: Path | None = None
        self._lock: int | None = None
        self._is_closed = False
        self._make()

    def take(self) -> list[Mapping[str, Any]]:
        """Removes and returns the letters since the last call, in order."""
        if self._is_closed:
            return []
        letters: list[Mapping[str, Any]] = []
        if self._box is not None:
            with contextlib.suppress(OSError):
                for path in sorted(self._box.iterdir()):
                    if path.name.startswith("."):
                        _remove_if_old(path)
                        continue
                    with contextlib.suppress(OSError, ValueError):
                        letter = json.loads(path.read_bytes())
                        if isinstance(letter, dict):
                            letters.append(letter)
                    path.unlink(missing_ok=True)
        if not self._is_there():
            self._let_go()
            self._make()
        return letters

    def close(self) -> None:
        """Removes the letterbox, and the directory of all if it was the last one."""
        self._is_closed = True
        self._let_go()
        if self._box is not None:
            shutil.rmtree(self._box, ignore_errors=True)
            with contextlib.suppress(OSError):
                self._box.parent.rmdir()
            self._box = None

    def _make(self) -> None:
        if self._parent is not None:
            with contextlib.suppress(OSError):
                self._box, self._lock = _make_box(self._parent) or (None, None)

    def _is_there(self) -> bool:
        """Whether the directory of this name is still the locked one."""
        if self._box is None or self._lock is None:
            return False
        try:
            return os.path.samestat(self._box.lstat(), os.fstat(self._lock))
        except OSError:
            return False

    def _let_go(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _make_box(parent: Path) -> tuple[Path, int] | None:
    """Makes a letterbox, and returns it with its lock; None if other users can open its parent."""
    for _ in range(_ATTEMPTS):
        parent.mkdir(mode=0o700, exist_ok=True)
        # The process that closes the last letterbox removes the directory.
        with contextlib.suppress(FileNotFoundError):
            if not is_of_this_user_alone(parent.lstat()):
                return None
            name = uuid.uuid4().hex
            hidden, box = parent / f".{name}", parent / name
            hidden.mkdir(mode=0o700)
            lock = _locked(hidden)
            if lock is not None:
                try:
                    hidden.rename(box)
                except BaseException:
                    os.close(lock)
                    raise
                return box, lock
    return None


def _locked(directory: Path) -> int | None:
    """Locks a directory, and returns the descriptor; None if another process has locked it.

    Raises:
        OSError: there is no such directory.
    """
    import fcntl  # noqa: PLC0415 - Windows has none

    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def post(write: Callable[[], Mapping[str, Any]], directory: Path | None = None) -> int:
    """Puts a letter into every letterbox. Errors of the file system are ignored.

    Args:
        write: makes the letter, a JSON object with its ``kind``. Called only if a letterbox exists.

    Returns:
        The number of letterboxes that received it.
    """
    parent = directory or _directory()
    posted, text = 0, ""
    if parent is not None:
        for box in _boxes(parent):
            text = text or json.dumps(write())
            name = f"{time.time_ns():020}-{os.getpid()}-{next(_numbers)}"
            with contextlib.suppress(OSError):
                _make_room(box, len(text))
                hidden = box / f".{name}"
                hidden.write_text(text)
                hidden.rename(box / f"{name}{_ENDING}")
                posted += 1
    return posted


def _make_room(box: Path, size: int) -> None:
    """Removes the oldest letters if a box has no room for another one."""
    sizes: dict[str, int] = {}
    with os.scandir(box) as letters:
        for letter in letters:
            with contextlib.suppress(FileNotFoundError):  # the listener has taken it
                sizes[letter.name] = letter.stat().st_size
    left = sum(sizes.values())
    for number, name in enumerate(sorted(sizes)):
        if len(sizes) - number < _MOST_LETTERS and left + size <= _MOST_BYTES:
            return
        (box / name).unlink(missing_ok=True)
        left -= sizes[name]


def _boxes(parent: Path) -> Iterator[Path]:
    """Yields the letterboxes that listeners have locked, and removes the others."""
    try:
        if not is_of_this_user_alone(parent.lstat()):
            return
        boxes = sorted(parent.iterdir())
    except OSError:
        return
    for box in boxes:
        if box.name.startswith("."):
            _remove_if_old(box)
            continue
        try:
            lock = _locked(box)
        except OSError:  # it was deleted, or is not a letterbox
            continue
        if lock is None:  # its listener lives
            yield box
        else:
            shutil.rmtree(box, ignore_errors=True)
            os.close(lock)


def _remove_if_old(path: Path) -> None:
    """Removes an unfinished letter or letterbox of a killed process."""
    with contextlib.suppress(OSError):
        if time.time() - path.lstat().st_mtime > _MADE_WITHIN:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
