"""The options that every destination has, and the settings, strategies and listeners made from them."""

from __future__ import annotations

import functools
import importlib
import os
import re
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from sluice.errors import OptionError
from sluice.options import (
    BOOLEAN,
    HOST,
    TEXT,
    Kind,
    Option,
    OptionValues,
    choice,
    duration,
    integer,
    matching,
    number,
    size,
)
from sluice.sink.config import AsyncSinkConfig, SinkLimits
from sluice.sink.contracts import RateLimitingStrategy
from sluice.sink.query_bucket_strategy import QueryBucketConfig
from sluice.sink.rate_limiting import (
    AIMDScalingStrategy,
    CongestionControlRateLimitingStrategy,
    NoRateLimitingStrategy,
    TokenBucketRateLimitingStrategy,
)
from sluice.sink.signatures import not_run_by_a_call, takes_argument
from sluice.sink.sink_setup import ProgressListener
from sluice.sink.token_bucket import TokenUnit

__all__ = [
    "ASYNC_OPTIONS",
    "DEAD_LETTER_PATH",
    "DESTINATION",
    "ELEMENT_CONVERTER",
    "PROGRESS_LISTENER",
    "SINK_OPTIONS",
    "UNKNOWN_COLUMNS",
    "config_from_options",
    "load_object",
    "load_progress_listener",
    "query_bucket_from_options",
    "shares_pace_from_options",
    "strategy_from_options",
]

_S3_PATH: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\s]*)?\Z")


def _parse_path(text: str) -> str:
    path = text.strip()
    if _S3_PATH.match(path):
        return path
    path = path.removeprefix("file://")
    # Driver and executors have different working directories: a relative path would name several places.
    if "://" in path or not Path(path).is_absolute():
        raise ValueError(text)
    return path


_PATH: Final = Kind("path", "an absolute directory, or s3://bucket/prefix", _parse_path)
_POSIX: Final = ((os, "getuid"), (select, "poll"))
"""Functions that only POSIX systems have, and that the query server needs."""
_PER_DESTINATION: Final = "per destination"
_STRATEGY_PARTS: Final = (
    "register_in_flight_request",
    "register_completed_request",
    "should_block",
    "max_batch_size",
)

DESTINATION = Option(
    "destination",
    TEXT,
    None,
    "Where to write to: `kinesis`, `firehose`, `dynamodb`, `sqs`, `http`, `s3`, a name registered under the "
    "entry-point group `sluice.destinations`, or `package.module:Name`.",
    required=True,
)
MAX_BATCH_SIZE = Option(
    "maxBatchSize", integer(1), None, "Records in one request.", shown_default=_PER_DESTINATION
)
MAX_BATCH_SIZE_IN_BYTES = Option(
    "maxBatchSizeInBytes", size(), None, "Bytes in one request.", shown_default=_PER_DESTINATION
)
MAX_RECORD_SIZE_IN_BYTES = Option(
    "maxRecordSizeInBytes",
    size(),
    None,
    "Bytes of one record; `oversizedRecords` says what happens to a larger one.",
    shown_default=_PER_DESTINATION,
)
MAX_IN_FLIGHT_REQUESTS = Option(
    "maxInFlightRequests",
    integer(1, 1000),
    None,
    "Requests that one task has in flight at a time.",
    shown_default=_PER_DESTINATION,
)
MAX_BUFFERED_REQUESTS = Option(
    "maxBufferedRequests",
    integer(1),
    None,
    "Records that may wait to be sent in one task; while there are more, the task takes no rows.",
    shown_default=_PER_DESTINATION,
)
MAX_TIME_IN_BUFFER = Option(
    "maxTimeInBuffer",
    duration(),
    5.0,
    "A record waits at most this long for its batch to fill.",
    shown_default="5s",
)
REQUEST_TIMEOUT = Option(
    "requestTimeout",
    duration(0.001),
    600.0,
    "A request that takes longer is retried (or fatal).",
    shown_default="10m",
)
FAIL_ON_TIMEOUT = Option(
    "failOnTimeout", BOOLEAN, False, "Whether a request that takes too long is fatal.", shown_default="false"
)
FAIL_ON_ERROR = Option(
    "failOnError",
    BOOLEAN,
    False,
    "Whether the first record that the destination does not accept is fatal.",
    shown_default="false",
)
MAX_RETRY_DURATION = Option(
    "maxRetryDuration",
    duration(),
    900.0,
    "A record still refused after this long fails the task.",
    shown_default="15m",
)
_OBJECT: Final = matching("object", "package.module:Name", "[^:]+:[^:]+")
"""What `load_object` imports."""

ELEMENT_CONVERTER = Option(
    "elementConverter",
    _OBJECT,
    None,
    "`package.module:Name` of a class or function that makes what turns rows into entries, such as "
    "`sluice.sink.converters:JsonConverter` or `sluice.sink.converters:AvroConverter`.",
    shown_default="the destination's own",
)
OVERSIZED_RECORDS = Option(
    "oversizedRecords",
    choice("fail", "deadLetter"),
    "fail",
    "What happens to a record that is too large: `fail` fails the task, also where `deadLetterPath` is "
    "given; `deadLetter` makes it a dead letter.",
    shown_default="`fail`",
)
UNKNOWN_COLUMNS = Option(
    "unknownColumns",
    choice("fail", "ignore"),
    "fail",
    "What happens to columns that the destination would not write: `fail` refuses them when the query "
    "starts, `ignore` leaves them out. `dynamodb` and `s3` write every column, so there it changes nothing.",
)
DEAD_LETTER_PATH = Option(
    "deadLetterPath",
    _PATH,
    None,
    "A directory that all executors share, or `s3://` prefix, that takes records that can never be "
    "delivered, as JSON lines with the reason; without it they fail the task. Required by "
    "`oversizedRecords=deadLetter`.",
)
RATE_LIMITING = Option(
    "rateLimiting",
    TEXT,
    "aimd",
    "What limits sending: `aimd` (learns from what is accepted how many records may be in flight, and how "
    "many a second are sent), `token-bucket`, `none`, or `package.module:Name`.",
    shown_default="`aimd`",
)
AIMD_INCREASE = Option(
    "aimdIncrease",
    integer(1),
    10,
    "How many more records may be in flight after a request that was accepted.",
    shown_default="10",
)
AIMD_DECREASE_FACTOR = Option(
    "aimdDecreaseFactor",
    number(0.0, 0.999999, above=True),
    None,
    "What a refusal multiplies the number of records that may be in flight by.",
    shown_default="0.5 (kinesis: 0.99)",
)
AIMD_SCOPE = Option(
    "aimdScope",
    choice("task", "query"),
    "task",
    "Who finds the pace of `aimd`: `task`: each task finds its own. `query`: the tasks of the query compare "
    "theirs as well, and share the destination more evenly.",
)
TOKEN_BUCKET_RATE = Option(
    "tokenBucketRate",
    number(0.0, above=True),
    None,
    "What may be sent in a second, in `tokenBucketUnit`, by each task or by all (`tokenBucketScope`); "
    "required for `token-bucket`.",
)
TOKEN_BUCKET_BURST = Option(
    "tokenBucketBurst",
    integer(1),
    None,
    "What may be sent at once; required for `token-bucket`.",
)
TOKEN_BUCKET_SCOPE = Option(
    "tokenBucketScope",
    choice("task", "query"),
    "task",
    "Who shares a bucket: `task`: each task has its own. `query`: all tasks of the query share one, wherever "
    "they run.",
)
TOKEN_BUCKET_UNIT = Option(
    "tokenBucketUnit",
    choice("records", "bytes", "requests"),
    "records",
    "What is counted: `records`, `bytes` or `requests`, each time they are sent.",
)
TOKEN_BUCKET_ADDRESS = Option(
    "tokenBucketAddress",
    HOST,
    "127.0.0.1",
    "With `tokenBucketScope=query`: address that the bucket is served on and tasks connect to; on a cluster, "
    "one of the driver's own that workers reach.",
)
_AIMD_OPTIONS: Final[tuple[Option[Any], ...]] = (AIMD_INCREASE, AIMD_DECREASE_FACTOR, AIMD_SCOPE)
_TOKEN_BUCKET_OPTIONS: Final = (
    TOKEN_BUCKET_RATE,
    TOKEN_BUCKET_BURST,
    TOKEN_BUCKET_SCOPE,
    TOKEN_BUCKET_UNIT,
    TOKEN_BUCKET_ADDRESS,
)

PROGRESS_LISTENER = Option(
    "progressListener",
    _OBJECT,
    None,
    "`package.module:Name` of a function that is called with a `sluice.sink.SinkProgress` after each commit "
    "and abort, on the driver's machine.",
)

SINK_OPTIONS: tuple[Option[Any], ...] = (
    DESTINATION,
    MAX_BATCH_SIZE,
    MAX_BATCH_SIZE_IN_BYTES,
    MAX_RECORD_SIZE_IN_BYTES,
    MAX_IN_FLIGHT_REQUESTS,
    MAX_BUFFERED_REQUESTS,
    MAX_TIME_IN_BUFFER,
    REQUEST_TIMEOUT,
    FAIL_ON_TIMEOUT,
    FAIL_ON_ERROR,
    MAX_RETRY_DURATION,
    ELEMENT_CONVERTER,
    OVERSIZED_RECORDS,
    UNKNOWN_COLUMNS,
    DEAD_LETTER_PATH,
    RATE_LIMITING,
    *_AIMD_OPTIONS,
    *_TOKEN_BUCKET_OPTIONS,
    PROGRESS_LISTENER,
)
# The options of the async writer. A two-phase destination has a writer of its own, and takes none of them.
ASYNC_OPTIONS: tuple[Option[Any], ...] = tuple(
    option for option in SINK_OPTIONS if option not in (DESTINATION, UNKNOWN_COLUMNS, PROGRESS_LISTENER)
)


def config_from_options(values: OptionValues, limits: SinkLimits) -> AsyncSinkConfig | None:
    """The settings of the async writer; None if they do not fit together, noted for `values.check()`."""
    batch = _within(values, MAX_BATCH_SIZE, limits.max_batch_size, bounded=limits.are_maximum)
    batch_bytes = _within(
        values, MAX_BATCH_SIZE_IN_BYTES, limits.max_batch_size_in_bytes, bounded=limits.are_maximum
    )
    # If a user gives one of two settings that must fit together, the default of the other is made to fit.
    record_bytes = _within(
        values, MAX_RECORD_SIZE_IN_BYTES, limits.max_record_size_in_bytes, bounded=limits.are_maximum
    )
    if not values.given(MAX_RECORD_SIZE_IN_BYTES):
        record_bytes = min(record_bytes, batch_bytes)
    if not values.given(MAX_BATCH_SIZE_IN_BYTES):
        batch_bytes = max(record_bytes, batch_bytes)
    buffered = values.get(MAX_BUFFERED_REQUESTS) or max(limits.max_buffered_requests, batch)
    if not values.given(MAX_BATCH_SIZE):
        batch = min(batch, buffered)
    if record_bytes > batch_bytes:
        values.reject_value(
            MAX_RECORD_SIZE_IN_BYTES, f"at most '{MAX_BATCH_SIZE_IN_BYTES.key}', {batch_bytes}"
        )
    if buffered < batch:
        values.reject_value(MAX_BUFFERED_REQUESTS, f"at least '{MAX_BATCH_SIZE.key}', {batch}")
    if values.get(OVERSIZED_RECORDS) == "deadLetter" and not values.given(DEAD_LETTER_PATH):
        values.reject(DEAD_LETTER_PATH.key, f"is required with '{OVERSIZED_RECORDS.key}' deadLetter")
    if record_bytes > batch_bytes or buffered < batch:
        return None
    return AsyncSinkConfig(
        max_batch_size=batch,
        max_batch_size_in_bytes=batch_bytes,
        max_record_size_in_bytes=record_bytes,
        max_in_flight_requests=values.get(MAX_IN_FLIGHT_REQUESTS) or limits.max_in_flight_requests,
        max_buffered_requests=buffered,
        max_time_in_buffer=values.require(MAX_TIME_IN_BUFFER),
        request_timeout=values.require(REQUEST_TIMEOUT),
        max_retry_duration=values.require(MAX_RETRY_DURATION),
        fail_on_timeout=values.require(FAIL_ON_TIMEOUT),
        fail_on_error=values.require(FAIL_ON_ERROR),
        oversized_records=values.require(OVERSIZED_RECORDS),
    )


def strategy_from_options(
    values: OptionValues, limits: SinkLimits
) -> Callable[[AsyncSinkConfig], RateLimitingStrategy]:
    """A function that makes the rate limiting strategy. Problems are noted for `values.check()`."""
    name = values.require(RATE_LIMITING)
    _check_options_of_aimd(values, name)
    if name.lower() == "token-bucket":
        return _token_bucket(values)
    for option in _TOKEN_BUCKET_OPTIONS:
        if values.given(option):
            values.reject(option.key, f"needs '{RATE_LIMITING.key}' token-bucket")
    if name.lower() == "none":
        return lambda _: NoRateLimitingStrategy()
    if ":" in name:
        return _user_strategy(values, name)
    if name.lower() != "aimd":
        values.reject_value(RATE_LIMITING, "allowed are aimd, token-bucket, none, or package.module:Name")
    increase = values.require(AIMD_INCREASE)
    factor = values.get(AIMD_DECREASE_FACTOR) or limits.aimd_decrease_factor

    def aimd(config: AsyncSinkConfig) -> RateLimitingStrategy:
        most = config.max_batch_size * config.max_in_flight_requests
        return CongestionControlRateLimitingStrategy(
            max_in_flight_requests=config.max_in_flight_requests,
            initial_max_in_flight_messages=most,
            scaling_strategy=AIMDScalingStrategy(
                increase_rate=min(increase, most), decrease_factor=factor, rate_threshold=most
            ),
            clock=time.monotonic,
        )

    return aimd


def _check_options_of_aimd(values: OptionValues, name: str) -> None:
    if name.lower() != "aimd":
        for option in _AIMD_OPTIONS:
            if values.given(option):
                values.reject(option.key, f"needs '{RATE_LIMITING.key}' aimd")
    elif values.get(AIMD_SCOPE) == "query":
        _check_server(values, AIMD_SCOPE)


def _check_server(values: OptionValues, scope: Option[str]) -> None:
    missing = next((name for module, name in _POSIX if not hasattr(module, name)), None)
    if missing:
        values.reject_value(scope, f"query needs Linux or macOS: Python has no {missing} here")


def shares_pace_from_options(values: OptionValues) -> bool:
    """Whether tasks compare their paces. For values without problems."""
    if values.require(RATE_LIMITING).lower() != "aimd":
        return False
    return values.require(AIMD_SCOPE) == "query"


def _token_bucket(values: OptionValues) -> Callable[[AsyncSinkConfig], RateLimitingStrategy]:
    rate, burst = values.get(TOKEN_BUCKET_RATE), values.get(TOKEN_BUCKET_BURST)
    for option in (TOKEN_BUCKET_RATE, TOKEN_BUCKET_BURST):
        if not values.mentions(option):
            values.reject(option.key, f"is required with '{RATE_LIMITING.key}' token-bucket")
    if values.get(TOKEN_BUCKET_SCOPE) == "query":
        _check_server(values, TOKEN_BUCKET_SCOPE)
    elif values.given(TOKEN_BUCKET_ADDRESS):
        values.reject(TOKEN_BUCKET_ADDRESS.key, f"needs '{TOKEN_BUCKET_SCOPE.key}' query")
    unit = cast("TokenUnit", values.require(TOKEN_BUCKET_UNIT))
    if rate is None or burst is None:
        return lambda _: NoRateLimitingStrategy()
    return lambda _: TokenBucketRateLimitingStrategy(rate=rate, burst=burst, unit=unit)


def query_bucket_from_options(values: OptionValues) -> QueryBucketConfig | None:
    """What tasks share with `tokenBucketScope=query`; None without. For values without problems."""
    rate, burst = values.get(TOKEN_BUCKET_RATE), values.get(TOKEN_BUCKET_BURST)
    if values.get(TOKEN_BUCKET_SCOPE) == "task" or rate is None or burst is None:
        return None
    return QueryBucketConfig(
        rate=rate,
        burst=burst,
        unit=cast("TokenUnit", values.require(TOKEN_BUCKET_UNIT)),
        address=values.require(TOKEN_BUCKET_ADDRESS),
    )


def _user_strategy(values: OptionValues, name: str) -> Callable[[AsyncSinkConfig], RateLimitingStrategy]:
    """Calls the class or function called `name`: with the settings if it takes an argument, else without."""
    try:
        make = load_object(name)
        takes_config = takes_argument(make)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        values.reject_value(RATE_LIMITING, f"it cannot be loaded: {error}")
        return lambda _: NoRateLimitingStrategy()

    def user_strategy(config: AsyncSinkConfig) -> RateLimitingStrategy:
        try:
            strategy = make(config) if takes_config else make()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise OptionError(
                f"option '{RATE_LIMITING.key}' is {name!r}: it cannot be made: {why}"
            ) from error
        missing = [part for part in _STRATEGY_PARTS if not hasattr(strategy, part)]
        if missing:
            raise OptionError(
                f"option '{RATE_LIMITING.key}' is {name!r}: what it makes has no {', '.join(missing)}"
            )
        return cast("RateLimitingStrategy", strategy)

    return user_strategy


def load_progress_listener(name: str) -> ProgressListener:
    """Imports the function that is called after commits and aborts; only the driver has to have it.

    Raises:
        OptionError: it cannot be loaded, or not be called, or would not run when it is called.
    """
    try:
        listener: ProgressListener = load_object(name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise OptionError(
            f"option '{PROGRESS_LISTENER.key}' is {name!r}: it cannot be loaded: {error}"
        ) from None
    if not callable(listener):
        raise OptionError(f"option '{PROGRESS_LISTENER.key}' is {name!r}: it cannot be called")
    if what := not_run_by_a_call(listener):
        raise OptionError(f"option '{PROGRESS_LISTENER.key}' is {name!r}: it is {what}, and would not run")
    return listener


def load_object(name: str) -> Any:
    """Imports the object that ``package.module:Name`` stands for; ``Name`` may have dots.

    Raises:
        ImportError: there is no such module.
        AttributeError: the module has no such object.
        ValueError: `name` has no module.
        TypeError: the module's name is relative.
    """
    module, _, attributes = name.partition(":")
    return functools.reduce(getattr, attributes.split("."), importlib.import_module(module))


def _within(values: OptionValues, option: Option[int], most: int, *, bounded: bool) -> int:
    """The value of an option whose default is `most`; if `bounded`, that is also its maximum."""
    value = values.get(option)
    if value is None:
        return most
    if bounded and value > most:
        values.reject_value(option, f"the destination takes at most {most}")
        return most
    return value
