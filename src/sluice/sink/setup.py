"""What the options of a sink become: a destination, and what writing to it needs.

Setups are made anew from the options, on the driver and in every task, and never pickled.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from sluice.channels.channel import Address
from sluice.errors import SluiceError
from sluice.sink.config import AsyncSinkConfig
from sluice.sink.contracts import (
    CommittingDestination,
    Destination,
    ElementConverter,
    Origin,
    RateLimitingStrategy,
)
from sluice.sink.letters.dead_letters import CheckedDeadLetterQueue
from sluice.sink.reporting.progress import ProgressListener
from sluice.sink.shared_bucket.strategy import SharedBucketConfig
from sluice.sink.user_code.loading import adopted

__all__ = [
    "AsyncSinkSetup",
    "CommittingSinkSetup",
    "SinkSetup",
    "StrategyCache",
    "query_server_address",
    "strategy_cache",
    "with_query_server",
]

# A long-lived worker sees many queries: only the strategies used last are kept.
_MAX_CACHED: Final = 64


class StrategyCache:
    """Rate limiting strategies that no writer is using, by destination and configuration.

    Spark reuses Python workers, so the next epoch's task continues with what the strategy of the last one has
    learnt.
    """

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


@dataclass(frozen=True, kw_only=True)
class AsyncSinkSetup:
    """A sink whose destination is written to in batches, by `AsyncSinkWriter`.

    Attributes:
        destination: it has not called its service yet.
        config: of the writer.
        create_strategy: makes a rate limiting strategy that has learnt nothing yet.
        strategy_cache_key: a writer continues with the strategy that was cached under an equal key.
        dead_letters: makes the dead letter queue of a task; None without `deadLetterPath`.
        load_listener: imports the listener that is called after each commit and abort. Only the driver calls
            it: tasks may not have its module. None without `progressListener`.
        shared_bucket: with `tokenBucketScope=query`: tasks take the strategy from it, and not from
            `create_strategy`; else None.
        query_server: in a task with `shared_bucket`, where the query server listens.
        create_converter: makes the converter of `elementConverter`; None: the destination's own.
        ignores_unknown_columns: whether columns that the destination would not write are left out; else they
            are refused.
    """

    destination: Destination[Any]
    config: AsyncSinkConfig
    create_strategy: Callable[[], RateLimitingStrategy]
    strategy_cache_key: Hashable = field(repr=False)  # made of the options, secrets included
    dead_letters: Callable[[Origin], CheckedDeadLetterQueue] | None = None
    load_listener: Callable[[], ProgressListener] | None = None
    ignores_unknown_columns: bool = False
    create_converter: Callable[[], ElementConverter[Any]] | None = None
    shared_bucket: SharedBucketConfig | None = None
    query_server: Address | None = None

    @contextlib.contextmanager
    def strategy(self, origin: Origin) -> Iterator[RateLimitingStrategy]:
        """The rate limiting strategy for one writer."""
        if self.shared_bucket is not None:
            if self.query_server is None:
                raise SluiceError("a task with tokenBucketScope=query was given no query server")
            # It has learnt nothing that another task could use: the tokens are the query's.
            patience = self.config.max_retry_duration
            shared = self.shared_bucket.create_strategy(origin, self.query_server, patience)
            with contextlib.closing(shared):
                yield shared
            return
        with strategy_cache.lend(self.strategy_cache_key, self.create_strategy) as own:
            yield own

    def new_converter(self) -> ElementConverter[Any]:
        """A converter for one writer."""
        return (self.create_converter or self.destination.create_converter)()


@dataclass(frozen=True, kw_only=True)
class CommittingSinkSetup:
    """A sink whose destination is two-phase: it has its own writer and committers.

    Attributes:
        destination: it has not called its service yet.
        load_listener: imports the listener that is called after each commit and abort. Only the driver calls
            it: tasks may not have its module. None without `progressListener`.
        ignores_unknown_columns: whether columns that the destination would not write are left out; else they
            are refused.
        transaction: the id and version of a batch write that is written once; None without `txnAppId`.
        content: what a micro-batch holds, see `Epoch.content`.
        max_retry_duration: how long each call of a writer or a committer is repeated (seconds).
    """

    destination: CommittingDestination[Any]
    load_listener: Callable[[], ProgressListener] | None = None
    ignores_unknown_columns: bool = False
    transaction: tuple[str, int] | None = None
    content: Callable[[int], str | None] = lambda _batch: None
    max_retry_duration: float = 900.0


SinkSetup: TypeAlias = AsyncSinkSetup | CommittingSinkSetup


def query_server_address(setup: SinkSetup) -> str | None:
    """Where the query server is to listen; None if the tasks share no token bucket."""
    if not isinstance(setup, AsyncSinkSetup) or setup.shared_bucket is None:
        return None
    return setup.shared_bucket.address


def with_query_server(setup: SinkSetup, address: Address | None) -> SinkSetup:
    """The setup of a task, with the address of the query's server."""
    return replace(setup, query_server=address) if isinstance(setup, AsyncSinkSetup) else setup
