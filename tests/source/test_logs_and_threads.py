"""A log that is for one thread at a time, and one log for all ranges of a task."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import pytest

from sluice.errors import ServiceError
from sluice.source import IteratorStart, Page, Split, SplitId, StreamLog
from sluice.source.contracts import ReadTask
from sluice.testing import MemoryLog, MemorySource, QueryRunner

ResultT = TypeVar("ResultT")
OPTIONS = {"startingPosition": "EARLIEST"}
SHARDS = 8


class Connection(StreamLog):
    """A `MemoryLog` as a service's client may be: it cannot be shared, nor used when it is closed."""

    def __init__(self, log: MemoryLog, mistakes: list[str]) -> None:
        self.log = log
        self.mistakes = mistakes
        self.turn = threading.Lock()
        self.threads: set[str] = set()
        self.is_closed = False

    def list_splits(self, stream: str) -> Sequence[Split]:
        return self.call(self.log.list_splits, stream)

    def get_iterator(self, split: SplitId, start: IteratorStart) -> str | None:
        return self.call(self.log.get_iterator, split, start)

    def get_records(self, split: SplitId, iterator: str, limit: int) -> Page:
        return self.call(self.log.get_records, split, iterator, limit)

    def server_time(self) -> int:
        return self.call(self.log.server_time)

    def close(self) -> None:
        self.call(lambda: None)
        self.is_closed = True

    def call(self, method: Callable[..., ResultT], *arguments: Any) -> ResultT:
        thread = threading.current_thread().name
        if self.is_closed or not self.turn.acquire(blocking=False):
            self.mistakes.append(f"{method} by {thread}")
            return method(*arguments)
        self.threads.add(thread)
        time.sleep(0.001)  # the others would come in between
        self.turn.release()
        return method(*arguments)


class Connecting(MemorySource):
    """Connects for each range, at the second attempt."""

    opened: ClassVar[list[Connection]]
    mistakes: ClassVar[list[str]]
    refusals: ClassVar[list[ServiceError]]

    def create_log(self, pause: Callable[[float], None]) -> Any:
        if self.opened and self.refusals:
            raise self.refusals.pop()
        self.opened.append(Connection(super().create_log(pause), self.mistakes))
        return self.opened[-1]


class Sharing(Connecting):
    """Connects once for each task."""

    def open_task(self, pause: Callable[[float], None]) -> Any:
        return self.create_log(pause)


@pytest.fixture(params=[Connecting, Sharing])
def source(request: pytest.FixtureRequest) -> Iterator[type[Connecting]]:
    made: type[Connecting] = request.param
    made.opened, made.mistakes = [], []
    made.refusals = [ServiceError("no answer", operation="connect", target="s", retryable=True)]
    log = MemoryLog()
    log.create("s", SHARDS)
    for number in range(1000):
        log.put("s", f"key {number}")
    made.of(log)
    yield made
    assert made.mistakes == []


def test_one_thread_at_a_time_calls_a_log(source: type[Connecting]) -> None:
    """Of those that plan, and of those that read."""
    with QueryRunner(source, OPTIONS) as query:
        assert len(query.run_batch()) == 1000
        planning, *reading = source.opened
        assert len(planning.threads) > 1
        assert len(reading) == (1 if source is Sharing else SHARDS)
        assert max(len(each.threads) for each in reading) > (source is Sharing)
        assert all(each.is_closed for each in reading)
    assert planning.is_closed


def test_no_thread_calls_a_log_when_its_task_has_ended(source: type[Connecting]) -> None:
    """As that of a query with a limit, which takes no more rows."""
    made = source.configured(OPTIONS, streaming=False)
    ranges, _ = made.plan_bounded()
    made.log.page_size = 5
    rows: Any = made.read_task(ReadTask(tuple(ranges)))
    next(rows)
    rows.close()
    deadline = time.monotonic() + 10
    while not all(each.is_closed for each in source.opened) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert all(each.is_closed for each in source.opened)
    time.sleep(0.1)
