"""Puts orders, on and on, and knows what it has put."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from typing import Final

from integration.chaos.oracle import order_data
from integration.chaos.pipeline import ORDERS
from integration.model import KinesisModel

_KEYS: Final = 101
_TICK: Final = 0.1
_LONGEST: Final = 200
_JOIN: Final = 60.0


class Producer:
    """Puts orders of each key numbered from 0, beyond all limits, into any shards.

    `rate`: orders a second.
    """

    def __init__(self, model: KinesisModel, rate: float, seed: int) -> None:
        # by key, how many orders have been put
        self.put: dict[str, int] = dict.fromkeys((f"key-{n}" for n in range(_KEYS)), 0)
        self._model = model
        self._rate = rate
        self._rng = random.Random(f"{seed}/producer")
        self._stopping = threading.Event()
        self._paused = threading.Event()
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """Orders put so far."""
        return sum(self.put.values())

    @contextlib.contextmanager
    def putting(self) -> Iterator[None]:
        """Puts records while the ``with`` block runs."""
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.stop()
            thread.join(_JOIN)

    def stop(self) -> None:
        """Puts nothing any more."""
        self._stopping.set()

    def pause(self, *, paused: bool) -> None:
        """Puts nothing for a while."""
        if paused:
            self._paused.set()
        else:
            self._paused.clear()

    def burst(self, count: int, longest: int = _LONGEST) -> None:
        """Puts so many orders at once, each of up to `longest` bytes."""
        with self._lock:
            for _ in range(count):
                key = f"key-{self._rng.randrange(_KEYS)}"
                self._model.put(ORDERS, key, order_data(key, self.put[key], self._rng.randrange(longest)))
                self.put[key] += 1

    def _run(self) -> None:
        began, due = time.monotonic(), 0.0
        while not self._stopping.wait(_TICK):
            elapsed, began = time.monotonic() - began, time.monotonic()
            if not self._paused.is_set():
                due += self._rate * min(elapsed, 1.0) * self._rng.uniform(0.5, 1.5)
                self.burst(int(due))
                due -= int(due)
