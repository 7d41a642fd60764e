"""Reads several ranges in parallel, each a page ahead of the consumer (FLIP-27's split fetchers).

Reading a shard is mostly waiting, so one task reads many. Memory is bounded: one page of each range is
being consumed, and one more is waiting or being read.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sluice.errors import SluiceError
from sluice.retry import Retrier, patient
from sluice.source.logs.stream_log import AnyRecord
from sluice.source.model.offsets import HORIZON, Closed, SplitRange
from sluice.source.model.splits import SplitId

if TYPE_CHECKING:
    import pyarrow as pa

    from sluice.source.reading.reader import SplitReader

__all__ = ["Stopped", "fetch_side_by_side", "prefetch", "read_patiently"]

ReadRange = Callable[[SplitRange, Callable[[float], None]], Iterator[Sequence[AnyRecord]]]
"""Reads one range. It sleeps only through its argument, a function that raises `Stopped` at the end."""

_WHOLE_TASK: Final = SplitRange(SplitId("", ""), HORIZON, Closed())
_PAGES_AHEAD = 2
_NEXT_FETCHER_AFTER = 0.02
"""Seconds without a page after which another fetcher starts. If pages are already buffered, one thread
is faster than many. If every page takes a request, it is slower."""
_END: Final = object()


class Stopped(Exception):  # noqa: N818 - no error: it ends a fetcher
    """The consumer has ended."""


@dataclass
class _Fetched:
    split_range: SplitRange
    records: Sequence[AnyRecord]
    error: BaseException | None = None
    is_last: bool = False


class _Fetchers:
    """Threads that read ranges into one queue, up to `_PAGES_AHEAD` unconsumed pages of each.

    A range begins when the ranges of its parents have been read.
    """

    def __init__(self, ranges: Sequence[SplitRange], read: ReadRange) -> None:
        self._read = read
        self._lock = threading.Lock()
        splits = {split_range.split for split_range in ranges}
        self._waits_for = {r: splits.intersection(r.parents) for r in ranges}
        self._left: queue.SimpleQueue[SplitRange] = queue.SimpleQueue()
        self._release(None)
        self._spaces = {r.split: threading.Semaphore(_PAGES_AHEAD) for r in ranges}
        self._output: queue.SimpleQueue[_Fetched] = queue.SimpleQueue()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Starts a thread that reads the remaining ranges, one after the other."""
        threading.Thread(target=self._run, name="sluice-fetch", daemon=True).start()

    def next(self) -> _Fetched:
        """Returns the next page of any range. Starts another fetcher if none comes soon."""
        while not self._left.empty():
            try:
                return self._output.get(timeout=_NEXT_FETCHER_AFTER)
            except queue.Empty:  # noqa: PERF203 - the loop is there for it
                self.start()
        return self._output.get()

    def consumed(self, split_range: SplitRange) -> None:
        """Makes space for another page of the range."""
        self._spaces[split_range.split].release()

    def stop(self) -> None:
        self._stopping.set()
        for space in self._spaces.values():
            space.release()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                split_range = self._left.get_nowait()
            except queue.Empty:
                return
            error: BaseException | None = None
            try:
                self._fetch(split_range)
            except Stopped:
                pass
            except BaseException as caught:  # noqa: BLE001 - raised again in the consumer's thread
                error = caught
            self._output.put(_Fetched(split_range, (), error, is_last=True))
            if error is None:
                self._release(split_range.split)

    def _release(self, read: SplitId | None) -> None:
        """Releases the ranges that waited only for `read`."""
        with self._lock:
            for split_range, parents in list(self._waits_for.items()):
                if read is not None:
                    parents.discard(read)
                if not parents:
                    del self._waits_for[split_range]
                    self._left.put(split_range)

    def _fetch(self, split_range: SplitRange) -> None:
        self._wait_for_space(split_range)
        pages = self._read(split_range, self._pause)
        try:
            for records in pages:
                self._output.put(_Fetched(split_range, records))
                self._wait_for_space(split_range)
        finally:
            if isinstance(pages, Generator):  # closes what it holds open now, not at garbage collection
                pages.close()

    def _pause(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise Stopped

    def _wait_for_space(self, split_range: SplitRange) -> None:
        self._spaces[split_range.split].acquire()
        if self._stopping.is_set():
            raise Stopped


def fetch_side_by_side(
    ranges: Sequence[SplitRange], read: ReadRange, *, at_once: int | None = None
) -> Iterator[tuple[SplitRange, Sequence[AnyRecord]]]:
    """Yields pages as they arrive: pages of one range in order, pages of several ranges mixed.

    Args:
        ranges: started in this order, but after their parents have been read.
        read: reads one range.
        at_once: initial number of fetchers; more start if no page comes soon. None: one for each range.

    Raises:
        Exception: the first error of `read`, after the other fetchers have been asked to stop.
    """
    fetchers = _Fetchers(ranges, read)
    try:
        for _ in range(len(ranges) if at_once is None else min(at_once, len(ranges))):
            fetchers.start()
        running = len(ranges)
        while running:
            fetched = fetchers.next()
            if fetched.error is not None:
                raise fetched.error
            if fetched.is_last:
                running -= 1
                continue
            yield fetched.split_range, fetched.records
            fetchers.consumed(fetched.split_range)
    finally:
        fetchers.stop()


def prefetch(make: Callable[[Callable[[float], None]], Iterator[Any]]) -> Iterator[Any]:
    """Yields items in order, while another thread makes the next one.

    Args:
        make: makes the items; its argument pauses for a number of seconds, as in `ReadRange`.

    Raises:
        BaseException: the exception that `make` raised.
    """
    for _, item in fetch_side_by_side([_WHOLE_TASK], lambda _, pause: make(pause)):
        yield item


def read_patiently(
    reader: SplitReader[Any], split: Any, patience: float, pause: Callable[[float], None]
) -> Iterator[pa.RecordBatch]:
    """Yields a reader's batches for a range. After an error it reads the range again, and skips the
    yielded rows.

    Args:
        reader: returns the same rows each time, maybe in record batches of other sizes.
        patience: how long the same read may fail with retryable errors (seconds).
        pause: sleeps for a number of seconds.

    Raises:
        SluiceError: it failed for longer, or with a permanent error.
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
        if isinstance(batches, Generator):  # closes what it holds open now, not at garbage collection
            batches.close()


def _behind(rows: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the batches without their first `rows` rows."""
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
