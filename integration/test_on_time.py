"""Rows come on time: a windowed count with a watermark of a minute counts each row of a backlog."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from integration.model import SECOND
from integration.support.fan_out import wait_for_no_agents
from integration.support.model_streams import ModelStreams
from integration.support.queries import WAIT, published_by, read_stream, wait_until
from integration.support.spark import stop_queries

BOTH = pytest.mark.usefixtures("publisher")

ARRIVAL = "approximateArrivalTimestamp"
DELAY = "1 minute"
HELD_BACK = "its unread records hold back"
LIMITED = {"maxRecordsPerTrigger": "600"}
REFUSED = 12
"""Calls. A client's call has three retries."""


@pytest.fixture(autouse=True)
def _all_progress_is_kept(spark: SparkSession) -> Iterator[None]:
    key = "spark.sql.streaming.numRecentProgressUpdates"
    spark.conf.set(key, "100000")
    yield
    spark.conf.unset(key)
    stop_queries(spark)
    wait_for_no_agents()


@dataclass
class Backlog:
    """A stream with records of an hour, one a second, over two splits and a merge."""

    service: ModelStreams
    stream: str
    put: int = 0  # how many

    @classmethod
    def of_an_hour(cls, service: ModelStreams) -> Backlog:
        backlog = cls(service, service.create(2))
        backlog.pass_minutes(10)
        service.split(backlog.stream, backlog.shards()[0])
        backlog.pass_minutes(15)
        service.split(backlog.stream, backlog.shards()[-1])
        backlog.pass_minutes(15)
        service.merge(backlog.stream, *backlog.shards()[:2])
        backlog.pass_minutes(20)
        assert (backlog.put, len(service.shards(backlog.stream))) == (3_600, 7)
        return backlog

    def shards(self) -> list[str]:
        """The open ones, by hash key."""
        found = self.service.shards(self.stream)
        found.sort(key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))
        still_open = self.service.open_shards(self.stream)
        return [shard["ShardId"] for shard in found if shard["ShardId"] in still_open]

    def pass_minutes(self, minutes: int) -> None:
        for _ in range(60 * minutes):
            self.service.put(self.stream, [(f"key-{self.put}", b"data")])
            self.service.clock.advance(seconds=1)
            self.put += 1

    def put_late(self, minutes: int) -> None:
        """Puts a record that says of itself that it arrived so many minutes ago."""
        model = self.service.model
        arrival = model.clock.now() - minutes * 60 * SECOND
        model.put(self.stream, f"key-{self.put}", b"late", arrival=arrival)
        self.put += 1


@dataclass
class Refusals:
    """Refuses the next calls that are about a shard, of the planner, of tasks and of the agent."""

    service: ModelStreams
    left: dict[str, int]  # shard to how many more
    fired: int = 0

    def __call__(self, operation: str, request: Mapping[str, Any]) -> str | None:
        if operation == "GetRecords":
            iterator = self.service.model._core.unseal(request["ShardIterator"])
            shard = f"shardId-{iterator[3]:012d}" if iterator else None
        elif operation in ("GetShardIterator", "SubscribeToShard"):
            shard = request["ShardId"]
        else:
            return None
        if self.left.get(shard or "", 0) <= 0:
            return None
        self.left[shard or ""] -= 1
        self.fired += 1
        is_subscribing = operation == "SubscribeToShard"
        return "LimitExceededException" if is_subscribing else "ProvisionedThroughputExceededException"


@dataclass
class Counting:
    """A query that counts rows by minute of arrival."""

    query: StreamingQuery
    counts: dict[Any, int] = field(default_factory=dict)  # by window

    @classmethod
    def start(cls, frame: DataFrame, checkpoint: str, *, available: bool = False) -> Counting:
        counts: dict[Any, int] = {}

        def keep(batch: DataFrame, _batch_id: int) -> None:
            counts.update({row["window"]["start"]: row["count"] for row in batch.collect()})

        counted = frame.withWatermark(ARRIVAL, DELAY).groupBy(f.window(ARRIVAL, "1 minute")).count()
        writer = counted.writeStream.outputMode("update").foreachBatch(keep).queryName("visits")
        trigger: dict[str, Any] = (
            {"availableNow": True} if available else {"processingTime": "100 milliseconds"}
        )
        query = writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()
        return cls(query, counts)

    @property
    def counted(self) -> int:
        return sum(self.counts.values())

    @property
    def read(self) -> int:
        """Rows that the source gave."""
        return sum(progress["numInputRows"] for progress in self.query.recentProgress)

    @property
    def batches(self) -> int:
        return len({each["batchId"] for each in self.query.recentProgress if each["numInputRows"]})

    @property
    def dropped(self) -> int:
        """Rows that Spark dropped; those that it had aggregated before count as one."""
        return sum(
            operator["numRowsDroppedByWatermark"]
            for progress in self.query.recentProgress
            for operator in progress["stateOperators"]
        )

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        def holds() -> object:
            if error := self.query.exception():
                raise error
            return condition()

        wait_until(holds, what, timeout=WAIT)

    def wait_for_all(self, backlog: Backlog) -> None:
        """Returns after all rows and the batch without rows that follows and moves the watermark."""

        def is_over() -> bool:
            progress = self.query.lastProgress
            return self.read >= backlog.put and progress is not None and not progress["numInputRows"]

        self.wait_until(is_over, f"{backlog.put} rows")

    def read_all(self, backlog: Backlog, *, available: bool = False) -> None:
        """Returns when all rows have come and the query has ended."""
        if available:
            self.wait_until(lambda: not self.query.isActive, "the query to end")
        else:
            self.wait_for_all(backlog)
        self.query.stop()
        assert self.read == backlog.put
        print(
            f"\n{backlog.put} rows put, {self.counted} counted, {self.dropped} dropped, "
            f"{self.batches} batches"
        )


def check_nothing_dropped(counting: Counting, backlog: Backlog) -> None:
    assert counting.dropped == 0
    assert counting.counted == backlog.put


@BOTH
@pytest.mark.parametrize("available", [False, pytest.param(True, marks=pytest.mark.soak(seconds=15))])
def test_a_backlog_over_reshards(
    spark: SparkSession, service: ModelStreams, checkpoint: str, *, available: bool
) -> None:
    """With default options. It used to be a batch for each generation of shards, and a fifth was dropped."""
    backlog = Backlog.of_an_hour(service)
    frame = read_stream(spark, service.endpoint, backlog.stream)
    counting = Counting.start(frame, checkpoint, available=available)
    counting.read_all(backlog, available=available)

    check_nothing_dropped(counting, backlog)
    assert counting.batches == 1


def read_refusing(
    spark: SparkSession,
    service: ModelStreams,
    checkpoint: str,
    options: Mapping[str, str],
    *,
    available: bool = False,
) -> tuple[Counting, Backlog]:
    """Reads a backlog while the service refuses to read two shards, one of the first and a child."""
    backlog = Backlog.of_an_hour(service)
    shards = [shard["ShardId"] for shard in service.shards(backlog.stream)]
    refusals = Refusals(service, {shards[1]: REFUSED, shards[3]: REFUSED})
    service.fail_if(refusals)
    frame = read_stream(spark, service.endpoint, backlog.stream, **options)
    counting = Counting.start(frame, checkpoint, available=available)
    counting.read_all(backlog, available=available)
    assert refusals.fired > 0
    return counting, backlog


@BOTH
def test_a_backlog_of_throttled_shards(
    spark: SparkSession, service: ModelStreams, checkpoint: str, driver_log: Path
) -> None:
    """With limits. The others wait for shards that the service refuses to read, and the log says so."""
    counting, backlog = read_refusing(spark, service, checkpoint, {"maxDrift": "1m", **LIMITED})

    check_nothing_dropped(counting, backlog)
    assert counting.batches > 1
    assert HELD_BACK in driver_log.read_text()


@BOTH
@pytest.mark.soak(seconds=100)
@pytest.mark.parametrize("available", [False, True])
@pytest.mark.parametrize("limits", [{}, {"maxRecordsPerTrigger": "200"}, {"maxTimeSpanPerTrigger": "5m"}])
def test_a_drift_holds_whatever_the_limits(
    spark: SparkSession,
    service: ModelStreams,
    checkpoint: str,
    limits: Mapping[str, str],
    *,
    available: bool,
) -> None:
    """Also with Trigger.AvailableNow."""
    options = {"maxDrift": "1m", "shardsPerTask": "3", **limits}
    counting, backlog = read_refusing(spark, service, checkpoint, options, available=available)

    check_nothing_dropped(counting, backlog)


def test_an_idle_shard_holds_nobody_back_in_fan_out(
    spark: SparkSession, service: ModelStreams, checkpoint: str
) -> None:
    """Rows of its neighbour come while its first subscription lives: events that say nothing prove enough."""
    rows, calls, stream = 40, service.model.calls, service.create(2)
    before = calls["SubscribeToShard"]
    with published_by("efo"):
        frame = read_stream(spark, service.endpoint, stream, maxDrift="10s")
    counting = Counting.start(frame, checkpoint)
    counting.wait_until(lambda: calls["SubscribeToShard"] >= before + 2, "two subscriptions")
    opened = calls["SubscribeToShard"]
    for _ in range(rows):
        service.put(stream, [("busy", b"data")])
        time.sleep(1.0)
    counting.wait_until(lambda: counting.read == rows, f"{rows} rows")

    assert calls["SubscribeToShard"] == opened
    assert counting.dropped == 0
