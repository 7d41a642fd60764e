"""The pipeline under test, in a separate driver: ``python -m integration.chaos.pipeline <JSON>``.

Two queries, each with a checkpoint::

    stream orders ── query copy ──▶ stream copied ── query lake ──▶ files on S3
                  (at least once)                (exactly once)

Each copied record says which run of the query made it, and when the row was made: so records that are there
twice tell by what they were. A query that fails is started again after a moment, as a supervisor would, and
what it failed with is an event. The driver says ``ready`` when it is warm, begins when it is sent a line, and
ends when standard input closes.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from integration.support.kinesis import REGION
from integration.support.spark import Sessions, prepare_environment, stop_jvm

ORDERS: Final = "orders"
COPIED: Final = "copied"
COPY: Final = "copy"
LAKE: Final = "lake"
QUERIES: Final = (COPY, LAKE)
PROFILE: Final = "chaos"

_TRIGGER = "1 second"
_RESTART_PAUSE = 1.0
_LONGEST_CAUSE = 3000
_LONGEST_ALONE = 30.0  # seconds that the second query of a driver waits for the first one's first batch
_GRACE = 170.0  # for a requested stop


def consumer_of(query: str) -> str:
    return f"chaos-{query}"


@dataclass(frozen=True)
class PipelinePlan:
    attempt: int  # counts the drivers
    directory: str  # of Spark, the checkpoints, the events and the credentials
    master: str  # of Spark
    kinesis: str
    s3: str  # kinesis, s3: endpoints
    path: str  # of the files
    sources: Mapping[str, Mapping[str, str]]  # options of the source, by query
    strategy: Mapping[str, str]  # options of the rate limiting of query copy

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def events(self) -> Path:
        """A file of lines of JSON: what happened in this driver."""
        return Path(self.directory, f"events-{self.attempt}.jsonl")

    @property
    def credentials(self) -> Path:
        """A file of the SDK with the access keys of profiles `PROFILE`, for Kinesis, and `LAKE`, for S3.

        It is replaced to rotate the first one.
        """
        return Path(self.directory, "credentials")

    def checkpoint(self, query: str) -> Path:
        return Path(self.directory, "checkpoints", query)


class _Runner:
    """Keeps one query running."""

    def __init__(self, spark: SparkSession, plan: PipelinePlan, name: str, events: _Events) -> None:
        self._spark = spark
        self._plan = plan
        self._name = name
        self._events = events
        self._query: StreamingQuery | None = None
        self._runs = 0
        self._start_at = 0.0

    def check(self) -> None:
        """Starts the query if it does not run."""
        if self._query is not None:
            if self._query.isActive:
                return
            error = _causes(self._query)
            self._query = None
            self._failed(error)
        if time.monotonic() >= self._start_at:
            self._start()

    def load(self, run: str = "") -> DataFrame:
        return _copied(self._read(ORDERS), run) if self._name == COPY else _filed(self._read(COPIED))

    def has_planned(self) -> bool:
        """Whether Spark has planned a batch of the query."""
        return self._query is not None and self._query.lastProgress is not None

    def stop(self) -> None:
        """Stops it as a user does."""
        if self._query is not None:
            self._query.stop()

    def _start(self) -> None:
        run = f"{self._plan.attempt}.{self._runs}"
        self._runs += 1
        try:
            self._query = self._write(self.load(run))
        except Exception as error:  # noqa: BLE001 - is counted like any other failure
            self._failed(f"at its start: {error}")
        else:
            self._events.add("started", query=self._name, run=run)

    def _failed(self, error: str) -> None:
        self._events.add("failed", query=self._name, error=error)
        self._start_at = time.monotonic() + _RESTART_PAUSE

    def _read(self, stream: str) -> DataFrame:
        return (
            self._spark.readStream.format("kinesis-efo")
            .options(streamName=stream, startingPosition="TRIM_HORIZON", endpointUrl=self._plan.kinesis)
            .options(**self._connection(), **self._plan.sources[self._name])
            .load()
        )

    def _write(self, frame: DataFrame) -> StreamingQuery:
        target = (
            {
                "destination": "kinesis",
                "streamName": COPIED,
                "endpointUrl": self._plan.kinesis,
                **self._plan.strategy,
            }
            if self._name == COPY
            else {"destination": "s3", "path": self._plan.path, "endpointUrl": self._plan.s3}
        )
        profile = PROFILE if self._name == COPY else LAKE
        return (
            frame.writeStream.format("async-sink")
            .options(**target, **self._connection(profile))
            .option("checkpointLocation", str(self._plan.checkpoint(self._name)))
            .queryName(self._name)
            .trigger(processingTime=_TRIGGER)
            .start()
        )

    def _connection(self, profile: str = PROFILE) -> dict[str, str]:
        return {"region": REGION, "profile": profile}


def _causes(query: StreamingQuery) -> str:
    """What a query has failed with, and why, without the plan and Java's stacks."""
    found = query._jsq.exception()
    if found.isEmpty():
        return "it ended without an error"
    cause: Any = found.get()
    texts: list[str] = []
    while cause is not None:
        text = str(cause.toString()).partition("=== Streaming Query ===")[0]
        lines = [
            line for line in text.splitlines() if line.strip() and not line.startswith(("\tat ", "\t... "))
        ]
        text = "\n".join(lines)
        if not any(text in each for each in texts):
            half = _LONGEST_CAUSE // 2
            texts.append(text if len(text) <= 2 * half else f"{text[:half]}\n[…]\n{text[-half:]}")
        cause = cause.getCause()
    return "\ncaused by: ".join(texts)


def _copied(orders: DataFrame, run: str) -> DataFrame:
    # Evaluated for each row, when its task runs: another attempt of the same row has another time.
    made = f.reflect(f.lit("java.lang.System"), f.lit("nanoTime"))
    data = f.concat_ws("|", f.col("data").cast("string"), f.lit(run), made)
    return orders.select(data.alias("data"), "partitionKey")


def _filed(copied: DataFrame) -> DataFrame:
    data = f.col("data").cast("string")
    return copied.select("partitionKey", "shardId", "sequenceNumber", data.alias("data"))


class _Events:
    """Appends lines that are whole at once."""

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, event: str, **about: str) -> None:
        at = time.clock_gettime(time.CLOCK_REALTIME)  # `time.time` is off
        os.write(self._file, json.dumps({"event": event, "at": at, **about}).encode() + b"\n")


def main() -> None:
    """Runs both queries until standard input closes."""
    plan = PipelinePlan(**json.loads(sys.argv[1]))
    prepare_environment()
    os.environ["AWS_SHARED_CREDENTIALS_FILE"] = str(plan.credentials)
    sessions = Sessions(Path(plan.directory, f"spark-{plan.attempt}"))
    try:
        _run(sessions.get(master=plan.master), plan)
    finally:
        sessions.stop()
        stop_jvm()


def _run(spark: SparkSession, plan: PipelinePlan) -> None:
    events = _Events(plan.events)
    runners = [_Runner(spark, plan, name, events) for name in QUERIES]
    spark.range(2).repartition(2).count()  # the slow steps of a first run
    runners[0].load()
    events.add("ready")
    if not sys.stdin.readline():
        return
    closed = threading.Event()
    threading.Thread(target=_wait_for_end, args=(closed,), daemon=True).start()
    first_has_planned = False
    alone_until = time.monotonic() + _LONGEST_ALONE
    while not closed.wait(0.2):
        runners[0].check()
        # Two queries that begin in the same instant may leave Spark's description of a source broken for
        # good: docs/limits.md.
        first_has_planned = first_has_planned or runners[0].has_planned() or time.monotonic() > alone_until
        if first_has_planned:
            for runner in runners[1:]:
                runner.check()
    for runner in runners:
        runner.stop()
    events.add("stopped")


def _wait_for_end(closed: threading.Event) -> None:
    sys.stdin.read()
    closed.set()
    time.sleep(_GRACE)
    os._exit(1)


if __name__ == "__main__":
    main()
