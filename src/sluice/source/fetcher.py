"""Reads several ranges side by side, each a page ahead of what is consumed (FLIP-27's split fetchers).

A shard gives at most 2 MiB/s and waits most of the time, so one task reads many of them. Memory is
bounded: of each range one page is being consumed and one more is waiting or being read.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

from sluice.source.log import AnyRecord
from sluice.source.offsets import SplitRange

__all__ = ["Stopped", "fetch_side_by_side"]

ReadRange = Callable[[SplitRange, Callable[[float], None]], Iterator[Sequence[AnyRecord]]]
"""Reads one range; sleeps only through the function it is given, which raises `Stopped` at the end."""

_PAGES_AHEAD = 2


class Stopped(Exception):  # noqa: N818 - not an error: the way out for a fetcher nobody listens to
    """The consumer has gone."""


@dataclass
class _Fetched:
    split_range: SplitRange
    records: Sequence[AnyRecord]
    error: BaseException | None = None
    is_last: bool = False


class _Fetcher(threading.Thread):
    """Reads one range into the queue all fetchers share, never more than `_PAGES_AHEAD` unconsumed."""

    def __init__(
        self,
        split_range: SplitRange,
        read: ReadRange,
        output: queue.SimpleQueue[_Fetched],
        stopping: threading.Event,
    ) -> None:
        super().__init__(name=f"sluice-fetch-{split_range.split.shard}", daemon=True)
        self.space = threading.Semaphore(_PAGES_AHEAD)
        self._range = split_range
        self._read = read
        self._output = output
        self._stopping = stopping

    def run(self) -> None:
        error: BaseException | None = None
        try:
            self._wait_for_space()
            self._fetch(self._read(self._range, self._pause))
        except Stopped:
            pass
        except BaseException as caught:  # noqa: BLE001 - it is raised again in the consumer's thread
            error = caught
        self._output.put(_Fetched(self._range, (), error, is_last=True))

    def _fetch(self, pages: Iterator[Sequence[AnyRecord]]) -> None:
        try:
            for records in pages:
                self._output.put(_Fetched(self._range, records))
                self._wait_for_space()
        finally:
            if isinstance(pages, Generator):  # what it holds open ends here, not when it is collected
                pages.close()

    def _pause(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise Stopped

    def _wait_for_space(self) -> None:
        self.space.acquire()
        if self._stopping.is_set():
            raise Stopped


def fetch_side_by_side(
    ranges: Sequence[SplitRange], read: ReadRange
) -> Iterator[tuple[SplitRange, Sequence[AnyRecord]]]:
    """Yields pages as they come: those of one range in order, those of different ranges mixed.

    Raises:
        whatever `read` raised first, after telling the others to stop.
    """
    output: queue.SimpleQueue[_Fetched] = queue.SimpleQueue()
    stopping = threading.Event()
    fetchers = {r.split: _Fetcher(r, read, output, stopping) for r in ranges}
    for fetcher in fetchers.values():
        fetcher.start()
    try:
        running = len(fetchers)
        while running:
            fetched = output.get()
            if fetched.error is not None:
                raise fetched.error
            if fetched.is_last:
                running -= 1
                continue
            yield fetched.split_range, fetched.records
            fetchers[fetched.split_range.split].space.release()
    finally:
        stopping.set()
        for fetcher in fetchers.values():
            fetcher.space.release()
