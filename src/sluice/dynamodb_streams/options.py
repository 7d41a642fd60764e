"""The options of the source, each declared once, and the `StreamsConfig` that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sluice.aws.calling.backoff_options import BackoffOptions
from sluice.aws.calling.connection import (
    CONNECTION_OPTIONS,
    REGION,
    ConnectionConfig,
    connection_from_options,
)
from sluice.aws.names.shard_table import ShardTable
from sluice.dynamodb_streams.starting_positions import STARTING, ByShard, StartingPosition
from sluice.dynamodb_streams.streams import STREAM_ARN, TABLE_NAME, TableRef, tables_from_options
from sluice.errors import OptionError
from sluice.options import Option, OptionValues, choice, duration, integer, number
from sluice.retry import Backoff
from sluice.source.settings import MAX_DRIFT, MAX_TIME_SPAN, READ_RETRY_DURATION, SPLIT_OPTIONS

__all__ = [
    "ALL_OPTIONS",
    "COMMON_OPTIONS",
    "EMPTY_PAGES_AT_TIP",
    "INITIAL_SNAPSHOT",
    "SCAN_READ_UNITS",
    "SCAN_SEGMENTS",
    "SNAPSHOT_OPTIONS",
    "SOURCE_OPTIONS",
    "StreamsConfig",
    "config_from_values",
]

_LARGEST_PAGE: Final = 1_000
EMPTY_PAGES_AT_TIP: Final = 20
"""The default of option `EMPTY_PAGES`."""

IMAGE_FORMAT = Option(
    "imageFormat",
    choice("json", "dynamodb-json"),
    "json",
    "`keys`, `newImage` and `oldImage` as plain JSON (numbers with all digits, sets as arrays, binary as "
    'base64), or in DynamoDB\'s form (`dynamodb-json`): `{"id": {"N": "1"}}`.',
)
EMPTY_PAGES = Option(
    "emptyPagesAtTip",
    integer(1, 1_000),
    EMPTY_PAGES_AT_TIP,
    "After this many empty pages in a row, an open shard counts as read to its tip: DynamoDB does not "
    "report the tip. The next trigger resumes there.",
)
INITIAL_SNAPSHOT = Option(
    "initialSnapshot",
    choice("none", "scan"),
    "none",
    "`scan`: a new query, or a table added to one, first reads the whole table as rows with `eventName` "
    "`SNAPSHOT`, then the changes since before the scan.",
)
SCAN_SEGMENTS = Option(
    "scanSegments",
    integer(1, 1_000_000),
    None,
    "Number of segments of a scan. A batch reads whole segments.",
    shown_default="by the table's size: 512 KiB each, and 8 in what a batch may hold",
)
SCAN_READ_UNITS = Option(
    "scanReadUnits",
    number(1.0),
    None,
    "The most read capacity units (4 KiB) per second of a scan.",
)
RECORDS_LIMIT = Option(
    "getRecordsLimit", integer(1, _LARGEST_PAGE), _LARGEST_PAGE, "The most records in a page."
)
RECORDS_INTERVAL = Option(
    "getRecordsInterval",
    duration(),
    0.1,
    "Pause between two reads of a shard in a task.",
    shown_default="100ms",
)

BACKOFF_DEFAULTS: Final[Mapping[str, Backoff]] = {
    "GetRecords": Backoff(3, 0.3, 1.0, 1.5),
    "GetShardIterator": Backoff(3, 0.3, 1.0, 1.5),
    "DescribeStream": Backoff(10, 1.0, 5.0, 1.5),
    "ListStreams": Backoff(10, 1.0, 5.0, 1.5),
}
"""By operation: retries, base and max (seconds), exponent. The same as for Kinesis."""
_BACKOFFS: Final = {name: BackoffOptions.declare(name, each) for name, each in BACKOFF_DEFAULTS.items()}

COMMON_OPTIONS: Final[tuple[Option[Any], ...]] = (*SPLIT_OPTIONS, MAX_TIME_SPAN, MAX_DRIFT)
"""The options that the base class reads. There is no start or end by time."""
SNAPSHOT_OPTIONS: Final[tuple[Option[Any], ...]] = (INITIAL_SNAPSHOT, SCAN_SEGMENTS, SCAN_READ_UNITS)
"""For streaming reads only."""
_OWN_OPTIONS: Final[tuple[Option[Any], ...]] = (
    TABLE_NAME,
    STREAM_ARN,
    STARTING,
    *SNAPSHOT_OPTIONS,
    IMAGE_FORMAT,
    RECORDS_LIMIT,
    RECORDS_INTERVAL,
    EMPTY_PAGES,
    *(option for backoff in _BACKOFFS.values() for option in backoff.all),
)
ALL_OPTIONS: Final[tuple[Option[Any], ...]] = (*_OWN_OPTIONS, *CONNECTION_OPTIONS)
"""All options that the source declares itself."""
SOURCE_OPTIONS: Final[tuple[Option[Any], ...]] = (*_OWN_OPTIONS[:6], *COMMON_OPTIONS, *_OWN_OPTIONS[6:])
"""All options except the connection options, for the documentation."""


@dataclass(frozen=True)
class StreamsConfig:
    """The options of the source as plain data, which Spark may pickle. Durations are seconds.

    Attributes:
        tables: in the user's order, without duplicates.
        backoffs: by operation (``GetRecords``), how it is retried.
        start: None if the user set none.
        scans: whether a new query reads the tables first.
        scan_segments: number of segments of each table; None: by its size.
        scan_read_units: read capacity a second; None: no limit.
    """

    connection: ConnectionConfig
    tables: tuple[TableRef, ...]
    backoffs: Mapping[str, Backoff]
    start: StartingPosition | None = None
    image_format: str = "json"
    records_limit: int = _LARGEST_PAGE
    records_interval: float = 0.1
    empty_pages: int = EMPTY_PAGES_AT_TIP
    scans: bool = False
    scan_segments: int | None = None
    scan_read_units: float | None = None


def config_from_values(values: OptionValues) -> StreamsConfig:
    """Makes the configuration from parsed options.

    Raises:
        OptionError: all problems in one message.
    """
    tables = tables_from_options(values)
    connection = _with_region(values, connection_from_options(values), tables)
    start = _read_start(values, tables)
    scans = values.get(INITIAL_SNAPSHOT) == "scan"
    if scans and start not in (None, "LATEST"):
        values.reject(STARTING.key, f"does not go with '{INITIAL_SNAPSHOT.key}' scan: leave it out")
    for option in (SCAN_SEGMENTS, SCAN_READ_UNITS):
        if not scans and values.given(option):
            values.reject(option.key, f"needs '{INITIAL_SNAPSHOT.key}' scan")
    values.check()
    backoffs = {name: backoff.read(values) for name, backoff in _BACKOFFS.items()}
    patience = values.require(READ_RETRY_DURATION)
    for listing in ("DescribeStream", "ListStreams"):
        backoffs[listing] = _BACKOFFS[listing].read(values, throttle_patience=patience)
    return StreamsConfig(
        connection=connection,
        tables=tables,
        backoffs=backoffs,
        start=start,
        image_format=values.require(IMAGE_FORMAT),
        records_limit=values.require(RECORDS_LIMIT),
        records_interval=values.require(RECORDS_INTERVAL),
        empty_pages=values.require(EMPTY_PAGES),
        scans=scans,
        scan_segments=values.get(SCAN_SEGMENTS),
        scan_read_units=values.get(SCAN_READ_UNITS),
    )


def _with_region(
    values: OptionValues, connection: ConnectionConfig, tables: tuple[TableRef, ...]
) -> ConnectionConfig:
    # An ARN has the region of its stream; the SDK's chain could choose another one.
    region = tables[0].region if tables else None
    if region is None or connection.endpoint_url is not None:
        return connection
    if connection.region not in (None, region):
        values.reject_value(REGION, f"the streams of '{STREAM_ARN.key}' are in {region}")
    return replace(connection, region=region)


def _read_start(values: OptionValues, tables: tuple[TableRef, ...]) -> StartingPosition | None:
    position = values.get(STARTING)
    if not isinstance(position, ShardTable):
        return position
    try:
        return ByShard.of(position, [table.name for table in tables]) if tables else None
    except OptionError as error:
        values.reject(STARTING.key, str(error))
    return None
