"""Coordinates reading on the driver host: creates the enumerator, and the parts for fan-out or a polling
agent. A query that polls without an agent does not import these parts.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol

from sluice.kinesis.options.config import SourceConfig
from sluice.kinesis.options.starting_positions import LATEST, STARTING, ending_instant
from sluice.letterboxes import post
from sluice.source.contracts import Coordinator
from sluice.source.model.figure_tables import figures_to_json
from sluice.source.model.offsets import Offsets, SplitRange
from sluice.source.model.read_figures import ReadFigures, SplitFigures
from sluice.source.model.splits import SplitId
from sluice.source.reports.task_reports import ReportAddress, TaskReports
from sluice.source.state.subscriptions import Subscriptions
from sluice.spark_settings import SparkSettings, find_spark_settings

if TYPE_CHECKING:
    from sluice.kinesis.shared.assignment import FanOutAssignment
    from sluice.source.planning.enumerator import StreamEnumerator

__all__ = [
    "SourceCoordinator",
    "plan_bounded_read",
]

_log = logging.getLogger(__name__)

_POST_INTERVAL: Final = 2.0
"""The shortest time between two reports to listeners (seconds)."""
_FEWEST_SPLITS: Final = 1_000
"""How many splits keep their figures although they are no longer read. With many shards, four times as many.
"""


class PlannedSource(Protocol):
    """The methods of a `sluice.kinesis.source.KinesisSource` that this module calls."""

    config: SourceConfig

    def create_enumerator(
        self, *, subscriptions: Subscriptions | None = None, figures: ReadFigures | None = None
    ) -> StreamEnumerator: ...


class SourceCoordinator(Coordinator):
    """Plans a streaming query, and decides how tasks read its ranges; like Flink's SourceCoordinator. This
    class polls. `KinesisSource.create_coordinator` makes the right one for the options.
    """

    # The record publisher (FLIP-128) that agents implement.
    _publisher: ClassVar[Literal["efo", "polling"]] = "efo"

    def __init__(
        self,
        source: PlannedSource,
        *,
        subscriptions: Subscriptions | None = None,
        spark: SparkSettings | None = None,
        figures: ReadFigures | None = None,
    ) -> None:
        self._figures = ReadFigures() if figures is None else figures
        spark = spark or find_spark_settings()
        self._reports = TaskReports(self._figures, "127.0.0.1" if spark.is_local else spark.bind or "")
        self._streams = sorted(stream.name for stream in source.config.streams)
        self._next_post = -math.inf
        super().__init__(source.create_enumerator(subscriptions=subscriptions, figures=self._figures))

    def restore(self, offsets: Offsets) -> None:
        """Learns from the offset log which consumers an earlier run of the query registered."""

    def assign(self, ranges: Sequence[SplitRange]) -> FanOutAssignment | None:
        """How tasks read these ranges from agents, or by fan-out; None: they poll."""
        del ranges
        return None

    def begin_batch(self, tasks: int) -> ReportAddress | None:
        """Called for each batch before its tasks start. Returns where tasks report their reads; None:
        nowhere.
        """
        return self._reports.begin_batch(tasks)

    def figures(self) -> dict[str, Any]:
        """Figures of this run's reads, for Spark's progress reports.

        ``sluice.metrics`` reads it, and ``docs/operate.md`` describes it. Figures of tasks that have not
        reported are missing: compare ``tasks`` with ``reportedTasks``. Spark asks for them when it has
        planned a batch, before tasks run, so ``batchRecords`` is about the batch before. ``at`` is in
        milliseconds since the epoch.
        """
        self._reports.receive()
        last_batch, pushed = self._reports.last_batch(), self.enumerator.pushed
        found: dict[SplitId, dict[str, Any]] = {}
        lag = self.enumerator.millis_behind_latest
        self._figures.keep(max(_FEWEST_SPLITS, 4 * len(lag)))
        known = self._figures.splits()
        for split in {*known, *lag}:
            read, batch = known.get(split, SplitFigures()), last_batch.get(split, SplitFigures())
            is_polled = self._publisher == "polling"  # also what an agent has polled
            found[split] = {
                "publisher": self._publisher if split in pushed else "polling",
                "polled": read.polled + read.pushed if is_polled else read.polled,
                "pushed": 0 if is_polled else read.pushed,
                "bytes": read.bytes,
                "refused": read.refused,
                "retries": read.retries,
                "batchRecords": batch.polled + batch.pushed,
                "batchBytes": batch.bytes,
            }
        tasks, reported = self._reports.tasks, self._reports.reported
        at = int(time.time() * 1000)
        return {"at": at, "tasks": tasks, "reportedTasks": reported, **figures_to_json(found)}

    def report(self) -> dict[str, Any]:
        """The lag of each shard (milliseconds), and `figures`, for Spark's progress reports."""
        lag: dict[str, dict[str, int]] = {}
        for split, millis in sorted(self.enumerator.millis_behind_latest.items()):
            lag.setdefault(split.stream, {})[split.shard] = millis
        return {"millisBehindLatest": lag, "figures": self.figures()}

    def post_report(self) -> None:
        """Sends the result of `report` to listeners in the application, at most every two seconds. Spark 4.0
        and 4.1 accept no reports from sources, and no version accepts one while nothing is new, even if the
        reason is that the service refuses all reads.
        """
        now = time.monotonic()
        if now < self._next_post:
            return
        self._next_post = now + _POST_INTERVAL
        self._reports.receive()
        if self._reports.query:  # known once a task has reported
            letter = {"kind": "source", "query_id": self._reports.query, "run_id": self._reports.run}
            post(lambda: {**letter, "streams": self._streams, **self.report()})

    def close(self, *, is_disconnected: bool = False) -> None:
        """Ends the enumerator and the agent, if any.

        Args:
            is_disconnected: Spark has closed its connection to this process. If the driver is still alive, it
                has stopped the query, although its signal may be late: then the consumers that the query
                registered are deregistered. If the driver has died, they stay for its restart.
        """
        super().close(is_disconnected=is_disconnected)
        self._reports.close()


def plan_bounded_read(source: PlannedSource) -> Sequence[SplitRange]:
    """The ranges of a batch read, from its starting to its ending positions.

    Raises:
        SluiceError: as `StreamEnumerator.bounded`.
    """
    if source.config.start == LATEST:
        _log.warning("a batch read from LATEST finds next to nothing: see option '%s'", STARTING.key)
    enumerator = source.create_enumerator()
    try:
        return enumerator.bounded(ending_instant(source.config.end))
    finally:
        enumerator.close()
