"""Makes a source of finite splits that never change, such as files or partitions of a table."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from sluice.errors import DataLossError, ServiceError
from sluice.options import Option
from sluice.source.contracts import Source
from sluice.source.finite.splits import FiniteRange, FiniteSplit, SplitEnd
from sluice.source.settings import SPLIT_OPTIONS

if TYPE_CHECKING:
    import pyarrow as pa

    from sluice.source.finite.finite_enumerator import FiniteSplitEnumerator
    from sluice.source.reading.reader import SplitReader

__all__ = ["SplitSource"]

_log = logging.getLogger(__name__)

TASK_BYTES: Final = 128 * 2**20
"""Maximum bytes of a task that reads several ranges, as in Spark's file sources."""


class SplitSource(Source):
    """A source of finite splits. It finds new ones while a streaming query runs.

    Implement `from_options`, `schema`, `list_splits` and `read_range`. Spark's offset log records which
    splits are done. If `list_splits`, `ends` or `read_range` raises a `ServiceError` with ``retryable``,
    Sluice calls it again, for up to ``readRetryDuration``.

    Attributes:
        FORGETS_AFTER: seconds after which the offset log drops a finished split that is no longer
            listed, which keeps the log small. If the split is listed again later, it is read again.
            None: never.
    """

    COMMON_OPTIONS: ClassVar[Sequence[Option[Any]]] = SPLIT_OPTIONS
    FORGETS_AFTER: ClassVar[float | None] = None
    are_offsets_constant: ClassVar[bool] = True

    @abstractmethod
    def list_splits(self) -> Sequence[FiniteSplit]:
        """Returns all existing splits, in reading order.

        Called every ``splitDiscoveryInterval``, and for each batch that continues in a split.
        """

    @abstractmethod
    def read_range(self, split: FiniteRange) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a part of a split, with the source's schema. Called in tasks, from several
        threads.

        After a retryable `ServiceError` it is called again. It must then yield the same rows in the same
        order, because Sluice skips the rows that it has already read.
        """

    def ends(self, split: FiniteSplit) -> Sequence[SplitEnd]:
        """Returns where ranges of a split may end, in order. By default, or if it returns none, a split
        is one range.

        The last one is the end of the split; its position is ignored. If a split has several ends,
        several tasks may read it in parallel, and a batch with limits may take some of its ranges.
        Called once for every split, when it is planned, from several threads.
        """
        return (SplitEnd(None, split.size, split.records),)

    def create_enumerator(self) -> FiniteSplitEnumerator:
        from sluice.source.finite.finite_enumerator import FiniteSplitEnumerator  # noqa: PLC0415 - not in tasks

        return FiniteSplitEnumerator(self)

    def deal(self, ranges: Sequence[FiniteRange]) -> list[tuple[FiniteRange, ...]]:
        """Distributes ranges in order: up to `TASK_BYTES` and ``splitsPerTask`` ranges for each task."""
        tasks: list[list[FiniteRange]] = []
        room = 0
        for each in ranges:
            if not tasks or each.size > room or len(tasks[-1]) == self.settings.splits_per_task:
                tasks.append([])
                room = TASK_BYTES
            tasks[-1].append(each)
            room -= each.size
        return [tuple(task) for task in tasks]

    def create_reader(self) -> SplitReader[FiniteRange]:
        """Makes a reader that calls `read_range` and reports data loss."""
        return _RangeReader(self)


class _RangeReader:
    def __init__(self, source: SplitSource) -> None:
        self._source = source

    def read(self, split: FiniteRange) -> Iterator[pa.RecordBatch]:
        source = self._source
        try:
            yield from source.read_range(split)
        except (FileNotFoundError, ServiceError) as error:
            if isinstance(error, ServiceError) and not error.missing:
                raise
            name = f"source {source.name}, split {split.split}"
            what = f"{name}: it is gone, and a planned batch holds a part of it"
            if source.settings.fail_on_data_loss:
                raise DataLossError(
                    f"{what}: splits stay until they are read ({error}). With option 'failOnDataLoss' false "
                    "this is logged, and it is left out"
                ) from error
            _log.warning("data loss, continuing without it: %s (%s)", what, error)
