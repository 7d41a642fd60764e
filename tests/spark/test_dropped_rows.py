"""The warning about rows that Spark drops as later than the watermark."""

from __future__ import annotations

import json
import logging
import uuid
import weakref
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from sluice.source.model.offsets import After, Offsets
from sluice.source.model.splits import SplitId
from sluice.spark import dropped_rows
from sluice.spark.dropped_rows import DroppedRowsListener, listen, listen_if_possible

OURS = Offsets({SplitId("clicks", "shardId-0"): After("1")}, {}, frozenset({"clicks"})).to_json()
KAFKA = {"clicks": {"0": 17}}
QUERY = "0b9a2ed0-1b1f-4f4c-9a5e-000000000001"
RUN = "0b9a2ed0-1b1f-4f4c-9a5e-000000000002"

OPERATOR = {
    "operatorName": "stateStoreSave",
    "numRowsTotal": 60,
    "numRowsUpdated": 1,
    "allUpdatesTimeMs": 1,
    "numRowsRemoved": 0,
    "allRemovalsTimeMs": 1,
    "commitTimeMs": 1,
    "memoryUsedBytes": 1,
    "numShufflePartitions": 2,
    "numStateStoreInstances": 2,
    "customMetrics": {},
}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def listener(clock: Clock) -> DroppedRowsListener:
    return DroppedRowsListener(clock)


def progress(
    *dropped: int, batch: int = 1, offset: Any = OURS, name: str | None = "clicks", run: str = RUN
) -> QueryProgressEvent:
    """What Spark says of a batch. `dropped` has the rows that each of its operators has dropped."""
    source = {
        "description": "PythonMicroBatchStream@1",
        "startOffset": None,
        "endOffset": offset,
        "latestOffset": None,
        "numInputRows": 100,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
        "metrics": {},
    }
    told = {
        "id": QUERY,
        "runId": run,
        "name": name,
        "timestamp": "2026-01-31T12:00:00.000Z",
        "batchId": batch,
        "batchDuration": 10,
        "durationMs": {},
        "numInputRows": 100,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
        "eventTime": {"watermark": "2026-01-31T11:59:00.000Z"},
        "stateOperators": [{**OPERATOR, "numRowsDroppedByWatermark": count} for count in dropped],
        "sources": [{**source, "endOffset": KAFKA}, source],
        "sink": {"description": "memory", "numOutputRows": -1, "metrics": {}},
        "observedMetrics": {},
    }
    return QueryProgressEvent(StreamingQueryProgress.fromJson(json.loads(json.dumps(told))))


def ended(run: str = RUN) -> QueryTerminatedEvent:
    return QueryTerminatedEvent(uuid.UUID(QUERY), uuid.UUID(run), None, None)


def test_a_batch_that_drops_rows_is_logged(
    listener: DroppedRowsListener, caplog: pytest.LogCaptureFixture
) -> None:
    """With the query, how many rows, and what helps. All operators of the query count."""
    listener.onQueryProgress(progress(0, 0, batch=1))
    assert caplog.records == []

    listener.onQueryProgress(progress(3, 4, batch=2))

    (record,) = caplog.records
    assert (record.name, record.levelno) == ("sluice.spark.dropped_rows", logging.WARNING)
    assert record.getMessage() == (
        f"query clicks ({QUERY}): rows dropped for coming later than the watermark: at least 7 so far, "
        "7 of them in batch 2 behind watermark 2026-01-31T11:59:00.000Z; they are in no result. Set option "
        "'maxDrift' of the source to at most the delay of withWatermark, or make the delay longer "
        "(docs/read.md); next line in 60 s at the earliest"
    )


def test_one_line_a_minute(
    listener: DroppedRowsListener, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The next one has the rows of all batches until then."""
    for batch in range(10):
        listener.onQueryProgress(progress(5, batch=batch))
        clock.now += 5.0
    assert len(caplog.records) == 1

    clock.now += 10.0
    listener.onQueryProgress(progress(1, batch=10))

    assert "at least 51 so far, 1 of them in batch 10" in caplog.messages[1]


def test_an_end_tells_what_no_line_has_told(
    listener: DroppedRowsListener, caplog: pytest.LogCaptureFixture
) -> None:
    listener.onQueryProgress(progress(5, batch=1))
    listener.onQueryProgress(progress(2, batch=2))
    listener.onQueryTerminated(ended())
    listener.onQueryTerminated(ended())

    assert len(caplog.messages) == 2
    assert "at least 7 so far, 2 of them in batch 2" in caplog.messages[1]
    assert caplog.messages[1].endswith("the query has ended")


@pytest.mark.parametrize(
    "offset", [KAFKA, None, "", "no JSON", 17, [], {}, {"version": 1}, {"version": 1, "streams": [1]}]
)
def test_queries_of_other_sources_are_not_ours_to_judge(
    listener: DroppedRowsListener, caplog: pytest.LogCaptureFixture, offset: Any
) -> None:
    listener.onQueryProgress(progress(5, offset=offset))

    assert caplog.records == []


@pytest.mark.parametrize("offset", [OURS, json.dumps(OURS)])
def test_the_source_is_known_by_its_offsets(
    listener: DroppedRowsListener, caplog: pytest.LogCaptureFixture, offset: Any
) -> None:
    """Spark's description of a Python source does not have its name."""
    listener.onQueryProgress(progress(5, offset=offset))

    assert len(caplog.records) == 1


class FakeStreams:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.listeners: list[StreamingQueryListener] = []

    def addListener(self, listener: StreamingQueryListener) -> None:  # noqa: N802 - Spark's name
        if self.error is not None:
            raise self.error
        self.listeners.append(listener)


class FakeSession:
    """A session of Spark Connect, as far as it matters: it is not an instance of Spark's own class."""

    def __init__(self, error: Exception | None = None) -> None:
        self.streams = FakeStreams(error)


class FakeClassicSession(SparkSession):
    """A session and its JVM."""

    streams = cast("Any", None)

    def __init__(self, error: Exception | None = None) -> None:
        self.streams = FakeStreams(error)


def session(kind: type, error: Exception | None = None) -> Any:
    return kind(error)


@pytest.mark.parametrize("kind", [FakeSession, FakeClassicSession])
def test_a_session_gets_one_listener(kind: type) -> None:
    first, second = session(kind), session(kind)
    for each in (first, first, second):
        listen(each)

    assert [len(each.streams.listeners) for each in (first, second)] == [1, 1]
    assert isinstance(first.streams.listeners[0], DroppedRowsListener)


class FakeJvmSession:
    """A session in the JVM: the listeners there, which several sessions in Python share."""

    def __init__(self, gateway: object) -> None:
        self._gateway_client = gateway
        self.listeners: list[object] = []

    def streams(self) -> FakeJvmSession:
        return self

    def listListeners(self) -> list[object]:  # noqa: N802 - Spark's name
        return self.listeners


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeJvmSession], Any]:
    """Makes a session in Python for one in the JVM."""
    monkeypatch.setattr(dropped_rows, "_listeners", [])
    gateways: list[object] = []

    def in_jvm(listener: Any) -> Any:
        return listener.__dict__.setdefault("in_jvm", SimpleNamespace(_gateway_client=gateways[-1]))

    monkeypatch.setattr(DroppedRowsListener, "_jlistener", property(in_jvm))

    def make(jvm: FakeJvmSession) -> Any:
        gateways.append(jvm._gateway_client)
        made: Any = FakeClassicSession()
        made._jsparkSession = jvm
        made.streams.addListener = lambda listener: jvm.listeners.append(listener._jlistener)
        return made

    return make


def test_a_session_of_the_jvm_gets_one_listener_however_often_python_sees_it(
    in_python: Callable[[FakeJvmSession], Any],
) -> None:
    """In foreachBatch, each batch has another object for the one session."""
    gateway = object()
    ours, of_the_query = FakeJvmSession(gateway), FakeJvmSession(gateway)
    for _ in range(50):
        for each in (ours, of_the_query):
            listen_if_possible(in_python(each))

    assert [len(each.listeners) for each in (ours, of_the_query)] == [1, 1]
    assert ours.listeners == of_the_query.listeners  # no listener is ever freed


def test_registering_adds_a_listener_where_spark_is_not_remote() -> None:
    classic, remote = session(FakeClassicSession), session(FakeSession)
    for each in (classic, remote):
        listen_if_possible(each)

    assert [len(each.streams.listeners) for each in (classic, remote)] == [1, 0]


def test_the_fake_events_are_sparks_own() -> None:
    """What the other tests read into an event, Spark's classes give back."""
    event: Mapping[str, Any] = json.loads(progress(1, 2).progress.json)
    assert [operator["numRowsDroppedByWatermark"] for operator in event["stateOperators"]] == [1, 2]
    assert event["sources"][1]["endOffset"] == OURS


@pytest.mark.parametrize("ends", [True, False])
def test_the_listener_is_removed_at_the_end(
    in_python: Callable[[FakeJvmSession], Any], monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    """After the last events have been delivered, and even if a running query sends more of them."""
    steps: list[str] = []

    def wait(_millis: int) -> None:
        steps.append("wait")
        if not ends:
            raise TimeoutError

    spark = in_python(FakeJvmSession(object()))
    bus = SimpleNamespace(waitUntilEmpty=wait)
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(listenerBus=lambda: bus)))
    monkeypatch.setattr(FakeClassicSession, "sparkContext", context)
    spark.streams.removeListener = lambda _listener: steps.append("remove")
    monkeypatch.setattr(dropped_rows, "_sessions", weakref.WeakSet())
    listen(spark)

    dropped_rows._stop_listening()

    assert steps == ["wait", "remove", "wait"]
