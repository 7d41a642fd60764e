"""Spark's reader interfaces in front of `sluice.source`.

Spark calls the planning methods in a process on the driver host, and sends a pickled copy of the reader
to the tasks, which call ``read``. So a reader holds plain data; each process imports and makes other
objects when it needs them. ``docs/architecture.md`` follows a batch from here on.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from sluice.errors import SluiceError
from sluice.garbage_collection import without_garbage_collection
from sluice.source.checks import checked_offsets, checked_rows
from sluice.source.contracts import ReadTask
from sluice.source.model.logged_offsets import LoggedOffsets
from sluice.source.reports.task_reports import ReportAddress, send_report
from sluice.source.settings import Limits
from sluice.spark.border import shorten_traceback, shortened
from sluice.spark.logs import configure_driver_log
from sluice.spark.workers import (
    driver_host,
    freeze_loaded_objects,
    ids_of_query,
    is_repeated,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from sluice.source.contracts import Coordinator, Source

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # PySpark 4.0 and 4.1
    HAS_ADMISSION_CONTROL = False
else:
    HAS_ADMISSION_CONTROL = True

__all__ = ["BatchReader", "StreamReader", "make_stream_reader"]


_REPORT_INTERVAL: Final = 1.0
"""Minimum seconds between two reports while no batch is planned. Spark requests one about 90 times a
second, and shows one every ten seconds. For 10,000 shards a report takes 100 ms."""


@dataclass
class RangesPartition(InputPartition):
    """The ranges that one task reads.

    Attributes:
        assignment: the coordinator's data for the task, such as how to read by fan-out.
        report: where the task reports its reads; None: nowhere.
    """

    ranges: tuple[Any, ...]
    assignment: Any = None
    report: ReportAddress | None = None


class BatchReader(DataSourceReader):
    """The reader of a batch read (``spark.read``)."""

    def __init__(self, source: Source, schema: StructType | None = None) -> None:
        self._source = source
        self._schema = schema

    @shorten_traceback
    def partitions(self) -> Sequence[InputPartition]:
        """Called once, when the read is planned."""
        configure_driver_log()
        ranges, assignment = self._source.plan_bounded()
        # Spark replaces an empty partition list by a dummy partition; return an empty one of ours.
        return _deal(self._source, ranges, assignment) or [RangesPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called in each task."""
        return _read(self._source, self._schema, partition)


class StreamReader(DataSourceStreamReader):
    """The reader of a streaming query on Spark 4.0 and 4.1.

    These versions pass no limits, so the options' limits apply to every batch, and
    ``Trigger.AvailableNow`` and ``Trigger.Once`` run one batch. The source cannot recognize these
    triggers, so it treats the first batch of each run as if it could be the last.
    """

    def __init__(self, source: Source, schema: StructType | None = None) -> None:
        self._source = source
        self._schema = schema
        self._coordinator: Coordinator | None = None
        self._next_start: Any = None
        self._planned: Any = None
        self._offsets = self._no_offsets()

    def __getstate__(self) -> dict[str, Any]:
        made_here = dict.fromkeys(("_coordinator", "_next_start", "_planned", "_reported"))
        return {**self.__dict__, **made_here, "_offsets": self._no_offsets()}

    @shorten_traceback
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Called when a query starts for the first time, possibly more than once."""
        return self._offsets.write(self._coordinator_here().enumerator.initial())

    @shorten_traceback
    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Called for every trigger, about 90 times a second while there is no data.

        Args:
            start: where the batch starts. Spark 4.0 and 4.1 do not pass it; the batch then starts where
                the last one ended.
            limit: a ``ReadLimit``. Spark 4.0 and 4.1 do not pass it.

        Returns:
            Where the batch ends; an unchanged `start` if nothing is new.
        """
        coordinator = self._coordinator_here()
        if start is not None:
            begin = self._offsets.parse(start)
            coordinator.restore(begin)
        else:
            begin = coordinator.enumerator.initial() if self._next_start is None else self._next_start
        end = coordinator.enumerator.advance(begin, self._limits(limit))
        self._next_start, self._planned = begin, end
        coordinator.post_report()
        logged = self._offsets.write(end)
        return dict(start) if logged == start else logged

    @shorten_traceback
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Called for every batch, once its end is in the offset log.

        After a restart it is the first call, with the batch that was logged and not committed. Spark 4.0
        and 4.1 may call it with an empty batch first (`start` equals `end`).
        """
        coordinator = self._coordinator_here()
        begin, self._next_start = self._offsets.parse(start), self._offsets.parse(end)
        coordinator.restore(self._next_start)
        ranges = coordinator.enumerator.ranges(begin, self._next_start)
        partitions = _deal(self._source, ranges, coordinator.assign(ranges))
        report = coordinator.begin_batch(len(partitions)) if partitions else None
        if report is not None:
            for number, partition in enumerate(partitions):
                partition.report = report.of_partition(number)
        return partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called in each task."""
        return _read(self._source, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Called for a batch when the next one is planned. Does nothing: only the offset log keeps state."""

    def stop(self) -> None:
        """Called when a planning method raises, or the connection to the JVM is closed.

        It is not called when a query is stopped: the process gets SIGTERM, possibly after the connection
        was closed in the middle of a call. See `Coordinator.close`.
        """
        if self._coordinator is not None:
            self._coordinator.close(is_disconnected=isinstance(sys.exc_info()[1], (EOFError, OSError)))

    def _coordinator_here(self) -> Coordinator:
        """Returns this process's coordinator. The first call creates it."""
        if self._coordinator is None:
            configure_driver_log()
            with without_garbage_collection():
                self._coordinator = self._source.create_coordinator()
        return self._coordinator

    def _no_offsets(self) -> LoggedOffsets:
        return LoggedOffsets(
            self._source.offsets_from_json,
            partial(checked_offsets, self._source),
            are_constant=self._source.are_offsets_constant,
        )

    def _limits(self, limit: Any) -> Limits:
        del limit
        return replace(self._source.limits, may_be_last=self._planned is None)


@dataclass(frozen=True)
class _Reported:
    """The last report, which Spark gets again for up to a second, or until a batch is planned.

    Attributes:
        planned: the end of the last planned batch.
        until: when the report expires (monotonic seconds).
    """

    planned: Any
    until: float
    value: dict[str, Any]


def make_stream_reader(source: Source, schema: StructType | None = None) -> DataSourceStreamReader:
    """Makes a reader with the methods that the installed Spark calls."""
    return (AdmittingStreamReader if HAS_ADMISSION_CONTROL else StreamReader)(source, schema)


if HAS_ADMISSION_CONTROL:

    class AdmittingStreamReader(StreamReader, SupportsTriggerAvailableNow):
        """The reader of a streaming query on Spark 4.2 and later, which has admission control.

        ``Trigger.AvailableNow`` runs several batches, each within the limits.
        """

        _reported: _Reported | None = None

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
            """Called once, when the query starts. Spark passes the result to every `latestOffset`.

            With ``Trigger.Once`` it passes `ReadAllAvailable` instead, which lifts all limits. So this
            never returns `ReadAllAvailable`: all runs would look like runs of one batch.
            """
            limits = self._source.limits
            if limits.records is None and limits.bytes is not None:
                return ReadMaxBytes(limits.bytes)
            # Spark has no limit of arrival time: such a limit, or none, becomes an unreachable limit of
            # records.
            return ReadMaxRows(2**63 - 1 if limits.records is None else limits.records)

        @shorten_traceback
        def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
            """Called for every trigger, also if nothing is new; shown as ``sources[].latestOffset``."""
            if self._next_start is None:
                return None
            coordinator, now = self._coordinator_here(), time.monotonic()
            known = self._reported
            if known is None or known.planned is not self._planned or now >= known.until:
                newest = self._offsets.write(coordinator.enumerator.newest(self._next_start))
                value = {**newest, **coordinator.report()}
                self._reported = known = _Reported(self._planned, now + _REPORT_INTERVAL, value)
            return dict(known.value)

        @shorten_traceback
        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
            """Called once, when a query with ``Trigger.AvailableNow`` starts."""
            self._source.check_ends()
            self._coordinator_here().stop_at_available()

        def _limits(self, limit: Any) -> Limits:
            return Limits(may_be_last=True) if isinstance(limit, ReadAllAvailable) else self._source.limits


def _deal(source: Source, ranges: Sequence[Any], assignment: Any) -> list[RangesPartition]:
    """Makes a partition for each task. A task costs about 50 ms, and a shard of Kinesis delivers at
    most 2 MiB/s, so a task reads several splits.
    """
    return [RangesPartition(task, source.assignment_of(assignment, task)) for task in source.deal(ranges)]


def _read(source: Source, schema: StructType | None, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    given = cast("RangesPartition", partition)
    task = ReadTask(given.ranges, given.assignment, driver_host(), is_repeated())
    is_complete = False
    try:
        yield from _rows(source, schema, task)
        is_complete = True
    except SluiceError as error:
        raise shortened(error) from error.__cause__
    finally:
        if given.report is not None:
            query, run = ids_of_query()
            address = given.report.found_at(task.driver_host)
            send_report(address, task.figures, is_complete=is_complete, query=query, run=run)


def _rows(source: Source, schema: StructType | None, task: ReadTask) -> Iterator[pa.RecordBatch]:
    with without_garbage_collection():
        rows = iter(source.read_task(task))
        if schema is not None:
            rows = checked_rows(source, task.ranges, rows, _arrow_schema(schema))
        first = next(rows, None)
    freeze_loaded_objects(collect=False)  # the SDK is loaded by now
    if first is not None:
        yield first
        yield from rows


def _arrow_schema(schema: StructType) -> pa.Schema:
    """Returns the schema that Spark expects of record batches, made by Spark's own function."""
    from pyspark.sql.pandas import types  # noqa: PLC0415 - see above

    make: Any = types.to_arrow_schema
    is_told = "timezone" in inspect.signature(make).parameters  # 4.2 and later
    expected: pa.Schema = make(schema, timezone="UTC") if is_told else make(schema)
    return expected
