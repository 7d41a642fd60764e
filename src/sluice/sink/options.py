"""The options that every destination has, and the settings and listeners made from them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from sluice.options import (
    BOOLEAN,
    TEXT,
    Kind,
    Option,
    OptionValues,
    choice,
    duration,
    integer,
    matching,
    size,
)
from sluice.sink.config import AsyncSinkConfig, SinkLimits
from sluice.sink.rate_limiting_options import RATE_LIMITING_OPTIONS
from sluice.sink.reporting.progress import ProgressListener
from sluice.sink.user_code.loading import OBJECT, load_function

__all__ = [
    "ASYNC_OPTIONS",
    "DEAD_LETTER_PATH",
    "DESTINATION",
    "ELEMENT_CONVERTER",
    "PROGRESS_LISTENER",
    "SINK_OPTIONS",
    "TXN_APP_ID",
    "TXN_OPTIONS",
    "TXN_VERSION",
    "UNKNOWN_COLUMNS",
    "config_from_options",
    "load_progress_listener",
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


def _limit(name: str, kind: Kind[int], text: str) -> Option[int]:
    """An option whose default each destination has."""
    return Option(name, kind, None, text, shown_default="per destination")


DESTINATION = Option(
    "destination",
    TEXT,
    None,
    "`kinesis`, `firehose`, `dynamodb`, `sqs`, `http`, `s3`, `files`, a name in the entry-point group "
    "`sluice.destinations`, or `package.module:Name`.",
    required=True,
)
MAX_BATCH_SIZE = _limit("maxBatchSize", integer(1), "Records in one request.")
MAX_BATCH_SIZE_IN_BYTES = _limit("maxBatchSizeInBytes", size(), "Bytes in one request.")
MAX_RECORD_SIZE_IN_BYTES = _limit(
    "maxRecordSizeInBytes",
    size(),
    "Bytes in one record; for larger ones see `oversizedRecords`.",
)
MAX_IN_FLIGHT_REQUESTS = _limit(
    "maxInFlightRequests", integer(1, 1000), "The most requests of a task in flight."
)
MAX_BUFFERED_REQUESTS = _limit(
    "maxBufferedRequests",
    integer(1),
    "The most records that wait to be sent in a task. If it is reached, the task takes no rows.",
)
MAX_TIME_IN_BUFFER = Option(
    "maxTimeInBuffer",
    duration(),
    5.0,
    "The longest time that a record waits for its batch to fill.",
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
    "failOnTimeout", BOOLEAN, False, "Whether a timeout of a request is fatal.", shown_default="false"
)
FAIL_ON_ERROR = Option(
    "failOnError",
    BOOLEAN,
    False,
    "Whether the first record that is not accepted is fatal.",
    shown_default="false",
)
MAX_RETRY_DURATION = Option(
    "maxRetryDuration",
    duration(),
    900.0,
    "How long a refused record is retried before the task fails. With `files`, `s3` and committers: how "
    "long a failed call is retried.",
    shown_default="15m",
)
ELEMENT_CONVERTER = Option(
    "elementConverter",
    OBJECT,
    None,
    "`package.module:Name` of a class or function that makes a converter, such as "
    "`sluice.sink.converters:JsonConverter`.",
    shown_default="the destination's own",
)
OVERSIZED_RECORDS = Option(
    "oversizedRecords",
    choice("fail", "deadLetter"),
    "fail",
    "If a record is too large: `fail` the task, even with `deadLetterPath`, or make it a `deadLetter`.",
    shown_default="`fail`",
)
UNKNOWN_COLUMNS = Option(
    "unknownColumns",
    choice("fail", "ignore"),
    "fail",
    "If the destination would not write a column: `fail` the query when it starts, or `ignore` the "
    "column. `dynamodb`, `files` and `s3` write every column.",
)
DEAD_LETTER_PATH = Option(
    "deadLetterPath",
    _PATH,
    None,
    "Directory that all executors share, or `s3://` prefix, for records that can never be delivered. "
    "Without it, they fail the task. Required by `oversizedRecords=deadLetter`.",
)
PROGRESS_LISTENER = Option(
    "progressListener",
    OBJECT,
    None,
    "`package.module:Name` of a function that is called with a `sluice.sink.SinkProgress` after each "
    "commit and abort, on the driver host.",
)

TXN_APP_ID = Option(
    "txnAppId",
    matching("id", "1 to 200 printable characters", r"[^\x00-\x1f\x7f]{1,200}"),
    None,
    "Batch writes to `files`, `s3` and destinations with a committer, as in `foreachBatch`: a write with "
    "the same `txnAppId` and `txnVersion` is committed once.",
)
TXN_VERSION = Option(
    "txnVersion",
    integer(0),
    None,
    "Version of the write for `txnAppId`, such as the batch id of `foreachBatch`.",
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
    *RATE_LIMITING_OPTIONS,
    PROGRESS_LISTENER,
    TXN_APP_ID,
    TXN_VERSION,
)
TXN_OPTIONS: tuple[Option[Any], ...] = (TXN_APP_ID, TXN_VERSION)
# The options of the async writer. A two-phase destination has its own writer, and takes none of them.
ASYNC_OPTIONS: tuple[Option[Any], ...] = tuple(
    option
    for option in SINK_OPTIONS
    if option not in (DESTINATION, UNKNOWN_COLUMNS, PROGRESS_LISTENER, *TXN_OPTIONS)
)


def config_from_options(values: OptionValues, limits: SinkLimits) -> AsyncSinkConfig | None:
    """The settings of the async writer; None if they do not fit together, noted for `values.check()`."""
    batch = _within(values, MAX_BATCH_SIZE, limits.max_batch_size, limits)
    batch_bytes = _within(values, MAX_BATCH_SIZE_IN_BYTES, limits.max_batch_size_in_bytes, limits)
    # If a user gives one of two settings that must fit together, the default of the other is made to fit.
    record_bytes = _within(values, MAX_RECORD_SIZE_IN_BYTES, limits.max_record_size_in_bytes, limits)
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


def load_progress_listener(name: str) -> ProgressListener:
    """Imports the function that is called after commits and aborts; only the driver has to have it.

    Raises:
        OptionError: see `load_function`.
    """
    listener: ProgressListener = load_function(PROGRESS_LISTENER, name)
    return listener


def _within(values: OptionValues, option: Option[int], most: int, limits: SinkLimits) -> int:
    """The value of an option whose default is `most`, which is also its maximum unless `limits` says not."""
    value = values.get(option)
    if value is None:
        return most
    if limits.are_maximum and value > most:
        values.reject_value(option, f"the destination takes at most {most}")
        return most
    return value
