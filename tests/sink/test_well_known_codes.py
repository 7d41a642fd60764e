"""What codes say of load, for destinations that say nothing themselves."""

from __future__ import annotations

import pytest

from sluice.sink.contracts import Destination
from sluice.sink.user_code import adopted
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
    [
        "InternalFailure",
        "InternalServerException",
        "InternalServiceException",
        "InternalServiceFailure",
        "ConnectionResetError",
        "TimeoutError",
        "OSError",
        "ReadTimeout",
    ],
)
def test_codes_of_failures(code: str) -> None:
    assert is_throttling_code(code) is False


@pytest.mark.parametrize(
    "code", ["InternalError", "ServiceUnavailable", "503", "4290", "Timeout", "ValueError", "", "Unprocessed"]
)
def test_codes_that_do_not_say(code: str) -> None:
    """Some services use them for both: the rate limiting strategy finds out."""
    assert is_throttling_code(code) is None


class Plain:
    """A destination as the interface shows it, as far as it matters here."""


class Undecided:
    """One that says of most codes that they do not tell."""

    def is_throttling(self, code: str) -> bool | None:
        return {"Throttled": True}.get(code)


def test_a_destination_that_says_nothing_is_judged_by_its_codes() -> None:
    plain = adopted(Plain(), Destination)

    assert plain.is_throttling("ThrottlingException") is True
    assert plain.is_throttling("ConnectionResetError") is False
    assert plain.is_throttling("Unprocessed") is None


def test_the_word_of_a_destination_counts() -> None:
    """It may know that a lost connection means load, or may leave it to the strategy to find out."""
    undecided = adopted(Undecided(), Destination)

    assert undecided.is_throttling("ThrottlingException") is None
    assert undecided.is_throttling("TimeoutError") is None
