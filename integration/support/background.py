"""Work that a thread does during a test."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

_JOIN_TIMEOUT: Final = 300.0


@contextlib.contextmanager
def repeating(action: Callable[[], object], pause: float) -> Iterator[None]:
    """Calls `action` again and again until the ``with`` block ends, and raises what it raised.

    `pause`: seconds before each call.
    """
    stopping = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            while not stopping.wait(pause):
                action()
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(_JOIN_TIMEOUT)
    if failed:
        raise failed[0]
