"""What a process knows of an endpoint: whether it was ever reached, and how its clock differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final

__all__ = ["EndpointState", "endpoint_state"]

# The Date header has whole seconds, and clocks that NTP keeps differ by less than this.
_TOLERANCE: Final = 2.0


@dataclass
class EndpointState:
    """One endpoint, as seen by this process. Written by several threads; each write is one assignment.

    Attributes:
        reached: an answer of any kind came back.
        skew: seconds to add to the local clock to get that of the service; 0 within the tolerance.
    """

    reached: bool = False
    skew: float = 0.0

    def note(self, answer: Mapping[str, Any], sent: float, received: float) -> None:
        """Learns from an answer (parsed, good or bad) that was awaited between two local instants."""
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders")
        if headers is None:
            return
        self.reached = True
        try:
            date = parsedate_to_datetime(headers["date"]).timestamp()
        except (KeyError, TypeError, ValueError):
            return
        # The service wrote its time, cut to seconds, somewhere between sending and receiving: the
        # difference lies between these two. Of the two the lower is taken, as the service refuses
        # timestamps in its future and takes any in its past.
        lowest, highest = date - received, date + 1.0 - sent
        self.skew = lowest if lowest > _TOLERANCE or highest < -_TOLERANCE else 0.0


_states: Final[dict[str, EndpointState]] = {}


def endpoint_state(endpoint: str) -> EndpointState:
    """What this process knows of `endpoint`; the same object for every caller."""
    return _states.setdefault(endpoint, EndpointState())
