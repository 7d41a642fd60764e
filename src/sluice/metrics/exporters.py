"""The interface of exporters, and a guard that keeps their failures from the query."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Final

from sluice.metrics.board import Board
from sluice.metrics.figures import QueryMetrics

__all__ = ["CallableExporter", "Exporter", "Guard"]

_log = logging.getLogger(__name__)

_LINE_INTERVAL: Final = 60.0
"""Seconds between two lines, at least."""


class Exporter:
    """Shows figures somewhere. By default, no method does anything."""

    def start(self, board: Board) -> None:
        """Called once, before anything is recorded.

        Args:
            board: gives the current series at any time.

        Raises:
            SluiceError: it cannot work, such as if a port is taken.
        """

    def export(self, metrics: QueryMetrics) -> None:
        """Called after each batch of each query, in Spark's thread for listeners: it must not take long."""

    def close(self) -> None:
        """Called when the listener is closed."""


class CallableExporter(Exporter):
    """Calls a function with the figures of each batch."""

    def __init__(self, function: Callable[[QueryMetrics], object]) -> None:
        self._function = function

    def export(self, metrics: QueryMetrics) -> None:
        self._function(metrics)


class Guard:
    """Calls functions that may fail, and logs their errors, once a minute at most.

    Args:
        what: the subject of these lines, such as an exporter.
        clock: monotonic seconds.
    """

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._next_line_at = -math.inf
        self._untold = 0

    def call(self, function: Callable[[], object]) -> bool:
        """Returns whether the function has succeeded."""
        try:
            function()
        except Exception as error:  # noqa: BLE001 - no error may end the query
            self._untold += 1
            if (now := self._clock()) >= self._next_line_at:
                self._next_line_at = now + _LINE_INTERVAL
                _log.warning(
                    "%s failed (%d times since the last line), the query continues; next line in %.0f s at "
                    "the earliest: %r",
                    self._what,
                    self._untold,
                    _LINE_INTERVAL,
                    error,
                )
                self._untold = 0
            return False
        return True
