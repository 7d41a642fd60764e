"""Load or failure: the table is total, and agrees with the SDK's."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.retries.standard import ThrottledRetryableChecker
from hypothesis import given
from hypothesis import strategies as st

from sluice.aws.errors import translate
from sluice.errors import is_throttling
from sluice.sink.rate.causes import Cause, cause_of

SDK: Any = vars(ThrottledRetryableChecker)["_THROTTLED_ERROR_CODES"]


@pytest.mark.parametrize(
    "code",
    [
        *SDK,
        "AWS.SimpleQueueService.RequestThrottled",
        "KMSThrottlingException",
        "KmsThrottled",
        "Throttled",
        "ThrottledError",
        "TooManyRequests",
        "too_many_requests",
        "RateLimitError",
        "rate-limited",
        "RateExceeded",
        "429",
        "HTTP429",
        "http429",
        "Error 429",
        "HTTPTooManyRequests",
        "APIRateLimitError",
        "RateLimitingException",
        "Slowdown",
        "ThrottlingException:http://internal.amazon.com/coral/com.amazon.coral.availability/",
    ],
)
def test_codes_of_load(code: str) -> None:
    assert cause_of(code) is Cause.LOAD


@pytest.mark.parametrize(
    "code",
    [
        "InternalFailure",
        "InternalError",
        "InternalServerError",
        "ServiceUnavailable",
        "RequestTimeout",
        "ReadTimeoutError",
        "ConnectionResetError",
        "TimeoutError",
        "503",
        "4290",
        "GenerateLimitExceeded",
        "CorporateLimitReached",
        "ValidationException",
        "Connection lost.",
        "TimeoutError.",
    ],
)
def test_codes_of_failures(code: str) -> None:
    assert cause_of(code) is Cause.FAILURE


def test_services_and_statuses_and_sentences() -> None:
    assert cause_of("ServiceUnavailableException", service="firehose") is Cause.LOAD
    assert cause_of("ServiceUnavailableException", service="sqs") is Cause.FAILURE
    assert cause_of("UnprocessedItem", service="dynamodb") is Cause.LOAD
    assert cause_of("Odd", status=429) is Cause.LOAD
    assert cause_of("Odd", status=503) is Cause.FAILURE
    assert cause_of("503", message="Please reduce your request rate.") is Cause.LOAD
    assert cause_of("503", message="a row says: Rate exceeded") is Cause.FAILURE


@given(st.text(), st.text(), st.none() | st.integers(100, 599), st.text())
def test_there_is_an_answer_to_anything(code: str, service: str, status: int | None, message: str) -> None:
    assert cause_of(code, service=service, status=status, message=message) in Cause


def test_what_is_refused_without_a_code_is_load() -> None:
    """As FLIP-171 has it: entries that are to be sent again, and slower."""
    assert cause_of("") is Cause.LOAD
    assert cause_of("", status=503) is Cause.FAILURE
    assert cause_of("", status=404) is Cause.FAILURE


@pytest.mark.parametrize("code", SDK)
def test_the_source_and_whole_requests_agree(code: str) -> None:
    """One list: for errors that a call raises, and for those of entries."""
    answer: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    error = translate(ClientError(answer, "X"), operation="X", target="", endpoint=None)

    assert is_throttling(code)
    assert error.throttling
    assert error.retryable
