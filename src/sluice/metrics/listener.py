"""The listener in the application's process: reads progress events, and passes the figures to exporters.

Spark notifies listeners only there, and Sluice runs there only if the application asks for it. What
Spark's events do not carry comes through a letterbox (`sluice.letterboxes`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from sluice.errors import SluiceError
from sluice.instants import MICROS_PER_SECOND, parse_instant
from sluice.letterboxes import Letterbox
from sluice.metrics.board import Board
from sluice.metrics.exporters import CallableExporter, Exporter, Guard
from sluice.metrics.figures import QueryMetrics
from sluice.metrics.kept_letters import KeptLetters
from sluice.metrics.progress import read_progress

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

__all__ = ["SluiceListener"]

_MOST_QUERIES: Final = 1_000
"""Queries whose last progress is kept. Spark may drop the event that one has ended."""


class SluiceListener(StreamingQueryListener):
    """Watches the queries of a session that read or write with Sluice.

    ::

        listener = SluiceListener(PrometheusExporter(port=9464), print)
        spark.streams.addListener(listener)

    Spark calls it in a separate thread. Errors here are logged, once a minute at most, and fail no query.

    Args:
        exporters: objects with the methods of `Exporter`, or functions of `QueryMetrics`.
        letterbox: where letters come; None: a new one.

    Raises:
        SluiceError: an exporter is none, or cannot start, such as if its port is taken.
    """

    def __init__(
        self, *exporters: Exporter | Callable[[QueryMetrics], object], letterbox: Letterbox | None = None
    ) -> None:
        for given in exporters:
            if isinstance(given, type) or not (hasattr(given, "export") or callable(given)):
                raise SluiceError(
                    f"exporter {given!r}: allowed is an object with the methods of Exporter, such as "
                    "PrometheusExporter(port=9464), or a function of QueryMetrics"
                )
        self.board = Board()
        self._letterbox = letterbox or Letterbox()
        self._exporters: list[tuple[Exporter, Guard]] = []
        self._guard = Guard("reading a query's progress")
        self._last: dict[str, Mapping[str, Any]] = {}  # by query; the query of the latest event is last
        self._letters = KeptLetters(self._last.__contains__)
        try:
            for given in exporters:
                exporter: Any = given if hasattr(given, "export") else CallableExporter(given)
                exporter.start(self.board)
                self._exporters.append((exporter, Guard(f"exporter {_name(given)}")))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the exporters. Remove the listener from the session first."""
        for exporter, guard in self._exporters:
            guard.call(exporter.close)
        self._exporters = []
        self._letterbox.close()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Does nothing: Spark waits for it before the query starts."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Called after each batch."""
        self._guard.call(lambda: self._handle_progress(json.loads(event.progress.json)))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Called every 10 s while a query has nothing to read, or can't read."""
        self._guard.call(lambda: self._handle_idle(str(event.id), event.timestamp))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Called when a query has ended, with or without an error."""
        self._forget(str(event.id))

    def _handle_progress(self, progress: Mapping[str, Any]) -> None:
        self._read_letters()
        query_id = str(progress["id"])
        epochs = self._letters.take_epochs(query_id, int(progress["batchId"]))
        metrics = read_progress(progress, epochs, self._source_reports(query_id, progress))
        if not metrics.is_of_sluice:
            return
        self._last.pop(query_id, None)
        self._last[query_id] = progress
        if len(self._last) > _MOST_QUERIES:
            self._forget(next(iter(self._last)))
        self.board.record(metrics)
        for exporter, guard in self._exporters:
            guard.call(lambda exporter=exporter: exporter.export(metrics))  # type: ignore[misc]

    def _handle_idle(self, query_id: str, timestamp: str) -> None:
        """Takes newer reports of the planner: a query that is throttled for long is idle for Spark."""
        self._read_letters()
        last = self._last.get(query_id)
        if last is not None and (reports := self._source_reports(query_id, last)):
            self.board.record(read_progress(last, (), reports), is_batch=False)
        self.board.mark_alive(query_id, parse_instant(timestamp) / MICROS_PER_SECOND)

    def _read_letters(self) -> None:
        for letter in self._letterbox.take():
            self._letters.add(letter)

    def _source_reports(self, query_id: str, progress: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return self._letters.sources(query_id, progress.get("runId"))

    def _forget(self, query_id: str) -> None:
        self.board.forget(query_id)
        self._letters.forget(query_id)
        self._last.pop(query_id, None)


def _name(exporter: object) -> str:
    return getattr(exporter, "__qualname__", None) or type(exporter).__name__
