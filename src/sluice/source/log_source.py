"""Makes a source of a log: what reads it exactly, batch by batch, is made of its `StreamLog` alone."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from sluice.instants import micros_from_seconds
from sluice.options import Option
from sluice.source.contracts import ReadTask, Source
from sluice.source.settings import LOG_BATCH_OPTIONS, LOG_OPTIONS, LOG_STREAMING_OPTIONS
from sluice.source.splits import Split, SplitId

if TYPE_CHECKING:
    import pyarrow as pa

    from sluice.source.cursor import Cursor
    from sluice.source.data_loss import DataLossPolicy
    from sluice.source.enumerator import StreamEnumerator
    from sluice.source.offsets import Offsets, Position, SplitRange
    from sluice.source.probe import ProbeSettings
    from sluice.source.read_figures import ReadFigures
    from sluice.source.stream_log import AnyRecord, StreamLog
    from sluice.source.subscriptions import Subscriptions

__all__ = ["LogSource", "PushedCursors"]

Pause = Callable[[float], None]


class PushedCursors(Protocol):
    """Opens cursors over records that a service pushes to a task; see `LogSource.pushed_cursors`."""

    def is_buffered(self, split: SplitId) -> bool:
        """Whether the records of this split are buffered already: then reading them takes no thread."""

    def open(
        self, log: Any, data_loss: DataLossPolicy, split_range: SplitRange, position: Position
    ) -> Cursor:
        """Opens the cursor through which a range is read from a position on."""


class LogSource(Source):
    """A source of streams that a service keeps as sharded, ordered logs.

    To be implemented: `from_options`, `schema`, `create_log` and `to_record_batch`. Limits, ``maxDrift``,
    ``Trigger.AvailableNow``, ``failOnDataLoss``, lag, and children after their parents come of themselves.

    Attributes:
        page_limit: records asked for at a time, at most.
        read_interval: pause between two reads of one split in a task (seconds).
        streams: names of the streams to read, which are part of the offsets; none: one of the source's name.
        reads_per_second: of one split, for all readers together; None: any number. The planner leaves one of
            them to tasks.
    """

    COMMON_OPTIONS: ClassVar[Sequence[Option[Any]]] = LOG_OPTIONS
    STREAMING_OPTIONS: ClassVar[Sequence[Option[Any]]] = LOG_STREAMING_OPTIONS
    BATCH_OPTIONS: ClassVar[Sequence[Option[Any]]] = LOG_BATCH_OPTIONS

    streams: Sequence[str] = ()
    page_limit: int = 10_000
    read_interval: float = 0.0
    reads_per_second: int | None = None

    # --- to be implemented ----------------------------------------------------------------------------

    @abstractmethod
    def create_log(self, pause: Pause) -> StreamLog:
        """Connects to the service. Closed with ``close()`` when it is not needed any more.

        Called once beside the driver, where several threads use it, and once for every range in a task. A
        task calls it again after a retryable `SluiceError`, for ``readRetryDuration``.

        Args:
            pause: sleeps for a number of seconds. To be used between retries; in a task that has ended it
                raises.
        """

    @abstractmethod
    def to_record_batch(self, split: SplitId, records: Sequence[Any]) -> pa.RecordBatch:
        """The rows of some records of a split, with the source's schema, in their order."""

    # --- to be overridden where a log needs it ----------------------------------------------------------

    def create_counting_log(self, pause: Pause, figures: ReadFigures) -> StreamLog:
        """As `create_log`, for a task. Calls that were refused or repeated are counted in `figures`.

        By default none are.
        """
        del figures
        return self.create_log(pause)

    @property
    def starting_text(self) -> str:
        """The starting position as text. It is logged, and a later change of it is reported."""
        return self.settings.starting_text

    def initial_positions(self, splits: Iterable[Split], now: int) -> Mapping[SplitId, Position]:
        """The starting position of every split, as the options say.

        Args:
            now: the time by the service's clock (microseconds).
        """
        from sluice.source.log_assembly import positions_by_settings  # noqa: PLC0415 - see `contracts`

        return positions_by_settings(self.settings, splits, now)

    def to_record_batches(
        self, pages: Iterable[tuple[SplitRange, Sequence[AnyRecord]]]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of pages, in order within each range. The default makes a record batch of every page."""
        for split_range, records in pages:
            yield self.to_record_batch(split_range.split, records)

    def pushed_cursors(self, task: ReadTask) -> PushedCursors | None:
        """How the ranges of a task are read that the service pushes (FLIP-128); None: all are polled."""
        del task
        return None

    def probe_settings(self) -> ProbeSettings:
        """How rarely the planner reads a split."""
        from sluice.source.log_assembly import probe_settings  # noqa: PLC0415 - see `contracts`

        return probe_settings(self.reads_per_second)

    # --- what is made of a log --------------------------------------------------------------------------

    def create_enumerator(self, *, subscriptions: Subscriptions | None = None) -> StreamEnumerator:
        """The enumerator that finds splits and plans batches.

        Args:
            subscriptions: says how far subscriptions have come; splits without one are probed.
        """
        from sluice.source.log_assembly import assemble_enumerator  # noqa: PLC0415 - see `contracts`

        return assemble_enumerator(self, self.create_log(time.sleep), subscriptions)

    def offsets_to_json(self, offsets: Offsets) -> dict[str, Any]:
        return offsets.to_json()

    def offsets_from_json(self, value: Mapping[str, Any]) -> Offsets:
        from sluice.source.offsets import Offsets  # noqa: PLC0415 - see `contracts`

        return Offsets.from_json(value)

    def deal(self, ranges: Sequence[SplitRange]) -> list[tuple[SplitRange, ...]]:
        from sluice.source.assigner import assign_ranges  # noqa: PLC0415 - see `contracts`

        return assign_ranges(ranges, self.settings.splits_per_task)

    def plan_bounded(self) -> tuple[Sequence[SplitRange], Any]:
        enumerator = self.create_enumerator()
        try:
            return enumerator.bounded(self.settings.ending_timestamp), None
        finally:
            enumerator.close()

    def read_task(self, task: ReadTask) -> Iterator[pa.RecordBatch]:
        """Reads the ranges of a task side by side; the rows of each range come in order.

        Raises:
            DataLossError: records of a range are gone, and ``failOnDataLoss`` is true.
            ServiceError: a call failed for good.
        """
        from sluice.source.log_assembly import read_side_by_side  # noqa: PLC0415 - see `contracts`

        return self.to_record_batches(read_side_by_side(self, task))

    @property
    def max_drift(self) -> int | None:
        """How much later than an unread record a row may have arrived (microseconds); None: any time."""
        drift = self.settings.max_drift
        return None if drift is None else micros_from_seconds(drift)
