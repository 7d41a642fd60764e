"""Files by which processes on the driver host report to listeners in the application.

Spark's progress events carry nothing of a Python sink, and before 4.2 nothing of a Python source. A listener
runs in the application's process, while commits and planning run in others, on the same host and mostly as
the same user. So a listener makes a letterbox: a directory below another one that only this user can open, in
the directory for temporary files. The other processes put their letters into every letterbox. Without
listeners nothing is written. A listener locks its letterbox for as long as it lives; a letterbox without a
lock is left over, and other processes remove it.

The lock is that of the directory itself, without a file that something could remove. The cleaner of systemd
leaves directories alone that are locked. Others, or users, may remove anything at any time: a listener makes
its letterbox again when it next looks into it.

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

_ENDING: Final = ".json"
_MOST_LETTERS: Final = 2_000
"""Letters in one letterbox, at most: a listener that takes none must not fill the disk."""
_MOST_BYTES: Final = 64 * 1024 * 1024
"""Bytes of the letters in one letterbox, at most. A letter about 10,000 shards has 1 MiB."""
_MADE_WITHIN: Final = 60.0
"""Seconds in which a letterbox, or a letter, gets its name. Until then the name begins with a dot."""

_ATTEMPTS: Final = 10
"""How often a letterbox is made again because the directory of all was removed meanwhile."""

_numbers: Final = itertools.count()


def _directory() -> Path | None:
    """The directory of all letterboxes of this user; None on systems without users and locks."""
    return Path(tempfile.gettempdir(), f"sluice-listeners-{os.getuid()}") if os.name == "posix" else None


class Letterbox:
    """The letterbox of one listener. While it cannot be made, no letters come.

    Args:
        directory: the directory of all letterboxes; None: this user's.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._parent = directory or _directory()
        self._box: Path | None = None
        self._lock: int | None = None
        self._is_closed = False
        self._make()

    def take(self) -> list[Mapping[str, Any]]:
        """The letters that have come since the last call, in their order."""
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
    """A new letterbox, and its lock; None if others than this user can open the directory of all."""
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
    """A descriptor that locks the directory; None if another one does.

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
                _make_room(box, len(text))
                hidden = box / f".{name}"
                hidden.write_text(text)
                hidden.rename(box / f"{name}{_ENDING}")
                posted += 1
    return posted


def _make_room(box: Path, size: int) -> None:
    """Removes the oldest letters of a box in which there is no room for another one."""
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
    """The letterboxes that listeners hold. Removes those that are left over."""
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
        except OSError:  # it was deleted, or is no letterbox
            continue
        if lock is None:  # its listener lives
            yield box
        else:
            shutil.rmtree(box, ignore_errors=True)
            os.close(lock)


def _remove_if_old(path: Path) -> None:
    """Removes what a process that was killed has left in the making."""
    with contextlib.suppress(OSError):
        if time.time() - path.lstat().st_mtime > _MADE_WITHIN:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
