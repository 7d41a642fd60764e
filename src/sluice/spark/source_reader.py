"""Spark's calls on a reader, translated.

Spark keeps the reader that plans in one process beside the driver, and sends a pickled one to the
tasks; so readers hold plain data, and what they work with is made where it is used.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from sluice.kinesis.driver import StreamPlanning, bounded_assignment, plan_bounded_read
from sluice.kinesis.fanout.assignment import FanOutAssignment
from sluice.kinesis.options import SourceConfig
from sluice.kinesis.task import read_ranges
from sluice.source.admission import NO_LIMITS, Limits
from sluice.source.offsets import Offsets, SplitRange
from sluice.spark.logs import configure_driver_log
from sluice.spark.workers import freeze_loaded_objects

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # before 4.2
    HAS_ADMISSION_CONTROL = False
else:
    HAS_ADMISSION_CONTROL = True

__all__ = ["BatchReader", "StreamReader", "make_stream_reader"]


@dataclass
class RangesPartition(InputPartition):
    """What one task reads, and how it may."""

    ranges: tuple[SplitRange, ...]
    access: FanOutAssignment | None = None


class BatchReader(DataSourceReader):
    """A read that ends."""

    def __init__(self, config: SourceConfig) -> None:
        self._config = config

    def partitions(self) -> Sequence[InputPartition]:
        configure_driver_log()
        access = bounded_assignment(self._config)
        ranges = plan_bounded_read(self._config)
        # Of no partition at all Spark would make one that holds nothing, not even ranges.
        return _deal(ranges, self._config.shards_per_task, access) or [RangesPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._config, partition)


class StreamReader(DataSourceStreamReader):
    """A query's reader: beside the driver it says where batches end, in a task it reads one.

    This is all that Spark 4.0 and 4.1 can ask. There limits hold inside, and ``Trigger.AvailableNow``
    and ``Trigger.Once`` run one batch.
    """

    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        self._planning: StreamPlanning | None = None
        self._planned: Offsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planning": None, "_planned": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._beside_driver().enumerator.initial().to_json()

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        planning = self._beside_driver()
        enumerator = planning.enumerator
        if start is not None:
            planned = Offsets.from_json(start)
            planning.recall(planned)
        elif self._planned is not None:
            # Before 4.2 Spark does not say where a batch starts: it is where the last one ended.
            planned = self._planned
        else:
            planned = enumerator.initial()
        end = enumerator.advance(planned, self._limits(limit))
        self._planned = planned
        if end is planned and start is not None:
            return dict(start)
        return end.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._planned = Offsets.from_json(end)
        planning = self._beside_driver()
        planning.recall(self._planned)
        ranges = planning.enumerator.ranges(Offsets.from_json(start), self._planned)
        return _deal(ranges, self._config.shards_per_task, planning.access(ranges))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._config, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept for batches that are done: the offset log is the only state."""

    def stop(self) -> None:
        if self._planning is not None:
            # A stop may close the connection in the middle of a call, before it sends its signal.
            self._planning.close(has_hung_up=isinstance(sys.exc_info()[1], (EOFError, OSError)))

    def _beside_driver(self) -> StreamPlanning:
        if self._planning is None:
            configure_driver_log()
            self._planning = StreamPlanning(self._config)
        return self._planning

    def _limits(self, limit: Any) -> Limits:
        del limit
        return self._config.limits


def make_stream_reader(config: SourceConfig) -> DataSourceStreamReader:
    """The reader with all that the installed Spark can ask."""
    return AdmittingStreamReader(config) if HAS_ADMISSION_CONTROL else StreamReader(config)


if HAS_ADMISSION_CONTROL:

    class AdmittingStreamReader(StreamReader, SupportsTriggerAvailableNow):
        """The same with Spark 4.2's admission control."""

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
            limits = self._config.limits
            if limits.is_none:
                return ReadAllAvailable()
            if limits.records is None and limits.bytes is not None:
                return ReadMaxBytes(limits.bytes)
            # Spark has no limit of time; all that counts is that it sees one.
            return ReadMaxRows(2**63 - 1 if limits.records is None else limits.records)

        def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
            if self._planned is None:
                return None
            enumerator = self._beside_driver().enumerator
            lag: dict[str, dict[str, int]] = {}
            for split, millis in sorted(enumerator.millis_behind_latest.items()):
                lag.setdefault(split.stream, {})[split.shard] = millis
            return {**enumerator.newest(self._planned).to_json(), "millisBehindLatest": lag}

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            self._beside_driver().enumerator.stop_at_available()

        def _limits(self, limit: Any) -> Limits:
            # A trigger that takes all there is in one batch (once) comes without limits.
            return NO_LIMITS if isinstance(limit, ReadAllAvailable) else self._config.limits


def _deal(
    ranges: Sequence[SplitRange], shards_per_task: int, access: FanOutAssignment | None
) -> list[InputPartition]:
    """Deals ranges out to as few tasks as may be: a task is dear, and a shard is light."""
    count = -(-len(ranges) // shards_per_task)
    return [RangesPartition(tuple(ranges[index::count]), access) for index in range(count)]


def _read(config: SourceConfig, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, RangesPartition)  # noqa: S101 - no other is made
    yield from read_ranges(config, partition.ranges, partition.access)
    freeze_loaded_objects()
