"""A whole driver in a separate process, for tests that kill it: ``python replay_driver.py <JSON>``.

It writes the rows of every batch to ``<out>/<batch>-<attempt>.jsonl``, a line a row, on disk before the batch
ends. At the requested moment it prints ``reached <moment>`` on standard output and stops, to be killed. It
ends when standard input closes, be it that its parent said so or that its parent is dead.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession

from integration.support.queries import read_stream
from integration.support.spark import spark_session

BEFORE = "before"  # the batch is logged, and none of its rows has been read
HALF = "half"  # rows of some tasks are written; other tasks have not run
WRITTEN = "written"  # all rows are written; the batch is not committed


@dataclass(frozen=True)
class DriverPlan:
    attempt: int
    endpoint: str
    stream: str
    directory: str  # of Spark, the checkpoint and the output
    options: dict[str, str]
    # batch and moment at which it stands still. A batch below the one it starts with is passed over, so the
    # first batch from there on counts
    stop_at: tuple[int, str] | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> DriverPlan:
        return cls(**json.loads(text))

    @property
    def output(self) -> Path:
        return Path(self.directory, "output")


class Writer:
    def __init__(self, plan: DriverPlan) -> None:
        self._plan = plan

    def __call__(self, frame: DataFrame, batch: int) -> None:
        moment = None
        if self._plan.stop_at and batch >= self._plan.stop_at[0]:
            moment = self._plan.stop_at[1]
        if moment == BEFORE:
            stand_still(batch, BEFORE)
        columns = frame.select("shardId", "sequenceNumber", "subSequenceNumber", "data")
        if moment == HALF:
            some = []
            for row in columns.toLocalIterator():  # runs one task after the other
                some.append(row)
                if row.shardId != some[0].shardId:
                    break
            self._write(batch, some, "part")
            stand_still(batch, HALF)
        rows = columns.collect()
        self._write(batch, rows, "jsonl")
        if moment == WRITTEN:
            stand_still(batch, WRITTEN)

    def _write(self, batch: int, rows: Iterable[Row], suffix: str) -> None:
        file = self._plan.output / f"{batch}-{self._plan.attempt}.{suffix}"
        unfinished = file.with_suffix(".unfinished")
        with unfinished.open("w") as out:
            for row in rows:
                values = [row.shardId, row.sequenceNumber, row.subSequenceNumber, row.data.hex()]
                out.write(json.dumps(values) + "\n")
            out.flush()
            os.fsync(out.fileno())
        unfinished.replace(file)


def stand_still(batch: int, moment: str) -> None:
    print(f"reached {moment} of batch {batch}", flush=True)
    threading.Event().wait()


def main() -> None:
    plan = DriverPlan.from_json(sys.argv[1])
    run(plan, lambda spark: read_stream(spark, plan.endpoint, plan.stream, **plan.options))


def run(plan: DriverPlan, read: Callable[[SparkSession], DataFrame]) -> None:
    """Carries out a plan; `read`: gives the stream, with the columns that `Writer` takes."""
    directory = Path(plan.directory)
    with spark_session(directory / "spark") as spark:
        run_query(plan, read(spark))


def run_query(plan: DriverPlan, frame: DataFrame) -> None:
    """Writes the rows of a stream until the parent says so, or is dead."""
    checkpoint = str(Path(plan.directory, "checkpoint"))
    query = frame.writeStream.foreachBatch(Writer(plan)).option("checkpointLocation", checkpoint).start()
    closed = threading.Event()
    threading.Thread(target=_wait_for_end, args=(closed,), daemon=True).start()
    while query.isActive and not closed.is_set():
        time.sleep(0.05)
    query.stop()
    if error := query.exception():
        raise error


def _wait_for_end(closed: threading.Event) -> None:
    sys.stdin.read()
    closed.set()
    time.sleep(120)  # ends by itself in less, unless it stands still
    os._exit(1)


if __name__ == "__main__":
    main()
