"""Makes what an iterator gives before it is asked for, in a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Final, TypeVar

__all__ = ["prefetch"]

T = TypeVar("T")

_AHEAD: Final = 2
"""Items that wait for the consumer, at most."""
_CHECK_INTERVAL: Final = 0.5
"""Seconds after which a thread that waits for the consumer checks whether it has ended."""


class _Stopped(Exception):  # noqa: N818 - no error: the consumer has ended
    pass


class _End:
    """The iterator has ended, maybe with an error."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def _pause(stopping: threading.Event, seconds: float) -> None:
    if stopping.wait(seconds):
        raise _Stopped


def prefetch(
    make: Callable[[Callable[[float], None]], Generator[T, None, None]], *, ahead: int = _AHEAD
) -> Iterator[T]:
    """Yields the items in their order, while the next ones are being made.

    Args:
        make: makes the items. It is given what pauses for a number of seconds, and raises when the consumer
            has ended. What it returns is closed in its own thread when the consumer ends before it does.
        ahead: how many items wait for the consumer, at most.

    Raises:
        BaseException: what is raised while items are made.
    """
    made: queue.Queue[T | _End] = queue.Queue(ahead)
    stopping = threading.Event()

    items = make(partial(_pause, stopping))

    def put(item: T | _End) -> bool:
        while not stopping.is_set():
            try:
                made.put(item, timeout=_CHECK_INTERVAL)
            except queue.Full:
                continue
            return True
        return False

    def run() -> None:
        error: BaseException | None = None
        try:
            for item in items:
                if not put(item):
                    break
        except BaseException as caught:  # noqa: BLE001 - raised again in the consumer's thread
            error = caught
        finally:
            items.close()
        put(_End(error))

    threading.Thread(target=run, name="sluice-prefetch", daemon=True).start()
    try:
        while not isinstance(item := made.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stopping.set()
