"""Records, shards and streams that vanish before they were read: the query fails, or logs the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.errors.exceptions.base import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration.support.kinesis import Put
from integration.support.model_streams import ModelStreams, ServiceClock
from integration.support.queries import logged_offsets, published_by, read_stream, wait_until
from integration.support.recorder import Recorder
from integration.support.spark import SPARK_VERSION

BOTH = pytest.mark.usefixtures("publisher")

LOSS_LOGGED = "data loss, continuing at the oldest record"
RUNS = 1 if SPARK_VERSION >= (4, 2) else 2  # before, a run is one batch, be it one that is read again


@dataclass
class Case:
    """A stream, a query that reads it, and the records that were put last to each shard."""

    spark: SparkSession
    streams: ModelStreams
    recorder: Recorder
    stream: str
    put: dict[str, list[Put]] = field(default_factory=dict)

    @property
    def clock(self) -> ServiceClock:
        return self.streams.clock

    def fill(self, name: str, count: int = 10) -> list[bytes]:
        """Puts `count` records to every open shard; their data starts with `name`."""
        data: list[bytes] = []
        for shard in self.streams.open_shards(self.stream):
            data += self.fill_shard(shard, name, count)
        return data

    def fill_shard(self, shard: str, name: str, count: int = 10) -> list[bytes]:
        data = [f"{name} {shard} {number}".encode() for number in range(count)]
        self.put[shard] = self.streams.put_to_shard(self.stream, shard, data)
        return data

    def vanish(self, shard: str) -> None:
        """Splits a shard, which expires at once with its records, before a reader can reach its end."""
        with self.streams.at_once():
            self.streams.model.split(self.stream, shard)
            self.streams.model.expire_shard(self.stream, shard)

    def source(self, *, fail: bool, **options: str) -> DataFrame:
        options = {"failOnDataLoss": str(fail).lower(), **options}
        return read_stream(self.spark, self.streams.endpoint, self.stream, **options)

    def run(self, *, fail: bool) -> None:
        """Reads the available data."""
        for _ in range(RUNS):
            self.recorder.run_available(self.source(fail=fail))

    def failure(self) -> str:
        """The error of a run with ``failOnDataLoss``, which gives no row."""
        before = self.recorder.data()
        with pytest.raises(StreamingQueryException) as caught:
            self.recorder.run_available(self.source(fail=True))
        assert self.recorder.data() == before
        message = str(caught.value)
        assert "DataLossError" in message
        assert "'failOnDataLoss'" in message
        return message

    def run_and_fail_in_batch(self, batch: int) -> None:
        """Runs until the application fails in `batch`, which is logged then and not committed."""

        def fail(current: int) -> None:
            if current == batch:
                raise RuntimeError("the application fails")

        self.recorder.intervene = fail
        with pytest.raises(StreamingQueryException, match="the application fails"):
            self.recorder.run_available(self.source(fail=True))
        self.recorder.intervene = lambda _batch: None
        assert batch in logged_offsets(self.recorder.checkpoint)
        assert not self.is_committed(batch)

    def is_committed(self, batch: int) -> bool:
        return Path(self.recorder.checkpoint, "commits", str(batch)).exists()


@pytest.fixture
def case(spark: SparkSession, service: ModelStreams, checkpoint: str) -> Case:
    """A stream of two shards, and a query that has not started."""
    return Case(spark, service, Recorder(checkpoint), service.create(2))


def failed(query: StreamingQuery) -> str:
    wait_until(lambda: not query.isActive, "the query to fail")
    error = query.exception()
    assert error is not None
    return str(error)


@BOTH
def test_records_that_expire_while_the_query_is_stopped(case: Case, driver_log: Path) -> None:
    """Records have expired unread. By default the query fails and names the last record that it has read."""
    read = case.fill("read")
    case.run(fail=True)
    last = dict(case.put)
    case.fill("expired")
    case.clock.advance(hours=25)
    left = case.fill("left")

    message = case.failure()
    assert any(
        f"{case.stream}/{shard}: record {placed[-1].sequence_number}" in message
        for shard, placed in last.items()
    )
    case.run(fail=False)
    assert case.recorder.data() == sorted(read + left)
    assert LOSS_LOGGED in driver_log.read_text()

    later = case.fill("later")
    case.run(fail=True)
    assert case.recorder.data() == sorted(read + left + later)


def trim(case: Case) -> list[bytes]:
    case.clock.advance(hours=25)
    return []


def recreate(case: Case) -> list[bytes]:
    case.clock.advance(seconds=60)
    case.streams.recreate(case.stream, 2)
    return []


def vanish(case: Case) -> list[bytes]:
    """One shard is split, and expires at once with its records."""
    first, second = case.streams.open_shards(case.stream)
    case.vanish(first)
    return [f"logged {second} {number}".encode() for number in range(10)]


@pytest.mark.parametrize(
    ("lose", "message"),
    [(trim, "{}/shardId-"), (recreate, "stream {} was deleted and created again"), (vanish, "{}/shardId-")],
)
def test_a_logged_batch_is_never_cut_short(
    case: Case, lose: Callable[[Case], list[bytes]], message: str
) -> None:
    """Records of a batch that is logged and not committed have expired, so the batch fails when it is read
    again. With ``failOnDataLoss`` false it has the records that are left, and the query continues from there.
    """
    read = case.fill("read")
    case.run(fail=True)
    case.fill("logged")
    case.run_and_fail_in_batch(1)
    left = lose(case)
    fresh = case.fill("fresh")

    assert message.format(case.stream) in case.failure()
    case.run(fail=False)

    assert sorted(row.data for row in case.recorder.batches.get(1, [])) == left
    assert case.recorder.data() == sorted(read + left + fresh)


@pytest.mark.parametrize("fresh_records", [0, 10])
def test_a_stream_that_is_created_again_while_the_query_is_stopped(
    case: Case, driver_log: Path, fresh_records: int
) -> None:
    """It is another stream: the query fails, or reads it from its beginning."""
    read = case.fill("read")
    case.run(fail=True)
    case.fill("never read")
    case.clock.advance(seconds=60)
    case.streams.recreate(case.stream, 3)
    fresh = case.fill("fresh", fresh_records) if fresh_records else []

    assert f"stream {case.stream} was deleted and created again" in case.failure()
    case.run(fail=False)
    assert case.recorder.data() == sorted(read + fresh)
    assert LOSS_LOGGED in driver_log.read_text()

    later = case.fill("later")
    case.run(fail=True)
    assert case.recorder.data() == sorted(read + fresh + later)


@pytest.fixture
def two_queries(case: Case, tmp_path: Path) -> tuple[Recorder, Recorder]:
    """Of a query that fails on data loss, and of one that does not."""
    return case.recorder, Recorder(str(tmp_path / "lenient"))


def start_both(
    case: Case, recorders: tuple[Recorder, Recorder], read: list[bytes], **options: str
) -> list[StreamingQuery]:
    queries = [
        recorder.start(case.source(fail=fail, **options))
        for recorder, fail in zip(recorders, (True, False), strict=True)
    ]
    for recorder, query in zip(recorders, queries, strict=True):
        recorder.wait_for_data(query, read)
    return queries


@BOTH
@pytest.mark.parametrize("discovery", ["300ms", "5s"])
def test_a_stream_that_is_created_again_while_the_query_runs(
    case: Case, two_queries: tuple[Recorder, Recorder], discovery: str
) -> None:
    """Whether the query notices it before or after it has read records of the new stream."""
    read = case.fill("read", 3)
    strict, lenient = start_both(case, two_queries, read, shardDiscoveryInterval=discovery)
    case.clock.advance(seconds=60)
    case.streams.recreate(case.stream, 2)
    fresh = case.fill("fresh", 20)

    message = failed(strict)
    assert case.stream in message
    two_queries[1].wait_for_data(lenient, fresh)
    later = case.fill("later")
    two_queries[1].wait_for_data(lenient, later)
    lenient.stop()
    # What was read of the new stream before the query noticed comes again from its oldest record on.
    assert set(two_queries[1].data()) == {*read, *fresh, *later}
    assert set(two_queries[0].data()) <= set(read)


@BOTH
def test_a_shard_that_vanishes_while_the_query_is_stopped(case: Case, driver_log: Path) -> None:
    """The error names the shard, which was not read to its end."""
    first, second = case.streams.open_shards(case.stream)
    read = case.fill("read")
    case.run(fail=True)
    case.fill_shard(first, "gone")
    kept = case.fill_shard(second, "kept")
    case.vanish(first)
    fresh = case.fill("fresh")

    assert f"{case.stream}/{first}" in case.failure()
    case.run(fail=False)
    assert case.recorder.data() == sorted(read + kept + fresh)
    assert LOSS_LOGGED in driver_log.read_text()


def test_a_subscribed_shard_that_vanishes_is_read_to_its_end(case: Case, driver_log: Path) -> None:
    """The last event of its subscription says that all of it was pushed, and the query continues with its
    children.
    """
    first, _ = case.streams.open_shards(case.stream)
    read = case.fill("read")
    with published_by("efo"):
        query = case.recorder.start(case.source(fail=True, shardDiscoveryInterval="1h"))
    case.recorder.wait_for_data(query, read)
    subscribed = f"{case.stream}/{first}: subscribed; batches end at"
    wait_until(lambda: subscribed in driver_log.read_text(), "the subscription")
    model = case.streams.model
    case.streams.split(case.stream, first)
    wait_until(lambda: model.has_pushed_end(case.stream, first), "the shard's end to be pushed")
    model.expire_shard(case.stream, first)
    fresh = case.fill("fresh")

    case.recorder.wait_for_data(query, fresh)
    query.stop()
    assert case.recorder.data() == sorted(read + fresh)
    assert LOSS_LOGGED not in driver_log.read_text()
