"""What is learnt about a destination survives an epoch, for as long as the Python worker lives.

Spark reuses Python workers: the next epoch's task finds the congestion state where the last one left
it. A strategy belongs to one writer at a time; a second writer for the same key gets its own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Final

from sluice.sink.contracts import RateLimitingStrategy

__all__ = ["StrategyCache", "strategy_cache"]

# Queries come and go in a long-lived worker; the least recently used strategies are forgotten.
_KEPT: Final = 64


class StrategyCache:
    """Strategies at rest, by destination and configuration."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._resting: dict[Hashable, RateLimitingStrategy] = {}

    @contextlib.contextmanager
    def lend(
        self, key: Hashable, create: Callable[[], RateLimitingStrategy]
    ) -> Iterator[RateLimitingStrategy]:
        """The strategy that last rested under `key`, or a new one; kept again afterwards.

        After an exception requests may have been given up in flight: a strategy that cannot forget
        them is not kept.
        """
        with self._lock:
            strategy = self._resting.pop(key, None)
        if strategy is None:
            strategy = create()
        try:
            yield strategy
        except BaseException:
            if hasattr(strategy, "forget_in_flight"):
                self._keep(key, strategy)
            raise
        self._keep(key, strategy)

    def _keep(self, key: Hashable, strategy: RateLimitingStrategy) -> None:
        with self._lock:
            self._resting[key] = strategy
            while len(self._resting) > _KEPT:
                del self._resting[next(iter(self._resting))]


strategy_cache: Final = StrategyCache()
