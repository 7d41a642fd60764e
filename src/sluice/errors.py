"""The errors that Sluice raises. Messages appear in logs, so they never contain secrets."""

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
    """Removes user, password, query and fragment from the URLs in a text."""
    return _QUERY.sub(r"\1?***", _USERINFO.sub("//***@", text))


class SluiceError(Exception):
    """Root of all errors of this library. Its message hides passwords and queries of URLs.

    Attributes:
        retryable: whether the same call may succeed if it is repeated.
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
        message: the reason, with the number of the row if it is known.
        reason: the reason without the number, for the dead letter; None: the same as `message`.
    """

    def __init__(self, message: str, *, retryable: bool = False, reason: str | None = None) -> None:
        super().__init__(message, retryable=retryable)
        self.reason = str(self) if reason is None else redact_urls(reason)


class DataLossError(SluiceError):
    """Records between two offsets are lost: trimmed by retention, or deleted with their shard or stream."""


class SourceRuleError(SluiceError):
    """The code of a source broke a rule of its contract. Names the source, the split and the rule."""


class CommitError(SluiceError):
    """An epoch was not committed: none of its rows count as written. A restart commits it again."""


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
"""Codes of throttling, from botocore's `ThrottledRetryableChecker` and DynamoDB's statements.
`is_throttling` also accepts every code that contains ``Throttl``."""


def is_throttling(code: str) -> bool:
    """Whether an error code of an AWS service means throttling."""
    return code in THROTTLING_CODES or "Throttl" in code


class ServiceError(SluiceError):
    """A call to a service failed, and is not retried any more.

    Attributes:
        operation: the API operation, as the service spells it (``GetRecords``).
        target: the stream, ``stream/shard``, table or other resource; ``""`` if there is none.
        code: the service's error code (``ProvisionedThroughputExceededException``), an HTTP status
            or the name of the transport error.
        throttling: the service asked to slow down.
        missing: the stream, shard or other resource does not exist.
        expired_iterator: the shard iterator is older than five minutes: get a new one.
        invalid_argument: the service rejected the request as malformed.
        retry_after: seconds to wait before another attempt, if the service asks for that.
        credentials: the service rejected the credentials.
        sentence: the service's own message; empty if it gave none.
    """

    def __init__(  # noqa: PLR0913 - independent attributes of the error
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
