"""The errors that Sluice raises. Attributes, not classes, say what a service's error means.

Messages appear in logs that many people read, so they never hold a secret.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = [
    "THROTTLING_CODES",
    "CommitError",
    "DataLossError",
    "InvalidRecordError",
    "OptionError",
    "ServiceError",
    "SluiceError",
    "SourceRuleError",
    "SparkVersionError",
    "is_throttling",
    "redact_urls",
]

_USERINFO: Final = re.compile(r"//[^\s/?#]*@")
_QUERY: Final = re.compile(r"(https?://[^\s?#'\"]*)[?#][^\s'\"]*", re.IGNORECASE)


def redact_urls(text: str) -> str:
    """`text` without user, password, query and fragment of the URLs in it."""
    return _QUERY.sub(r"\1?***", _USERINFO.sub("//***@", text))


class SluiceError(Exception):
    """Root of every error of this library. Its message shows neither passwords nor queries of URLs.

    Attributes:
        retryable: whether the same call may succeed when it is repeated.
    """

    retryable: bool

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(redact_urls(message))
        self.retryable = retryable


class OptionError(SluiceError, ValueError):
    """An option cannot work. Names the option, the given value and the allowed ones."""


class SparkVersionError(SluiceError, ImportError):
    """PySpark is missing, or its version has no data sources in Python."""


class InvalidRecordError(SluiceError, ValueError):
    """A row can never be delivered: it has no data, is too large, or has a key that is not allowed.

    Args:
        message: why; with the number of the row, if it is known.
        reason: why, without the number of the row; None: `message` has no number.

    Attributes:
        reason: for the dead letter, which holds the row itself.
    """

    def __init__(self, message: str, *, retryable: bool = False, reason: str | None = None) -> None:
        super().__init__(message, retryable=retryable)
        self.reason = str(self) if reason is None else redact_urls(reason)


class DataLossError(SluiceError):
    """Records between two offsets are lost: trimmed by retention, or deleted with their shard or stream."""


class SourceRuleError(SluiceError):
    """A source broke a rule of its contract: its code is wrong. Names the source, the split and the rule."""


class CommitError(SluiceError):
    """An epoch could not be committed. None of it counts as written; a restart commits it again."""


THROTTLING_CODES: Final = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "LimitExceededException",
        "PriorRequestNotComplete",
        "ProvisionedThroughputExceeded",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
        "TransactionInProgressException",
    }
)
"""Codes with which AWS services ask to slow down: botocore's `ThrottledRetryableChecker`, and the name that
DynamoDB's statements use. Codes with ``Throttl`` in them are others: see `is_throttling`."""


def is_throttling(code: str) -> bool:
    """Whether AWS services refuse requests with this code because there are too many, or too large ones."""
    return code in THROTTLING_CODES or "Throttl" in code


class ServiceError(SluiceError):
    """A call to a service failed, and could not or should not be retried any more.

    Attributes:
        operation: the API operation, as the service spells it (``GetRecords``).
        target: the stream, ``stream/shard``, table or other resource; ``""`` if there is none.
        code: the service's error code (``ProvisionedThroughputExceededException``), an HTTP status
            or the name of the transport error.
        throttling: the service asked to slow down.
        missing: the stream, shard or other resource does not exist.
        expired_iterator: the shard iterator is older than five minutes: get a new one.
        invalid_argument: the service refused the request as malformed.
        retry_after: seconds that the service asks to wait before another attempt; None if it does not say.
        credentials: the service refused the credentials.
        sentence: the service's own message, alone; empty if it gave none.
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
        retry_after: float | None = None,
        credentials: bool = False,
        sentence: str = "",
    ) -> None:
        super().__init__(message, retryable=retryable)
        self.operation = operation
        self.target = target
        self.code = code
        self.throttling = throttling
        self.missing = missing
        self.expired_iterator = expired_iterator
        self.invalid_argument = invalid_argument
        self.retry_after = retry_after
        self.credentials = credentials
        self.sentence = sentence
