"""What an exporter is, and what keeps its failures from the query."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Final, Protocol

from sluice.metrics.board import Board
from sluice.metrics.figures import QueryMetrics

__all__ = ["CallableExporter", "Exporter", "Guard"]

_log = logging.getLogger(__name__)

_LINE_INTERVAL: Final = 60.0


class Exporter(Protocol):
    """Shows figures somewhere."""

    def start(self, board: Board) -> None:
        """Called once, before anything is recorded.

        Args:
            board: has the series as of now, whenever it is asked.

        Raises:
            SluiceError: it cannot work, such as where a port is taken.
        """

    def export(self, metrics: QueryMetrics) -> None:
        """Called after each batch of each query, in Spark's thread for listeners: it must not take long."""

    def close(self) -> None:
        """Called when the listener is closed."""


class CallableExporter:
    """Calls a function with the figures of each batch."""

    def __init__(self, function: Callable[[QueryMetrics], object]) -> None:
        self._function = function

    def start(self, board: Board) -> None:
        """Nothing to start."""

    def export(self, metrics: QueryMetrics) -> None:
        self._function(metrics)

    def close(self) -> None:
        """Nothing to close."""


class Guard:
    """Calls what may fail without letting it; of failures there is one line a minute at most.

    Args:
        what: the subject of these lines.
        clock: monotonic seconds.
    """

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._next_line_at = -math.inf
        self._untold = 0

    def call(self, function: Callable[[], object]) -> bool:
        """Returns whether it went well."""
        try:
            function()
        except Exception as error:  # noqa: BLE001 - whatever it is, the query goes on
            self._untold += 1
            if (now := self._clock()) >= self._next_line_at:
                self._next_line_at = now + _LINE_INTERVAL
                _log.warning(
                    "%s failed (%d times since the last line), the query goes on; next line in %.0f s at the "
                    "earliest: %r",
                    self._what,
                    self._untold,
                    _LINE_INTERVAL,
                    error,
                )
                self._untold = 0
            return False
        return True
