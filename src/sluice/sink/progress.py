"""The outcome of an epoch in numbers, for the log and for a progress listener."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

__all__ = ["SinkProgress"]


@dataclass(frozen=True, kw_only=True)
class SinkProgress:
    """The figures of all tasks of one epoch, summed where it was committed or aborted.

    Attributes:
        outcome: ``committed`` or ``aborted``.
        destination: its name; None if no task has succeeded.
        query_id: Spark's id of the streaming query; None in a batch write.
        batch_id: the id of the micro-batch; None in a batch write.
        tasks, failed_tasks: that succeeded, and that failed.
        records, bytes: acknowledged by the destination.
        requests, retries, refused, timeouts, dead_letters: see `sluice.sink.SinkFigures`.
        duration: of the slowest task, in seconds.
        limit: the lowest number of records that the rate limiting strategy of a task lets be in flight.
        rate: records a second that the strategies have learnt, summed over the tasks; None if they have no
            rate.
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

    @property
    def json(self) -> str:
        """The figures as one line of JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @property
    def line(self) -> str:
        """The outcome, then every figure that is known as ``name=value``."""
        known = {name: value for name, value in asdict(self).items() if value is not None}
        outcome = known.pop("outcome")
        if self.destination is not None:
            known["destination"] = repr(self.destination)
        return f"{outcome} " + " ".join(f"{name}={value}" for name, value in known.items())
