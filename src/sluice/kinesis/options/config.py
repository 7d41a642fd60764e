"""The options of the source, each declared once, and their parsed form, `SourceConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sluice.aws.calling.backoff_options import BackoffOptions
from sluice.aws.calling.connection import (
    CONNECTION_OPTIONS,
    REGION,
    WIRE_FORMATS,
    ConnectionConfig,
    connection_from_options,
)
from sluice.aws.names.shard_table import ShardTable
from sluice.errors import OptionError
from sluice.kinesis.options.agent import AGENT_OPTIONS, AgentConfig, agent_from_options
from sluice.kinesis.options.fan_out import (
    CONSUMER_ARN,
    CONSUMER_DEREGISTRATION,
    FAN_OUT_OPTIONS,
    FanOutConfig,
    fan_out_from_options,
)
from sluice.kinesis.options.foreign_names import SOURCE_NAMES
from sluice.kinesis.options.starting_positions import (
    ENDING,
    ENDING_TIMESTAMP,
    LATEST,
    STARTING,
    STARTING_TIMESTAMP,
    TRIM_HORIZON,
    AtTimestamp,
    EndingPosition,
    PerShard,
    StartingPosition,
)
from sluice.kinesis.options.streams import STREAM_ARN, STREAM_NAME, StreamRef, streams_from_options
from sluice.options import BOOLEAN, Option, OptionValues, choice, duration, integer, read_options
from sluice.retry import Backoff
from sluice.source import settings
from sluice.source.contracts import refuse_idle_options
from sluice.source.settings import (
    FAIL_ON_DATA_LOSS,
    MAX_BYTES,
    MAX_DRIFT,
    MAX_RECORDS,
    MAX_TIME_SPAN,
    READ_RETRY_DURATION,
    SourceSettings,
    settings_from_options,
)

__all__ = [
    "ALL_OPTIONS",
    "BACKOFF_DEFAULTS",
    "SOURCE_OPTIONS",
    "Polling",
    "SourceConfig",
    "source_config_from_options",
    "source_config_from_values",
]

FORMAT: Final = "kinesis-efo"

DISCOVERY_INTERVAL = replace(
    settings.DISCOVERY_INTERVAL,
    key="shardDiscoveryInterval",
    description="How often shards are listed again.",
)
SHARDS_PER_TASK = replace(
    settings.SPLITS_PER_TASK,
    key="shardsPerTask",
    default=None,
    description="The most shards that one Spark task reads at a time. By default, free cores get a task for "
    "every 8 shards or 10,000 records.",
    shown_default="up to 16",
)
DEAGGREGATE = Option(
    "deaggregate",
    BOOLEAN,
    True,
    "Unpack aggregated records of the Kinesis Producer Library; `subSequenceNumber` is the position in one.",
    shown_default="true",
)
RECORDS_LIMIT = Option("getRecordsLimit", integer(1, 10_000), 10_000, "Polling: the most records in a page.")
RECORDS_INTERVAL = Option(
    "getRecordsInterval",
    duration(),
    0.2,
    "Polling: pause between two reads of a shard in a task; the planner pauses four times as long. Raise "
    "it if other applications poll the shard.",
    shown_default="200ms",
)

WIRE_FORMAT = Option(
    "wireFormat",
    choice(*WIRE_FORMATS),
    "auto",
    "Wire format of records. `auto`: CBOR, or JSON for small pages, subscriptions and endpoints without "
    "CBOR.",
)

# Operation to its defaults, as in FLIP-128: retries, base and max (seconds), exponent.
BACKOFF_DEFAULTS: Final[Mapping[str, Backoff]] = {
    "SubscribeToShard": Backoff(10, 1.0, 2.0, 1.5),
    "RegisterStreamConsumer": Backoff(10, 0.5, 2.0, 1.5),
    "DeregisterStreamConsumer": Backoff(10, 0.5, 2.0, 1.5),
    "ListStreamConsumers": Backoff(10, 0.2, 1.0, 1.5),
    "DescribeStreamConsumer": Backoff(50, 2.0, 5.0, 1.5),
    "GetRecords": Backoff(3, 0.3, 1.0, 1.5),
    "GetShardIterator": Backoff(3, 0.3, 1.0, 1.5),
    "ListShards": Backoff(10, 1.0, 5.0, 1.5),
}
_BACKOFFS: Final = {name: BackoffOptions.declare(name, default) for name, default in BACKOFF_DEFAULTS.items()}

SOURCE_OPTIONS: tuple[Option[Any], ...] = (
    STREAM_NAME,
    STREAM_ARN,
    *FAN_OUT_OPTIONS,
    *AGENT_OPTIONS,
    STARTING,
    STARTING_TIMESTAMP,
    ENDING,
    ENDING_TIMESTAMP,
    MAX_RECORDS,
    MAX_BYTES,
    MAX_TIME_SPAN,
    MAX_DRIFT,
    DISCOVERY_INTERVAL,
    SHARDS_PER_TASK,
    DEAGGREGATE,
    FAIL_ON_DATA_LOSS,
    RECORDS_LIMIT,
    RECORDS_INTERVAL,
    READ_RETRY_DURATION,
    WIRE_FORMAT,
    *(option for backoff in _BACKOFFS.values() for option in backoff.all),
)

_COMMON_OPTIONS: Final = (
    MAX_RECORDS,
    MAX_BYTES,
    MAX_TIME_SPAN,
    MAX_DRIFT,
    FAIL_ON_DATA_LOSS,
    READ_RETRY_DURATION,
)
"""Those that are as every log has them."""

ALL_OPTIONS: Final[tuple[Option[Any], ...]] = (*SOURCE_OPTIONS, *CONNECTION_OPTIONS)


@dataclass(frozen=True, slots=True)
class Polling:
    """Page size (records), and the pause between two reads of a shard (seconds)."""

    records_limit: int = 10_000
    interval: float = 0.2


@dataclass(frozen=True)
class SourceConfig:
    """The options of the source as plain data, which Spark may pickle. Durations are seconds.

    Attributes:
        streams: in the user's order, without duplicate names.
        backoffs: operation (``GetRecords``) to how it is retried.
        settings: the options that all sources have.
        shards_per_task: None: it depends on the number of records; `settings` has the maximum.
        fan_out: None for polling.
        agent: None without an agent. With `fan_out` it subscribes, otherwise it polls.
    """

    connection: ConnectionConfig
    streams: tuple[StreamRef, ...]
    backoffs: Mapping[str, Backoff]
    start: StartingPosition = LATEST
    end: EndingPosition = LATEST
    settings: SourceSettings = field(default_factory=SourceSettings)
    polling: Polling = Polling()
    shards_per_task: int | None = None
    deaggregate: bool = True
    fan_out: FanOutConfig | None = None
    agent: AgentConfig | None = None


# Options that do nothing in a batch read, which has no triggers and no agent, and runs once.
STREAMING_OPTIONS: Final[tuple[Option[Any], ...]] = (
    MAX_RECORDS,
    MAX_BYTES,
    MAX_TIME_SPAN,
    MAX_DRIFT,
    DISCOVERY_INTERVAL,
    CONSUMER_DEREGISTRATION,
    *AGENT_OPTIONS,
)
BATCH_OPTIONS: Final[tuple[Option[Any], ...]] = (ENDING, ENDING_TIMESTAMP)


def source_config_from_options(options: Mapping[str, str], *, streaming: bool | None = None) -> SourceConfig:
    """Reads the options of a source.

    Args:
        options: as Spark passes them: keys in any case, values as text.
        streaming: whether it is a streaming read or a batch read. Each kind refuses options that do nothing
            in it. None: not known yet.

    Raises:
        OptionError: all problems in one message.
    """
    values = read_options(FORMAT, ALL_OPTIONS, options, foreign=SOURCE_NAMES)
    refuse_idle_options(values, STREAMING_OPTIONS, BATCH_OPTIONS, streaming=streaming)
    return source_config_from_values(values)


def source_config_from_values(values: OptionValues) -> SourceConfig:
    """Makes the config from parsed options.

    Raises:
        OptionError: all problems in one message.
    """
    streams = streams_from_options(values)
    fan_out = fan_out_from_options(values, streams)
    agent = agent_from_options(values, is_fan_out=fan_out is not None)
    connection = replace(connection_from_options(values), wire_format=values.require(WIRE_FORMAT))
    connection = _with_region(values, connection, streams, fan_out)
    start = _read_start(values, streams)
    end = _read_end(values, start)
    values.check()
    shards_per_task = values.get(SHARDS_PER_TASK)
    common = settings_from_options(values, _COMMON_OPTIONS, streaming=None)
    return SourceConfig(
        connection=connection,
        streams=streams,
        backoffs=_read_backoffs(values),
        start=start,
        end=end,
        settings=replace(
            common,
            discovery_interval=values.require(DISCOVERY_INTERVAL),
            splits_per_task=shards_per_task or common.splits_per_task,
        ),
        polling=Polling(values.require(RECORDS_LIMIT), values.require(RECORDS_INTERVAL)),
        shards_per_task=shards_per_task,
        deaggregate=values.require(DEAGGREGATE),
        fan_out=fan_out,
        agent=agent,
    )


def _read_backoffs(values: OptionValues) -> Mapping[str, Backoff]:
    """How each operation is retried. If the service refuses listings because of load, a starting query waits
    for minutes.
    """
    listing = _BACKOFFS["ListShards"].read(values, throttle_patience=values.require(READ_RETRY_DURATION))
    return {name: backoff.read(values) for name, backoff in _BACKOFFS.items()} | {"ListShards": listing}


def _with_region(
    values: OptionValues,
    connection: ConnectionConfig,
    streams: tuple[StreamRef, ...],
    fan_out: FanOutConfig | None,
) -> ConnectionConfig:
    # An ARN names the region of its stream; the SDK's chain could choose another one.
    region, owners = streams[0].region if streams else None, f"the streams of '{STREAM_ARN.key}'"
    if region is None:
        region, owners = fan_out.region if fan_out else None, f"the consumers of '{CONSUMER_ARN.key}'"
    if region is None:
        return connection
    if connection.region not in (None, region):
        values.reject_value(REGION, f"{owners} are in {region}")
    return replace(connection, region=region)


def _read_start(values: OptionValues, streams: tuple[StreamRef, ...]) -> StartingPosition:
    position = values.get(STARTING)
    instant = _read_instant(values, STARTING, STARTING_TIMESTAMP)
    if isinstance(position, ShardTable):
        try:
            return PerShard.of(position, [stream.name for stream in streams]) if streams else PerShard()
        except OptionError as error:
            values.reject(STARTING.key, str(error))
    if position == TRIM_HORIZON:
        return TRIM_HORIZON
    return LATEST if instant is None else AtTimestamp(instant)


def _read_end(values: OptionValues, start: StartingPosition) -> EndingPosition:
    instant = _read_instant(values, ENDING, ENDING_TIMESTAMP)
    if instant is None:
        return LATEST
    if isinstance(start, AtTimestamp) and instant < start.instant:
        values.reject_value(ENDING_TIMESTAMP, f"it is before '{STARTING_TIMESTAMP.key}'")
    return AtTimestamp(instant)


def _read_instant(values: OptionValues, position: Option[Any], timestamp: Option[int]) -> int | None:
    """The time of the position AT_TIMESTAMP; None with any other position."""
    is_timed = values.get(position) == "AT_TIMESTAMP"
    if values.given(timestamp) and not is_timed:
        values.reject(timestamp.key, f"needs '{position.key}' AT_TIMESTAMP")
    elif is_timed and not values.mentions(timestamp):
        values.reject(
            timestamp.key, f"is required with '{position.key}' AT_TIMESTAMP: {timestamp.kind.allowed}"
        )
    return values.get(timestamp) if is_timed else None
