"""Writes a file into a multipart upload, from front to back, with a bounded number of parts in memory."""

from __future__ import annotations

import io
import threading
from collections.abc import Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, Final

from sluice.destinations.common.bucket import Bucket

__all__ = ["PART_SIZE", "PartSender", "PartStream", "Upload"]

# A part has at least 5 MiB, except for the last one; an upload has at most 10,000 parts.
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
PART_SIZE: Final = 8 * 1024 * 1024


@dataclass(frozen=True)
class Upload:
    """The committable of destination ``s3``: a file that is uploaded, but not yet an object.

    Attributes:
        key: of the object that it will be.
        upload_id: S3's id of the upload.
        parts: number, ETag and checksums of each part.
        rows: of the file.
        size: of the file in bytes.
    """

    key: str
    upload_id: str
    parts: tuple[Mapping[str, Any], ...]
    rows: int
    size: int


class PartSender:
    """Sends the parts of one task's files, several at a time.

    Args:
        bucket: where the uploads are.
        executor: runs the requests.
        max_parts: parts that may be in memory here; sending another one waits.
    """

    def __init__(self, bucket: Bucket, executor: Executor, max_parts: int) -> None:
        self.bucket = bucket
        self._executor = executor
        self._room = threading.Semaphore(max_parts)

    def send(self, key: str, upload_id: str, number: int, body: bytes) -> Future[dict[str, Any]]:
        """Waits for room for the part; returns the future result of `Bucket.upload_part`."""

        def run() -> dict[str, Any]:
            try:
                return self.bucket.upload_part(key, upload_id, number, body)
            finally:
                self._room.release()

        self._room.acquire()
        return self._executor.submit(run)

    def stop(self) -> None:
        """Cancels the parts that wait; returns when no request is running."""
        self._executor.shutdown(wait=True, cancel_futures=True)


class PartStream(io.RawIOBase):
    """The stream that file writers write to. Closing it neither completes nor aborts the upload.

    Args:
        sender: sends the parts.
        key: of the object.
        content_type: of the object.

    Attributes:
        upload_id: S3's id of the upload.
        size: bytes written.
    """

    def __init__(self, sender: PartSender, key: str, content_type: str) -> None:
        super().__init__()
        self.key = key
        self.size = 0
        self._sender = sender
        self._buffer = bytearray()
        self._sent: list[Future[dict[str, Any]]] = []
        self.upload_id = sender.bucket.create_upload(key, content_type)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Takes all of `data`. Raises ServiceError if an earlier part could not be uploaded."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), PART_SIZE):
            piece = view[start : start + PART_SIZE]
            self._buffer += piece
            if len(self._buffer) >= PART_SIZE:
                self._send(PART_SIZE)
        self.size += len(view)
        return len(view)

    def finish(self) -> None:
        """Sends the last part. Nothing may be written after it."""
        if self._buffer:
            self._send(len(self._buffer))

    def parts(self) -> tuple[Mapping[str, Any], ...]:
        """Waits until all parts are uploaded. Raises ServiceError if one could not be."""
        return tuple(sent.result() for sent in self._sent)

    def _send(self, size: int) -> None:
        failed = next((sent for sent in self._sent if sent.done() and sent.exception()), None)
        if failed is not None:
            failed.result()
        part = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._sent.append(self._sender.send(self.key, self.upload_id, len(self._sent) + 1, part))
