"""S3 as a store: a file is staged as a multipart upload, and published by completing it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Final

from sluice.destinations.common.bucket import Bucket
from sluice.destinations.files.store import Store
from sluice.destinations.files.upload import PartSender

__all__ = ["S3Store"]

# Parts of one task that are in memory to be sent, and threads that send them.
_CONCURRENT_PARTS: Final = 4


class S3Store(Bucket, Store):
    """One bucket."""

    def stager(self, executor: Callable[[int], Executor]) -> PartSender:
        return PartSender(self, executor(_CONCURRENT_PARTS), _CONCURRENT_PARTS)

    def publish(self, key: str, token: str, parts: Sequence[Mapping[str, Any]]) -> None:
        self.complete_upload(key, token, parts)

    def discard(self, key: str, token: str) -> None:
        self.abort_upload(key, token)

    def staged(self, prefix: str) -> Iterator[tuple[str, str]]:
        return self.uploads(prefix)
