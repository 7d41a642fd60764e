"""What became of an epoch, in numbers: for a log line, or for whoever wants to be told."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

__all__ = ["SinkProgress"]


@dataclass(frozen=True, kw_only=True)
class SinkProgress:
    """The figures of all tasks of one epoch, summed where the epoch was committed or aborted.

    Attributes:
        outcome: ``committed`` or ``aborted``.
        destination: by name; None where no task came to its end.
        query_id: Spark's id of the streaming query; None in a batch query.
        batch_id: the epoch; None in a batch query.
        tasks, failed_tasks: that came to their end, and that did not.
        records, bytes: acknowledged by the destination.
        requests, retries, refused, timeouts, dead_letters: see `sluice.sink.SinkFigures`.
        duration: of the slowest task, in seconds.
        limit: records that the most careful task lets be in flight.
        rate: records a second that the tasks have learnt, summed; None where they know none.
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
        """All of it as one line of JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @property
    def line(self) -> str:
        """What is known of it, as ``name=value``."""
        known = {name: value for name, value in asdict(self).items() if value is not None}
        outcome = known.pop("outcome")
        if self.destination is not None:
            known["destination"] = repr(self.destination)
        return f"{outcome} " + " ".join(f"{name}={value}" for name, value in known.items())
