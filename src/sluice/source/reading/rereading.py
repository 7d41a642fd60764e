"""Reads a range again that could not be read for a reason that may pass."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Final

from sluice.errors import SluiceError
from sluice.retry import Retrier, patient

if TYPE_CHECKING:
    import pyarrow as pa

    from sluice.source.reading.reader import SplitReader

__all__ = ["read_patiently"]

_END: Final = object()


def read_patiently(
    reader: SplitReader[Any], split: Any, patience: float, pause: Callable[[float], None]
) -> Iterator[pa.RecordBatch]:
    """Yields what a reader gives for a range. After an error it begins anew, without the rows it has given.

    Args:
        reader: gives the same rows each time; how many are in a record batch may differ.
        patience: how long the same read may fail with retryable errors (seconds).
        pause: sleeps for a number of seconds.

    Raises:
        SluiceError: it failed for longer, or for good.
    """
    given = 0
    batches: Iterator[pa.RecordBatch] | None = None

    def following() -> Any:
        nonlocal batches
        if batches is None:
            batches = _behind(given, reader.read(split))
        try:
            return next(batches, _END)
        except SluiceError:
            batches = None
            raise

    retrier = Retrier(sleep=pause)
    try:
        while (batch := retrier.call(patient(patience), following)) is not _END:
            yield batch
            given += batch.num_rows
    finally:
        if isinstance(batches, Generator):  # closes what it holds open now, and not when it is collected
            batches.close()


def _behind(rows: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches without their first `rows` rows."""
    try:
        for batch in batches:
            if rows and batch.num_rows <= rows:
                rows -= batch.num_rows
            else:
                yield batch.slice(rows) if rows else batch
                rows = 0
    finally:
        if isinstance(batches, Generator):
            batches.close()
