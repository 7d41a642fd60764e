"""The contracts between a user's source and Spark's readers (FLIP-27).

There are three ways to write a source, from the easiest to the most flexible:

- for a *log* of sharded, ordered streams, inherit from `sluice.source.LogSource`, and give it a
  `sluice.source.StreamLog` or, if every record has a number to read from, a `sluice.source.PositionLog`;
- for a *set of finite splits*, such as files, inherit from `sluice.source.SplitSource`;
- for *a custom enumerator and reader*, inherit from `Source`.

Two kinds of processes use a source. A process on the driver host plans batches, and Spark sends a pickled
copy of the source to the tasks. So a source holds plain data only; each process opens connections and the
like when it needs them.

Spark has one thread in each process, which calls every method of a `Source`, a `Coordinator` and a
`SplitEnumerator`. A task has one more thread, which alone calls `SplitReader.read`. The threads that call a
`sluice.source.StreamLog` or a `sluice.source.SplitSource` are named there.

If `SplitReader.read` or a method of a log or of finite splits raises a `ServiceError` with ``retryable``, it
is called again, for up to ``readRetryDuration``. In tasks that includes the methods that open a log. An error
of any other method ends the query.

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
    """What one Spark task reads.

    Attributes:
        ranges: the enumerator's ranges, in the order to read them.
        assignment: the task's part of the result of `Coordinator.assign`; None: nothing.
        driver_host: the host at which the task finds Spark's driver.
        is_repeated: whether Spark has started the task before: the earlier attempt failed, or still runs
            (speculation).
        figures: count the records and bytes that were read.
    """

    ranges: tuple[Any, ...]
    assignment: Any = None
    driver_host: str = "127.0.0.1"
    is_repeated: bool = False
    figures: ReadFigures = field(default_factory=ReadFigures, compare=False)


class Source(ABC):
    """A source of rows. Inherit from it to bring a custom enumerator and reader.

    Attributes:
        name: of the format, as in ``spark.readStream.format(name)``; also how errors call the source.
        OPTIONS: the source's own options. Keys are case-insensitive.
        COMMON_OPTIONS: the options of `sluice.source.settings` that the source accepts; their values are in
            `settings`. The default has those that `deal` and `read_task` use: add those that your enumerator
            uses. If `OPTIONS` declares one of these keys, the source's declaration wins.
        STREAMING_OPTIONS, BATCH_OPTIONS: options that only one kind of read uses; the other kind refuses
            them.
        FOREIGN_NAMES: option names from other connectors.
        boundedness: ``"continuous"`` if the source never ends. Then batch reads and ``Trigger.AvailableNow``
            are refused, because they end at the end of the data.
        TABLE_SCHEMA: the columns, if they depend on no option: for ``CREATE TABLE`` without columns.
        TABLE_OPTIONS: the options that nearly every user sets, for messages (``path = '...'``).
        are_offsets_constant: Sluice's own code makes the offsets, and never changes them afterwards.
        settings: the values of the common options, set before any other method of a source is called.
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
        """The columns: an Arrow schema, or a schema of Spark's as text (``"id long, name string"``).

        Called at ``load()``, and on the driver host. It may read the data that the options name.
        """

    @classmethod
    def configured(cls, options: Mapping[str, str], *, streaming: bool | None = None) -> Self:
        """The source that a user's options make.

        Args:
            options: as Spark passes them: keys in any case, values as text.
            streaming: whether it is a streaming read or a batch read; None: not known yet.

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
        """All names of options, names of other connectors included."""
        declared = [option.key for option in (*cls.OPTIONS, *cls.COMMON_OPTIONS)]
        return frozenset([*declared, *(foreign.name for foreign in cls.FOREIGN_NAMES)])

    @property
    def limits(self) -> Limits:
        """The limits of one batch of a streaming query."""
        return self.settings.limits

    # --- on the driver host ----------------------------------------------------------------------------

    def create_enumerator(self) -> SplitEnumerator[Any, Any]:
        """Finds splits and says where batches end; see `SplitEnumerator`."""
        raise NotImplementedError(f"{self.name}: {type(self).__name__} has no create_enumerator")

    def create_coordinator(self) -> Coordinator:
        """Plans a streaming query. The default only has an enumerator."""
        return Coordinator(self.create_enumerator())

    def offsets_to_json(self, offsets: Any) -> dict[str, Any]:
        """Offsets as Spark logs them. By default an enumerator's offsets are such a dict already."""
        if not isinstance(offsets, Mapping):
            raise SourceRuleError(
                f"source {self.name}: offsets are a dict, or offsets_to_json() makes one of them, not "
                f"{offsets!r}"
            )
        return dict(offsets)

    def offsets_from_json(self, value: Mapping[str, Any]) -> Any:
        """Offsets from the result of `offsets_to_json`, maybe of an earlier run."""
        return dict(value)

    def deal(self, ranges: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Distributes ranges over tasks, always in the same way for the same ranges."""
        size = self.settings.splits_per_task
        return [tuple(ranges[start : start + size]) for start in range(0, len(ranges), size)]

    def assignment_of(self, assignment: Any, ranges: Sequence[Any]) -> Any:
        """The part of the result of `Coordinator.assign` for the task that reads these ranges."""
        del ranges
        return assignment

    def plan_bounded(self) -> tuple[Sequence[Any], Any]:
        """The ranges of a batch read, and the result of `Coordinator.assign` for its tasks."""
        from sluice.source.checks import checked_offsets, reread_offsets  # noqa: PLC0415 - not at `load()`

        coordinator = Coordinator(self.create_enumerator())
        enumerator = coordinator.enumerator
        try:
            # Offsets pass through JSON, as in a stream, because an enumerator may change offsets that it has
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
        """Reads one range; see `SplitReader`. Its pages are record batches of the source's schema."""
        raise NotImplementedError(f"{self.name}: {type(self).__name__} has no create_reader")

    def read_task(self, task: ReadTask) -> Iterator[pa.RecordBatch]:
        """The rows of a task. The default reads the task's ranges in order, a few record batches ahead."""
        from sluice.source.reading.fetcher import prefetch, read_patiently  # noqa: PLC0415 - in tasks alone

        reader, patience = self.create_reader(), self.settings.read_retry_duration
        yield from prefetch(
            lambda pause: (
                rows for each in task.ranges for rows in read_patiently(reader, each, patience, pause)
            )
        )


class SplitEnumerator(ABC, Generic[SplitT, OffsetsT]):
    """FLIP-27's split enumerator: finds splits, and decides what is read next. Called by one thread.

    In a new query Spark calls `initial` first, then `advance` for every trigger (about 90 times a second
    while nothing is new) and `ranges` for every batch. After a restart it may call `ranges` first, with
    offsets of an earlier enumerator. The enumerator decides when to list splits.

    Offsets are the only state that a restart needs: after a failure, Spark reads the same offsets again. They
    are JSON (a dict), or an object that `Source.offsets_to_json` converts to JSON, and compare by ``==``.
    """

    @abstractmethod
    def initial(self) -> OffsetsT:
        """Where the first batch starts. Called again if the first batch has to be run again."""

    @abstractmethod
    def advance(self, start: OffsetsT, limits: Limits = NO_LIMITS) -> OffsetsT:
        """Where a batch from `start` ends; `start` itself if nothing is new."""

    @abstractmethod
    def ranges(self, start: OffsetsT, end: OffsetsT) -> Sequence[SplitT]:
        """The ranges that the batch reads, always the same for the same pair. They can be pickled."""

    def stop_at_available(self) -> None:
        """Makes the run end: later calls of `advance` stop at the data that exists now.

        Called for ``Trigger.AvailableNow``, and in batch reads.
        """
        raise OptionError(
            f"{type(self).__name__}: Trigger.AvailableNow and batch reads need stop_at_available(). If the "
            "source never ends, set its boundedness to 'continuous'"
        )

    def newest(self, start: OffsetsT) -> OffsetsT:
        """The newest known offsets, planned or not, for Spark's progress reports."""
        return start

    @property
    def millis_behind_latest(self) -> Mapping[Any, int]:
        """By split, how far the end of the last batch is from the newest record (milliseconds)."""
        return {}

    def close(self) -> None:
        """Releases what the enumerator holds. Not called if the process is killed."""


BaseSplitEnumerator = SplitEnumerator


class Coordinator:
    """FLIP-27's coordinator: plans a streaming query on the driver host, and sends tasks what they need to
    know.

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
        """More plain data for the tasks that read these ranges; None for nothing."""
        del ranges

    def begin_batch(self, tasks: int) -> ReportAddress | None:
        """Called for each batch before its tasks start. Returns where tasks report their reads; None:
        nowhere.
        """
        del tasks
        return None

    def report(self) -> dict[str, Any]:
        """More for Spark's progress reports, in addition to the newest offsets: the lag of each split."""
        from sluice.source.checks import lag_by_stream  # noqa: PLC0415 - not at `load()`

        lag = lag_by_stream(self.enumerator.millis_behind_latest)
        return {"millisBehindLatest": lag} if lag else {}

    def post_report(self) -> None:
        """Tells listeners in the application what `report` says; called at every trigger."""

    def stop_at_available(self) -> None:
        """Makes the run end at the available data; called for ``Trigger.AvailableNow``."""
        self.enumerator.stop_at_available()

    def close(self, *, is_disconnected: bool = False) -> None:
        """Ends the enumerator.

        Args:
            is_disconnected: Spark has closed its connection to this process: it has stopped the query, or
                the driver has died.
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
