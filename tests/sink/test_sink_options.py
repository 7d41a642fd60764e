"""The sink's options: their parsed form, their errors, and the state that is kept between epochs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sink_fakes import config

from sluice.errors import OptionError
from sluice.options import OptionValues, read_options
from sluice.sink import (
    AsyncSinkConfig,
    NoRateLimitingStrategy,
    PacedRateLimitingStrategy,
    RateLimitingStrategy,
    RequestInfo,
    ResultInfo,
    SinkLimits,
    TokenBucketRateLimitingStrategy,
)
from sluice.sink.options import SINK_OPTIONS, config_from_options, load_progress_listener
from sluice.sink.rate_limiting_options import (
    shared_bucket_from_options,
    strategy_from_options,
)
from sluice.sink.setup import StrategyCache
from sluice.sink.shared_bucket.strategy import SharedBucketConfig, sink_of

BUCKET = {"rateLimiting": "token-bucket", "tokenBucketRate": "5", "tokenBucketBurst": "7"}
LIMITS = SinkLimits(
    max_batch_size=500, max_batch_size_in_bytes=1000, max_record_size_in_bytes=1000, aimd_decrease_factor=0.99
)


def read(**given: str) -> OptionValues:
    return read_options("test", SINK_OPTIONS, {"destination": "x", **given})


def settings(**given: str) -> Any:
    values = read(**given)
    result = config_from_options(values, LIMITS)
    values.check()
    return result


def refusal(**given: str) -> str:
    values = read(**given)
    config_from_options(values, LIMITS)
    strategy_from_options(values, LIMITS)
    with pytest.raises(OptionError) as caught:
        values.check()
    return str(caught.value)


def test_defaults_are_those_of_the_interface() -> None:
    """Batching has the destination's defaults; durations are seconds; timeouts and refusals are not fatal."""
    made = settings()

    assert (made.max_batch_size, made.max_batch_size_in_bytes, made.max_record_size_in_bytes) == (
        500,
        1000,
        1000,
    )
    assert (made.max_in_flight_requests, made.max_buffered_requests) == (50, 10_000)
    assert (made.max_time_in_buffer, made.request_timeout, made.max_retry_duration) == (5.0, 600.0, 900.0)
    assert (made.fail_on_timeout, made.fail_on_error) == (False, False)


def test_what_is_given_is_taken() -> None:
    """Every option of the writer reaches its settings."""
    made = settings(
        maxBatchSize="5",
        maxBatchSizeInBytes="500",
        maxRecordSizeInBytes="400",
        maxInFlightRequests="7",
        maxBufferedRequests="70",
        maxTimeInBuffer="250ms",
        requestTimeout="2m",
        maxRetryDuration="0",
        failOnTimeout="true",
        failOnError="TRUE",
        oversizedRecords="deadLetter",
        deadLetterPath="/letters",
    )

    assert made == config(
        max_batch_size=5,
        max_batch_size_in_bytes=500,
        max_record_size_in_bytes=400,
        max_in_flight_requests=7,
        max_buffered_requests=70,
        max_time_in_buffer=0.25,
        request_timeout=120.0,
        max_retry_duration=0.0,
        fail_on_timeout=True,
        fail_on_error=True,
        oversized_records="deadLetter",
    )


def test_a_default_follows_the_setting_it_belongs_to() -> None:
    """Smaller batches in bytes lower the record size, a smaller buffer lowers the batch size."""
    assert settings(maxBatchSizeInBytes="100").max_record_size_in_bytes == 100
    assert settings(maxBufferedRequests="100").max_batch_size == 100


def test_where_limits_are_no_maxima_larger_records_make_larger_batches() -> None:
    """As with destination `http`: the default of the batch size follows, too; a given value does not."""
    limits = replace(LIMITS, are_maximum=False)
    grown = config_from_options(read(maxRecordSizeInBytes="5000"), limits)
    given = read(maxRecordSizeInBytes="5000", maxBatchSizeInBytes="4999")

    assert grown is not None
    assert (grown.max_record_size_in_bytes, grown.max_batch_size_in_bytes) == (5000, 5000)
    assert config_from_options(given, limits) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"maxBatchSize": "501"}, "'maxBatchSize' is '501': the destination takes at most 500"),
        ({"maxBatchSize": "0"}, "'maxBatchSize' is '0': allowed is a whole number of at least 1"),
        ({"maxInFlightRequests": "-1"}, "'maxInFlightRequests' is '-1'"),
        ({"maxBatchSizeInBytes": "1KiB"}, "'maxBatchSizeInBytes' is '1KiB': the destination takes at most"),
        (
            {"maxBatchSizeInBytes": "10", "maxRecordSizeInBytes": "11"},
            "'maxRecordSizeInBytes' is '11': at most 'maxBatchSizeInBytes', 10",
        ),
        (
            {"maxBatchSize": "10", "maxBufferedRequests": "9"},
            "'maxBufferedRequests' is '9': at least 'maxBatchSize', 10",
        ),
        ({"requestTimeout": "0"}, "'requestTimeout' is '0'"),
        (
            {"oversizedRecords": "deadLetter"},
            "'deadLetterPath' is required with 'oversizedRecords' deadLetter",
        ),
        ({"oversizedRecords": "drop"}, "allowed is one of fail, deadLetter"),
        (
            {"deadLetterPath": "letters"},
            "'deadLetterPath' is 'letters': allowed is an absolute directory, or s3",
        ),
        ({"deadLetterPath": "hdfs://x/y"}, "'deadLetterPath' is 'hdfs://x/y': allowed is"),
        ({"deadLetterPath": "s3://X/y"}, "'deadLetterPath' is 's3://X/y': allowed is"),
        ({"rateLimiting": "token-bucket"}, "'tokenBucketRate' is required with 'rateLimiting' token-bucket"),
        (
            {"rateLimiting": "token-bucket", "tokenBucketRate": "5"},
            "'tokenBucketBurst' is required with 'rateLimiting' token-bucket",
        ),
        (
            {"rateLimiting": "no.such.module:Name"},
            "'rateLimiting' is 'no.such.module:Name': it cannot be loaded: No module named 'no'",
        ),
        ({"rateLimiting": f"{__name__}:Nowhere"}, "it cannot be loaded: module"),
        ({"rateLimiting": f"{__name__}:LIMITS"}, "it cannot be loaded: "),
        ({"rateLimiting": "fast"}, "'rateLimiting' is 'fast': allowed are aimd, token-bucket, none"),
        ({"tokenBucketScope": "query"}, "'tokenBucketScope' needs 'rateLimiting' token-bucket"),
        ({"tokenBucketUnit": "bytes"}, "'tokenBucketUnit' needs 'rateLimiting' token-bucket"),
        ({"tokenBucketAddress": "10.0.0.1"}, "'tokenBucketAddress' needs 'rateLimiting' token-bucket"),
        ({"tokenBucketScope": "host"}, "'tokenBucketScope' is 'host': allowed is one of task, query"),
        ({"aimdIncrease": "5", "rateLimiting": "none"}, "'aimdIncrease' needs 'rateLimiting' aimd"),
        ({**BUCKET, "aimdDecreaseFactor": "0.9"}, "'aimdDecreaseFactor' needs 'rateLimiting' aimd"),
        (
            {"aimdIncrease": "5", "rateLimiting": f"{__name__}:UserStrategy"},
            "'aimdIncrease' needs 'rateLimiting' aimd",
        ),
        ({"tokenBucketUnit": "rows"}, "is 'rows': allowed is one of records, bytes, requests"),
        (
            {**BUCKET, "tokenBucketAddress": "10.0.0.1"},
            "'tokenBucketAddress' needs 'tokenBucketScope' query",
        ),
        (
            {**BUCKET, "tokenBucketScope": "query", "tokenBucketAddress": "::"},
            "'tokenBucketAddress' is '::': tasks connect to it",
        ),
        (
            {**BUCKET, "tokenBucketScope": "query", "tokenBucketAddress": "driver:80"},
            "'tokenBucketAddress' is 'driver:80': allowed is the name or address of a host",
        ),
        ({"tokenBucketRate": "5"}, "'tokenBucketRate' needs 'rateLimiting' token-bucket"),
        ({"tokenBucketRate": "0", "rateLimiting": "token-bucket"}, "'tokenBucketRate' is '0'"),
        ({"tokenBucketBurst": "5", "rateLimiting": "none"}, "'tokenBucketBurst' needs 'rateLimiting'"),
        ({"aimdDecreaseFactor": "1"}, "'aimdDecreaseFactor' is '1'"),
        ({"aimdIncrease": "0"}, "'aimdIncrease' is '0'"),
        ({"failonEror": "true"}, "'failonEror' is not known: did you mean 'failOnError'?"),
    ],
)
def test_what_cannot_be_is_refused_by_name(given: dict[str, str], message: str) -> None:
    """Nothing is ignored: the error names the option, the given value and the allowed ones."""
    assert message in refusal(**given)


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ({}, (99, 100)),
        ({"aimdDecreaseFactor": "0.5"}, (50, 52)),
        ({"aimdDecreaseFactor": "0.5", "aimdIncrease": "1"}, (50, 51)),
    ],
)
def test_aimd_is_the_default_and_its_options_reach_it(given: dict[str, str], limits: tuple[int, int]) -> None:
    """It starts with the highest limit; the factor is the destination's unless given."""
    strategy = strategy_from_options(read(**given), LIMITS)(config(max_in_flight_requests=10))
    assert isinstance(strategy, PacedRateLimitingStrategy)
    assert strategy.limit == 100
    for at in range(10):
        strategy.register_in_flight_request(RequestInfo(10, started_at=float(at)))
    strategy.register_completed_request(ResultInfo(10, 10, 10, started_at=9.0))
    down = strategy.limit
    for at in range(9):
        strategy.register_completed_request(ResultInfo(0, 10, started_at=float(at)))
    assert down == limits[0]
    for _ in range(12):
        strategy.register_in_flight_request(RequestInfo(10))
        strategy.register_completed_request(ResultInfo(0, 10))
    assert strategy.limit == limits[1]


class WithItsOwn:
    """A destination whose author knows which strategy suits it."""

    def create_strategy(self, config: AsyncSinkConfig) -> RateLimitingStrategy:
        assert config.max_in_flight_requests == 10
        return NoRateLimitingStrategy()


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({}, NoRateLimitingStrategy),
        ({"rateLimiting": "aimd"}, PacedRateLimitingStrategy),
        ({"aimdIncrease": "3"}, PacedRateLimitingStrategy),
    ],
)
def test_a_destination_may_have_its_own_strategy(given: dict[str, str], kind: type[object]) -> None:
    """It is taken unless an option asks for another one."""
    destination: Any = WithItsOwn()
    strategy = strategy_from_options(read(**given), LIMITS, destination)(config(max_in_flight_requests=10))

    assert isinstance(strategy, kind)


def test_a_token_bucket_is_made_from_its_options() -> None:
    """Records a second, and at once; a batch is never larger than the bucket."""
    given = {"rateLimiting": "Token-Bucket", "tokenBucketRate": "2.5", "tokenBucketBurst": "7"}
    strategy = strategy_from_options(read(**given), LIMITS)(config())

    assert isinstance(strategy, TokenBucketRateLimitingStrategy)
    assert (strategy.rate, strategy.max_batch_size) == (2.5, 7)


@pytest.mark.parametrize(
    ("unit", "batch", "size", "rate", "wait"),
    [
        ("records", 7, 2**63 - 1, 2.0, 1.5),
        ("bytes", 2**31 - 1, 7, None, 3.5),
        ("requests", 2**31 - 1, 2**63 - 1, None, 0.0),
    ],
)
def test_a_token_bucket_counts_the_configured_unit(
    unit: str, batch: int, size: int, rate: float | None, wait: float
) -> None:
    """Records, bytes or requests: how much a request may have, and how long the next one waits."""
    given = {**BUCKET, "tokenBucketRate": "2", "tokenBucketUnit": unit}
    bucket = strategy_from_options(read(**given), LIMITS)(config())
    assert isinstance(bucket, TokenBucketRateLimitingStrategy)
    assert (bucket.max_batch_size, bucket.max_batch_size_in_bytes, bucket.rate) == (batch, size, rate)
    bucket.register_in_flight_request(RequestInfo(5, 7))
    assert bucket.delay(RequestInfo(5, 7)) == pytest.approx(wait, abs=0.1)


def test_tasks_share_a_bucket_only_on_request() -> None:
    """With the scope of the query. Sinks with other options have another bucket."""
    assert shared_bucket_from_options(read(**BUCKET), BUCKET) is None
    assert shared_bucket_from_options(read(), {}) is None
    given = {**BUCKET, "tokenBucketScope": "query", "tokenBucketUnit": "Bytes", "tokenBucketAddress": "::1"}
    shared = shared_bucket_from_options(read(**given), given)
    other = shared_bucket_from_options(read(**given), given | {"url": "http://secret@other"})
    assert shared == SharedBucketConfig(rate=5.0, burst=7, unit="bytes", address="::1", sink=sink_of(given))
    assert other != shared
    assert "secret" not in str(other)


@pytest.mark.parametrize("name", ["no.such.module:Name", f"{__name__}:Nowhere", ":Name", ".module:Name"])
def test_a_listener_that_cannot_be_loaded_is_refused(name: str) -> None:
    """Also where the name is that of no module at all."""
    with pytest.raises(OptionError, match=f"'progressListener' is '{name}': it cannot be loaded: "):
        load_progress_listener(name)


class UserStrategy(NoRateLimitingStrategy):
    """A user's strategy that takes the settings."""

    def __init__(self, settings: Any) -> None:
        self.settings = settings


class Unmakeable:
    def __init__(self) -> None:
        raise KeyError("no settings")


class UnmakeableWithSettings:
    def __init__(self, config: Any) -> None:
        raise RuntimeError(f"batches of {config.max_batch_size} are too large")


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Unmakeable, "KeyError: 'no settings'"),
        (UnmakeableWithSettings, "RuntimeError: batches of 10 are too large"),
    ],
)
def test_a_strategy_whose_constructor_fails_is_named(kind: type, why: str) -> None:
    """With the option, its value, and the error of the constructor, whose traceback is kept."""
    name = f"{__name__}:{kind.__name__}"
    make = strategy_from_options(read(rateLimiting=name), LIMITS)
    with pytest.raises(OptionError) as caught:
        make(config(max_batch_size=10))

    assert str(caught.value) == f"option 'rateLimiting' is '{name}': it cannot be made: {why}"
    assert caught.value.__cause__ is not None


def test_what_is_no_strategy_is_refused() -> None:
    """The error names the methods that it lacks."""
    make = strategy_from_options(read(rateLimiting="builtins:object"), LIMITS)
    with pytest.raises(OptionError, match="has no max_batch_size, register_completed_request"):
        make(config())


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_batch_size": 0},
        {"max_in_flight_requests": 0},
        {"request_timeout": 0.0},
        {"max_time_in_buffer": -1.0},
        {"max_retry_duration": float("nan")},
        {"max_buffered_requests": 9},
        {"max_record_size_in_bytes": 1001},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    """A writer that could not send, or would never end, is not made."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        config(**wrong)


# --- what survives an epoch ---------------------------------------------------------------------------


def test_a_strategy_is_used_again_in_the_next_epoch() -> None:
    """For the same destination and configuration."""
    cache = StrategyCache()
    with cache.lend("a", NoRateLimitingStrategy) as first:
        pass
    with (
        cache.lend("a", NoRateLimitingStrategy) as second,
        cache.lend("b", NoRateLimitingStrategy) as other,
    ):
        assert second is first
        assert other is not first


def test_a_strategy_serves_one_writer_at_a_time() -> None:
    """Two writers at the same time have a strategy each."""
    cache = StrategyCache()
    with cache.lend("a", NoRateLimitingStrategy):
        pass
    with cache.lend("a", NoRateLimitingStrategy) as one, cache.lend("a", NoRateLimitingStrategy) as two:
        assert one is not two
