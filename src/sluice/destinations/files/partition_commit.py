"""Partition commit: which directories are complete (FLIP-143).

A partition is complete when the watermark of its query has passed the partition's end. Then the hook is
called, and the marker is put into its directory.

A query's state is one small file: the greatest timestamp that it has committed, and its open partitions. It
is updated after the manifest is put and before Spark logs the batch. If the driver is killed in between, the
batch comes again and is added again, which changes nothing.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, Final
from urllib.parse import unquote
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from sluice.destinations.files.layout import Layout
from sluice.destinations.files.manifest import Manifest
from sluice.destinations.files.partitions import NULL
from sluice.destinations.files.pending import for_each
from sluice.destinations.files.store import Store
from sluice.errors import OptionError
from sluice.instants import micros_from_datetime, micros_from_seconds
from sluice.options import TEXT, Kind, Option, OptionValues, duration, matching
from sluice.sink import StructType
from sluice.sink.user_code.loading import OBJECT, load_function, run

__all__ = ["PARTITION_OPTIONS", "Completion", "PartitionCommit", "latest_of"]

_log = logging.getLogger(__name__)

_FIELD: Final = re.compile(r"\{([^{}]+)\}")
_TIME: Final = re.compile(
    r"(\d{4})(?:-(\d\d?)-(\d\d?)|(\d\d)(\d\d))(?:[ T](\d\d?)(?::(\d\d?)(?::(\d\d?))?)?)?", re.ASCII
)
_DAY: Final = 86_400.0
_warned: Final[set[str]] = set()
"""Paths for which this process has warned of a partition that is never complete."""


def _fields(text: str) -> str:
    if not _FIELD.search(text) or set("{}") & set(_FIELD.sub("", text)):
        raise ValueError(text)
    return text.strip()


def _zone(text: str) -> tzinfo:
    name = text.strip()
    try:
        return timezone.utc if name.upper() == "UTC" else ZoneInfo(name)
    except (KeyError, OSError):  # not in the database, or no file of it
        raise ValueError(text) from None


SUCCESS_FILE: Final = Option(
    "successFile",
    # Readers take a file with another name for data.
    matching("name", "a name such as _SUCCESS, which begins with _ or .", r"[_.][A-Za-z0-9][A-Za-z0-9._-]*"),
    None,
    "Name of an empty file, such as `_SUCCESS`, for the directory of each complete partition.",
    shown_default="none",
)
PARTITION_HOOK: Final = Option(
    "partitionHook",
    OBJECT,
    None,
    "`package.module:Name` of a function that the driver calls for each complete partition, with the URL "
    "of the directory and its values by column.",
    shown_default="none",
)
WATERMARK_COLUMN: Final = Option(
    "watermarkColumn",
    TEXT,
    None,
    "Timestamp column. The watermark is its greatest committed value minus `watermarkDelay`.",
    shown_default="required by `successFile` and `partitionHook`",
)
WATERMARK_DELAY: Final = Option(
    "watermarkDelay", duration(), 0.0, "How late rows may arrive.", shown_default="0"
)
PARTITION_TIME: Final = Option(
    "partitionTime",
    Kind("pattern", "a date or a time with columns of 'partitionBy' in braces, as {day} {hour}:00", _fields),
    None,
    "Start of a partition, from its values: `{day}`, `{day} {hour}:00` or `{year}-{month}-{day}`.",
    shown_default="the value of `partitionBy`, if that is one date column",
)
PARTITION_INTERVAL: Final = Option(
    "partitionInterval",
    duration(1.0),
    None,
    "Time from a partition's start to its end, such as `1h` or `24h`.",
    shown_default="`24h`; required with `partitionTime`",
)
PARTITION_TIME_ZONE: Final = Option(
    "partitionTimeZone",
    Kind("time zone", "a name of the time zone database, such as UTC or Europe/Berlin", _zone),
    timezone.utc,
    "Time zone of `partitionTime`.",
    shown_default="`UTC`",
)
_RULES: Final[Sequence[Option[Any]]] = (
    WATERMARK_COLUMN,
    WATERMARK_DELAY,
    PARTITION_TIME,
    PARTITION_INTERVAL,
    PARTITION_TIME_ZONE,
)
PARTITION_OPTIONS: Final[Sequence[Option[Any]]] = (SUCCESS_FILE, PARTITION_HOOK, *_RULES)


@dataclass(frozen=True)
class Completion:
    """When partitions are complete, and what is done then.

    Attributes:
        column: of the watermark.
        partition_by: names of columns.
        success_file: name of the marker; None for no marker.
        hook: ``package.module:Name``; None for no hook.
        delay: of the watermark (seconds).
        time: of a partition's start, with names of columns in braces; None: the only column, a date.
        interval: from start to end (seconds), on a clock of `zone`.
        zone: of `time`.
    """

    column: str
    partition_by: tuple[str, ...]
    success_file: str | None = None
    hook: str | None = None
    delay: float = 0.0
    time: str | None = None
    interval: float = _DAY
    zone: tzinfo = timezone.utc

    @classmethod
    def from_options(cls, values: OptionValues, partition_by: tuple[str, ...]) -> Completion | None:
        """None without `successFile` and `partitionHook`."""
        if not values.mentions(SUCCESS_FILE) and not values.mentions(PARTITION_HOOK):
            values.reject_each(_RULES, "only with 'successFile' or 'partitionHook'")
            return None
        time, interval = values.get(PARTITION_TIME), values.get(PARTITION_INTERVAL)
        if not partition_by:
            values.reject_each((SUCCESS_FILE, PARTITION_HOOK), "only with 'partitionBy'")
        elif not values.mentions(PARTITION_TIME) and len(partition_by) > 1:
            values.reject(PARTITION_TIME.key, "is required unless 'partitionBy' is one date column")
        elif time is not None:
            names = {name.lower() for name in partition_by}
            for name in _FIELD.findall(time):
                if name.lower() not in names:
                    values.reject_value(PARTITION_TIME, f"'partitionBy' has no column '{name}'")
            if not values.mentions(PARTITION_INTERVAL):
                values.reject(PARTITION_INTERVAL.key, "is required with 'partitionTime', such as 1h or 24h")
        if not values.mentions(WATERMARK_COLUMN):
            values.reject(WATERMARK_COLUMN.key, "is required with 'successFile' and 'partitionHook'")
        return cls(
            values.get(WATERMARK_COLUMN) or "",
            partition_by,
            values.get(SUCCESS_FILE),
            values.get(PARTITION_HOOK),
            values.require(WATERMARK_DELAY),
            time,
            interval or _DAY,
            values.require(PARTITION_TIME_ZONE),
        )

    def load_hook(self) -> Callable[..., Any] | None:
        """Imports the hook; only the driver has to have it. Raises OptionError if it cannot be called."""
        return None if self.hook is None else load_function(PARTITION_HOOK, self.hook)

    def find_column(self, schema: StructType) -> str:
        """The name of the watermark's column as the rows have it.

        Raises:
            OptionError: it is not a timestamp, or there is none; or `partitionTime` is missing.
        """
        types = {each.name.lower(): each.dataType.simpleString() for each in schema.fields}
        found = types.get(self.column.lower(), "not a column")
        if found != "timestamp":
            raise OptionError(
                f"option '{WATERMARK_COLUMN.key}': '{self.column}' is {found}: allowed is timestamp"
            )
        if self.time is None and (found := types.get(self.partition_by[0].lower(), "")) != "date":
            raise OptionError(
                f"option '{PARTITION_TIME.key}' is required: column '{self.partition_by[0]}' is {found}, and "
                "only a date says by itself when its partition starts"
            )
        names: list[str] = [each.name for each in schema.fields]
        return next(name for name in names if name.lower() == self.column.lower())

    def end(self, values: Mapping[str, str | None]) -> int | None:
        """When a partition ends (microseconds since the epoch); None if its values are not a time."""
        texts = {name.lower(): text or "" for name, text in values.items()}
        time = self.time or f"{{{self.partition_by[0]}}}"
        match = _TIME.fullmatch(_FIELD.sub(lambda found: texts.get(found[1].lower(), ""), time))
        if match is None:
            return None
        try:
            start = datetime(*(int(each) for each in match.groups() if each), tzinfo=self.zone)  # type: ignore[arg-type, misc]
            # On the zone's clock: a day has 23 or 25 hours when that is changed.
            return micros_from_datetime(start + timedelta(seconds=self.interval))
        except (ValueError, OverflowError):
            return None


def latest_of(timestamps: pa.Array, before: int | None) -> int | None:
    """The greatest of some timestamps, and of an earlier result (microseconds since the epoch)."""
    found: int | None = pc.max(timestamps.cast(pa.int64())).as_py()
    return max((each for each in (found, before) if each is not None), default=None)


@dataclass
class PartitionCommit:
    """Commits the complete partitions of a query.

    Args:
        completion: the options.
        store: has the files.
        layout: the keys below the path.
        executor: makes an executor with a number of threads.
        tables: what tables that read the files have before the directory of a partition.
        is_whole: the epoch is a batch write without later ones: all of its partitions are complete.
    """

    completion: Completion
    store: Store
    layout: Layout
    executor: Callable[[int], Executor]
    tables: str
    is_whole: bool
    _told: set[str] = field(default_factory=set)  # a hook that fails does not repeat those before it

    def update(self, manifest: Manifest) -> None:
        """Adds a committed epoch, whose files readers can see. Does nothing new if it was added before.

        Raises:
            ServiceError: the store refuses a call.
            Exception: of the hook.
        """
        key = self.layout.partitions(manifest.query)
        found = None if self.is_whole else self.store.read(key)
        state = json.loads(found or b'{"latest": null, "open": []}')
        latest = max((each for each in (state["latest"], manifest.latest) if each is not None), default=None)
        added = {each.path[: each.path.rfind("/") + 1] for each in manifest.files}
        delay = micros_from_seconds(self.completion.delay)
        still_open, complete = [], {}
        for directory in sorted({*state["open"], *added}):
            values = _values(directory)
            end = self.completion.end(values)
            if end is None:
                self._warn(directory)
            elif self.is_whole or (latest is not None and end <= latest - delay):
                complete[directory] = values
            else:
                still_open.append(directory)
        self._commit(complete)
        if not self.is_whole:
            self.store.put(key, json.dumps({"latest": latest, "open": still_open}).encode())

    def _commit(self, complete: Mapping[str, Mapping[str, str | None]]) -> None:
        hook = self.completion.load_hook()
        for directory, values in complete.items():
            if hook is not None and directory not in self._told:
                run(hook, self.layout.url(f"{self.tables}{directory}"), values)
                self._told.add(directory)
        name = self.completion.success_file
        if name is not None:
            keys = [f"{self.layout.root}{directory}{name}" for directory in complete]
            for_each(self.executor, keys, lambda key: self.store.put(key, b""))

    def _warn(self, directory: str) -> None:
        if self.layout.path not in _warned:
            _warned.add(self.layout.path)
            _log.warning(
                "%s: partition %s is never complete, because its values are no time; nor are others like it. "
                "Option '%s' is %r",
                self.layout.path,
                directory,
                PARTITION_TIME.key,
                self.completion.time,
            )


def _values(directory: str) -> dict[str, str | None]:
    """The values in the name of a partition's directory, by column; None for null."""
    pairs = [part.partition("=") for part in directory.split("/") if part]
    return {unquote(name): None if text == NULL else unquote(text) for name, _, text in pairs}
