"""The source of DynamoDB Streams, a `sluice.source.LogSource`.

Spark imports it at ``load()``, and in every process of a query, so special imports are local.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from sluice.dynamodb_streams.options import (
    ALL_OPTIONS,
    COMMON_OPTIONS,
    SNAPSHOT_OPTIONS,
    StreamsConfig,
    config_from_values,
)
from sluice.dynamodb_streams.starting_positions import (
    STARTING,
    StartingPosition,
    initial_positions,
    starting_text,
)
from sluice.dynamodb_streams.table_scan import ScanRange, scan_pages
from sluice.options import Option, OptionValues
from sluice.source.contracts import Coordinator, ReadTask, Source
from sluice.source.log_source import LogSource
from sluice.source.model.splits import Split, SplitId
from sluice.source.settings import STREAMING_OPTIONS

if TYPE_CHECKING:
    import pyarrow as pa

    from sluice.aws.calling.calls import Calls
    from sluice.aws.wire.changes import ChangeRecord
    from sluice.dynamodb_streams.client import DynamoDbStreamsLog
    from sluice.dynamodb_streams.snapshot import SnapshotEnumerator
    from sluice.source.model.offsets import Position, SplitRange
    from sluice.source.planning.enumerator import StreamEnumerator
    from sluice.source.probing.probe import ProbeSettings
    from sluice.source.state.subscriptions import Subscriptions

__all__ = ["FORMAT", "SCHEMA", "DynamoDbStreamsSource"]

_log = logging.getLogger(__name__)

StreamArns = Mapping[str, Sequence[str]]
_SECONDS_PER_READ: Final = 0.5
_UNITS_OF_A_TASK: Final = 1_000.0
"""Maximum read capacity a second of a paced task: 4 MiB, the throughput of one connection."""
FORMAT: Final = "dynamodb-streams"
SCHEMA: Final = (
    "eventID string, eventName string, keys string, newImage string, oldImage string, streamViewType string, "
    "sizeBytes long, sequenceNumber string, approximateCreationDateTime timestamp, userIdentity string, "
    "tableName string, shardId string"
)


class DynamoDbStreamsSource(LogSource):
    """``format("dynamodb-streams")``. Its splits are shards, and its streams have the names of their
    tables.
    """

    name: ClassVar[str] = FORMAT
    OPTIONS: ClassVar[Sequence[Option[Any]]] = ALL_OPTIONS
    COMMON_OPTIONS: ClassVar[Sequence[Option[Any]]] = COMMON_OPTIONS
    STREAMING_OPTIONS: ClassVar[Sequence[Option[Any]]] = (*STREAMING_OPTIONS, *SNAPSHOT_OPTIONS)
    TABLE_SCHEMA: ClassVar[str | None] = SCHEMA
    TABLE_OPTIONS: ClassVar[str] = "tableName = '...'"

    # "No more than two processes at most should be reading from the same stream's shard at the same
    # time":
    # https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Streams.html. No page limits the
    # number of reads. A query is one reader, because it plans and reads in turns.
    reads_per_second = 10

    def __init__(self, config: StreamsConfig) -> None:
        self.config = config
        self.streams = [table.name for table in config.tables]
        self.page_limit = config.records_limit
        self.read_interval = config.records_interval
        self._planning_log: DynamoDbStreamsLog | None = None
        self._arns: StreamArns = {}

    @classmethod
    def from_options(cls, values: OptionValues) -> DynamoDbStreamsSource:
        return cls(config_from_values(values))

    def schema(self) -> str:
        return SCHEMA

    # --- the log --------------------------------------------------------------------------------------

    @property
    def starting_text(self) -> str:
        return f"{starting_text(self._start)}{' after a scan' if self.config.scans else ''}"

    def initial_positions(self, splits: Iterable[Split], now: int) -> Mapping[SplitId, Position]:
        return initial_positions(self._start, splits, now, self._beside_driver())

    def create_log(self, pause: Callable[[float], None]) -> DynamoDbStreamsLog:
        """Connects in a task, which knows the streams and that the records of its range exist."""
        from sluice.dynamodb_streams.client import EMPTY_PAGES_IN_RANGE  # noqa: PLC0415 - see above

        return self._connect(
            pause, max(EMPTY_PAGES_IN_RANGE, self.config.empty_pages), is_endpoint_known=True
        )

    # --- on the driver host ----------------------------------------------------------------------------

    def create_enumerator(self, *, subscriptions: Subscriptions | None = None) -> StreamEnumerator:
        return self.enumerator_of(self._beside_driver(), subscriptions)

    def probe_settings(self) -> ProbeSettings:
        """Each read is billed, and a shard has at most a thousand changes a second: one page."""
        # Only many empty pages show the tip, so they follow each page of records.
        return replace(super().probe_settings(), seconds_per_read=_SECONDS_PER_READ, empty_pages_for=1.0)

    def create_coordinator(self) -> Coordinator:
        from sluice.dynamodb_streams.snapshot import (  # noqa: PLC0415 - see above
            ScanSettings,
            SnapshotEnumerator,
            TableCatalog,
        )

        config, log = self.config, self._beside_driver()
        settings = ScanSettings(config.scans, config.scan_segments, config.scan_read_units, self.limits)
        tables = TableCatalog(self._table_calls(time.sleep), config.tables)
        enumerator = SnapshotEnumerator(
            self.create_enumerator(), tables, lambda table: log.arns_of(table)[0], log.server_time, settings
        )
        return _StreamsCoordinator(enumerator, log)

    def deal(self, ranges: Sequence[Any]) -> list[tuple[Any, ...]]:
        units = self.config.scan_read_units
        if not ranges or not isinstance(ranges[0], ScanRange):
            return super().deal(ranges)
        if units is None:
            return Source.deal(self, ranges)
        # All tasks may run at the same time, so each has its share.
        tasks = min(len(ranges), math.ceil(units / _UNITS_OF_A_TASK))
        paced = [replace(each, units=units / tasks) for each in ranges]
        return [tuple(paced[task::tasks]) for task in range(tasks)]

    def plan_bounded(self) -> tuple[Sequence[SplitRange], StreamArns]:
        if self._start == "LATEST":
            _log.warning("a batch read from LATEST finds next to nothing: see option '%s'", STARTING.key)
        coordinator = _StreamsCoordinator(self.create_enumerator(), self._beside_driver())
        try:
            ranges = coordinator.enumerator.bounded()
            return ranges, coordinator.assign(ranges)
        finally:
            coordinator.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planning_log": None}

    # --- in tasks -------------------------------------------------------------------------------------

    def read_task(self, task: ReadTask) -> Iterator[pa.RecordBatch]:
        if task.ranges and isinstance(task.ranges[0], ScanRange):
            yield from self._scan(task.ranges)
            return
        told = copy.copy(self)
        told._arns = task.assignment or {}  # noqa: SLF001 - of the same class
        yield from super(DynamoDbStreamsSource, told).read_task(task)

    def _scan(self, ranges: Sequence[ScanRange]) -> Iterator[pa.RecordBatch]:
        from sluice.dynamodb_streams.record_batches import snapshot_batch  # noqa: PLC0415 - see above
        from sluice.source.reading.fetcher import prefetch  # noqa: PLC0415

        image_format = self.config.image_format
        for each, items in prefetch(lambda pause: scan_pages(self._table_calls(pause), ranges, pause)):
            yield snapshot_batch(each.table, items, each.keys, image_format)

    # --- rows -----------------------------------------------------------------------------------------

    def to_record_batch(self, split: SplitId, records: Sequence[ChangeRecord]) -> pa.RecordBatch:
        from sluice.dynamodb_streams.record_batches import record_batch  # noqa: PLC0415 - see above

        return record_batch(split, records, self.config.image_format)

    def to_record_batches(
        self, pages: Iterable[tuple[SplitRange, Sequence[Any]]]
    ) -> Iterator[pa.RecordBatch]:
        from sluice.dynamodb_streams.record_batches import to_record_batches  # noqa: PLC0415 - see above

        by_split = ((split_range.split, records) for split_range, records in pages)
        return to_record_batches(by_split, self.config.image_format)

    # --- inside ---------------------------------------------------------------------------------------

    @property
    def _start(self) -> StartingPosition:
        """Where a new query starts. A batch read starts at the oldest record."""
        if self.config.start is not None:
            return self.config.start
        return "TRIM_HORIZON" if self.settings.starting == "EARLIEST" else "LATEST"

    def _beside_driver(self) -> DynamoDbStreamsLog:
        """Returns the planning process's only log, which remembers where the newest records were."""
        if self._planning_log is None:
            self._planning_log = self._connect(time.sleep, self.config.empty_pages).for_planning()
        return self._planning_log

    def _connect(
        self, pause: Callable[[float], None], empty_pages: int, *, is_endpoint_known: bool = False
    ) -> DynamoDbStreamsLog:
        from sluice.aws.calling.calls import Calls  # noqa: PLC0415 - see above
        from sluice.dynamodb_streams.client import DynamoDbStreamsLog  # noqa: PLC0415
        from sluice.retry import Retrier  # noqa: PLC0415

        config = self.config
        calls = Calls(
            config.connection,
            "dynamodbstreams",
            config.backoffs,
            Retrier(sleep=pause),
            is_endpoint_known=is_endpoint_known,
        )
        return DynamoDbStreamsLog(calls, config.tables, empty_pages=empty_pages, arns=self._arns)

    def _table_calls(self, pause: Callable[[float], None]) -> Calls:
        from sluice.aws.calling.calls import Calls  # noqa: PLC0415 - see above
        from sluice.retry import Retrier, patient  # noqa: PLC0415

        backoffs = dict.fromkeys(("DescribeTable", "Scan"), patient(self.settings.read_retry_duration))
        return Calls(self.config.connection, "dynamodb", backoffs, Retrier(sleep=pause))


class _StreamsCoordinator(Coordinator):
    """Sends tasks the ARNs of streams. Otherwise each task would list them for each range."""

    def __init__(self, enumerator: SnapshotEnumerator | StreamEnumerator, log: DynamoDbStreamsLog) -> None:
        super().__init__(enumerator)
        self._streams = log

    def assign(self, ranges: Sequence[Any]) -> StreamArns:
        """Returns the ARNs of streams by table, the newest first; none for scans."""
        tables = {each.split.stream for each in ranges if not isinstance(each, ScanRange)}
        return {table: self._streams.arns_of(table) for table in tables}
