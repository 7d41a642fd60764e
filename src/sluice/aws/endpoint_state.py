"""What a process knows of an endpoint: whether it has answered, and how far its clock is off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final

__all__ = ["EndpointState", "endpoint_state"]

_TOLERANCE: Final = 2.0
"""Seconds. The Date header has whole seconds, and clocks that NTP keeps differ by less than this."""


@dataclass
class EndpointState:
    """One endpoint, as seen by this process. Written by several threads; each write is one assignment.

    Attributes:
        reached: an answer of any kind, good or bad, has come back.
        skew: seconds to add to the local clock to get the service's; 0 within the tolerance.
    """

    reached: bool = False
    skew: float = 0.0

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
        try:
            date = parsedate_to_datetime(headers["date"]).timestamp()
        except (KeyError, TypeError, ValueError):
            return
        # The service wrote its time, cut to whole seconds, between `sent` and `received`, so the skew lies
        # between these two bounds. The lower one is taken: the service refuses timestamps in its future.
        lowest, highest = date - received, date + 1.0 - sent
        self.skew = lowest if lowest > _TOLERANCE or highest < -_TOLERANCE else 0.0


_states: Final[dict[str, EndpointState]] = {}


def endpoint_state(endpoint: str) -> EndpointState:
    """The state of the endpoint with this URL; the same object for every caller in the process."""
    return _states.setdefault(endpoint, EndpointState())
