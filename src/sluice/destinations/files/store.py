"""What the destinations with files need of a store. S3 and local directories have it.

A store holds files by key. A file is *staged* first: written completely, where no reader finds it. It is
*published* in one step, or discarded.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from sluice.destinations.common.bucket import StoredObject

__all__ = ["StagedFile", "StagedStream", "Stager", "Store"]


@dataclass(frozen=True)
class StagedFile:
    """The committable: a file that is written completely, and not yet published.

    Attributes:
        key: of the file that it will be.
        token: what the store calls it until then: the id of S3's upload, or another path.
        parts: number, ETag and checksums of each part of S3's upload; empty elsewhere.
        rows: of the file.
        size: of the file in bytes.
        latest: of its task, as of `Manifest`.
    """

    key: str
    token: str
    parts: tuple[Mapping[str, Any], ...]
    rows: int
    size: int
    latest: int | None = None


class StagedStream(io.RawIOBase):
    """The stream that file writers write to. Closing it neither publishes nor discards the file.

    Attributes:
        key: of the file that it will be.
        token: see `StagedFile`.
        size: bytes written.
    """

    key: str
    token: str
    size: int

    def writable(self) -> bool:
        return True

    @abstractmethod
    def finish(self) -> None:
        """Sends the rest. Nothing may be written after it."""

    @abstractmethod
    def parts(self) -> tuple[Mapping[str, Any], ...]:
        """Waits until all is stored. Raises ServiceError if it could not be."""

    @abstractmethod
    def discard(self) -> None:
        """Removes what is stored. Raises ServiceError if the store refuses that."""


class Stager(ABC):
    """Opens the files of one task."""

    @abstractmethod
    def open(self, key: str, content_type: str) -> StagedStream:
        """Begins a file. Raises InvalidRecordError if the store cannot hold one with this key."""

    def stop(self) -> None:  # noqa: B027 - most have nothing to stop
        """Ends what is still being sent; returns when no request is running."""


class Store(ABC):
    """Files below one path, or in one bucket.

    Every method raises ServiceError if the store refuses a call. Methods that write are idempotent.
    """

    @abstractmethod
    def check_conditional_writes(self, prefix: str) -> None:
        """Finds out whether the store keeps the promise of `put_if_absent`; asks once a process.

        Args:
            prefix: of a key to try it with.

        Raises:
            OptionError: it does not.
        """

    @abstractmethod
    def stager(self, executor: Callable[[int], Executor]) -> Stager:
        """What opens the files of one task. `executor` makes one with a number of threads."""

    def check_staged(self, key: str, token: str) -> None:  # noqa: B027 - not all can tell
        """Raises ServiceError if a file is neither staged nor published, if the store can tell cheaply."""

    @abstractmethod
    def publish(self, key: str, token: str, parts: Sequence[Mapping[str, Any]]) -> None:
        """Makes a staged file appear, in one step. Does nothing if it was published before."""

    @abstractmethod
    def discard(self, key: str, token: str) -> None:
        """Removes a staged file, if there is one."""

    @abstractmethod
    def staged(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Key, or its last part, and token of each staged file below `prefix`."""

    @abstractmethod
    def put(self, key: str, body: bytes) -> None:
        """Writes a small file in one step: readers see the old content or the new one."""

    @abstractmethod
    def put_if_absent(self, key: str, body: bytes) -> bool:
        """Writes a small file in one step unless it exists; returns whether it did.

        The store decides this, so one of two writers succeeds. The existing file may be that of an earlier
        attempt whose answer was lost.
        """

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """The content of a file; None if the store says that there is none."""

    @abstractmethod
    def get_listed(self, key: str) -> bytes:
        """The content of a file that exists, also if the store denies that for a moment."""

    @abstractmethod
    def exists(self, key: str) -> bool:
        """Whether there is a file."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Deletes a file, if it exists."""

    @abstractmethod
    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """All files below `prefix`, sorted by key; read so that a directory is seen before those in it."""

    def keys(self, prefix: str) -> Iterator[str]:
        """The keys of all files below `prefix`, sorted."""
        return (each.key for each in self.objects(prefix))

    def read(self, key: str) -> bytes | None:
        """The content of a file; None if it does not exist, and no listing shows it."""
        found = self.get(key)
        return self.get_listed(key) if found is None and key in self.keys(key) else found
