"""What stops all sending: an outage of the destination, or a strategy that lets nothing pass."""

from __future__ import annotations

import logging
import math
from typing import Final

from sluice.retry import Backoff

__all__ = ["PAUSES", "Outage", "Standstill"]

_log = logging.getLogger(__name__)

# The pause of an entry that was not accepted, and of all entries while the destination accepts none. The
# number of attempts is bounded by maxRetryDuration, not by max_retries.
PAUSES: Final = Backoff(max_retries=0, base=0.1, max=5.0, exponent=2.0)
# So many requests in a row without an accepted entry are an outage. If half of all requests fail, under any
# load, that happens once in 8,000.
_OUTAGE: Final = 12


_LONGEST_BLOCK: Final = 60.0
"""Seconds for which a strategy may block without a request in flight before the log says so."""


class Outage:
    """Tells an outage from single failures. Instants are seconds of one monotonic clock.

    Attributes:
        pause_until: nothing is to be sent before.
    """

    def __init__(self) -> None:
        self.pause_until = -math.inf
        self._paused_at = -math.inf
        self._requests_without_acceptance = 0  # in a row: no entry of them was accepted
        self._pauses = 0  # since an entry was accepted

    @property
    def is_on(self) -> bool:
        """Whether one request at a time should find out if it is over."""
        return self._pauses > 0

    @property
    def tries_one_entry(self) -> bool:
        """Whether the next request should have a single entry, as every second one.

        It may not be an outage at all: a service that refuses requests as a whole may have no room for large
        ones, as long as others send smaller ones. But a single entry may be one that the service always
        refuses.
        """
        return self._pauses % 2 == 1

    def record_acceptance(self) -> None:
        """An entry was accepted."""
        self._requests_without_acceptance = self._pauses = 0
        self.pause_until = -math.inf

    def record_failure(self, sent_at: float, now: float, jitter: float) -> None:
        """No entry of a request was accepted.

        Requests that were sent before the last pause began do not cause another one.

        Args:
            jitter: the part of the longest pause to make, in [0, 1).
        """
        self._requests_without_acceptance += 1
        if self._requests_without_acceptance < _OUTAGE or sent_at <= self._paused_at:
            return
        self._paused_at = now
        self.pause_until = now + jitter * PAUSES.ceiling(self._pauses)
        self._pauses += 1


class Standstill:
    """Says once that a strategy lets nothing pass while no answer can come that would end it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._since: float | None = None
        self._has_warned = False

    def end(self) -> None:
        """A request passes, or one is in flight: its answer may change what the strategy says."""
        self._since = None

    def record_block(self, now: float, waiting: int) -> None:
        """The strategy blocks while nothing is in flight, and so many entries wait."""
        if self._since is None:
            self._since = now
        elif now - self._since >= _LONGEST_BLOCK and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s: the rate limiting strategy has let no request pass for %.0f s, and none is in flight; "
                "%d records wait until it does",
                self._name,
                now - self._since,
                waiting,
            )
