"""Files below one directory that `pyarrow.fs` can reach: local, ``s3://``, ``hdfs://``, ``gs://``."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sluice.aws.calling.clients import configured_endpoint, credentials_for, endpoint_for
from sluice.aws.calling.connection import ConnectionConfig
from sluice.errors import SluiceError

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["S3_SCHEMES", "Storage", "StorageError", "StoredFile", "open_storage"]

S3_SCHEMES: Final = ("s3", "s3a", "s3n")
_LONGEST_SILENCE: Final = 10.0
"""Seconds that S3 may send nothing, as people wait for the answer."""
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*:")
_LOCAL: Final = re.compile(r"(//)?/(?!/)")
"""What follows ``file:`` where no host is named."""


class StorageError(SluiceError):
    """A file or directory cannot be read or written."""


@dataclass(frozen=True)
class StoredFile:
    """A file, by its path below the storage's root."""

    path: str
    size: int
    modified: datetime


class Storage:
    """Files below one directory. Every method raises `StorageError` where the storage does not answer.

    Args:
        filesystem: a `pyarrow.fs.FileSystem`.
        root: the directory, as `filesystem` names it.
        shown: the directory as the user named it.
    """

    def __init__(self, filesystem: Any, root: str, shown: str) -> None:
        self.shown = shown
        self._filesystem = filesystem
        self._root = root.rstrip("/")

    def exists(self, path: str = "") -> bool:
        """Whether there is a file or directory."""
        return bool(self._info(path).type.value)  # 0: not found

    def files(self, directory: str = "", *, recursive: bool = False) -> list[StoredFile]:
        """The files of a directory, in no order; none where it does not exist."""
        from pyarrow import fs  # noqa: PLC0415 - takes a quarter of a second

        where = self._at(directory)
        selector = fs.FileSelector(where, allow_not_found=True, recursive=recursive)
        try:
            found = self._filesystem.get_file_info(selector)
        except (OSError, ValueError) as error:
            raise self._error(directory, error) from None
        start = len(self._root) + 1
        return [
            StoredFile(info.path[start:], info.size, info.mtime)
            for info in found
            if info.type == fs.FileType.File
        ]

    def read(self, path: str) -> bytes:
        try:
            with self._filesystem.open_input_stream(self._at(path)) as stream:
                return bytes(stream.read())
        except (OSError, ValueError) as error:
            raise self._error(path, error) from None

    def write(self, path: str, body: bytes) -> None:
        """Writes a file in one step: a reader sees the old content or the new one."""
        where = self._at(path)
        parent, _, name = where.rpartition("/")
        # An object of S3 appears when it is complete. Elsewhere a rename makes the file appear.
        first = where if self._is_s3 else f"{parent}/.{name}.writing"
        try:
            if not self._is_s3:
                self._filesystem.create_dir(parent, recursive=True)
            with self._filesystem.open_output_stream(first) as stream:
                stream.write(body)
            if first != where:
                self._filesystem.move(first, where)
        except (OSError, ValueError) as error:
            raise self._error(path, error) from None

    def delete(self, path: str) -> None:
        """Deletes a file, if it exists."""
        try:
            if self.exists(path):
                self._filesystem.delete_file(self._at(path))
        except (OSError, ValueError) as error:
            raise self._error(path, error) from None

    @property
    def _is_s3(self) -> bool:
        return str(self._filesystem.type_name) == "s3"

    def _info(self, path: str) -> Any:
        try:
            return self._filesystem.get_file_info([self._at(path)])[0]
        except (OSError, ValueError) as error:
            raise self._error(path, error) from None

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _error(self, path: str, error: Exception) -> StorageError:
        where = f"{self.shown}/{path}" if path else self.shown
        return StorageError(f"{where}: {' '.join(str(error).split())}")


def open_storage(path: str, connection: ConnectionConfig) -> Storage:
    """The files below a path.

    Args:
        path: a local path, or a URL with ``file``, ``s3`` (also ``s3a``, ``s3n``), ``hdfs``, ``gs`` or
            ``abfs``.
        connection: how to reach S3; not used for others.

    Raises:
        StorageError: the path cannot be understood, or its storage cannot be reached.
        OptionError: there are no credentials for S3.
    """
    from pyarrow import fs  # noqa: PLC0415 - takes a quarter of a second

    shown = path.rstrip("/")
    # As Hadoop's Path has them: neither '?' nor '#' ends a path, and '%20' is not a blank.
    scheme, colon, rest = path.partition(":")
    scheme = scheme.lower()
    try:
        path.encode()  # names that are not UTF-8 pyarrow does not take
        if scheme in S3_SCHEMES and rest.startswith("//"):
            return Storage(_s3(connection), rest[2:], shown)
        if scheme == "file" and os.name == "posix" and _LOCAL.match(rest):
            return Storage(fs.LocalFileSystem(), Path(rest.removeprefix("//")).as_posix(), shown)
        if len(scheme) > 1 and _SCHEME.fullmatch(scheme + colon):  # one letter is a drive of Windows
            filesystem, root = fs.FileSystem.from_uri(path)
            return Storage(filesystem, root, shown)
        return Storage(fs.LocalFileSystem(), Path(path).absolute().as_posix(), shown)
    except (OSError, ValueError) as error:
        said = str(error).partition("\n")[0]  # without libhdfs a hundred lines follow: where it is not
        raise StorageError(f"{path}: {said}") from None


def _s3(connection: ConnectionConfig) -> Any:
    from pyarrow import fs  # noqa: PLC0415 - as above

    credentials = credentials_for(connection)
    return fs.S3FileSystem(
        access_key=credentials.access_key,
        secret_key=credentials.secret_key,
        session_token=credentials.token,
        region=credentials.region,
        endpoint_override=endpoint_for(connection, "s3") or configured_endpoint(connection, "s3"),
        connect_timeout=connection.connect_timeout,
        # Without a byte. Ctrl-C is not seen while pyarrow waits, and it tries some times.
        request_timeout=min(connection.read_timeout, _LONGEST_SILENCE),
    )
