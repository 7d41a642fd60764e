"""What codes say of load, for destinations that say nothing themselves."""

from __future__ import annotations

import pytest

from sluice.sink.well_known_codes import is_throttling_code


@pytest.mark.parametrize(
    "code",
    [
        "Throttled",
        "ThrottlingException",
        "ThrottledError",
        "TooManyRequests",
        "TooManyRequestsException",
        "too_many_requests",
        "ProvisionedThroughputExceededException",
        "SlowDown",
        "RateLimitError",
        "RateExceeded",
        "429",
        "HTTP429",
    ],
)
def test_codes_of_load(code: str) -> None:
    assert is_throttling_code(code) is True


@pytest.mark.parametrize(
    "code",
    ["InternalFailure", "InternalServerException", "InternalServiceException", "InternalServiceFailure"],
)
def test_codes_of_failures(code: str) -> None:
    assert is_throttling_code(code) is False


@pytest.mark.parametrize(
    "code", ["InternalError", "ServiceUnavailable", "503", "4290", "Timeout", "ValueError", "", "Unprocessed"]
)
def test_codes_that_do_not_say(code: str) -> None:
    """Some services use them for both: the rate limiting strategy finds out."""
    assert is_throttling_code(code) is None
