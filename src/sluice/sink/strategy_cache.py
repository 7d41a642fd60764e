"""Keeps what a rate limiting strategy has learnt from one epoch to the next, in the same Python worker.

Spark reuses Python workers, so the next epoch's task continues with the strategy of the last one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Final

from sluice.sink.contracts import RateLimitingStrategy
from sluice.sink.user_code.loading import adopted

__all__ = ["StrategyCache", "strategy_cache"]

# A long-lived worker sees many queries: only the strategies used last are kept.
_MAX_CACHED: Final = 64


class StrategyCache:
    """Rate limiting strategies that no writer is using, by destination and configuration."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._strategies: dict[Hashable, RateLimitingStrategy] = {}  # least recently used first

    @contextlib.contextmanager
    def lend(
        self, key: Hashable, create: Callable[[], RateLimitingStrategy]
    ) -> Iterator[RateLimitingStrategy]:
        """Lends a strategy to one writer: the cached one for `key`, else a new one.

        Two writers with the same key at the same time have a strategy each. After an exception, requests may
        have been given up in flight: then a strategy that cannot forget them is not kept.
        """
        with self._lock:
            strategy = self._strategies.pop(key, None)
        if strategy is None:
            strategy = adopted(create(), RateLimitingStrategy)
        try:
            yield strategy
        except BaseException:
            if strategy.forget_in_flight is not None:
                self._keep(key, strategy)
            raise
        self._keep(key, strategy)

    def _keep(self, key: Hashable, strategy: RateLimitingStrategy) -> None:
        with self._lock:
            # Another writer with this key may have put one here: a key that is replaced keeps its old place.
            self._strategies.pop(key, None)
            self._strategies[key] = strategy
            while len(self._strategies) > _MAX_CACHED:
                del self._strategies[next(iter(self._strategies))]


# Global to the process, because nothing else outlives a task: Spark makes the writer anew for each.
strategy_cache: Final = StrategyCache()
