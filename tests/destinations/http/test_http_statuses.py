"""What statuses mean."""

from __future__ import annotations

import pytest
from fake_endpoint import HTTP

from sluice.destinations import read_sink
from sluice.destinations.http.options import HTTP_OPTIONS, rules_from_options
from sluice.destinations.http.statuses import StatusRules
from sluice.errors import OptionError
from sluice.options import read_options


def rules(**options: str) -> StatusRules:
    values = read_options("test", HTTP_OPTIONS, {"url": "https://host"} | options)
    made = rules_from_options(values)
    values.check()
    return made


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, "accepted"),
        (207, "accepted"),
        (301, None),
        (400, None),
        (401, None),
        (408, "retried"),
        (425, "retried"),
        (429, "throttled"),
        (500, "retried"),
        (501, "fatal"),
        (503, "throttled"),
        (504, "retried"),
    ],
)
def test_by_default(status: int, verdict: str | None) -> None:
    """Only 429 and 503 are signs of load; what no list has fails the task."""
    assert rules().verdict(status) == verdict


def test_a_status_outdoes_its_class() -> None:
    """Whichever option has it."""
    made = rules(acceptedStatuses="2xx,409", fatalStatuses="202", rejectedStatuses="4xx")

    assert [made.verdict(status) for status in (200, 202, 404, 409)] == [
        *("accepted", "fatal", "rejected", "accepted"),
    ]


def test_what_users_say_outdoes_a_default() -> None:
    """A list that is given replaces its default, and holds against the defaults of others."""
    made = rules(retryableStatuses="429, 5XX")

    assert made.verdict(429) == "retried"
    assert made.verdict(503) == "throttled"
    assert made.verdict(408) is None
    assert rules(throttlingStatuses="420").verdict(503) == "retried"


@pytest.mark.parametrize("text", ["", "6xx", "20", "2x0", "200-299", "2xx,,3xx", "abc"])
def test_other_text_is_refused(text: str) -> None:
    """With the option, the text and what is allowed."""
    with pytest.raises(OptionError, match=r"'acceptedStatuses' is '.*': allowed is HTTP statuses such as"):
        read_sink(HTTP | {"acceptedStatuses": text})


def test_two_options_may_not_have_one_status() -> None:
    """The error names both, and the status."""
    with pytest.raises(OptionError) as caught:
        read_sink(
            HTTP | {"acceptedStatuses": "2xx,409", "rejectedStatuses": "409,4xx", "fatalStatuses": "4xx"}
        )

    assert "option 'rejectedStatuses' and 'acceptedStatuses' both have 409" in str(caught.value)
    assert "option 'rejectedStatuses' and 'fatalStatuses' both have 4xx" in str(caught.value)
