"""A query without Spark: it logs offsets, reads batches and restarts as Spark does."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from sluice.source.checks import checked_offsets, checked_rows, reread_offsets
from sluice.source.contracts import Coordinator, ReadTask, Source
from sluice.source.settings import Limits

__all__ = ["QueryRunner", "Row"]

Row = dict[str, Any]


class QueryRunner:
    """Runs batches of a streaming query, and a batch read.

    What Spark sends to other processes goes through `pickle` and JSON here, too.

    Args:
        source: the class.
        options: of the source, as users write them.

    Attributes:
        offsets: the offset log. Batch n lies between the entries n and n + 1.
        batches: the rows of each batch.
    """

    def __init__(self, source: type[Source], options: Mapping[str, str] | None = None) -> None:
        self._class = source
        self._options = dict(options or {})
        self._coordinator: Coordinator | None = None
        self._source = self._configure(streaming=True)
        self.offsets: list[dict[str, Any]] = []
        self.batches: list[list[Row]] = []

    def __enter__(self) -> QueryRunner:  # noqa: PYI034 - Self is newer than Python 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def rows(self) -> list[Row]:
        """The rows of all batches."""
        return [row for batch in self.batches for row in batch]

    def run_batch(self, limits: Limits | None = None, *, crash: bool = False) -> list[Row]:
        """Plans, logs and reads one batch. Returns its rows: none if nothing is new.

        Args:
            limits: what the batch may hold; None: as the options say.
            crash: the query dies when the end of the batch is logged and nothing is read; a restarted one
                reads it.
        """
        enumerator = self._enumerator()
        if not self.offsets:
            self.offsets.append(self._to_json(enumerator.initial()))
        start = reread_offsets(self._source, self.offsets[-1])
        self._here().restore(start)
        end = enumerator.advance(start, self._source.limits if limits is None else limits)
        logged = self._to_json(end)
        if logged == self.offsets[-1]:
            return []
        self.offsets.append(logged)
        if crash:
            self.restart()
        self.batches.append(self.read(-1))
        return self.batches[-1]

    def run_until(
        self, rows: int, *, timeout: float = 30.0, wait: Callable[[float], None] = time.sleep
    ) -> list[Row]:
        """Runs batches until there are `rows` rows.

        Args:
            rows: in all batches together.
            timeout: seconds of `wait` after which it ends in any case.
            wait: called with a number of seconds when nothing is new.
        """
        waited = 0.0
        while len(self.rows) < rows and waited < timeout:
            if not self.run_batch():
                wait(0.1)
                waited += 0.1
        return self.rows

    def run_available(self, limits: Limits | None = None) -> list[Row]:
        """Runs what ``Trigger.AvailableNow`` runs: batches up to what there is now. Returns their rows."""
        self._class.check_ends()
        self.restart()
        first, done = len(self.batches), -1
        self._here().stop_at_available()
        while len(self.batches) != done:
            done = len(self.batches)
            self.run_batch(limits)
        self.restart()
        return [row for batch in self.batches[first:] for row in batch]

    def read(self, batch: int) -> list[Row]:
        """Reads a logged batch from its two offsets alone.

        Args:
            batch: its number; -1 for the last one.
        """
        number = batch if batch >= 0 else len(self.offsets) - 1 + batch
        start, end = (reread_offsets(self._source, logged) for logged in self.offsets[number : number + 2])
        coordinator = self._here()
        coordinator.restore(end)
        ranges = coordinator.enumerator.ranges(start, end)
        return _read(self._source, ranges, coordinator.assign(ranges))

    def read_all(self) -> list[Row]:
        """The rows of a batch read (``spark.read``), without the options that only streaming reads take."""
        source = self._configure(streaming=False)
        return _read(source, *source.plan_bounded())

    def restart(self) -> None:
        """Restarts the query, which keeps its offset log and nothing else."""
        self.close()
        self._source = self._configure(streaming=True)

    def close(self) -> None:
        """Ends the query."""
        if self._coordinator is not None:
            self._coordinator.close()
            self._coordinator = None

    def _configure(self, *, streaming: bool) -> Source:
        refused = self._class.BATCH_OPTIONS if streaming else self._class.STREAMING_OPTIONS
        given = {
            key: text
            for key, text in self._options.items()
            if not any(option.takes(key) for option in refused)
        }
        return self._class.configured(given, streaming=streaming)

    def _here(self) -> Coordinator:
        if self._coordinator is None:
            self._coordinator = self._source.create_coordinator()
        return self._coordinator

    def _enumerator(self) -> Any:
        return self._here().enumerator

    def _to_json(self, offsets: Any) -> dict[str, Any]:
        """Offsets as Spark gives them back."""
        parsed: dict[str, Any] = json.loads(json.dumps(checked_offsets(self._source, offsets)))
        return parsed


def _read(source: Source, ranges: Sequence[Any], assignment: Any) -> list[Row]:
    rows: list[Row] = []
    declared = source.schema()
    for dealt in source.deal(ranges):
        task = ReadTask(dealt, source.assignment_of(assignment, dealt))
        there: Source = pickle.loads(pickle.dumps(source))  # noqa: S301 - made in the line itself
        task = pickle.loads(pickle.dumps(task))  # noqa: S301
        batches = there.read_task(task)
        if isinstance(declared, pa.Schema):
            batches = checked_rows(source, dealt, batches, declared)
        for batch in batches:
            rows += batch.to_pylist()
    return rows
