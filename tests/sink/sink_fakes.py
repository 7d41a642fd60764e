"""A destination in memory, and a clock, that a test controls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from sluice.sink import AsyncSinkConfig, Destination, ElementConverter, NoRateLimitingStrategy, SubmitResult
from sluice.sink.rate.causes import Cause, cause_of
from sluice.sink.setup import AsyncSinkSetup

Outcome = SubmitResult[str] | Exception
Behaviour = Callable[[int, Sequence[str]], Outcome]


def accept(_: int, __: Sequence[str]) -> Outcome:
    return SubmitResult()


def is_load(code: str) -> bool:
    """As `Destination.is_throttling` says by default."""
    return cause_of(code) is Cause.LOAD


def rows(values: Iterable[str]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(list(values), pa.string())], names=["data"])


def config(**changes: Any) -> AsyncSinkConfig:
    """Roughly the settings of Flink's tests: small batches, and nothing is due by time."""
    settings: dict[str, Any] = {
        "max_batch_size": 10,
        "max_batch_size_in_bytes": 1000,
        "max_record_size_in_bytes": 100,
        "max_in_flight_requests": 1,
        "max_buffered_requests": 100,
        "max_time_in_buffer": 3600.0,
        "request_timeout": 3600.0,
        "max_retry_duration": 3600.0,
    }
    return AsyncSinkConfig(**(settings | changes))


class RefusedError(Exception):
    """What a fake destination raises; fatal on request."""

    def __init__(self, message: str = "no", *, fatal: bool = False) -> None:
        super().__init__(message)
        self.fatal = fatal


class FakeConverter(ElementConverter[str]):
    data_column = "data"

    def __init__(self) -> None:
        self.schema: object = None
        self.opened = 0
        self.converted = 0

    def open(self, schema: object, _: object = None) -> None:
        self.schema = schema
        self.opened += 1

    def convert(self, batch: pa.RecordBatch) -> Iterator[str]:
        for value in batch.column(0).to_pylist():
            self.converted += 1
            yield value


class FakeDestination(Destination[str]):
    """Entries are strings; their size is their length.

    `behave`: returns the outcome of a request, given its number (from 0) and its entries. May block: it runs
    on the request's thread.
    """

    def __init__(self, behave: Behaviour = accept) -> None:
        self._behave = behave
        self._lock = threading.Lock()
        self.converter = FakeConverter()
        self.requests: list[list[str]] = []
        self.stored: list[str] = []
        self.running = 0
        self.most_running = 0
        self.closed = 0

    def create_converter(self) -> FakeConverter:
        return self.converter

    def size_in_bytes(self, entry: str) -> int:
        return len(entry)

    def submit(self, entries: Sequence[str]) -> SubmitResult[str]:
        with self._lock:
            number = len(self.requests)
            self.requests.append(list(entries))
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        try:
            outcome = self._behave(number, entries)
            if isinstance(outcome, Exception):
                raise outcome
        finally:
            with self._lock:
                self.running -= 1
        refused = {id(entry) for entry in outcome.failed}
        with self._lock:
            self.stored += [entry for entry in entries if id(entry) not in refused]
        return outcome

    def is_fatal(self, error: Exception) -> bool:
        return isinstance(error, RefusedError) and error.fatal

    def close(self) -> None:
        self.closed += 1


def async_setup(destination: FakeDestination | None = None, **changes: Any) -> AsyncSinkSetup:
    """What the options would give for a fake destination."""
    values: dict[str, Any] = {
        "config": config(),
        "create_strategy": NoRateLimitingStrategy,
        "strategy_cache_key": object(),
    }
    return AsyncSinkSetup(destination=destination or FakeDestination(), **(values | changes))


def fast_clock(times: int) -> Callable[[], float]:
    """A clock that is `times` as fast, so that pauses after refusals take no time."""
    return lambda: time.monotonic() * times


class ManualClock:
    """Time moves when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
