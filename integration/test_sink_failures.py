"""The sink in real Spark when things go wrong: killed tasks, failing rows, dead letters; and its figures."""

from __future__ import annotations

import base64
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from integration.support.queries import wait_until
from sluice.sink import SinkProgress

DESTINATIONS = "integration.support.sink_destinations"
SOON = 300.0  # much less than a request of `Hanging`


def figures_of(query: str) -> Path:
    return Path(tempfile.gettempdir(), f"sluice-figures-{query}")


def note(progress: SinkProgress) -> None:
    """The listener of these tests, which runs in another process: a line of JSON for each commit."""
    with figures_of(str(progress.query_id)).open("a") as file:
        file.write(f"{progress.json}\n")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "destination"
    made.mkdir()
    return made


def values(spark: SparkSession, tmp_path: Path, *lines: str) -> DataFrame:
    """A stream of one partition with these values."""
    source = tmp_path / "source"
    source.mkdir(exist_ok=True)
    (source / f"{time.monotonic_ns()}.txt").write_text("".join(f"{line}\n" for line in lines))
    return spark.readStream.text(str(source)).coalesce(1)


def start(frame: DataFrame, name: str, directory: Path, checkpoint: str, **options: str) -> Any:
    return (
        frame.writeStream.format("async-sink")
        .options(destination=f"{DESTINATIONS}:{name}", directory=str(directory), **options)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def stored(directory: Path) -> list[str]:
    return (directory / "stored").read_text().split()


def test_dead_letters_of_a_streaming_query(
    spark: SparkSession, tmp_path: Path, directory: Path, checkpoint: str
) -> None:
    """What cannot be delivered lies below deadLetterPath with query and epoch; the rest is delivered."""
    letters = tmp_path / "letters"
    frame = values(spark, tmp_path, "a", "!b", "c", "x" * 50)
    query = start(
        frame,
        "FilesDestination",
        directory,
        checkpoint,
        deadLetterPath=str(letters),
        oversizedRecords="deadLetter",
        maxRecordSizeInBytes="20",
    )
    query.awaitTermination()
    (file,) = letters.rglob("*.jsonl")
    kept = [json.loads(line) for line in file.read_text().splitlines()]

    assert sorted(stored(directory)) == ["a", "c"]
    assert [(letter["queryId"], letter["batchId"]) for letter in kept] == [(str(query.id), 0)] * 2
    assert {letter["destination"] for letter in kept} == {"files"}
    data = sorted(base64.b64decode(letter["data"]) for letter in kept)
    assert data == [b"x" * 50, b'{"value": "!b"}']


def test_a_failing_row_fails_the_query_with_its_reason(
    spark: SparkSession, tmp_path: Path, directory: Path, checkpoint: str
) -> None:
    """No exception is lost, although a request is in flight that does not answer."""
    frame = values(spark, tmp_path, *(str(n) for n in range(25)), "!bad")
    started = time.monotonic()
    # The task waits for its requests as long as a request may take.
    query = start(frame, "Hanging", directory, checkpoint, requestTimeout="5s")
    with pytest.raises(Exception, match="starts with an exclamation mark"):
        query.awaitTermination()

    assert time.monotonic() - started < SOON
    assert (directory / "closed").exists()
    assert not (directory / "stored").exists()


def test_a_killed_task_leaves_no_worker_behind(
    spark: SparkSession, tmp_path: Path, directory: Path, checkpoint: str
) -> None:
    """A query that is stopped while requests hang: stop returns, and the worker is gone soon."""
    query = start(values(spark, tmp_path, *(str(n) for n in range(25))), "Hanging", directory, checkpoint)
    wait_until(lambda: list(directory.glob("pid-*")), "a request")
    started = time.monotonic()
    query.stop()
    (worker,) = directory.glob("pid-*")
    wait_until(lambda: not _runs(int(worker.name.removeprefix("pid-"))), "the worker to end", timeout=SOON)

    assert time.monotonic() - started < SOON
    assert not (directory / "stored").exists()


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except OSError:  # gone, maybe between the opening of the file and its reading
        return False


class Listener(StreamingQueryListener):
    """Keeps what Spark observed, by epoch."""

    def __init__(self) -> None:
        self.observed: dict[int, int] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        row = event.progress.observedMetrics.get("sink")
        if row is not None:
            self.observed[event.progress.batchId] = row["rows"]

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        pass


def test_what_a_streaming_query_listener_can_see(
    spark: SparkSession, tmp_path: Path, directory: Path, checkpoint: str
) -> None:
    """Rows by df.observe in Spark's progress; all the figures through progressListener, by epoch."""
    listener = Listener()
    spark.streams.addListener(listener)
    frame = values(spark, tmp_path, "a", "b", "c").observe("sink", f.count(f.lit(1)).alias("rows"))
    query = start(frame, "FilesDestination", directory, checkpoint, progressListener=f"{__name__}:note")
    query.awaitTermination()
    wait_until(lambda: listener.observed, "the listener to be told")
    spark.streams.removeListener(listener)
    figures = figures_of(str(query.id))
    told = [json.loads(line) for line in figures.read_text().splitlines()]
    figures.unlink()

    assert listener.observed == {0: 3}
    assert [(each["outcome"], each["query_id"], each["batch_id"]) for each in told] == [
        ("committed", str(query.id), 0)
    ]
    assert (told[0]["records"], told[0]["bytes"], told[0]["dead_letters"]) == (3, 3, 0)
