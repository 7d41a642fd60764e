"""Makes a source from a `StreamLog`: the library adds planning, exact reading and recovery."""

from __future__ import annotations

import contextlib
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar

from sluice.instants import micros_from_seconds
from sluice.options import Option
from sluice.source.contracts import ReadTask, Source
from sluice.source.model.splits import Split, SplitId
from sluice.source.settings import LOG_OPTIONS

if TYPE_CHECKING:
    import pyarrow as pa

    from sluice.source.logs.cursor import Cursor
    from sluice.source.logs.data_loss import DataLossPolicy
    from sluice.source.logs.stream_log import AnyRecord, StreamLog
    from sluice.source.model.offsets import Offsets, Position, SplitRange
    from sluice.source.model.read_figures import ReadFigures
    from sluice.source.planning.enumerator import StreamEnumerator
    from sluice.source.planning.planner import Planner
    from sluice.source.probing.probe import Probe, ProbeSettings
    from sluice.source.probing.session import ProbeSession
    from sluice.source.state.split_state import SplitState
    from sluice.source.state.subscriptions import Subscriptions

__all__ = ["LogSource", "PushedCursors"]

_POLL_INTERVAL: Final = 0.1
"""Minimum seconds between two reads of a split by the planner. Spark calls it 90 times a second."""
_INTERVALS_PER_READ: Final = 4
"""Pauses between two reads of a split by the planner. Tasks read it once for each batch, so a query
near the tip makes half of the reads that the service allows."""
_UNLIMITED_BURST: Final = 1000
"""More reads in a second than the planner makes."""

Pause = Callable[[float], None]
LogT = TypeVar("LogT")


class PushedCursors(Protocol):
    """Opens cursors over records that a service pushes to a task."""

    def is_buffered(self, split: SplitId) -> bool:
        """Whether the records of this split are buffered: then reading them needs no extra thread."""

    def open(
        self, log: Any, data_loss: DataLossPolicy, split_range: SplitRange, position: Position
    ) -> Cursor:
        """Opens the cursor that reads a range from a position on."""


class LogSource(Source):
    """A source of streams that a service keeps as sharded, ordered logs.

    Implement `from_options`, `schema`, `create_log` and `to_record_batch`. The library provides limits,
    ``maxDrift``, ``Trigger.AvailableNow``, ``failOnDataLoss`` and lag, and it reads parents before their
    children.

    Attributes:
        page_limit: maximum records in one request.
        read_interval: pause between two reads of one split in a task (seconds).
        streams: names of the streams to read, which are part of the offsets. Empty: one stream with the
            source's name.
        reads_per_second: limit of one split, for all readers together; None: no limit. The planner
            leaves one read to tasks. Near the tip it reads a split once in four intervals:
            `read_interval`, or the interval of this limit if that is longer.
    """

    COMMON_OPTIONS: ClassVar[Sequence[Option[Any]]] = LOG_OPTIONS
    are_offsets_constant: ClassVar[bool] = True

    streams: Sequence[str] = ()
    page_limit: int = 10_000
    read_interval: float = 0.0
    reads_per_second: int | None = None

    # --- to be implemented ----------------------------------------------------------------------------

    @abstractmethod
    def create_log(self, pause: Pause) -> StreamLog:
        """Connects to the service. Sluice calls ``close()`` of the log when it is no longer needed.

        Called once on the driver host, and once for each range in a task, in the thread that reads it:
        see `StreamLog`. After a retryable `SluiceError` a task calls it again, for
        ``readRetryDuration``.

        Args:
            pause: sleeps for a number of seconds, for the log's own retries. It raises when the task has
                ended.
        """

    @abstractmethod
    def to_record_batch(self, split: SplitId, records: Sequence[Any]) -> pa.RecordBatch:
        """Converts records of a split to rows with the source's schema, in the same order."""

    # --- to be overridden where a log needs it ----------------------------------------------------------

    def open_task(self, pause: Pause) -> StreamLog | None:
        """Opens one log for all ranges of a task: ``return self.create_log(pause)`` is enough.

        If it returns None, the default, each range gets its own log. Called like `create_log`, before a
        task reads; the log is closed when the task ends. Ranges are read in parallel: unless the log is
        thread-safe, its calls wait for each other.
        """
        del pause
        return None

    def create_counting_log(self, pause: Pause, figures: ReadFigures) -> StreamLog:
        """As `create_log`, for a task. Count refused and repeated calls in `figures`; the default
        counts none.
        """
        del figures
        return self.create_log(pause)

    @property
    def starting_text(self) -> str:
        """The starting position as text. The offset log records it; if it changes later, Sluice reports
        that.
        """
        return self.settings.starting_text

    def initial_positions(self, splits: Iterable[Split], now: int) -> Mapping[SplitId, Position]:
        """Returns the starting position of every split.

        Args:
            now: the time by the service's clock (microseconds).
        """
        from sluice.source.model.offsets import AtHorizon, AtTime  # noqa: PLC0415 - see `contracts`

        settings = self.settings
        instant = now if settings.starting == "LATEST" else settings.starting_timestamp
        start: Position = AtHorizon(pinned=now)
        if settings.starting != "EARLIEST" and instant is not None:
            start = AtTime(min(instant, now), pinned=now)
        return {split.id: start for split in splits}

    def to_record_batches(
        self, pages: Iterable[tuple[SplitRange, Sequence[AnyRecord]]]
    ) -> Iterator[pa.RecordBatch]:
        """Converts pages to rows, in order within each range. The default makes a record batch from
        each page.
        """
        for split_range, records in pages:
            yield self.to_record_batch(split_range.split, records)

    def pushed_cursors(self, task: ReadTask) -> PushedCursors | None:
        """Returns cursors for those ranges of a task that the service pushes (FLIP-128); None: all are
        polled.
        """
        del task
        return None

    def probe_settings(self) -> ProbeSettings:
        """Returns the read limits of the planner."""
        from sluice.source.probing.probe import ProbeSettings  # noqa: PLC0415 - tasks do not probe

        if self.reads_per_second is None:
            burst = _UNLIMITED_BURST
            return ProbeSettings(time.sleep, seconds_per_read=_POLL_INTERVAL, burst=burst, first_burst=burst)
        interval = max(self.read_interval, 1.0 / self.reads_per_second)
        return ProbeSettings(
            time.sleep,
            seconds_per_read=max(_POLL_INTERVAL, _INTERVALS_PER_READ * interval),
            burst=max(1, self.reads_per_second - 1),
            first_burst=self.reads_per_second,
        )

    # --- what is made of a log --------------------------------------------------------------------------

    def create_enumerator(self, *, subscriptions: Subscriptions | None = None) -> StreamEnumerator:
        """Makes the enumerator that finds splits and plans batches.

        Args:
            subscriptions: report how far they have read; splits without a subscription are probed.
        """
        return self.enumerator_of(self.create_log(time.sleep), subscriptions)

    def enumerator_of(self, log: StreamLog, subscriptions: Subscriptions | None = None) -> StreamEnumerator:
        """As `create_enumerator`, for an open log; the enumerator closes it."""
        # Tasks do not need these.
        from sluice.source.logs.checked_log import CheckedLog  # noqa: PLC0415
        from sluice.source.logs.data_loss import DataLossPolicy  # noqa: PLC0415
        from sluice.source.planning.enumerator import EnumeratorSettings, StreamEnumerator  # noqa: PLC0415
        from sluice.source.planning.planner import Planner, PlannerSettings  # noqa: PLC0415
        from sluice.source.probing.probe import Probe  # noqa: PLC0415

        checked, common = CheckedLog(log, self.name), self.settings
        data_loss = DataLossPolicy(checked, common.fail_on_data_loss, checked.server_time, source=self.name)
        probe = Probe(checked, data_loss, self.probe_settings())
        settings = PlannerSettings(
            common.fail_on_data_loss, self.max_drift, patience=common.read_retry_duration
        )
        planner = Planner(probe, checked.server_time, settings)
        by_number = partial(_initial_positions, self, probe, planner)
        enumerated = EnumeratorSettings(
            list(self.streams or [self.name]),
            by_number if checked.has_numbers else self.initial_positions,
            common.discovery_interval,
            self.starting_text,
            max_family=common.splits_per_task,
        )
        return StreamEnumerator(enumerated, probe, planner, subscriptions=subscriptions)

    def offsets_to_json(self, offsets: Offsets) -> dict[str, Any]:
        return offsets.to_json()

    def offsets_from_json(self, value: Mapping[str, Any]) -> Offsets:
        from sluice.source.model.offsets import Offsets  # noqa: PLC0415 - see `contracts`

        return Offsets.from_json(value)

    def deal(self, ranges: Sequence[SplitRange]) -> list[tuple[SplitRange, ...]]:
        from sluice.source.reading.assigner import assign_ranges  # noqa: PLC0415 - see `contracts`

        return assign_ranges(ranges, self.settings.splits_per_task)

    def plan_bounded(self) -> tuple[Sequence[SplitRange], Any]:
        enumerator = self.create_enumerator()
        try:
            return enumerator.bounded(self.settings.ending_timestamp), None
        finally:
            enumerator.close()

    def read_task(self, task: ReadTask) -> Iterator[pa.RecordBatch]:
        """Reads the ranges of a task in parallel; the rows of each range are in order.

        Raises:
            DataLossError: records of a range are lost, and ``failOnDataLoss`` is true.
            ServiceError: a call failed, and retries did not help.
        """
        return self.to_record_batches(_read_side_by_side(self, task))

    @property
    def max_drift(self) -> int | None:
        """How much later than an unread record a row may have arrived (microseconds); None: no limit."""
        drift = self.settings.max_drift
        return None if drift is None else micros_from_seconds(drift)


def _initial_positions(
    source: LogSource, probe: Probe, planner: Planner, splits: Sequence[Split], now: int
) -> Mapping[SplitId, Position]:
    """Returns the starting positions in a log that numbers its records, where numbers replace times."""
    from sluice.source.logs.stream_log import IteratorStart  # noqa: PLC0415 - not in tasks
    from sluice.source.model.offsets import AtTime  # noqa: PLC0415

    positions = source.initial_positions(splits, now)

    def find(session: ProbeSession, state: SplitState) -> Position | None:
        position = state.position
        if not isinstance(position, AtTime):
            return None
        start = IteratorStart("AT_TIMESTAMP", timestamp=position.instant)
        if position.instant >= now:
            start = IteratorStart("LATEST")
        return replace(position, number=session.number_of(start))

    states = [probe.state(split, positions[split.id]) for split in splits if split.id in positions]
    return {**positions, **planner.pool.for_all(states, find)}


def _read_side_by_side(source: LogSource, task: ReadTask) -> Iterator[tuple[SplitRange, Sequence[AnyRecord]]]:
    """Yields the pages of a task's ranges as they arrive. The pages of one range are in order."""
    from sluice.retry import Retrier, patient  # noqa: PLC0415 - not at `load()`, and not on the driver host
    from sluice.source.logs.checked_log import CheckedLog  # noqa: PLC0415
    from sluice.source.logs.data_loss import DataLossPolicy  # noqa: PLC0415
    from sluice.source.reading.fetcher import Stopped, fetch_side_by_side  # noqa: PLC0415
    from sluice.source.reading.reader import RangeReader, ReadSettings  # noqa: PLC0415

    pushed, patience = source.pushed_cursors(task), source.settings.read_retry_duration
    ended = threading.Event()

    def is_buffered(split_range: SplitRange) -> bool:
        return pushed is not None and pushed.is_buffered(split_range.split)

    def pause_task(seconds: float) -> None:
        if ended.wait(seconds):
            raise Stopped

    def connect(make: Callable[[], LogT], pause: Pause) -> LogT:
        return Retrier(sleep=pause).call(patient(patience), make)

    def log_of_range(pause: Pause) -> contextlib.AbstractContextManager[CheckedLog]:
        if shared is not None:
            return contextlib.nullcontext(shared)
        own = connect(partial(source.create_counting_log, pause, task.figures), pause)
        return contextlib.closing(CheckedLog(own, source.name))

    def read(split_range: SplitRange, pause: Pause) -> Iterator[Sequence[AnyRecord]]:
        with log_of_range(pause) as log:
            expiry = {} if split_range.expiry is None else {split_range.split.stream: split_range.expiry}
            data_loss = DataLossPolicy(
                log, source.settings.fail_on_data_loss, log.server_time, expiry, source.name
            )
            settings = ReadSettings(source.page_limit, source.read_interval, pause, patience=patience)
            open_cursor = None if pushed is None else partial(pushed.open, log, data_loss)
            yield from RangeReader(
                log, data_loss, settings, split_range, open_cursor=open_cursor, figures=task.figures
            ).read()

    # One thread reads all buffered ranges. The others start first, because each waits in its own thread.
    ordered = sorted(task.ranges, key=is_buffered)
    at_once = 1 + sum(not is_buffered(each) for each in task.ranges)
    opened = connect(partial(source.open_task, pause_task), pause_task)
    shared = None if opened is None else CheckedLog(opened, source.name)
    try:
        yield from fetch_side_by_side(ordered, read, at_once=at_once)
    finally:
        ended.set()
        if shared is not None:
            shared.close()
