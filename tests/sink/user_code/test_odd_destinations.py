"""Destinations with faulty code: the error names the fault, and no row is lost."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sink_fakes import FakeConverter, FakeDestination, config, fast_clock, rows

from sluice.errors import ServiceError, SluiceError
from sluice.sink import AsyncSinkWriter, NoRateLimitingStrategy
from sluice.sink.contracts import Origin
from sluice.sink.letters.dead_letters import LocalDeadLetterQueue


def write(destination: Any, letters: Path | None = None, **changes: Any) -> int:
    """Writes 20 rows. Returns how many were accepted."""
    queue = None if letters is None else LocalDeadLetterQueue(letters, Origin("fake"))
    writer = AsyncSinkWriter(
        destination,
        config(**changes),
        NoRateLimitingStrategy(),
        clock=fast_clock(1000),
        dead_letters=queue,
    )
    try:
        writer.write(rows(str(n) for n in range(20)))
        writer.flush()
    finally:
        writer.close()
    return writer.figures.records


# --- sizes ------------------------------------------------------------------------------------------------


class Sized(FakeDestination):
    def __init__(self, size_of: Callable[[str], Any]) -> None:
        super().__init__()
        self._size_of = size_of

    def size_in_bytes(self, entry: str) -> int:
        size: int = self._size_of(entry)
        return size


def end_early(entry: str) -> int:
    """As `next` of an iterator that is empty."""
    empty: Iterator[int] = iter(())
    return 1 if entry < "15" else next(empty)


@pytest.mark.parametrize("with_letters", [False, True])
@pytest.mark.parametrize(
    ("size_of", "given"),
    [
        (lambda _: float("nan"), "nan"),
        (lambda _: -5, "-5"),
        (lambda _: None, "None"),
        (lambda _: "12", "a value of type str"),
        (lambda entry: len(entry) if entry < "15" else None, "None"),
        (end_early, "no size for an entry (it raised StopIteration)"),
    ],
)
def test_a_size_that_is_no_number_of_bytes_is_refused(
    size_of: Callable[[str], Any], given: str, with_letters: bool, tmp_path: Path
) -> None:
    """With NaN, a comparison would say that there is no room, and the rows behind it would be left out."""
    with pytest.raises(SluiceError, match="Sized") as caught:
        write(Sized(size_of), tmp_path if with_letters else None)

    assert f"size_in_bytes returned {given}" in str(caught.value)
    assert "allowed are bytes, from 0" in str(caught.value)


# --- errors that cannot be read ---------------------------------------------------------------------------


class SilentError(Exception):
    def __str__(self) -> str:
        raise ValueError("it has no text")


class UncodedError(Exception):
    @property
    def code(self) -> str:
        raise RuntimeError("it has no code")


class Judging(FakeDestination):
    """Fails all requests; one of its judgements of the error fails, too."""

    def __init__(self, error: Exception, hook: str = "") -> None:
        super().__init__(lambda *_: error)
        self._hook = hook

    def is_fatal(self, error: Exception) -> bool:
        assert self._hook != "is_fatal", "it has no answer"
        return super().is_fatal(error)

    def is_throttling(self, code: str) -> bool:
        assert self._hook != "is_throttling", code
        return False


@pytest.mark.parametrize(
    ("destination", "message"),
    [
        (Judging(SilentError()), "it has no text"),
        (Judging(UncodedError()), "it has no code"),
        (Judging(KeyError("id"), "is_fatal"), "it has no answer"),
        (Judging(KeyError("id"), "is_throttling"), "KeyError"),
        (Judging(ServiceError("no", retryable=True, retry_after="5")), "float"),  # type: ignore[arg-type]
    ],
)
def test_what_fails_in_judging_an_error_does_not_hide_it(destination: Judging, message: str) -> None:
    with pytest.raises(Exception, match=message) as caught:
        write(destination)

    assert isinstance(caught.value.__cause__, SilentError | UncodedError | KeyError | ServiceError)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("id"), "KeyError: 'id'"),
        (StopIteration(1), "StopIteration: 1"),
        (ValueError(), "ValueError"),
        (ServiceError("it is busy", retryable=True), "it is busy"),
        (ValueError("x" * 100_000), "ValueError: " + "x" * 2000 + "..."),
    ],
)
def test_a_retry_that_is_given_up_says_what_was_raised(error: Exception, text: str) -> None:
    """`'id'` alone says nothing, nor does a text without an end."""
    with pytest.raises(ServiceError) as caught:
        write(FakeDestination(lambda *_: error), max_retry_duration=10.0)

    assert str(caught.value).endswith(f"(maxRetryDuration is 10 s): {text}")


# --- rows that would be lost ------------------------------------------------------------------------------


class ReturningConverter(FakeConverter):
    def __init__(self, returned: Any) -> None:
        super().__init__()
        self._returned = returned

    def convert(self, _: Any) -> Any:
        return self._returned


class Converting(FakeDestination):
    def __init__(self, returned: Any) -> None:
        super().__init__()
        self.converter = ReturningConverter(returned)


@pytest.mark.parametrize("with_letters", [False, True])
@pytest.mark.parametrize("returned", ["all rows", b"all rows", {"data": "all rows"}, None])
def test_a_converter_that_makes_one_text_of_all_rows_is_refused(
    returned: Any, with_letters: bool, tmp_path: Path
) -> None:
    """Each of its characters would be an entry."""
    kind = type(returned).__name__
    with pytest.raises(TypeError, match=f"Converting: the converter .* returned {kind} from convert"):
        write(Converting(returned), tmp_path if with_letters else None)


class Lazy(FakeDestination):
    """Its converter makes entries lazily, out of each row.

    `lazily`: makes an iterable of entries from a function and the rows.
    """

    def __init__(self, lazily: Callable[..., Any], make: Callable[[str], str] = str) -> None:
        super().__init__()
        self.converter = FakeConverter()
        self.converter.convert = lambda batch: lazily(make, batch.column(0).to_pylist())  # type: ignore[method-assign]


LAZILY: list[Callable[..., Any]] = [
    map,
    filter,
    lambda make, values: itertools.starmap(make, ((value,) for value in values)),
]


@pytest.mark.parametrize("with_letters", [False, True])
@pytest.mark.parametrize("row", ["0", "7", "19"])
@pytest.mark.parametrize("lazily", LAZILY)
def test_a_lazy_converter_that_stops_before_the_end_is_an_error(
    lazily: Callable[..., Any], row: str, with_letters: bool, tmp_path: Path
) -> None:
    """As `next` does where it finds nothing in a row. The rows from there on would be lost."""

    def first_digit(value: str) -> str:
        return next(digit for digit in value if value != row)

    with pytest.raises(TypeError, match=r"Lazy: the converter .* raised StopIteration in place of an entry"):
        write(Lazy(lazily, first_digit), tmp_path if with_letters else None)
