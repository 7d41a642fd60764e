"""FLIP-242 as published: Flink's vectors, and the accounting of requests in flight."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.sink import (
    AIMDScalingStrategy,
    CongestionControlRateLimitingStrategy,
    NoRateLimitingStrategy,
    RequestInfo,
    ResultInfo,
)


def congestion(limit: int, *, factor: float = 0.5, increase: int = 10, requests: int = 100) -> Any:
    return CongestionControlRateLimitingStrategy(
        max_in_flight_requests=requests,
        initial_max_in_flight_messages=limit,
        scaling_strategy=AIMDScalingStrategy(
            increase_rate=increase, decrease_factor=factor, rate_threshold=1000
        ),
    )


@pytest.mark.parametrize(("current", "threshold", "scaled"), [(4, 1000, 14), (24, 20, 20), (20, 20, 20)])
def test_scale_up_adds_up_to_the_threshold(current: int, threshold: int, scaled: int) -> None:
    """Flink's vectors: the increase is additive, and the threshold is never passed."""
    strategy = AIMDScalingStrategy(increase_rate=10, decrease_factor=0.5, rate_threshold=threshold)

    assert strategy.scale_up(current) == scaled


@pytest.mark.parametrize(
    ("factor", "current", "scaled"),
    [
        (0.4, 10, 4),
        (0.4, 314, 126),
        (0.1, 1, 1),
        (0.5, 3, 2),
        (0.5, 5, 3),
        (0.5, 7, 4),
        (0.5, 11, 6),
        (0.5, 999, 500),
        (0.99, 500, 495),
        (0.99, 51, 50),
        (0.99, 50, 50),
    ],
)
def test_scale_down_rounds_half_up_and_stays_above_zero(factor: float, current: int, scaled: int) -> None:
    """Flink's vectors: floor(x * factor + 0.5), never below 1; Python's own rounding would differ."""
    strategy = AIMDScalingStrategy(increase_rate=10, decrease_factor=factor, rate_threshold=1000)

    assert strategy.scale_down(current) == scaled


@pytest.mark.parametrize(
    "wrong",
    [
        {"increase_rate": 0, "rate_threshold": 10},
        {"decrease_factor": 0.0, "rate_threshold": 10},
        {"decrease_factor": 1.0, "rate_threshold": 10},
        {"rate_threshold": 0},
        {"increase_rate": 11, "rate_threshold": 10},
    ],
)
def test_scaling_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    """A step of 0, a factor outside (0, 1) or a threshold below one step is a mistake."""
    with pytest.raises(ValueError, match="must be"):
        AIMDScalingStrategy(**wrong)


def test_a_refusal_always_lowers_the_limit() -> None:
    """With 0.99, rounding keeps any limit of 50 or less where it is; the limit still falls to 1."""
    strategy = congestion(60, factor=0.99)
    limits = []
    for _ in range(80):
        strategy.register_in_flight_request(RequestInfo(1))
        strategy.register_completed_request(ResultInfo(1, 1))
        limits.append(strategy.max_batch_size)

    assert limits[:12] == [59, 58, 57, 56, 55, 54, 53, 52, 51, 50, 49, 48]
    assert limits[-1] == 1


def test_a_partial_refusal_lowers_and_a_success_raises() -> None:
    """One refused entry is enough to slow down; a request that is accepted as a whole speeds up."""
    strategy = congestion(100)
    strategy.register_in_flight_request(RequestInfo(50))
    strategy.register_in_flight_request(RequestInfo(50))

    strategy.register_completed_request(ResultInfo(1, 50))
    assert strategy.max_batch_size == 50
    strategy.register_completed_request(ResultInfo(0, 50))
    assert strategy.max_batch_size == 60


def test_what_is_in_flight_counts_by_its_real_size() -> None:
    """A request that is small because of its bytes counts with the entries it has."""
    strategy = congestion(100)
    strategy.register_in_flight_request(RequestInfo(7))

    assert not strategy.should_block(RequestInfo(93))
    assert strategy.should_block(RequestInfo(94))
    strategy.register_completed_request(ResultInfo(0, 7))
    assert not strategy.should_block(RequestInfo(110))


def test_no_rate_limiting_never_blocks() -> None:
    """With rateLimiting=none only the writer's own bounds hold."""
    strategy = NoRateLimitingStrategy()
    strategy.register_in_flight_request(RequestInfo(10**6))
    strategy.register_completed_request(ResultInfo(10**6, 10**6))

    assert not strategy.should_block(RequestInfo(10**9))
    assert strategy.max_batch_size >= 10**9
