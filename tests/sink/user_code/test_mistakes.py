"""Rate limiting strategies that answer something else than a number."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sluice.sink import AsyncSinkConfig, AsyncSinkWriter, Destination, SubmitResult

CONFIG = AsyncSinkConfig(
    max_batch_size=10,
    max_batch_size_in_bytes=1000,
    max_record_size_in_bytes=1000,
    max_in_flight_requests=2,
    max_buffered_requests=100,
    max_time_in_buffer=0.0,
    request_timeout=10.0,
    max_retry_duration=10.0,
)


class Numbers:
    """Makes an entry of each number."""

    def open(self, schema: Any) -> None: ...

    def convert(self, batch: pa.RecordBatch) -> list[int]:
        numbers: list[int] = batch.column(0).to_pylist()
        return numbers


class Accepting(Destination[int]):
    name = "numbers"

    def create_converter(self) -> Any:
        return Numbers()

    def size_in_bytes(self, _entry: int) -> int:
        return 8

    def submit(self, _entries: Any) -> SubmitResult[int]:
        return SubmitResult()

    def is_fatal(self, _error: Exception) -> bool:
        return True


class Answering:
    """A strategy with one answer that is given."""

    def __init__(self, **answers: Any) -> None:
        self.max_batch_size = answers.get("max_batch_size", 10)
        self.max_batch_size_in_bytes = answers.get("max_batch_size_in_bytes", 1000)
        self._delay = answers.get("delay", 0.0)
        self._blocks = "delay" in answers

    def register_in_flight_request(self, request: Any) -> None: ...

    def register_completed_request(self, result: Any) -> None: ...

    def should_block(self, _request: Any) -> bool:
        return self._blocks

    def delay(self, _request: Any) -> Any:
        return self._delay


@pytest.mark.parametrize(
    ("asked", "answer", "shown"),
    [
        ("max_batch_size", None, "None"),
        ("max_batch_size", "secret", "a value of type str"),
        ("max_batch_size_in_bytes", "secret", "a value of type str"),
        ("delay", None, "None"),
        ("delay", "secret", "a value of type str"),
    ],
)
def test_what_is_no_number_is_named(asked: str, answer: Any, shown: str) -> None:
    """A method without a return answers None. Comparing it fails with an error that names nothing."""
    strategy: Any = Answering(**{asked: answer})
    writer = AsyncSinkWriter(Accepting(), CONFIG, strategy)
    with pytest.raises(TypeError) as caught:
        writer.write(pa.record_batch([pa.array([1, 2])], names=["number"]))
    writer.close()
    wrong = f"numbers: {asked} of the rate limiting strategy is {shown}: allowed is a number"
    assert str(caught.value) == wrong
