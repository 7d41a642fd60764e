"""Logs when Spark drops rows of this source as late, because Spark itself does not.

Requires ``sluice.register`` or ``sluice.warn_of_dropped_rows``: only the application's process can add a
listener to a session.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from sluice.errors import SluiceError
from sluice.source.model.offsets import Offsets

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

__all__ = ["DroppedRowsListener", "listen", "listen_if_possible"]

_log = logging.getLogger(__name__)

_LINE_INTERVAL = 60.0
"""Minimum seconds between two lines about one run of a query."""
_LAST_EVENTS = 2_000
"""Milliseconds for which the end of the application waits for events."""
_MOST_RUNS = 1_000
"""Maximum number of remembered runs. Spark may drop the event that a run has ended."""

_lock = threading.Lock()
_sessions: weakref.WeakSet[SparkSession] = weakref.WeakSet()
_listeners: list[DroppedRowsListener] = []
"""At most one, for all sessions of the JVM. Neither Python nor the JVM ever frees a listener."""
_refusals: list[str] = []
"""At most one, the last that was logged: a program may call `listen_if_possible` in each batch."""


def listen(session: SparkSession) -> None:
    """Logs rows that Spark drops in the queries of a session from now on. The second call does nothing.

    Several Python objects may refer to one session of the JVM, such as ``batch.sparkSession`` in
    ``foreachBatch``. They share one listener.

    Raises:
        Exception: Spark accepts no listener.
    """
    with _lock:
        if session in _sessions:
            return
        in_jvm = getattr(session, "_jsparkSession", None)
        listener = DroppedRowsListener() if in_jvm is None else _listener_of_jvm(in_jvm)
        if in_jvm is None or not _is_listening(in_jvm, listener):
            session.streams.addListener(listener)
        _sessions.add(session)


@atexit.register
def _stop_listening() -> None:
    """Waits for the last events, and removes the listener.

    Otherwise Spark delivers events to a terminated Python, and logs a stack trace for each.
    """
    for session in [each for each in _sessions if getattr(each, "_jsparkSession", None) is not None]:
        _await_events(session)
        with contextlib.suppress(Exception):  # the JVM may have ended
            session.streams.removeListener(_listeners[0])
        _await_events(session)  # the listener may be handling one


def _await_events(session: SparkSession) -> None:
    with contextlib.suppress(Exception):  # the JVM may have ended, or a running query sends more
        session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(_LAST_EVENTS)  # noqa: SLF001 - no public name


def _listener_of_jvm(in_jvm: Any) -> DroppedRowsListener:
    """Returns the listener of the session's JVM. A program may stop its JVM, and start another one."""
    if not _listeners or _listeners[0]._jlistener._gateway_client is not in_jvm._gateway_client:  # noqa: SLF001
        _listeners[:] = [DroppedRowsListener()]
    return _listeners[0]


def _is_listening(in_jvm: Any, listener: DroppedRowsListener) -> bool:
    try:
        return any(each == listener._jlistener for each in in_jvm.streams().listListeners())  # noqa: SLF001
    except Exception:  # noqa: BLE001 - some platforms forbid such calls, each in its own way
        _log.debug("the listeners of the session are not known", exc_info=True)
        return False


def listen_if_possible(session: SparkSession) -> None:
    """As `listen`, but never fails, and ignores sessions of Spark Connect.

    There Spark waits for events in a thread that may keep the application alive until the session is
    stopped.
    """
    if not isinstance(session, SparkSession):
        return
    try:
        listen(session)
    except Exception as error:  # noqa: BLE001 - some platforms admit no listeners, each in its own way
        if _refusals != [str(error)]:
            _refusals[:] = [str(error)]
            _log.warning(
                "rows that Spark drops as too late will not be logged: no listener is admitted: %s", error
            )


@dataclass
class _Run:
    """The dropped rows of one run of a query.

    Attributes:
        query: its name for the log.
        dropped: number of dropped rows.
        logged: how many of them were logged.
        last: the last dropped rows, as the log describes them.
        next_line_at: when the next line may be logged (monotonic seconds).
    """

    query: str
    dropped: int = 0
    logged: int = 0
    last: str = ""
    next_line_at: float = -math.inf


class DroppedRowsListener(StreamingQueryListener):
    """Logs a warning when ``numRowsDroppedByWatermark`` rises in a query that reads this source.

    A run has at most one line a minute, and one at its end if rows were dropped since the last line.
    Spark calls the methods one after the other, in a thread of the application's process.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._runs: dict[str, _Run] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Does nothing."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Does nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Called for each batch, and every 10 s while there is none."""
        progress = event.progress
        dropped = sum(operator.numRowsDroppedByWatermark for operator in progress.stateOperators)
        if dropped <= 0:
            return
        told = json.loads(progress.json)
        if not any(_is_of_this_source(source) for source in told.get("sources", ())):
            return
        run_id = str(progress.runId)
        run = self._runs.pop(run_id, None) or _Run(_name(told))
        self._runs[run_id] = run  # moved to the end: dropped rows last
        if len(self._runs) > _MOST_RUNS:
            del self._runs[next(iter(self._runs))]
        run.dropped += dropped
        watermark = progress.eventTime.get("watermark", "unknown")
        run.last = f"{dropped} of them in batch {progress.batchId} behind watermark {watermark}"
        if (now := self._clock()) >= run.next_line_at:
            run.next_line_at = now + _LINE_INTERVAL
            self._warn(run, f"next line in {_LINE_INTERVAL:.0f} s at the earliest")

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Called when a query has ended, with or without an error."""
        run = self._runs.pop(str(event.runId), None)
        if run is not None and run.dropped > run.logged:
            self._warn(run, "the query has ended")

    @staticmethod
    def _warn(run: _Run, then: str) -> None:
        run.logged = run.dropped
        # Spark counts rows that it has aggregated before it applies the watermark as one.
        _log.warning(
            "%s: rows dropped for coming later than the watermark: at least %d so far, %s; they are in "
            "no result. Set option 'maxDrift' of the source to at most the delay of withWatermark, or make "
            "the delay longer (docs/read.md); %s",
            run.query,
            run.dropped,
            run.last,
            then,
        )


def _name(progress: Mapping[str, Any]) -> str:
    name, query = progress.get("name"), progress.get("id")
    return f"query {name} ({query})" if name else f"query {query}"


def _is_of_this_source(source: Mapping[str, Any]) -> bool:
    """Whether a source of a query is ours, by its offsets: Spark gives all Python sources one name."""
    offset = source.get("endOffset")
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return False
    try:
        Offsets.from_json(offset)  # type: ignore[arg-type]
    except SluiceError:
        return False
    return True
