"""What a writer has done, in numbers: recorded in a task, merged on the driver."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from sluice.sink.reporting.histogram import Histogram

__all__ = ["OTHER", "UNKNOWN", "Occupancy", "SinkFigures", "own_figures"]

_log = logging.getLogger(__name__)

# A destination may make error codes of anything, such as of ids. Their number is bounded.
_MOST_NAMES: Final = 32
_LONGEST_NAME: Final = 64
_NOT_IN_NAMES: Final = re.compile(r"[^\w.:#/-]+", re.ASCII)

OTHER: Final = "other"
"""The refusals of all codes that were too many to be kept apart."""

UNKNOWN: Final = "unknown"
"""The refusals for which a destination gave no code."""

_SEND_TIMES: Final = {"send_time_p50": 50, "send_time_p95": 95, "send_time_max": 100}
_MICROSECONDS: Final = 6  # digits of seconds

_MAXIMUM: Final = "_max"  # documented: ends the names of a destination's figures whose maximum counts


@dataclass(slots=True)
class Occupancy:
    """How many things there were over time: requests in flight, or entries in the buffer.

    Attributes:
        peak: the most.
        area: the sum of each number times the nanoseconds for which it held.
        nanoseconds: for which it was observed. Both are whole numbers, so that the order of additions does
            not matter.
    """

    peak: int = 0
    area: int = 0
    nanoseconds: int = 0

    def observe(self, number: int, nanoseconds: int) -> None:
        """There were so many for so long."""
        self.peak = max(self.peak, number)
        self.area += number * nanoseconds
        self.nanoseconds += nanoseconds

    def merge(self, other: Occupancy) -> None:
        """Adds what another writer has observed, which need not have been at another time."""
        self.peak = max(self.peak, other.peak)
        self.area += other.area
        self.nanoseconds += other.nanoseconds

    @property
    def mean(self) -> float | None:
        """The mean over time, of one writer; None if nothing was observed for any time."""
        return self.area / self.nanoseconds if self.nanoseconds else None


@dataclass(slots=True)
class SinkFigures:
    """The figures of a writer so far. Figures of several writers can be merged, in any order.

    Attributes:
        records, bytes: acknowledged by the destination.
        requests: sent, with any outcome.
        retries: records that were sent again.
        refused: how often a record was not accepted: refused, in a request that failed, or that timed out.
        timeouts: requests that were not answered in time.
        dead_letters: records that can never be delivered and were kept as dead letters.
        records_out, bytes_out: in all requests, including repeated ones (FLIP-171).
        refused_by_code: `refused` by the code of the error; at most 32 codes and ``other``.
        send_time: of requests that have ended: from when one was sent until it was answered, had failed or
            had timed out (FLIP-171).
        in_flight: requests.
        buffered: entries that wait to be sent, or to be sent again.
        destination: own figures of the destination, its writers or its committers: see
            `Destination.figures`.
    """

    records: int = 0
    bytes: int = 0
    requests: int = 0
    retries: int = 0
    refused: int = 0
    timeouts: int = 0
    dead_letters: int = 0
    records_out: int = 0
    bytes_out: int = 0
    refused_by_code: dict[str, int] = field(default_factory=dict)
    send_time: Histogram = field(default_factory=Histogram)
    in_flight: Occupancy = field(default_factory=Occupancy)
    buffered: Occupancy = field(default_factory=Occupancy)
    destination: dict[str, float] = field(default_factory=dict)

    def refuse(self, records: int, codes: Mapping[str, int], entries: int) -> None:
        """Records were not accepted.

        Args:
            records: how many.
            codes: entries by code, as the destination counts them. Records are shared out in proportion.
            entries: that were not accepted; those that `codes` leaves out have no code.
        """
        self.refused += records
        counted = {code: int(n) for code, n in codes.items() if n >= 1}
        missing = entries - sum(counted.values())
        if missing > 0:
            counted[UNKNOWN] = counted.get(UNKNOWN, 0) + missing
        total, left = sum(counted.values()), records
        for code, count in sorted(counted.items()):
            share = left * count // total  # exact if an entry is a record; the last code gets the rest
            total -= count
            left -= share
            if share:
                self._add_refusals(_name(code), share)

    def merge(self, other: SinkFigures) -> None:
        """Adds the figures of another writer, which stay as they are."""
        for name in _COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for code, count in other.refused_by_code.items():
            self._add_refusals(code, count)
        self.send_time.merge(other.send_time)
        self.in_flight.merge(other.in_flight)
        self.buffered.merge(other.buffered)
        for name, value in other.destination.items():
            if name not in self.destination:
                self.destination[name] = value
            elif name.endswith(_MAXIMUM):
                self.destination[name] = max(self.destination[name], value)
            else:
                self.destination[name] += value

    def summary(self) -> dict[str, Any]:
        """The figures by the names that `SinkProgress` has for them; None if there are none."""
        sent = self.requests > 0
        times = {name: self.send_time.percentile(percent) for name, percent in _SEND_TIMES.items()}
        return {
            **{name: getattr(self, name) for name in _COUNTERS},
            **{name: _rounded(value, _MICROSECONDS) for name, value in times.items()},
            "in_flight_peak": self.in_flight.peak if sent else None,
            "in_flight_mean": _rounded(self.in_flight.mean, 2),
            "buffered_peak": self.buffered.peak if sent else None,
            "buffered_mean": _rounded(self.buffered.mean, 2),
            "refused_by_code": dict(self.refused_by_code),
            "destination_figures": dict(self.destination),
        }

    def copy(self) -> SinkFigures:
        """The figures as they are now."""
        copied = SinkFigures()
        copied.merge(self)
        return copied

    def _add_refusals(self, code: str, count: int) -> None:
        self.refused_by_code[code] = self.refused_by_code.get(code, 0) + count
        kept = self.refused_by_code.keys() - {OTHER}
        if len(kept) > _MOST_NAMES:
            # The last in the order of the alphabet goes, not the rarest: then it is the same codes that stay,
            # in whatever order writers are merged.
            moved = self.refused_by_code.pop(max(kept))
            self.refused_by_code[OTHER] = self.refused_by_code.get(OTHER, 0) + moved


_COUNTERS: Final = tuple(each.name for each in fields(SinkFigures) if each.default == 0)


def own_figures(owner: Any, name: str) -> dict[str, float]:
    """The names and finite numbers that `figures` of a destination, a writer or a committer returns.

    Args:
        owner: an object of one of the contracts.
        name: the destination's, for messages.
    """
    try:
        found = {
            _name(str(key)): value
            for key, value in owner.figures().items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
    except Exception:  # noqa: BLE001 - every record is delivered, even if the figures fail
        _log.warning("%s: its own figures are left out: 'figures' has failed", name, exc_info=True)
        return {}
    return dict(sorted(found.items())[:_MOST_NAMES])


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _name(text: str) -> str:
    """`text` as a name in a log line of ``name=value``."""
    return _NOT_IN_NAMES.sub("_", text)[:_LONGEST_NAME] or UNKNOWN
