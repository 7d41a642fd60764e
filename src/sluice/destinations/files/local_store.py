"""A local directory as a store: a file is staged below ``_sluice/staging``, and published by a rename.

A directory that several hosts mount is a local one to each of them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Final

from sluice.destinations.common.bucket import StoredObject
from sluice.destinations.files.layout import STAGING
from sluice.destinations.files.store import StagedStream, Stager, Store
from sluice.errors import InvalidRecordError, OptionError, ServiceError

__all__ = ["LocalStore"]

_STAGED: Final = ".staged"  # no extension of a data file: readers look for these, whatever the directory
_TEMPORARY: Final = ".tmp"
_LEFT_BEHIND: Final = 3600.0
"""Seconds after which a temporary file was left by a killed process: it is written in one go."""
_MAX_NAME: Final = 255  # bytes; of ext4, xfs, NFS and others
# The same call may succeed later; what else a file system refuses, it refuses again.
_MAY_PASS: Final = frozenset(
    {
        errno.EAGAIN, errno.EBUSY, errno.EDQUOT, errno.EINTR, errno.EIO, errno.EMFILE, errno.ENFILE,
        errno.ENOSPC, errno.ESTALE, errno.ETIMEDOUT,
    }
)  # fmt: skip
# What a file system answers that has no hard links, or does not synchronise directories.
# https://man7.org/linux/man-pages/man2/link.2.html, https://man7.org/linux/man-pages/man2/fsync.2.html
_NOT_OFFERED: Final = frozenset({errno.EINVAL, errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})

# Directories whose file system has hard links, as this process has found out.
_conditional: Final[set[Path]] = set()


@contextlib.contextmanager
def _calls(operation: str, path: Path) -> Iterator[None]:
    """Makes ServiceErrors of the errors of calls."""
    try:
        yield
    except OSError as error:
        raise ServiceError(
            f"{operation} of {path}: {error.strerror or error}",
            operation=operation,
            target=str(path),
            code=errno.errorcode.get(error.errno or 0, type(error).__name__),
            retryable=error.errno in _MAY_PASS,
        ) from None


def _make_directory(path: Path) -> None:
    """Makes a directory, and those above it; they survive a loss of power."""
    if not path.is_dir():
        _make_directory(path.parent)
        path.mkdir(exist_ok=True)
        _sync(path.parent)


def _sync(directory: Path) -> None:
    """Names that were made in the directory survive a loss of power. To synchronise a file is not enough."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_OFFERED:
            raise
    finally:
        os.close(descriptor)


class _LocalStream(StagedStream):
    def __init__(self, key: str, token: str, path: Path) -> None:
        super().__init__()
        self.key, self.token, self.size = key, token, 0
        self._path = path
        with _calls("open", path):
            _make_directory(path.parent)
            self._file = path.open("wb")

    def write(self, data: Any) -> int:
        with _calls("write", self._path):
            written = self._file.write(data)
        self.size += written
        return written

    def finish(self) -> None:
        with _calls("write", self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            _sync(self._path.parent)

    def parts(self) -> tuple[Mapping[str, Any], ...]:
        return ()

    def discard(self) -> None:
        with _calls("unlink", self._path):
            self._path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it writes what is left, maybe to a full disk
            self._file.close()
        super().close()


class LocalStore(Store, Stager):
    """Files below one directory. Keys are paths relative to it.

    Args:
        root: the directory; made when something is written.
        allows_unsafe_commits: `put_if_absent` works on file systems without hard links too, where two
            writers at the same moment may both succeed.
    """

    def __init__(self, root: Path, *, allows_unsafe_commits: bool = False) -> None:
        self._root = root
        self._allows_unsafe_commits = allows_unsafe_commits

    def check_conditional_writes(self, prefix: str) -> None:
        """Makes a file with two names and deletes it: `put_if_absent` needs hard links."""
        if self._allows_unsafe_commits or self._root in _conditional:
            return
        key = f"{prefix}.sluice-check-{uuid.uuid4().hex}"
        try:
            self.put_if_absent(key, b"")
        except ServiceError as error:
            if getattr(errno, error.code, None) not in _NOT_OFFERED:
                raise
            raise OptionError(
                f"{self._root} has no hard links ({error.code}), so two drivers could commit one batch "
                "twice. Use a file system that has them. If only one driver ever writes to this path, "
                "'allowUnsafeCommits' true goes without"
            ) from None
        self.delete(key)
        _conditional.add(self._root)

    # --- staged files ---------------------------------------------------------------------------------

    def stager(self, executor: Callable[[int], Executor]) -> Stager:  # noqa: ARG002 - nothing is sent
        return self

    def open(self, key: str, content_type: str) -> StagedStream:  # noqa: ARG002 - as above
        longest = max(len(name.encode()) for name in key.split("/"))
        if longest > _MAX_NAME:
            raise InvalidRecordError(
                "the values of the partition columns make a name of "
                f"{longest} bytes; a directory takes {_MAX_NAME}"
            )
        token = f"{STAGING}/{key.rpartition('/')[2]}{_STAGED}"
        return _LocalStream(key, token, self._root / token)

    def check_staged(self, key: str, token: str) -> None:
        if not self.exists(token) and not self.exists(key):
            raise ServiceError(
                f"{self._root / token}, which a task wrote, does not exist here: option 'path' must be a "
                "directory that the driver and all executors share",
                operation="stat",
                target=str(self._root / token),
                code="ENOENT",
            )

    def publish(self, key: str, token: str, parts: Sequence[Mapping[str, Any]]) -> None:  # noqa: ARG002
        path = self._root / key
        with _calls("rename", path):
            _make_directory(path.parent)
            try:
                (self._root / token).replace(path)
            except FileNotFoundError:
                if not self.exists(key):
                    self.check_staged(key, token)
                    raise
            _sync(path.parent)

    def discard(self, key: str, token: str) -> None:  # noqa: ARG002 - the token says it all
        self.delete(token)

    def staged(self, prefix: str) -> Iterator[tuple[str, str]]:  # noqa: ARG002 - all are of this path
        for each in self.objects(f"{STAGING}/"):
            name = each.key.rpartition("/")[2]
            if name.endswith(_STAGED):
                yield name.removesuffix(_STAGED), each.key
            elif name.endswith(_TEMPORARY) and each.modified / 1e6 < time.time() - _LEFT_BEHIND:
                self.delete(each.key)

    # --- small files ----------------------------------------------------------------------------------

    def put(self, key: str, body: bytes) -> None:
        with self._written(key, body) as (temporary, path):
            temporary.replace(path)

    def put_if_absent(self, key: str, body: bytes) -> bool:
        if self._allows_unsafe_commits:
            if self.exists(key):
                return False
            self.put(key, body)
            return True
        with self._written(key, body) as (temporary, path):
            try:
                os.link(temporary, path)  # which, unlike a rename, never replaces an existing file
            except FileExistsError:
                return False
        return True

    @contextlib.contextmanager
    def _written(self, key: str, body: bytes) -> Iterator[tuple[Path, Path]]:
        """The path of a temporary file with this content, which is removed in the end, and the key's."""
        path, temporary = self._root / key, self._root / STAGING / f"{uuid.uuid4().hex}{_TEMPORARY}"
        with _calls("write", path):
            for each in (path, temporary):
                _make_directory(each.parent)
            try:
                with temporary.open("xb") as file:
                    file.write(body)
                    file.flush()
                    os.fsync(file.fileno())
                yield temporary, path
                _sync(path.parent)
            finally:
                temporary.unlink(missing_ok=True)

    def get(self, key: str) -> bytes | None:
        try:
            return self.get_listed(key)
        except ServiceError as error:
            if error.code == "ENOENT":
                return None
            raise

    def get_listed(self, key: str) -> bytes:
        path = self._root / key
        with _calls("read", path):
            return path.read_bytes()

    def read(self, key: str) -> bytes | None:
        return self.get(key)

    def exists(self, key: str) -> bool:
        path = self._root / key
        with _calls("stat", path):
            try:
                path.stat()  # Path.exists() takes some errors for a no
            except FileNotFoundError:
                return False
        return True

    def delete(self, key: str) -> None:
        path = self._root / key
        with _calls("unlink", path):
            path.unlink(missing_ok=True)

    def keys(self, prefix: str) -> Iterator[str]:
        """Also of files that are deleted meanwhile: another one may be there instead that is not listed."""
        return iter(sorted(self._names(prefix)))

    def _names(self, prefix: str) -> list[str]:
        top = self._root / prefix.rpartition("/")[0]
        with _calls("list", top):
            return [
                key
                for directory, _, names in os.walk(top, onerror=_raise_unless_missing)
                for name in names
                if (key := Path(directory, name).relative_to(self._root).as_posix()).startswith(prefix)
            ]

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        found = []
        top = self._root / prefix.rpartition("/")[0]
        with _calls("list", top):
            for directory, _, names in os.walk(top, onerror=_raise_unless_missing):
                for name in names:
                    path = Path(directory, name)
                    key = path.relative_to(self._root).as_posix()
                    if key.startswith(prefix):
                        with contextlib.suppress(FileNotFoundError):  # renamed or deleted meanwhile
                            status = path.stat()
                            found.append(StoredObject(key, status.st_size, status.st_mtime_ns // 1000))
        return iter(sorted(found))


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
