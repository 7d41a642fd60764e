"""Options that every source has, and their parsed form, `SourceSettings`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sluice.instants import MICROS_PER_SECOND, TIME_FORM, micros_from_seconds, parse_time
from sluice.options import BOOLEAN, Kind, Option, OptionValues, choice, duration, integer, size

_MILLISECOND: Final = 0.001

MAX_RECORDS = Option(
    "maxRecordsPerTrigger",
    integer(1),
    None,
    "Target number of stored records in a batch. A batch may exceed it by a page per shard.",
)
MAX_BYTES = Option(
    "maxBytesPerTrigger",
    size(1),
    None,
    "Target size of a batch. A batch may exceed it by a page per shard.",
)
MAX_TIME_SPAN = Option(
    "maxTimeSpanPerTrigger",
    duration(_MILLISECOND),
    None,
    "A batch covers at most this much arrival time on every shard.",
)
MAX_DRIFT = Option(
    "maxDrift",
    duration(1.0),
    None,
    "A batch takes nothing that arrived more than this after the oldest unread record of any shard. With "
    "a watermark of the same delay, Spark drops no row because Sluice read it late. At least 1s.",
)
DISCOVERY_INTERVAL = Option(
    "splitDiscoveryInterval",
    duration(_MILLISECOND),
    10.0,
    "How often splits are listed again.",
    shown_default="10s",
)
SPLITS_PER_TASK = Option("splitsPerTask", integer(1), 16, "Splits that one Spark task reads.")
FAIL_ON_DATA_LOSS = Option(
    "failOnDataLoss",
    BOOLEAN,
    True,
    "Fail if records between two batches expired, or a shard was deleted. `false`: log the loss and "
    "continue.",
    shown_default="true",
)


TIMESTAMP: Kind[int] = Kind("timestamp", TIME_FORM, parse_time)
STARTING = Option(
    "startingPosition",
    choice("EARLIEST", "TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"),
    None,
    "Where a query without a checkpoint starts. `TRIM_HORIZON` is another name of `EARLIEST`.",
    shown_default="`LATEST`; in batch reads `EARLIEST`",
)
STARTING_TIMESTAMP = Option(
    "startingTimestamp", TIMESTAMP, None, "For `AT_TIMESTAMP`: the arrival time of the first records."
)
ENDING_TIMESTAMP = Option(
    "endingTimestamp", TIMESTAMP, None, "Batch reads: leave out records that arrived then or later."
)

READ_RETRY_DURATION = Option(
    "readRetryDuration",
    duration(),
    900.0,
    "How long failed reads and listings are retried.",
    shown_default="15m",
)

TASK_OPTIONS: Final[tuple[Option[Any], ...]] = (SPLITS_PER_TASK, READ_RETRY_DURATION)
"""The common options that every source has."""
SPLIT_OPTIONS: Final[tuple[Option[Any], ...]] = (
    MAX_RECORDS,
    MAX_BYTES,
    DISCOVERY_INTERVAL,
    FAIL_ON_DATA_LOSS,
    *TASK_OPTIONS,
)
"""The common options of finite splits."""
LOG_OPTIONS: Final[tuple[Option[Any], ...]] = (
    *SPLIT_OPTIONS,
    MAX_TIME_SPAN,
    MAX_DRIFT,
    STARTING,
    STARTING_TIMESTAMP,
    ENDING_TIMESTAMP,
)
"""All common options."""
STREAMING_OPTIONS: Final[tuple[Option[Any], ...]] = (
    MAX_RECORDS,
    MAX_BYTES,
    DISCOVERY_INTERVAL,
    MAX_TIME_SPAN,
    MAX_DRIFT,
)
BATCH_OPTIONS: Final[tuple[Option[Any], ...]] = (ENDING_TIMESTAMP,)
"""Options that do nothing in the other kind of read."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one batch.

    Attributes:
        records: in all splits together, counted before deaggregation.
        bytes: in all splits together.
        span: arrival time that a batch covers in each split (microseconds).
        may_be_last: whether the run may end with this batch, which then takes every existing record
            within the limits.
    """

    records: int | None = None
    bytes: int | None = None
    span: int | None = None
    may_be_last: bool = False

    @property
    def is_none(self) -> bool:
        return self.records is None and self.bytes is None and self.span is None


NO_LIMITS = Limits()


@dataclass(frozen=True)
class SourceSettings:
    """The values of the common options; see `sluice.source.settings` for each.

    Attributes:
        max_drift: seconds; None: no limit.
        discovery_interval: seconds.
        starting: `EARLIEST`, `LATEST` or `AT_TIMESTAMP`.
        starting_timestamp, ending_timestamp: microseconds since the epoch; None: not given.
        read_retry_duration: seconds.
    """

    limits: Limits = NO_LIMITS
    max_drift: float | None = None
    discovery_interval: float = 10.0
    splits_per_task: int = 16
    fail_on_data_loss: bool = True
    starting: str = "LATEST"
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    read_retry_duration: float = 900.0

    @property
    def starting_text(self) -> str:
        """The starting position as text for the offset log, which shows if it changes."""
        if self.starting_timestamp is None:
            return self.starting
        return f"{self.starting} {self.starting_timestamp / MICROS_PER_SECOND:.3f}"


def settings_from_options(
    values: OptionValues, declared: Sequence[Option[Any]], *, streaming: bool | None
) -> SourceSettings:
    """Makes the settings from a user's options. Rejects combinations that do not fit together.

    Args:
        declared: the common options that the source does not declare itself.
        streaming: None: not known yet.

    Raises:
        OptionError: an option has no value.
    """

    def get(option: Option[Any]) -> Any:
        return values.get(option) if option in declared else option.default

    span, starting = get(MAX_TIME_SPAN), get(STARTING)
    if starting in (None, "TRIM_HORIZON"):
        starting = "EARLIEST" if starting or streaming is False else "LATEST"
    instant = get(STARTING_TIMESTAMP)
    if starting == "AT_TIMESTAMP" and instant is None and not values.mentions(STARTING_TIMESTAMP):
        values.reject(STARTING_TIMESTAMP.key, f"is required with '{STARTING.key}' AT_TIMESTAMP")
    if instant is not None and starting != "AT_TIMESTAMP":
        values.reject(STARTING_TIMESTAMP.key, f"needs '{STARTING.key}' AT_TIMESTAMP")
    ending = get(ENDING_TIMESTAMP)
    if instant is not None and ending is not None and ending < instant:
        values.reject_value(ENDING_TIMESTAMP, f"it is before '{STARTING_TIMESTAMP.key}'")
    return SourceSettings(
        Limits(get(MAX_RECORDS), get(MAX_BYTES), None if span is None else micros_from_seconds(span)),
        get(MAX_DRIFT),
        get(DISCOVERY_INTERVAL),
        get(SPLITS_PER_TASK),
        get(FAIL_ON_DATA_LOSS),
        starting,
        instant,
        ending,
        get(READ_RETRY_DURATION),
    )
