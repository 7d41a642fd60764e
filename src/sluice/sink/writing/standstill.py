"""Notices a writer that only its rate limiting strategy keeps from sending."""

from __future__ import annotations

import logging
from typing import Final

__all__ = ["Standstill"]

_log = logging.getLogger(__name__)

_LIMIT: Final = 60.0
"""Seconds for which a strategy may block without a request in flight before the log says so."""


class Standstill:
    """Says once that nothing is sent: no answer will come, and nothing else would ever say so.

    Args:
        name: the destination, for the log.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._since: float | None = None
        self._has_warned = False

    def end(self) -> None:
        """A request passes, or one is in flight: its answer may change what the strategy says."""
        self._since = None

    def record_block(self, now: float, waiting: int) -> None:
        """The strategy blocks while nothing is in flight.

        Args:
            now: seconds of the writer's clock.
            waiting: entries that wait.
        """
        if self._since is None:
            self._since = now
        elif now - self._since >= _LIMIT and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s: the rate limiting strategy has let no request pass for %.0f s, and none is in flight; "
                "%d records wait until it does",
                self._name,
                now - self._since,
                waiting,
            )
