"""Record batches are made ahead of their consumer, in order, and no further than that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator

import pytest

from sluice.source.reading.prefetching import prefetch

Pause = Callable[[float], None]
LONG = 120.0
"""Seconds; only what is broken takes as long."""


def test_items_come_in_their_order() -> None:
    """All of them."""
    assert list(prefetch(lambda _pause: (n for n in range(100)))) == list(range(100))


def test_an_error_comes_behind_what_was_made_before_it() -> None:
    """In the consumer's thread."""

    def items(_pause: Pause) -> Generator[int, None, None]:
        yield 1
        raise ValueError("broken")

    made = prefetch(items)
    assert next(made) == 1
    with pytest.raises(ValueError, match="broken"):
        next(made)


def test_it_is_no_further_ahead_than_it_may_be() -> None:
    """Memory is bounded."""
    made: list[int] = []
    is_blocked = threading.Event()

    def items(_pause: Pause) -> Generator[int, None, None]:
        for number in range(10):
            made.append(number)
            if number == 3:
                is_blocked.set()  # one is consumed, two wait, and this one has no place
            yield number

    reading = prefetch(items, ahead=2)
    next(reading)
    assert is_blocked.wait(LONG)
    assert made == [0, 1, 2, 3]


def test_a_consumer_that_ends_closes_what_makes_the_items() -> None:
    """So that a file that is read is not left open."""
    is_closed = threading.Event()

    def items(_pause: Pause) -> Generator[int, None, None]:
        try:
            while True:
                yield 1
        finally:
            is_closed.set()

    reading = prefetch(items)
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    assert is_closed.wait(LONG)


def test_a_consumer_that_ends_ends_a_pause() -> None:
    """Else a thread would wait, and call a service, for a task that is over."""
    is_closed = threading.Event()

    def items(pause: Pause) -> Generator[int, None, None]:
        try:
            yield 1
            pause(10 * LONG)
            yield 2
        finally:
            is_closed.set()

    reading = prefetch(items)
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    assert is_closed.wait(LONG)
