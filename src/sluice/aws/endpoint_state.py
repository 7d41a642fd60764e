"""What a process knows of an endpoint: whether and how it has answered, and how far its clock is off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sluice.instants import http_date

__all__ = ["EndpointState", "endpoint_state"]

_DRIFT: Final = 0.0002
"""Seconds by which two clocks may drift apart in a second; ten times what a bad quartz does."""


_SLOW: Final = 2.0
"""Seconds. A slower answer tells too little about the service's clock, unless ours is clearly wrong."""


class _Bounds(NamedTuple):
    """The difference of the service's clock to ours at the local time `at`: its bounds (all in seconds)."""

    lowest: float
    highest: float
    at: float


@dataclass
class EndpointState:
    """One endpoint, as seen by this process. Written by several threads; each write is one assignment.

    Attributes:
        reached: an answer of any kind, good or bad, has come back.
        knows_cbor: it has answered in CBOR. False: it was asked in CBOR, and has answered otherwise.
    """

    reached: bool = False
    knows_cbor: bool | None = None
    _bounds: _Bounds | None = None

    @property
    def skew(self) -> float:
        """Seconds to add to the local clock to get a time that is not later than the service's.

        The service refuses timestamps in its future, so the lowest difference is taken that answers allow.
        After some answers that is close to the true one. 0 before the first answer.
        """
        return 0.0 if self._bounds is None else self._bounds.lowest

    def record_answer(self, answer: Mapping[str, Any], sent: float, received: float) -> None:
        """Learns from an answer.

        Args:
            answer: as the SDK has parsed it, good or bad.
            sent, received: local time around the call, in seconds since the epoch.
        """
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders")
        if headers is None:
            return
        self.reached = True
        written = http_date(headers.get("date", ""))
        if written is None:
            return
        date = written.timestamp()
        # The service wrote its time, cut to whole seconds, between `sent` and `received`.
        lowest, highest = date - received, date + 1.0 - sent
        if received - sent > _SLOW and lowest <= 0.0 <= highest:
            return  # it may have been written at any time within the call: that says nothing
        self._narrow(lowest, highest, received)

    def record_future(self, instant: float, now: float) -> None:
        """The service refused `instant` as later than its own time.

        Args:
            instant: seconds since the epoch.
            now: local time, in seconds since the epoch.
        """
        self._narrow(instant - now - 1.0, instant - now, now)

    def _narrow(self, lowest: float, highest: float, now: float) -> None:
        known = self._bounds
        if known is not None:
            drift = abs(now - known.at) * _DRIFT
            low, high = known.lowest - drift, known.highest + drift
            if low <= highest and lowest <= high:  # otherwise one of the clocks was set
                lowest, highest = max(low, lowest), min(high, highest)
        self._bounds = _Bounds(lowest, highest, now)


_states: Final[dict[str, EndpointState]] = {}


def endpoint_state(endpoint: str) -> EndpointState:
    """The state of the endpoint with this URL; the same object for every caller in the process."""
    return _states.setdefault(endpoint, EndpointState())
