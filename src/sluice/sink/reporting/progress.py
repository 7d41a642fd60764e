"""The outcome of an epoch in numbers, for the log and for a progress listener."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

__all__ = ["ProgressListener", "SinkProgress", "as_line"]


@dataclass(frozen=True, kw_only=True)
class SinkProgress:
    """The figures of all tasks of one epoch, summed where it was committed or aborted.

    Attributes:
        outcome: ``committed`` or ``aborted``.
        destination: its name; None if no task has succeeded.
        query_id: Spark's id of the streaming query; None in a batch write. In `foreachBatch`, a batch write
            has the id of the query around it, unless the destination is two-phase.
        batch_id: the id of the micro-batch; None in a batch write.
        tasks, failed_tasks: that succeeded, and that failed.
        records, bytes: acknowledged by the destination.
        requests, retries, refused, timeouts, dead_letters: see `sluice.sink.SinkFigures`.
        duration: of the slowest task, in seconds.
        limit: the lowest number of entries (for `kinesis` with ``aggregate=true``: aggregates) that the rate
            limiting strategy of a task lets be in flight.
        rate: entries a second that the strategies have learnt, or are set to, summed over the tasks; None if
            they have no rate, as with `tokenBucketScope=query`.
        records_out, bytes_out: in all requests, including repeated ones.
        send_time_p50, send_time_p95, send_time_max: seconds from when a request was sent until it was
            answered, had failed or had timed out, of the requests of all tasks. The first two are off by at
            most 2.2 %. None without requests, as the next four.
        in_flight_peak: the most requests that one task had in flight.
        in_flight_mean: requests that a task had in flight, the mean over time and tasks.
        buffered_peak, buffered_mean: of the entries that wait to be sent, or to be sent again.
        refused_by_code: `refused` by the code of the error.
        destination_figures: own figures of the destination, its writers and its committers: see
            `Destination.figures`.
    """

    outcome: str
    destination: str | None
    query_id: str | None
    batch_id: int | None
    tasks: int
    failed_tasks: int
    records: int
    bytes: int
    requests: int
    retries: int
    refused: int
    timeouts: int
    dead_letters: int
    duration: float
    limit: int | None
    rate: float | None
    records_out: int = 0
    bytes_out: int = 0
    send_time_p50: float | None = None
    send_time_p95: float | None = None
    send_time_max: float | None = None
    in_flight_peak: int | None = None
    in_flight_mean: float | None = None
    buffered_peak: int | None = None
    buffered_mean: float | None = None
    refused_by_code: Mapping[str, int] = field(default_factory=dict, hash=False)
    destination_figures: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def json(self) -> str:
        """The figures as one line of JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @property
    def line(self) -> str:
        """The outcome, then every figure that is known as ``name=value``, or as ``name.key=value``."""
        figures = asdict(self)
        outcome = figures.pop("outcome")
        if self.destination is not None:
            figures["destination"] = repr(self.destination)
        return f"{outcome} {as_line(figures)}"


ProgressListener: TypeAlias = Callable[[SinkProgress], object]


def as_line(figures: Mapping[str, Any]) -> str:
    """Known figures as ``name=value``, and figures of a mapping as ``name.key=value``."""
    known: dict[str, Any] = {}
    for name, value in figures.items():
        if isinstance(value, Mapping):
            known.update({f"{name}.{key}": each for key, each in sorted(value.items())})
        elif value is not None:
            known[name] = value
    return " ".join(f"{name}={value}" for name, value in known.items())
