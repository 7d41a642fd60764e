"""The listener: what Spark's events and letters become, and that nothing of it reaches the query."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from metrics_support import FakeLetterbox, progress_event

from sluice.metrics import QueryMetrics, SluiceListener

RECORDED = json.loads((Path(__file__).parent / "progress" / "spark-4.0.5-polling.json").read_text())
PROGRESS: dict[str, Any] = RECORDED["progress"]
SINK = [each for each in RECORDED["letters"] if each["kind"] == "sink"][-1]
SOURCE = [each for each in RECORDED["letters"] if each["kind"] == "source"][-1]
QUERY = PROGRESS["id"]


def listen(*exporters: Any) -> tuple[SluiceListener, FakeLetterbox]:
    letterbox: Any = FakeLetterbox()
    return SluiceListener(*exporters, letterbox=letterbox), letterbox


def idle(timestamp: str = "2099-01-01T00:00:00.000Z") -> Any:
    return SimpleNamespace(id=QUERY, runId=PROGRESS["runId"], timestamp=timestamp)


def test_a_function_gets_the_figures_of_each_batch() -> None:
    """With what came by letter."""
    seen: list[QueryMetrics] = []
    listener, letterbox = listen(seen.append)
    letterbox.letters = [SINK, SOURCE]
    listener.onQueryProgress(progress_event(PROGRESS))
    listener.onQueryProgress(progress_event(PROGRESS))

    assert [each.query_id for each in seen] == [QUERY] * 2
    assert seen[0].sink is not None
    assert seen[0].sink.records == SINK["records"]
    assert seen[1].sink is None  # it was of the first batch
    assert seen[1].streams[0].total("reads_refused") == 0
    listener.close()
    assert letterbox.is_closed


def test_figures_of_a_batch_stay_its_own_though_its_event_comes_late() -> None:
    """Spark calls listeners after the batch, and by then the next may have been written too."""
    seen: list[QueryMetrics] = []
    listener, letterbox = listen(seen.append)
    batch = PROGRESS["batchId"]
    letterbox.letters = [
        SINK | {"batch_id": batch, "records": 3},
        SINK | {"batch_id": batch + 1, "records": 4},
    ]
    listener.onQueryProgress(progress_event(PROGRESS))
    listener.onQueryProgress(progress_event(PROGRESS | {"batchId": batch + 1}))

    assert [each.sink and each.sink.records for each in seen] == [3, 4]


def test_an_idle_query_that_is_throttled_shows_it() -> None:
    """Spark reports no progress while a planner can read nothing; its letters still come."""
    listener, letterbox = listen()
    letterbox.letters = [SOURCE]
    listener.onQueryProgress(progress_event(PROGRESS))
    later = json.loads(json.dumps(SOURCE))
    later["figures"]["at"] += 10_000
    stream = later["figures"]["streams"][later["streams"][0]]
    next(iter(stream.values()))["refused"] = 40
    letterbox.letters = [later]
    listener.onQueryIdle(idle())

    (query,) = listener.board.queries
    assert query.streams[0].total("reads_refused") == 40
    batches = [each.value for each in listener.board.samples() if each.metric.name == "sluice.query.batches"]
    assert batches == [1]


def test_letters_of_another_run_are_not_believed() -> None:
    """The planner of the run before counted for itself."""
    listener, letterbox = listen()
    letterbox.letters = [SOURCE | {"run_id": "another"}]
    listener.onQueryProgress(progress_event(PROGRESS))

    assert listener.board.queries[0].streams[0].total("reads_refused") is None


def test_an_idle_query_keeps_the_figures_of_its_sink() -> None:
    """Newer letters of the source say nothing of it. Alerts on absence would fire at each pause."""
    listener, letterbox = listen()
    letterbox.letters = [SINK, SOURCE]
    listener.onQueryProgress(progress_event(PROGRESS))
    before = {(each.metric.name, tuple(each.attributes.items())) for each in listener.board.samples()}
    batch = listener.board.queries[0].sink
    later = json.loads(json.dumps(SOURCE))
    later["figures"]["at"] += 10_000
    letterbox.letters = [later]
    listener.onQueryIdle(idle())

    assert {(each.metric.name, tuple(each.attributes.items())) for each in listener.board.samples()} == before
    assert listener.board.queries[0].sink == batch is not None
    written = [each.value for each in listener.board.samples() if each.metric.name == "sluice.sink.records"]
    assert written == [SINK["records"]]


@pytest.mark.parametrize("size", [1, 100_000])
def test_letters_of_queries_that_are_not_ours_do_not_pile_up(
    size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Another application of the same user has its own listener. Those of this application's queries stay."""
    seen: list[QueryMetrics] = []
    listener, letterbox = listen(seen.append)
    letterbox.letters = [SINK, SOURCE]
    listener.onQueryProgress(progress_event(PROGRESS))
    batch = PROGRESS["batchId"] + 1
    letterbox.letters = [SINK | {"batch_id": batch, "records": 4}]
    with caplog.at_level(logging.WARNING):
        for number in range(20):
            letterbox.letters += [
                {"kind": "sink", "query_id": f"{number % 5}", "batch_id": n, "text": "x" * size}
                for n in range(100)
            ]
            letterbox.letters += [{"kind": "source", "query_id": str(number), "streams": ["x" * size]}]
            listener.onQueryIdle(idle())
            kept = listener._letters._letters.values()
            assert len(kept) <= 1_000
            assert sum(each.size for each in kept) <= 16 * 1024 * 1024
    listener.onQueryProgress(progress_event(PROGRESS | {"batchId": batch}))

    assert seen[-1].sink is not None
    assert seen[-1].sink.records == 4
    assert seen[-1].streams[0].total("reads_refused") == 0
    assert not caplog.records


@pytest.mark.parametrize("event", [progress_event({}), SimpleNamespace(progress=None)])
def test_an_event_that_cannot_be_read_fails_nothing(event: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Spark would log each failure at length."""
    listener, _ = listen()
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            listener.onQueryProgress(event)

    assert len(caplog.records) == 1


def test_an_exporter_that_fails_is_logged_once_and_others_continue(caplog: pytest.LogCaptureFixture) -> None:
    """The query continues, and so do the figures."""
    seen: list[QueryMetrics] = []

    def broken(_: QueryMetrics) -> None:
        raise OSError("disk full")

    listener, _ = listen(broken, seen.append)
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            listener.onQueryProgress(progress_event(PROGRESS))

    assert len(seen) == 20
    assert len(caplog.records) == 1
    assert "disk full" in caplog.text
