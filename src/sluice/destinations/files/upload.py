"""Writes a file into a multipart upload, from front to back, with a bounded number of parts in memory."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Executor, Future
from typing import Any, Final

from sluice.destinations.common.bucket import Bucket
from sluice.destinations.files.store import StagedStream, Stager
from sluice.errors import InvalidRecordError

__all__ = ["PART_SIZE", "PartSender", "PartStream"]

# A part has at least 5 MiB, except for the last one; an upload has at most 10,000 parts.
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
PART_SIZE: Final = 8 * 1024 * 1024
_MAX_KEY: Final = 1024  # bytes


class PartSender(Stager):
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

    def open(self, key: str, content_type: str) -> PartStream:
        size = len(key.encode())
        if size > _MAX_KEY:
            raise InvalidRecordError(
                f"the values of the partition columns make a key of {size} bytes; S3 takes {_MAX_KEY}"
            )
        return PartStream(self, key, content_type)

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


class PartStream(StagedStream):
    """The stream of an upload.

    Args:
        sender: sends the parts.
        key: of the object.
        content_type: of the object.
    """

    def __init__(self, sender: PartSender, key: str, content_type: str) -> None:
        super().__init__()
        self.key = key
        self.size = 0
        self._sender = sender
        self._buffer = bytearray()
        self._sent: list[Future[dict[str, Any]]] = []
        self.token = sender.bucket.create_upload(key, content_type)

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

    def discard(self) -> None:
        self._sender.bucket.abort_upload(self.key, self.token)

    def _send(self, size: int) -> None:
        failed = next((sent for sent in self._sent if sent.done() and sent.exception()), None)
        if failed is not None:
            failed.result()
        part = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._sent.append(self._sender.send(self.key, self.token, len(self._sent) + 1, part))
