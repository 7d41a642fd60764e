"""The options of rate limiting, and the strategies made from them."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from sluice.errors import OptionError
from sluice.options import HOST, TEXT, Option, OptionValues, choice, integer, number
from sluice.sink.config import AsyncSinkConfig, SinkLimits
from sluice.sink.contracts import Destination, RateLimitingStrategy
from sluice.sink.rate.strategies import (
    AIMDScalingStrategy,
    NoRateLimitingStrategy,
    PacedRateLimitingStrategy,
)
from sluice.sink.rate.token_bucket import TokenBucketRateLimitingStrategy, TokenUnit
from sluice.sink.shared_bucket.strategy import SharedBucketConfig, sink_of
from sluice.sink.user_code.loading import load_object, takes_argument

__all__ = [
    "RATE_LIMITING_OPTIONS",
    "shared_bucket_from_options",
    "strategy_from_options",
]

_POSIX: Final = ((os, "getuid"), (select, "poll"))
"""Functions that only POSIX systems have, and that the query server needs."""

RATE_LIMITING = Option(
    "rateLimiting",
    TEXT,
    "aimd",
    "Rate limiting: `aimd` (learns from refusals), `token-bucket`, `none`, or `package.module:Name`.",
    shown_default="the destination's, else `aimd`",
)
AIMD_INCREASE = Option(
    "aimdIncrease",
    integer(1),
    10,
    "After a refusal lowered the limit: how many more records may be in flight after each accepted request.",
    shown_default="10",
)
AIMD_DECREASE_FACTOR = Option(
    "aimdDecreaseFactor",
    number(0.0, 0.999999, above=True),
    None,
    "Factor for the limit in flight after a whole request was refused for load while others were in "
    "flight. Requests do not become smaller.",
    shown_default="0.5 (kinesis: 0.99)",
)
TOKEN_BUCKET_RATE = Option(
    "tokenBucketRate",
    number(0.0, above=True),
    None,
    "Rate per second, in `tokenBucketUnit`, of each task or of the query (`tokenBucketScope`); required "
    "for `token-bucket`.",
)
TOKEN_BUCKET_BURST = Option(
    "tokenBucketBurst",
    integer(1),
    None,
    "How much may be sent at once; required for `token-bucket`.",
)
TOKEN_BUCKET_SCOPE = Option(
    "tokenBucketScope",
    choice("task", "query"),
    "task",
    "`task`: each task has its own bucket. `query`: all tasks of the query share one.",
)
TOKEN_BUCKET_UNIT = Option(
    "tokenBucketUnit",
    choice("records", "bytes", "requests"),
    "records",
    "`records`, `bytes` or `requests`, counted each time they are sent.",
)
TOKEN_BUCKET_ADDRESS = Option(
    "tokenBucketAddress",
    HOST,
    "127.0.0.1",
    "With `tokenBucketScope=query`: address of the bucket's server. On a cluster, an address of the "
    "driver host that workers can connect to.",
)
_AIMD_OPTIONS: Final[tuple[Option[Any], ...]] = (AIMD_INCREASE, AIMD_DECREASE_FACTOR)
_TOKEN_BUCKET_OPTIONS: Final[tuple[Option[Any], ...]] = (
    TOKEN_BUCKET_RATE,
    TOKEN_BUCKET_BURST,
    TOKEN_BUCKET_SCOPE,
    TOKEN_BUCKET_UNIT,
    TOKEN_BUCKET_ADDRESS,
)
RATE_LIMITING_OPTIONS: Final[tuple[Option[Any], ...]] = (
    RATE_LIMITING,
    *_AIMD_OPTIONS,
    *_TOKEN_BUCKET_OPTIONS,
)


def strategy_from_options(
    values: OptionValues, limits: SinkLimits, destination: Destination[Any] | None = None
) -> Callable[[AsyncSinkConfig], RateLimitingStrategy]:
    """A function that makes the rate limiting strategy. Problems are noted for `values.check()`.

    Args:
        values: of the options.
        limits: of the destination's class.
        destination: whose own strategy is taken if no option asks for another one; None if it cannot be made.
    """
    name = values.require(RATE_LIMITING)
    for needed, options in (("aimd", _AIMD_OPTIONS), ("token-bucket", _TOKEN_BUCKET_OPTIONS)):
        for option in options:
            if name.lower() != needed and values.given(option):
                values.reject(option.key, f"needs '{RATE_LIMITING.key}' {needed}")
    if name.lower() == "token-bucket":
        return _token_bucket(values)
    if name.lower() == "none":
        return lambda _: NoRateLimitingStrategy()
    if ":" in name:
        return _user_strategy(values, name)
    if name.lower() != "aimd":
        values.reject_value(RATE_LIMITING, "allowed are aimd, token-bucket, none, or package.module:Name")
    return _aimd(values, limits, destination)


def _aimd(
    values: OptionValues, limits: SinkLimits, destination: Destination[Any] | None
) -> Callable[[AsyncSinkConfig], RateLimitingStrategy]:
    """The default, or what the destination has in its place."""
    increase = values.require(AIMD_INCREASE)
    factor = values.get(AIMD_DECREASE_FACTOR) or limits.aimd_decrease_factor

    def aimd(config: AsyncSinkConfig) -> RateLimitingStrategy:
        most = config.max_batch_size * config.max_in_flight_requests
        return PacedRateLimitingStrategy(
            max_in_flight_requests=config.max_in_flight_requests,
            max_batch_size=config.max_batch_size,
            scaling_strategy=AIMDScalingStrategy(
                increase_rate=min(increase, most), decrease_factor=factor, rate_threshold=most
            ),
        )

    own = getattr(destination, "create_strategy", None)
    if own is None or any(map(values.given, (RATE_LIMITING, *_AIMD_OPTIONS))):
        return aimd
    what = f"'create_strategy' of {type(destination).__name__}"
    return lambda config: _made(lambda: own(config) or aimd(config), what)


def _made(make: Callable[[], Any], what: str) -> RateLimitingStrategy:
    """The strategy that code of the user makes.

    Raises:
        OptionError: it makes none.
    """
    try:
        strategy = make()
    except Exception as error:
        raise OptionError(f"{what}: it cannot be made: {type(error).__name__}: {error}") from error
    missing = [
        part for part in sorted(RateLimitingStrategy.__abstractmethods__) if not hasattr(strategy, part)
    ]
    if missing:
        raise OptionError(f"{what}: what it makes has no {', '.join(missing)}")
    return cast("RateLimitingStrategy", strategy)


def _token_bucket(values: OptionValues) -> Callable[[AsyncSinkConfig], RateLimitingStrategy]:
    rate, burst = values.get(TOKEN_BUCKET_RATE), values.get(TOKEN_BUCKET_BURST)
    for option in (TOKEN_BUCKET_RATE, TOKEN_BUCKET_BURST):
        if not values.mentions(option):
            values.reject(option.key, f"is required with '{RATE_LIMITING.key}' token-bucket")
    if values.get(TOKEN_BUCKET_SCOPE) == "query":
        missing = next((name for module, name in _POSIX if not hasattr(module, name)), None)
        if missing:
            why = f"query needs Linux or macOS: Python has no {missing} here"
            values.reject_value(TOKEN_BUCKET_SCOPE, why)
    elif values.given(TOKEN_BUCKET_ADDRESS):
        values.reject(TOKEN_BUCKET_ADDRESS.key, f"needs '{TOKEN_BUCKET_SCOPE.key}' query")
    unit = cast("TokenUnit", values.require(TOKEN_BUCKET_UNIT))
    if rate is None or burst is None:
        return lambda _: NoRateLimitingStrategy()
    return lambda _: TokenBucketRateLimitingStrategy(rate=rate, burst=burst, unit=unit)


def shared_bucket_from_options(values: OptionValues, options: Mapping[str, str]) -> SharedBucketConfig | None:
    """What tasks share with `tokenBucketScope=query`; None without. For values without problems.

    Args:
        values: read from the options.
        options: all that the user gave. They tell the sinks of a query apart.
    """
    rate, burst = values.get(TOKEN_BUCKET_RATE), values.get(TOKEN_BUCKET_BURST)
    if values.get(TOKEN_BUCKET_SCOPE) == "task" or rate is None or burst is None:
        return None
    return SharedBucketConfig(
        rate=rate,
        burst=burst,
        unit=cast("TokenUnit", values.require(TOKEN_BUCKET_UNIT)),
        address=values.require(TOKEN_BUCKET_ADDRESS),
        sink=sink_of(options),
    )


def _user_strategy(values: OptionValues, name: str) -> Callable[[AsyncSinkConfig], RateLimitingStrategy]:
    """Calls the class or function called `name`: with the settings if it takes an argument, else without."""
    try:
        make = load_object(name)
        takes_config = takes_argument(make)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        values.reject_value(RATE_LIMITING, f"it cannot be loaded: {error}")
        return lambda _: NoRateLimitingStrategy()

    return lambda config: _made(
        lambda: make(config) if takes_config else make(), f"option '{RATE_LIMITING.key}' is {name!r}"
    )
