"""Entries that hold several of the user's records: figures and messages count records, not entries."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sink_fakes import config, is_load

from sluice.errors import InvalidRecordError
from sluice.sink import NoRateLimitingStrategy, Rejection, SubmitResult
from sluice.sink.reporting.progress import as_line
from sluice.sink.writing.scheduler import SinkScheduler

Scheduler = SinkScheduler[str]


def made(**settings: bool | float) -> Scheduler:
    scheduler: Scheduler = SinkScheduler(
        config(**settings),
        NoRateLimitingStrategy(),
        name="fake",
        is_throttling=is_load,
        jitter=lambda: 0.0,
        records_in=len,
    )
    scheduler.add(["aaa", "bb"], [30, 20], 0.0)
    assert [request.entries for request in scheduler.advance(0.0, draining=True)] == [["aaa", "bb"]]
    return scheduler


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (lambda m: m.complete(0, SubmitResult(), 1.0), {"records": 5, "bytes": 50}),
        (
            lambda m: m.complete(0, SubmitResult(["bb"], {"Throttled": 1}), 1.0),
            {"records": 3, "bytes": 30, "refused": 2, "refused_by_code.Throttled": 2},
        ),
        (
            lambda m: m.complete(0, SubmitResult(rejected=[Rejection("aaa", "never")]), 1.0),
            {"records": 2, "bytes": 20, "refused": 3, "refused_by_code.rejected": 3},
        ),
        (
            lambda m: m.fail(0, OSError("gone"), fatal=False, now=1.0),
            {"refused": 5, "refused_by_code.OSError": 5},
        ),
        (
            lambda m: m.fail(0, OSError("gone"), fatal=True, now=1.0),
            {"refused": 5, "refused_by_code.OSError": 5},
        ),
        (
            lambda m: m.advance(3600.0),
            {
                "requests": 2,
                "records_out": 10,
                "bytes_out": 100,
                "refused": 5,
                "refused_by_code.RequestTimeout": 5,
                "timeouts": 1,
                "retries": 5,
            },
        ),
    ],
)
def test_figures(what: Callable[[Scheduler], None], expected: dict[str, int]) -> None:
    """For every outcome of a request: they count records, and every refusal has a code."""
    scheduler = made(max_retry_duration=1e9)
    what(scheduler)
    found = as_line(scheduler.figures.copy().summary())
    counters = dict(each.split("=") for each in found.split())
    took = 3600.0 if "timeouts" in expected else 1.0
    assert (float(counters.pop("send_time_max")), int(counters.pop("in_flight_peak"))) == (took, 1)
    shown = {name: int(number) for name, number in counters.items() if number.isdigit() and number != "0"}
    sent = {"requests": 1, "records_out": 5, "bytes_out": 50, "buffered_peak": 2}
    assert shown == sent | expected


def test_messages() -> None:
    """They count records, which a user knows as rows."""
    scheduler = made()
    scheduler.complete(0, SubmitResult(rejected=[Rejection("aaa", "never")]), 1.0)
    assert isinstance(scheduler.failure, InvalidRecordError)
    assert "3 records were refused for good" in str(scheduler.failure)

    scheduler = made(fail_on_error=True)
    scheduler.complete(0, SubmitResult(["bb"]), 1.0)
    assert "2 of 5 records were not accepted" in str(scheduler.failure)

    scheduler = made(fail_on_timeout=True)
    scheduler.advance(1e6)
    assert "a request of 5 records got no answer" in str(scheduler.failure)

    scheduler = made(max_retry_duration=0.0)
    scheduler.complete(0, SubmitResult(["aaa", "bb"]), 1.0)
    assert "5 records are still not accepted" in str(scheduler.failure)
