"""Stores dead letters in S3, as objects with JSON lines."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Final

from sluice.aws.calling.clients import client_for
from sluice.aws.calling.connection import ConnectionConfig
from sluice.destinations.common.bucket import Bucket, split_s3_path
from sluice.destinations.common.object_settings import ObjectSettings
from sluice.errors import ServiceError, SluiceError
from sluice.retry import Retrier
from sluice.sink import Origin
from sluice.sink.letters.dead_letters import (
    DeadLetter,
    dead_letter_file_name,
    dead_letter_line,
    report_unwritable,
)

__all__ = ["S3DeadLetterQueue"]

_CONTENT_TYPE: Final = "application/x-ndjson"
# Dead letters that a task keeps in memory before it puts them as an object.
_OBJECT_SIZE: Final = 8 * 1024 * 1024  # bytes


class S3DeadLetterQueue:
    """Puts dead letters as objects below ``s3://bucket/prefix``.

    A task with more than 8 MiB of them puts an object before its end. If the task then fails, this object
    stays, and the next attempt puts its dead letters again, in another object.

    Args:
        path: ``s3://bucket/prefix``.
        connection: how to reach S3.
        origin: the task.
        settings: how objects are stored.
        client: makes the SDK's client; replaced in tests.
        retrier: how throttling and lost connections are waited out.
        object_size: bytes after which an object is put.
        patience: how long a call is repeated, see `Bucket`.
    """

    def __init__(  # noqa: PLR0913 - three are for tests
        self,
        path: str,
        connection: ConnectionConfig,
        origin: Origin,
        settings: ObjectSettings = ObjectSettings(),  # noqa: B008 - frozen
        *,
        client: Callable[[ConnectionConfig, str], Any] = client_for,
        retrier: Retrier | None = None,
        object_size: int = _OBJECT_SIZE,
        patience: float | None = None,
    ) -> None:
        self._path = path
        bucket, self._prefix = split_s3_path(path)
        self._bucket = Bucket(bucket, connection, settings, client=client, retrier=retrier, patience=patience)
        self._origin = origin
        self._object_size = object_size
        self._lines = bytearray()
        self._objects = 0

    def check_writable(self, is_local: Callable[[], bool]) -> None:
        """See `CheckedDeadLetterQueue.check_writable`. One call, which stores nothing."""
        try:
            self._bucket.check_puttable(f"{self._prefix}.sluice-check-{uuid.uuid4().hex}")
        except SluiceError as error:
            is_missing = isinstance(error, ServiceError) and error.code == "NoSuchBucket"
            is_certain = is_missing or (not error.retryable and is_local())
            report_unwritable(self._path, error, is_certain=is_certain)

    def add(self, dead_letter: DeadLetter) -> None:
        """Takes a dead letter. May put an object, and then raises as `flush` does."""
        self._lines += dead_letter_line(dead_letter, self._origin)
        if len(self._lines) >= self._object_size:
            self.flush()

    def flush(self) -> None:
        """Puts an object with the dead letters since the last one, if there are any.

        Raises:
            ServiceError: S3 did not accept the object.
            OptionError: no client can be made from the connection options.
        """
        if not self._lines:
            return
        key = self._prefix + dead_letter_file_name(self._origin, self._objects)
        try:
            self._bucket.put(key, bytes(self._lines), _CONTENT_TYPE, is_data=True)
        except ServiceError as error:
            error.args = (f"{error} (option 'deadLetterPath')",)
            raise
        self._objects += 1
        self._lines.clear()

    def close(self) -> None:
        self._lines.clear()
