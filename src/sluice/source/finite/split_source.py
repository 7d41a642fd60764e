"""Makes a source of a set of finite splits that never change, such as files or partitions of a table."""

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
"""Bytes that one task reads, at most, if it reads several ranges; Spark's file sources have the same
limit."""


class SplitSource(Source):
    """A source of finite splits. New ones are found while a streaming query runs.

    To be implemented: `from_options`, `schema`, `list_splits` and `read_range`. Spark's offset log says which
    splits are done.

    Attributes:
        FORGETS_AFTER: seconds after which a split that is done, and not listed any more, is left out of the
            offset log, which it would make longer for good. If it is listed again, it is read again. None:
            never.
    """

    COMMON_OPTIONS: ClassVar[Sequence[Option[Any]]] = SPLIT_OPTIONS
    FORGETS_AFTER: ClassVar[float | None] = None
    are_offsets_constant: ClassVar[bool] = True

    @abstractmethod
    def list_splits(self) -> Sequence[FiniteSplit]:
        """All splits there are now, in the order to read them.

        Called every ``splitDiscoveryInterval``, and for each batch that goes on in a split.
        """

    @abstractmethod
    def read_range(self, split: FiniteRange) -> Iterator[pa.RecordBatch]:
        """The rows of a part of a split, with the source's schema. Called in tasks, from several threads.

        A `ServiceError` that is retryable makes it be called again, for ``readRetryDuration``. The rows that
        it has given are left out then, so it gives the same rows each time.
        """

    def ends(self, split: FiniteSplit) -> Sequence[SplitEnd]:
        """Where ranges of a split may end, in order. The last one is the end of the split; its position does
        not matter. If there is none, the split is one range.

        By default a split is read as a whole. Several tasks read a split with several ends side by side, and
        a batch with limits may take some of its ranges. Called once for every split, when it is planned, from
        several threads.
        """
        return (SplitEnd(None, split.size, split.records),)

    def create_enumerator(self) -> FiniteSplitEnumerator:
        """The enumerator that finds splits and plans batches."""
        from sluice.source.finite.finite_enumerator import FiniteSplitEnumerator  # noqa: PLC0415 - not in tasks

        return FiniteSplitEnumerator(self)

    def deal(self, ranges: Sequence[FiniteRange]) -> list[tuple[FiniteRange, ...]]:
        """Deals ranges out in their order: to a task at most `TASK_BYTES`, and ``splitsPerTask`` ranges."""
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
        """Reads with `read_range`, and tells what is lost."""
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
            _log.warning("data loss, going on without it: %s (%s)", what, error)
