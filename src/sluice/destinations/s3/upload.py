"""A file that is written front to back into a multipart upload, with a few parts in memory at most."""

from __future__ import annotations

import io
import threading
from collections.abc import Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, Final

from sluice.destinations.s3.bucket import Store

__all__ = ["PART_SIZE", "PartSender", "PartStream", "Upload"]

# S3 takes parts of 5 MiB and more (the last one may be smaller), and 10,000 of them.
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
PART_SIZE: Final = 8 * 1024 * 1024


@dataclass(frozen=True)
class Upload:
    """A file that is wholly uploaded and visible to nobody: what a task hands to the committer.

    Attributes:
        key: of the object that it will be.
        upload: S3's id of the upload.
        parts: number, ETag and checksums of each part, as completing asks for them.
        rows, size: of the file; bytes.
    """

    bucket: str
    key: str
    upload: str
    parts: tuple[Mapping[str, Any], ...]
    rows: int
    size: int


class PartSender:
    """Sends the parts of one task's files, a few at a time.

    Args:
        store: where to.
        executor: runs the requests.
        most: parts that are in memory here; whoever has another one waits.
    """

    def __init__(self, store: Store, executor: Executor, most: int) -> None:
        self.store = store
        self._executor = executor
        self._room = threading.Semaphore(most)

    def send(self, key: str, upload: str, number: int, body: bytes) -> Future[dict[str, Any]]:
        """Returns when there is room for the part; the future has what `Store.upload_part` returns."""

        def run() -> dict[str, Any]:
            try:
                return self.store.upload_part(key, upload, number, body)
            finally:
                self._room.release()

        self._room.acquire()
        return self._executor.submit(run)

    def stop(self) -> None:
        """Returns when nothing is sent any more; what has not been begun is not."""
        self._executor.shutdown(wait=True, cancel_futures=True)


class PartStream(io.RawIOBase):
    """What file writers write to. Closing it neither ends nor aborts the upload.

    Args:
        sender: sends the parts.
        key: of the object.
        content_type: of the object.
    """

    def __init__(self, sender: PartSender, key: str, content_type: str) -> None:
        super().__init__()
        self.key = key
        self.size = 0  # bytes written
        self._sender = sender
        self._buffer = bytearray()
        self._sent: list[Future[dict[str, Any]]] = []
        self.upload = sender.store.create_upload(key, content_type)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Takes all of `data`. Raises ServiceError when a part before it could not be uploaded."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), PART_SIZE):
            piece = view[start : start + PART_SIZE]
            self._buffer += piece
            if len(self._buffer) >= PART_SIZE:
                self._send(PART_SIZE)
        self.size += len(view)
        return len(view)

    def end(self) -> None:
        """Nothing more will be written: sends what is left."""
        if self._buffer:
            self._send(len(self._buffer))

    def parts(self) -> tuple[Mapping[str, Any], ...]:
        """Returns when all parts are with S3. Raises ServiceError for one that is not."""
        return tuple(sent.result() for sent in self._sent)

    def _send(self, size: int) -> None:
        failed = next((sent for sent in self._sent if sent.done() and sent.exception()), None)
        if failed is not None:
            failed.result()
        part = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._sent.append(self._sender.send(self.key, self.upload, len(self._sent) + 1, part))
