"""The source of Kinesis: a `sluice.source.LogSource` that may read by fan-out.

Spark imports it at ``load()`` and in every process of a query, so modules that only one of these processes
needs are imported where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from sluice.kinesis.options.config import (
    ALL_OPTIONS,
    BATCH_OPTIONS,
    FORMAT,
    STREAMING_OPTIONS,
    SourceConfig,
    source_config_from_values,
)
from sluice.kinesis.options.foreign_names import SOURCE_NAMES
from sluice.kinesis.options.starting_positions import initial_positions, starting_text
from sluice.option_names import ForeignName
from sluice.options import Option, OptionValues
from sluice.source.contracts import ReadTask
from sluice.source.log_source import LogSource
from sluice.source.model.splits import Split, SplitId

if TYPE_CHECKING:
    import pyarrow as pa

    from sluice.kinesis.log.client import KinesisLog
    from sluice.kinesis.planner.coordinator import SourceCoordinator
    from sluice.kinesis.shared.assignment import FanOutAssignment
    from sluice.kinesis.task.cursors import FanOutCursors
    from sluice.source.logs.stream_log import AnyRecord
    from sluice.source.model.offsets import Position, SplitRange
    from sluice.source.model.read_figures import ReadFigures
    from sluice.source.planning.enumerator import StreamEnumerator
    from sluice.source.state.subscriptions import Subscriptions

__all__ = ["SCHEMA", "KinesisSource"]

SCHEMA: Final = (
    "data binary, partitionKey string, sequenceNumber string, subSequenceNumber long, "
    "approximateArrivalTimestamp timestamp, streamName string, shardId string"
)


class KinesisSource(LogSource):
    """``format("kinesis-efo")``. Its splits are shards.

    Args:
        config: the parsed options.
    """

    name: ClassVar[str] = FORMAT
    OPTIONS: ClassVar[Sequence[Option[Any]]] = ALL_OPTIONS
    COMMON_OPTIONS: ClassVar[Sequence[Option[Any]]] = ()
    STREAMING_OPTIONS: ClassVar[Sequence[Option[Any]]] = STREAMING_OPTIONS
    BATCH_OPTIONS: ClassVar[Sequence[Option[Any]]] = BATCH_OPTIONS
    FOREIGN_NAMES: ClassVar[Sequence[ForeignName]] = SOURCE_NAMES
    TABLE_SCHEMA: ClassVar[str | None] = SCHEMA
    TABLE_OPTIONS: ClassVar[str] = "streamName = '...'"

    reads_per_second = 5  # https://docs.aws.amazon.com/streams/latest/dev/service-sizes-and-limits.html

    def __init__(self, config: SourceConfig) -> None:
        self.config = config
        self.streams = [stream.name for stream in config.streams]
        self.page_limit = config.polling.records_limit
        self.read_interval = config.polling.interval
        self.settings = config.settings

    # --- options and schema ---------------------------------------------------------------------------

    @classmethod
    def from_options(cls, values: OptionValues) -> KinesisSource:
        return cls(source_config_from_values(values))

    def schema(self) -> str:
        return SCHEMA

    # --- the log --------------------------------------------------------------------------------------

    @property
    def starting_text(self) -> str:
        return starting_text(self.config.start)

    def initial_positions(self, splits: Iterable[Split], now: int) -> Mapping[SplitId, Position]:
        return initial_positions(self.config.start)(splits, now)

    def create_log(self, pause: Callable[[float], None]) -> KinesisLog:
        return self._create_log(pause, None)

    def create_counting_log(self, pause: Callable[[float], None], figures: ReadFigures) -> KinesisLog:
        return self._create_log(pause, figures)

    def _create_log(self, pause: Callable[[float], None], figures: ReadFigures | None) -> KinesisLog:
        from sluice.kinesis.log.client import KinesisLog  # noqa: PLC0415 - see above
        from sluice.retry import Retrier  # noqa: PLC0415

        retrier = Retrier(sleep=pause)
        return KinesisLog.of(self.config, retrier=retrier, is_endpoint_known=True, figures=figures)

    def to_record_batch(self, split: SplitId, records: Sequence[AnyRecord]) -> pa.RecordBatch:
        """Not called: `to_record_batches` gathers the records of several pages."""
        raise NotImplementedError

    def to_record_batches(
        self, pages: Iterable[tuple[SplitRange, Sequence[AnyRecord]]]
    ) -> Iterator[pa.RecordBatch]:
        from sluice.kinesis.log.record_batches import to_record_batches  # noqa: PLC0415 - see above

        return to_record_batches(pages, unpack=self.config.deaggregate)

    # --- on the driver host ----------------------------------------------------------------------------

    def create_enumerator(
        self, *, subscriptions: Subscriptions | None = None, figures: ReadFigures | None = None
    ) -> StreamEnumerator:
        """The enumerator that finds shards and plans batches.

        Args:
            subscriptions: report how far they have read; shards without a subscription are probed. None: all
                are probed.
            figures: count reads that were refused or repeated.
        """
        from sluice.kinesis.log.client import KinesisLog  # noqa: PLC0415 - see above

        log = KinesisLog.of(self.config, figures=figures).for_planning()
        return self.enumerator_of(log, subscriptions)

    def create_coordinator(self) -> SourceCoordinator:
        """Registers consumers, if the query reads by fan-out.

        Raises:
            OptionError: the user named a consumer that cannot be used.
            ServiceError: a consumer cannot be registered.
        """
        if self.config.fan_out is not None:
            from sluice.kinesis.planner.fan_out_coordinator import FanOutCoordinator  # noqa: PLC0415

            return FanOutCoordinator(self, self.config.fan_out)
        if self.config.agent is not None:
            from sluice.kinesis.planner.agent_coordinator import PollingAgentCoordinator  # noqa: PLC0415

            return PollingAgentCoordinator(self)
        from sluice.kinesis.planner.coordinator import SourceCoordinator  # noqa: PLC0415 - see above

        return SourceCoordinator(self)

    def plan_bounded(self) -> tuple[Sequence[SplitRange], FanOutAssignment | None]:
        from sluice.kinesis.planner import coordinator  # noqa: PLC0415 - see above

        assignment = None
        if self.config.fan_out is not None:
            from sluice.kinesis.planner.fan_out_coordinator import register_for_bounded_read  # noqa: PLC0415

            assignment = register_for_bounded_read(self.config)
        return coordinator.plan_bounded_read(self), assignment

    def deal(self, ranges: Sequence[SplitRange]) -> list[tuple[SplitRange, ...]]:
        """Distributes ranges over tasks: by `shardsPerTask`, or by the number of records to read."""
        if self.config.shards_per_task is not None:
            return super().deal(ranges)
        from sluice.kinesis.log.dealing import deal_by_content  # noqa: PLC0415 - see above

        return deal_by_content(ranges, self.settings.splits_per_task)

    def assignment_of(
        self, assignment: FanOutAssignment | None, ranges: Sequence[SplitRange]
    ) -> FanOutAssignment | None:
        return None if assignment is None else assignment.only([each.split for each in ranges])

    # --- in tasks -------------------------------------------------------------------------------------

    def pushed_cursors(self, task: ReadTask) -> FanOutCursors | None:
        if task.assignment is None:
            return None
        from sluice.kinesis.task.agent_start import start_agent_if_wanted  # noqa: PLC0415 - see above
        from sluice.kinesis.task.cursors import FanOutCursors  # noqa: PLC0415

        assignment = task.assignment.found_at(task.driver_host)
        start_agent_if_wanted(self.config, assignment)
        return FanOutCursors(self.config, assignment, task)
