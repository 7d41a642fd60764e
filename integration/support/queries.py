"""Queries of the source as the tests run them, with the rows of every batch at hand."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration.support.kinesis import REGION

WAIT = 300.0  # only broken code takes as long, on the busiest machine

PUBLISHERS: dict[str, dict[str, str]] = {"polling": {}, "efo": {"consumerName": "tests"}}
"""The two ways in which the source gets records, and the options that choose each."""

_publishers = ["polling"]


@contextlib.contextmanager
def published_by(publisher: str) -> Iterator[None]:
    """Within the ``with`` block, `read` and `read_stream` get records in this way."""
    _publishers.append(publisher)
    try:
        yield
    finally:
        _publishers.pop()


def publisher_options() -> dict[str, str]:
    """The options of the source that choose the way to get records."""
    return PUBLISHERS[_publishers[-1]]


def await_end(query: StreamingQuery) -> None:
    try:
        has_ended = query.awaitTermination(int(WAIT))
    except StreamingQueryException as error:
        raise RuntimeError(f"the query has failed: {error}") from None
    if not has_ended:
        raise TimeoutError(f"the query has not ended in {WAIT:g} s")


def read(spark: SparkSession, endpoint: str, stream: str, **options: str) -> DataFrame:
    """A batch read of the whole stream, unless `options` say otherwise."""
    return spark.read.format("kinesis-efo").options(**_options(endpoint, stream, options)).load()


def read_stream(spark: SparkSession, endpoint: str, stream: str, **options: str) -> DataFrame:
    """A streaming read from the horizon on, unless `options` say otherwise."""
    return spark.readStream.format("kinesis-efo").options(**_options(endpoint, stream, options)).load()


def _options(endpoint: str, stream: str, options: dict[str, str]) -> dict[str, Any]:
    base = {
        "streamName": stream,
        "startingPosition": "TRIM_HORIZON",
        "endpointUrl": endpoint,
        "region": REGION,
    }
    return {**base, **publisher_options(), **options}


@dataclass
class Run:
    """One run of a streaming query, and the rows it gave by batch id."""

    query: StreamingQuery
    batches: dict[int, list[Row]] = field(default_factory=dict)

    @property
    def rows(self) -> list[Row]:
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]

    @property
    def sizes(self) -> list[int]:
        """Rows by batch, of the batches that had any."""
        return [len(rows) for _, rows in sorted(self.batches.items()) if rows]

    def wait_for_rows(self, count: int) -> list[Row]:
        """Returns when `count` rows have come; raises what the query has failed with."""
        self.wait_until(lambda: len(self.rows) >= count, f"{count} rows")
        return self.rows

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        """Returns when `condition` holds; raises what the query has failed with."""

        def holds() -> object:
            if (error := self.query.exception()) is not None:
                raise error
            return condition()

        wait_until(holds, what)

    def error(self) -> str:
        """What the query fails with, as the user sees it."""
        wait_until(lambda: not self.query.isActive, "the query to fail")
        error = self.query.exception()
        assert error is not None, f"the query ended with {len(self.rows)} rows and no error"
        return str(error)

    def stop(self) -> list[Row]:
        self.query.stop()
        return self.rows


def start(frame: DataFrame, checkpoint: str, **trigger: Any) -> Run:
    """Starts a query that keeps its rows; ``availableNow`` and ``once`` have ended on return."""
    batches: dict[int, list[Row]] = {}

    def keep(batch: DataFrame, batch_id: int) -> None:
        batches[batch_id] = batch.collect()

    writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
    query = writer.trigger(**(trigger or {"processingTime": "100 milliseconds"})).start()
    run = Run(query, batches)
    if "availableNow" in trigger or "once" in trigger:
        wait_until(lambda: not query.isActive, "the query to end")
        if (error := query.exception()) is not None:
            raise error
    return run


def logged_offsets(checkpoint: str) -> dict[int, dict[str, Any]]:
    """What Spark's offset log holds of a query with one source, by batch id, in order."""
    offsets = {}
    for path in Path(checkpoint, "offsets").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(FileNotFoundError):  # Spark deletes all but the last hundred
                offsets[int(path.name)] = json.loads(path.read_text().splitlines()[2])
    return dict(sorted(offsets.items()))


def wait_until(condition: Callable[[], object], what: str, *, timeout: float = WAIT) -> None:
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {timeout:g} s for {what}")
        time.sleep(0.1)
