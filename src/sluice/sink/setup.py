"""What the options of a sink become: a destination, and what writing to it needs.

Setups are made anew from the options, on the driver and in every task, and never pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

from sluice.sink.config import AsyncSinkConfig
from sluice.sink.contracts import CommittingDestination, Destination, ElementConverter, RateLimitingStrategy
from sluice.sink.dead_letters import DeadLetterQueue, Origin
from sluice.sink.progress import SinkProgress

__all__ = ["AsyncSinkSetup", "CommittingSinkSetup", "ProgressListener", "SinkSetup"]

ProgressListener: TypeAlias = Callable[[SinkProgress], object]


@dataclass(frozen=True, kw_only=True)
class AsyncSinkSetup:
    """A sink whose destination is written to in batches, by `AsyncSinkWriter`.

    Attributes:
        destination: it has not called its service yet.
        config: of the writer.
        create_strategy: makes a rate limiting strategy that has learnt nothing yet.
        key: of the strategy cache: a writer continues with a strategy that was cached under an equal key.
        dead_letters: makes the dead letter queue of a task; None without `deadLetterPath`.
        progress_listener: called after each commit and abort; None without `progressListener`.
        create_converter: makes the converter of `elementConverter`; None: the destination's own.
        ignores_unknown_columns: whether columns that the destination would not write are left out; else they
            are refused.
    """

    destination: Destination[Any]
    config: AsyncSinkConfig
    create_strategy: Callable[[], RateLimitingStrategy]
    key: Hashable
    dead_letters: Callable[[Origin], DeadLetterQueue] | None = None
    progress_listener: ProgressListener | None = None
    ignores_unknown_columns: bool = False
    create_converter: Callable[[], ElementConverter[Any]] | None = None

    def new_converter(self) -> ElementConverter[Any]:
        """A converter for one writer."""
        return (self.create_converter or self.destination.create_converter)()


@dataclass(frozen=True, kw_only=True)
class CommittingSinkSetup:
    """A sink whose destination is two-phase: it has a writer of its own, and committers.

    Attributes:
        destination: it has not called its service yet.
        progress_listener: called after each commit and abort; None without `progressListener`.
        ignores_unknown_columns: whether columns that the destination would not write are left out; else they
            are refused.
    """

    destination: CommittingDestination[Any]
    progress_listener: ProgressListener | None = None
    ignores_unknown_columns: bool = False


SinkSetup: TypeAlias = AsyncSinkSetup | CommittingSinkSetup
