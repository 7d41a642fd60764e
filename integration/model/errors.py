"""The errors that the model answers with, as the service has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LOST_ANSWER: Final = "LostAnswer"
"""Not a code of the service: the call was carried out, and its answer does not arrive. A server closes the
connection for it; in process it is raised as it is."""

_STATUSES: Final[Mapping[str, int]] = {
    "InternalFailure": 500,
    "InternalFailureException": 500,
    "ServiceUnavailable": 503,
    "SlowDown": 503,
}

_MESSAGES: Final[Mapping[str, str]] = {
    "ExpiredTokenException": "The security token included in the request is expired",
    "InternalFailure": "Internal service failure.",
    "KMSThrottlingException": "The request was denied due to KMS request throttling.",
    "KMSDisabledException": "The request was rejected because the specified key isn't enabled.",
    "LimitExceededException": "Rate exceeded.",
    "ProvisionedThroughputExceededException": "Rate exceeded.",
    "ServiceUnavailable": "The service is unavailable.",
    LOST_ANSWER: "the call was carried out, and its answer was lost",
}


class ModelError(Exception):
    """A call that the service refuses.

    `code`: as the API names it; the message and the HTTP status follow from it where they are not given.
    """

    def __init__(self, code: str, message: str | None = None, status: int | None = None) -> None:
        self.code = code
        self.message = _MESSAGES.get(code, f"{code}.") if message is None else message
        self.status = _STATUSES.get(code, 400) if status is None else status
        super().__init__(f"{self.code}: {self.message}")
