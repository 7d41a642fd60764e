"""The contracts between a user's source and Spark's readers (FLIP-27).

A source holds plain data only, because Spark sends a pickled copy of it to the tasks. Each process opens
connections when it needs them. One thread calls every method of a `Source`, a `Coordinator` and a
`SplitEnumerator`; in a task, one other thread calls `SplitReader.read`.
https://cwiki.apache.org/confluence/display/FLINK/FLIP-27%3A+Refactor+Source+Interface
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from sluice.errors import OptionError, SourceRuleError
from sluice.option_names import Explained, ForeignName
from sluice.options import Option, OptionValues, read_options
from sluice.source.model.read_figures import ReadFigures
from sluice.source.settings import (
    BATCH_OPTIONS,
    LOG_OPTIONS,
    NO_LIMITS,
    STREAMING_OPTIONS,
    TASK_OPTIONS,
    Limits,
    SourceSettings,
    settings_from_options,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

    from sluice.source.reading.reader import SplitReader
    from sluice.source.reports.task_reports import ReportAddress

__all__ = [
    "BaseSplitEnumerator",
    "Coordinator",
    "ReadTask",
    "Source",
    "SplitEnumerator",
    "refuse_idle_options",
]

SplitT = TypeVar("SplitT")
OffsetsT = TypeVar("OffsetsT")
SourceT = TypeVar("SourceT", bound="Source")


@dataclass(frozen=True)
class ReadTask:
    """The work of one Spark task.

    Attributes:
        ranges: the enumerator's ranges, in reading order.
        assignment: the task's part of the result of `Coordinator.assign`, or None.
        driver_host: the host of Spark's driver, as the task can reach it.
        is_repeated: whether Spark has started the task before. The earlier attempt failed, or still runs
            (speculation).
        figures: count the records and bytes that were read.
    """

    ranges: tuple[Any, ...]
    assignment: Any = None
    driver_host: str = "127.0.0.1"
    is_repeated: bool = False
    figures: ReadFigures = field(default_factory=ReadFigures, compare=False)


class Source(ABC):
    """A source of rows. Inherit from it to write a custom enumerator and reader.

    If `SplitReader.read` raises a `ServiceError` with ``retryable``, Sluice calls it again, for up to
    ``readRetryDuration``. Other errors end the query.

    Attributes:
        name: of the format, as in ``spark.readStream.format(name)``; also used in errors.
        OPTIONS: the source's own options. Keys are case-insensitive.
        COMMON_OPTIONS: the accepted options of `sluice.source.settings`; their values are in `settings`.
            The default has those that `deal` and `read_task` use: add the ones that your enumerator
            uses. A declaration of the same key in `OPTIONS` wins.
        STREAMING_OPTIONS, BATCH_OPTIONS: options that the other kind of read rejects.
        FOREIGN_NAMES: option names from other connectors.
        boundedness: ``"continuous"`` if the source never ends. Batch reads and ``Trigger.AvailableNow``
            are then rejected.
        TABLE_SCHEMA: the columns, if they depend on no option: for ``CREATE TABLE`` without columns.
        TABLE_OPTIONS: the options that nearly every user sets, for messages (``path = '...'``).
        are_offsets_constant: Sluice's own code makes the offsets, and never changes them afterwards.
        settings: the values of the common options, set before any other method is called.
    """

    name: ClassVar[str]
    OPTIONS: ClassVar[Sequence[Option[Any]]] = ()
    COMMON_OPTIONS: ClassVar[Sequence[Option[Any]]] = TASK_OPTIONS
    STREAMING_OPTIONS: ClassVar[Sequence[Option[Any]]] = STREAMING_OPTIONS
    BATCH_OPTIONS: ClassVar[Sequence[Option[Any]]] = BATCH_OPTIONS
    FOREIGN_NAMES: ClassVar[Sequence[ForeignName]] = ()
    boundedness: ClassVar[Literal["bounded", "continuous"]] = "bounded"
    TABLE_SCHEMA: ClassVar[str | None] = None
    TABLE_OPTIONS: ClassVar[str] = "<option> = '...'"
    are_offsets_constant: ClassVar[bool] = False

    settings: SourceSettings = SourceSettings()

    # --- options and schema ---------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def from_options(cls: type[SourceT], values: OptionValues) -> SourceT:
        """Makes the source from its options; calls no service. Report an option that cannot work with
        ``values.reject``.

        Raises:
            OptionError: an option cannot work, and the source cannot be made without it.
        """

    @abstractmethod
    def schema(self) -> pa.Schema | str:
        """Returns the columns: an Arrow schema, or a Spark schema as text (``"id long, name string"``).

        Called at ``load()``, and on the driver host. It may read the data that the options name.
        """

    @classmethod
    def configured(cls, options: Mapping[str, str], *, streaming: bool | None = None) -> Self:
        """Makes the source from a user's options.

        Args:
            options: as Spark passes them: keys in any case, values as text.
            streaming: whether this is a streaming read; None: not known yet.

        Raises:
            OptionError: all problems in one message.
        """
        if streaming is False:
            cls.check_ends()
        own = {option.key for option in cls.OPTIONS}
        common = [option for option in cls.COMMON_OPTIONS if option.key not in own]
        unread = [
            Explained(option.key, "Sluice", "does nothing here: this source does not read it")
            for option in LOG_OPTIONS
            if cls.COMMON_OPTIONS and option not in cls.COMMON_OPTIONS
        ]
        foreign = (*cls.FOREIGN_NAMES, *unread)
        values = read_options(cls.name, (*cls.OPTIONS, *common), options, foreign=foreign)
        refuse_idle_options(values, cls.STREAMING_OPTIONS, cls.BATCH_OPTIONS, streaming=streaming)
        settings = settings_from_options(values, common, streaming=streaming)
        source = cls.from_options(values)
        values.check()
        if cls.COMMON_OPTIONS:
            object.__setattr__(source, "settings", settings)  # a source may be a frozen dataclass
        return source

    @classmethod
    def check_ends(cls) -> None:
        """Raises OptionError if a batch read or ``Trigger.AvailableNow`` would never end."""
        if cls.boundedness == "continuous":
            raise OptionError(
                f"{cls.name}: this source never ends, so only a streaming query can read it, with another "
                "trigger than Trigger.AvailableNow"
            )

    @classmethod
    def option_keys(cls) -> frozenset[str]:
        """All option names, including the names from other connectors."""
        declared = [option.key for option in (*cls.OPTIONS, *cls.COMMON_OPTIONS)]
        return frozenset([*declared, *(foreign.name for foreign in cls.FOREIGN_NAMES)])

    @property
    def limits(self) -> Limits:
        return self.settings.limits

    # --- on the driver host ----------------------------------------------------------------------------

    def create_enumerator(self) -> SplitEnumerator[Any, Any]:
        """Makes the object that finds splits and plans batches."""
        raise NotImplementedError(f"{self.name}: {type(self).__name__} has no create_enumerator")

    def create_coordinator(self) -> Coordinator:
        """Makes the planner of a streaming query. The default has only an enumerator."""
        return Coordinator(self.create_enumerator())

    def offsets_to_json(self, offsets: Any) -> dict[str, Any]:
        """Converts offsets to the JSON that Spark logs. By default an enumerator's offsets are such a
        dict already.
        """
        if not isinstance(offsets, Mapping):
            raise SourceRuleError(
                f"source {self.name}: offsets are a dict, or offsets_to_json() makes one of them, not "
                f"{offsets!r}"
            )
        return dict(offsets)

    def offsets_from_json(self, value: Mapping[str, Any]) -> Any:
        """Reads the result of `offsets_to_json`, maybe of an earlier run."""
        return dict(value)

    def deal(self, ranges: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Distributes ranges over tasks; the same ranges always give the same tasks."""
        size = self.settings.splits_per_task
        return [tuple(ranges[start : start + size]) for start in range(0, len(ranges), size)]

    def assignment_of(self, assignment: Any, ranges: Sequence[Any]) -> Any:
        """Returns the part of the result of `Coordinator.assign` for the task that reads these ranges."""
        del ranges
        return assignment

    def plan_bounded(self) -> tuple[Sequence[Any], Any]:
        """Returns the ranges of a batch read, and the result of `Coordinator.assign` for its tasks."""
        from sluice.source.checks import checked_offsets, reread_offsets  # noqa: PLC0415 - not at `load()`

        coordinator = Coordinator(self.create_enumerator())
        enumerator = coordinator.enumerator
        try:
            # Offsets pass through JSON, as in a stream, because an enumerator may change what it has
            # returned.
            start = end = checked_offsets(self, enumerator.initial())
            enumerator.stop_at_available()
            while True:
                further = checked_offsets(self, enumerator.advance(reread_offsets(self, end), NO_LIMITS))
                if further == end:
                    break
                end = further
            return enumerator.ranges(reread_offsets(self, start), reread_offsets(self, end)), None
        finally:
            coordinator.close()

    # --- in tasks -------------------------------------------------------------------------------------

    def create_reader(self) -> SplitReader[Any]:
        """Makes the reader of single ranges. Its pages are record batches of the source's schema."""
        raise NotImplementedError(f"{self.name}: {type(self).__name__} has no create_reader")

    def read_task(self, task: ReadTask) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a task. The default reads its ranges in order, a few record batches ahead."""
        from sluice.source.reading.fetcher import prefetch, read_patiently  # noqa: PLC0415 - in tasks alone

        reader, patience = self.create_reader(), self.settings.read_retry_duration
        yield from prefetch(
            lambda pause: (
                rows for each in task.ranges for rows in read_patiently(reader, each, patience, pause)
            )
        )


class SplitEnumerator(ABC, Generic[SplitT, OffsetsT]):
    """FLIP-27's split enumerator: finds splits, and plans batches. Called by one thread.

    In a new query Spark calls `initial` first, then `advance` for every trigger (about 90 times a second
    while nothing is new) and `ranges` for every batch. After a restart it may call `ranges` first, with
    offsets of an earlier enumerator. The enumerator decides when to list splits.

    Offsets are the only state that a restart needs: after a failure, Spark reads the same offsets again.
    They are JSON (a dict), or an object that `Source.offsets_to_json` converts to JSON, and compare by
    ``==``.
    """

    @abstractmethod
    def initial(self) -> OffsetsT:
        """Returns where the first batch starts. Called again if Spark repeats the first batch."""

    @abstractmethod
    def advance(self, start: OffsetsT, limits: Limits = NO_LIMITS) -> OffsetsT:
        """Returns where a batch from `start` ends; `start` itself if nothing is new."""

    @abstractmethod
    def ranges(self, start: OffsetsT, end: OffsetsT) -> Sequence[SplitT]:
        """Returns the ranges of the batch, always the same for the same pair. They can be pickled."""

    def stop_at_available(self) -> None:
        """Makes later calls of `advance` stop at the data that exists now.

        Called for ``Trigger.AvailableNow``, and in batch reads.
        """
        raise OptionError(
            f"{type(self).__name__}: Trigger.AvailableNow and batch reads need stop_at_available(). If the "
            "source never ends, set its boundedness to 'continuous'"
        )

    def newest(self, start: OffsetsT) -> OffsetsT:
        """Returns the newest known offsets, planned or not, for Spark's progress reports."""
        return start

    @property
    def millis_behind_latest(self) -> Mapping[Any, int]:
        """By split, how far the end of the last batch is from the newest record (milliseconds)."""
        return {}

    def close(self) -> None:
        """Releases resources. Not called if the process is killed."""


BaseSplitEnumerator = SplitEnumerator


class Coordinator:
    """FLIP-27's coordinator: plans a streaming query on the driver host, and sends data to its tasks.

    Attributes:
        enumerator: finds splits and plans batches.
    """

    def __init__(self, enumerator: SplitEnumerator[Any, Any]) -> None:
        self.enumerator: Any = enumerator
        if not isinstance(enumerator, SplitEnumerator):
            raise SourceRuleError(
                f"the enumerator {type(enumerator).__name__} must inherit from sluice.source.SplitEnumerator"
            )

    def restore(self, offsets: Any) -> None:
        """Called with the start of every planned batch, and with the end of every read batch."""

    def assign(self, ranges: Sequence[Any]) -> Any:
        """Returns more plain data for the tasks that read these ranges, or None."""
        del ranges

    def begin_batch(self, tasks: int) -> ReportAddress | None:
        """Returns the address to which tasks report their reads, or None. Called before the tasks of
        each batch start.
        """
        del tasks
        return None

    def report(self) -> dict[str, Any]:
        """Returns figures for Spark's progress reports, in addition to the newest offsets: the lag of
        each split.
        """
        from sluice.source.checks import lag_by_stream  # noqa: PLC0415 - not at `load()`

        lag = lag_by_stream(self.enumerator.millis_behind_latest)
        return {"millisBehindLatest": lag} if lag else {}

    def post_report(self) -> None:
        """Sends the result of `report` to listeners in the application. Called at every trigger."""

    def stop_at_available(self) -> None:
        """Makes the query end at the available data. Called for ``Trigger.AvailableNow``."""
        self.enumerator.stop_at_available()

    def close(self, *, is_disconnected: bool = False) -> None:
        """Closes the enumerator.

        Args:
            is_disconnected: Spark has closed its connection to this process, because the query was
                stopped or the driver has died.
        """
        del is_disconnected
        self.enumerator.close()


def refuse_idle_options(
    values: OptionValues,
    streaming_only: Sequence[Option[Any]],
    batch_only: Sequence[Option[Any]],
    *,
    streaming: bool | None,
) -> None:
    """Rejects options that do nothing in this kind of read. `streaming` is None if it is not known yet."""
    if streaming:
        for option in batch_only:
            if values.given(option):
                values.reject(option.key, "is for batch reads only: a stream has no end")
    if streaming is False:
        for option in streaming_only:
            if values.given(option):
                values.reject(option.key, "is for streaming reads only: in a batch read it does nothing")
