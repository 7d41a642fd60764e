"""One root for everything Sluice raises; what an error means travels as attributes, not as classes.

A message must be fit for a log that many people read: callers never put a secret into it.
"""

from __future__ import annotations

__all__ = ["CommitError", "DataLossError", "InvalidRecordError", "OptionError", "ServiceError", "SluiceError"]


class SluiceError(Exception):
    """Root of every error of this library.

    Attributes:
        retryable: whether the same action may succeed when it is simply tried again.
    """

    retryable: bool

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class OptionError(SluiceError, ValueError):
    """What the user configured cannot work. Names the option, what was given and what is allowed."""


class InvalidRecordError(SluiceError, ValueError):
    """A row that can never be delivered as it is: no data, too large, a key that is not allowed."""


class DataLossError(SluiceError):
    """Records between two offsets are gone: trimmed by retention, or with their shard or stream."""


class CommitError(SluiceError):
    """An epoch could not be committed. Nothing of it counts as written; a restart commits it again."""


class ServiceError(SluiceError):
    """A call to a service failed, and retries (where they made sense) did not help.

    Attributes:
        operation: the API operation, as the service spells it (``GetRecords``).
        target: what it was about: a stream, ``stream/shard``, a table, or ``""``.
        code: the service's error code (``ProvisionedThroughputExceededException``), an HTTP status
            or the transport error's name.
        throttling: the service asked to slow down.
        missing: the stream, shard or other resource does not exist.
        expired_iterator: a shard iterator outlived its five minutes: a fresh one will do.
        invalid_argument: the service refused the request as malformed.
    """

    def __init__(  # noqa: PLR0913 - attributes that each say one thing of the error
        self,
        message: str,
        *,
        operation: str = "",
        target: str = "",
        code: str = "",
        retryable: bool = False,
        throttling: bool = False,
        missing: bool = False,
        expired_iterator: bool = False,
        invalid_argument: bool = False,
    ) -> None:
        super().__init__(message, retryable=retryable)
        self.operation = operation
        self.target = target
        self.code = code
        self.throttling = throttling
        self.missing = missing
        self.expired_iterator = expired_iterator
        self.invalid_argument = invalid_argument
