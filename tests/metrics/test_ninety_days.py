"""A driver that runs for 90 days: what it keeps stays small, and its figures stay there.

The clock is the test's. Every four hours there are a batch, an event that the query is idle, epochs of
another application, and a query whose end Spark does not report. Each day the stream is resharded, and a
cleaner takes another file of the directory for temporary files; each week the query restarts. The bounds are
lower than those of the library, so that they are reached.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from metrics_support import progress_event

from sluice import letterboxes
from sluice.letterboxes import Letterbox, post
from sluice.metrics import SluiceListener
from sluice.metrics import board as board_module
from sluice.metrics import kept_letters as kept_letters_module
from sluice.metrics import listener as listener_module

RECORDED = json.loads((Path(__file__).parent / "progress" / "spark-4.0.5-polling.json").read_text())
PROGRESS: Final[dict[str, Any]] = RECORDED["progress"]
SINK: Final = [each for each in RECORDED["letters"] if each["kind"] == "sink"][-1]
SOURCE: Final = [each for each in RECORDED["letters"] if each["kind"] == "source"][-1]
STREAM: Final = SOURCE["streams"][0]
SHARDS: Final = 4
DAYS: Final = 90
BATCHES: Final = 6
"""A day."""
START: Final = datetime(2026, 1, 1, tzinfo=timezone.utc)
NEEDED: Final = (
    *("sluice.query.batches", "sluice.query.event.time", "sluice.source.lag", "sluice.source.records"),
    *("sluice.sink.rate", "sluice.sink.limit", "sluice.sink.send.duration.p50", "sluice.sink.records"),
)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="there are no letterboxes elsewhere")


class Driver:
    """The application's process, its planner and its commits, and what is beside them.

    Attributes:
        now: the time.
    """

    def __init__(self, place: Path) -> None:
        self.now = START
        self.place = place
        self.listener = SluiceListener(letterbox=Letterbox(place))
        self._batch = 0
        self._day = 0

    def time(self) -> float:
        return self.now.timestamp()

    def time_ns(self) -> int:
        return int(self.now.timestamp() * 1e9)

    def begin_day(self, day: int) -> None:
        self._day = day

    def run_batch(self) -> None:
        """An epoch is committed, the planner reports, and Spark calls the listener."""
        self._batch += 1
        self.now += timedelta(hours=1)
        self._post(SINK | {"batch_id": self._batch, "query_id": PROGRESS["id"]})
        self._post_source()
        self.listener.onQueryProgress(progress_event(self._progress()))

    def be_idle(self) -> None:
        self.now += timedelta(hours=1)
        self._post_source()
        event: Any = SimpleNamespace(id=PROGRESS["id"], timestamp=self._text())
        self.listener.onQueryIdle(event)

    def run_other_queries(self) -> None:
        """One of another application, and a short one of this whose end is not reported."""
        self.now += timedelta(hours=2)
        for number in range(3):
            self._post(SINK | {"batch_id": self._batch * 3 + number, "query_id": "of another application"})
        other = self._progress() | {"id": f"short {self._batch}", "name": "short"}
        self.listener.onQueryProgress(progress_event(other))

    def samples(self) -> Counter[str]:
        """How many series of each metric the long query has."""
        return Counter(
            each.metric.name
            for each in self.listener.board.samples()
            if each.attributes["sluice.query.id"] == PROGRESS["id"]
        )

    def bytes_kept(self) -> int:
        """In memory, as far as pickle sees it."""
        board, kept = self.listener.board, self.listener._letters._letters
        return len(pickle.dumps((board._queries, board._ended, self.listener._last, list(kept.values()))))

    def _post(self, letter: dict[str, Any]) -> None:
        post(lambda: letter, self.place)

    def _post_source(self) -> None:
        shards = {
            shard: {**next(iter(SOURCE["figures"]["streams"][STREAM].values())), "polled": self._batch}
            for shard in self._shards()
        }
        figures = {**SOURCE["figures"], "at": int(self.time() * 1000), "streams": {STREAM: shards}}
        lag = {STREAM: dict.fromkeys(shards, 7)}
        run = f"run {self._day // 7}"
        self._post(SOURCE | {"run_id": run, "figures": figures, "millisBehindLatest": lag})

    def _progress(self) -> dict[str, Any]:
        source = PROGRESS["sources"][0]
        end = source["endOffset"]
        position = next(iter(end["streams"][STREAM].values()))
        ours = {**end, "streams": {STREAM: dict.fromkeys(self._shards(), position)}}
        return PROGRESS | {
            "batchId": self._batch,
            "runId": f"run {self._day // 7}",
            "timestamp": self._text(),
            "sources": [source | {"endOffset": ours, "latestOffset": None}],
        }

    def _shards(self) -> list[str]:
        """They are others each day."""
        return [f"shardId-{self._day * SHARDS + number:012}" for number in range(SHARDS)]

    def _text(self) -> str:
        return self.now.strftime("%Y-%m-%dT%H:%M:%S.000Z")


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver(tmp_path / "boxes")
    monkeypatch.setattr(letterboxes, "time", made)
    return made


def clean(place: Path, day: int) -> None:
    """Takes another path each day, so that in the end each of them was taken, in each order."""
    paths = [place, *sorted(place.rglob("*"))]
    path = paths[day % len(paths)]
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    for left in place.rglob("*"):
        os.utime(left, (1, 1))


def test_a_driver_of_ninety_days_keeps_little_and_shows_all(
    driver: Driver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_letters_module, "_MOST", 100)
    monkeypatch.setattr(listener_module, "_MOST_QUERIES", 30)
    monkeypatch.setattr(board_module, "_MOST_ENDED", 20)
    monkeypatch.setattr(board_module, "_MOST_GONE", 200)
    sizes: list[int] = []
    counted = 0.0
    with caplog.at_level(logging.WARNING):
        for day in range(DAYS):
            driver.begin_day(day)
            for _ in range(BATCHES):
                driver.run_batch()
                driver.be_idle()
                samples = driver.samples()
                assert [name for name in NEEDED if not samples[name]] == []
                assert samples["sluice.source.lag"] == SHARDS
                driver.run_other_queries()
            clean(driver.place, day)
            driver.be_idle()  # Spark tells of it within ten seconds
            sizes.append(driver.bytes_kept())
            (batches,) = (
                each.value
                for each in driver.listener.board.samples()
                if each.metric.name == "sluice.query.batches"
                and each.attributes["sluice.query.id"] == PROGRESS["id"]
            )
            assert batches == counted + BATCHES
            counted = batches

    board, letters = driver.listener.board, driver.listener._letters
    assert len(driver.listener._last) <= 30
    assert len(board.queries) <= 30
    assert len(board._ended) <= 20
    assert len(letters._letters) <= 100
    assert sum(each.size for each in letters._letters.values()) <= 100 * 2_000
    assert max(len(query.totals) for query in board._queries.values()) < 300
    assert sum(path.stat().st_size for path in driver.place.rglob("*")) < 1024 * 1024
    assert len(list(driver.place.rglob("*"))) < 50
    assert max(sizes) < 2 * 1024 * 1024
    assert sizes[-1] < 1.1 * sizes[2 * DAYS // 3]  # it has stopped growing
    assert len(caplog.records) == 1
    assert "the oldest letters about sinks and sources are dropped" in caplog.text
    driver.listener.close()
    assert not driver.place.exists()
