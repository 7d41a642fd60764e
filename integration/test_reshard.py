"""Resharding: every record comes once, and those of a key in order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration.support.background import repeating
from integration.support.kinesis import Put, Streams
from integration.support.model_streams import ModelStreams
from integration.support.queries import logged_offsets, read_stream, wait_until
from integration.support.recorder import Recorder, Row

BOTH = pytest.mark.usefixtures("publisher")

KEYS = 16
DISCOVERY = {"shardDiscoveryInterval": "300ms"}
LISTED = 5
"""Seconds after which listings have a new shard."""


class Producer:
    """Puts records ``key:counter``, with a counter from 0 for each partition key."""

    def __init__(self, streams: Streams, stream: str) -> None:
        self._streams = streams
        self._stream = stream
        self.put: list[tuple[Put, bytes]] = []
        self.rounds = 0

    def put_rounds(self, count: int) -> None:
        for _ in range(count):
            records = [(f"key-{key}", f"key-{key}:{self.rounds}".encode()) for key in range(KEYS)]
            placed = self._streams.put(self._stream, records)
            self.put += zip(placed, (data for _, data in records), strict=True)
            self.rounds += 1

    def expected(self) -> Counter[tuple[str, int, bytes]]:
        return Counter((where.shard, int(where.sequence_number), data) for where, data in self.put)

    def putting(self) -> AbstractContextManager[None]:
        """Puts in a thread until the ``with`` block ends."""
        return repeating(lambda: self.put_rounds(1), 0.02)


def split_first(streams: Streams, stream: str) -> None:
    streams.split(stream, streams.open_shards(stream)[0])


def merge_first(streams: Streams, stream: str) -> None:
    """Merges the first two open shards by hash key."""
    keys = {
        shard["ShardId"]: int(shard["HashKeyRange"]["StartingHashKey"]) for shard in streams.shards(stream)
    }
    first, second = sorted(streams.open_shards(stream), key=keys.__getitem__)[:2]
    streams.merge(stream, first, second)


def change_count(streams: Streams, stream: str) -> None:
    """Asks for one more shard, which closes all open ones."""
    streams.update_shard_count(stream, len(streams.open_shards(stream)) + 1)


OPERATIONS: tuple[Callable[[Streams, str], None], ...] = (split_first, merge_first, change_count)


def reshard(streams: Streams, stream: str, between: Callable[[], object]) -> None:
    """Splits, merges and changes the count. Calls `between` before and after each."""
    between()
    for operation in OPERATIONS:
        operation(streams, stream)
        between()


def wait_for_all(recorder: Recorder, query: StreamingQuery, producer: Producer) -> None:
    recorder.wait_for(query, len(producer.put))
    query.stop()


def source(spark: SparkSession, streams: Streams, stream: str, **options: str) -> DataFrame:
    return read_stream(spark, streams.endpoint, stream, **DISCOVERY, **options)


def check(recorder: Recorder, producer: Producer, streams: Streams, stream: str) -> None:
    """Every record came once, those of a key in order, children after their parents."""
    rows = recorder.rows
    assert recorder.found() == producer.expected()
    assert counters(rows) == {f"key-{key}": list(range(producer.rounds)) for key in range(KEYS)}
    parents, met = check_lineage(recorder, streams, stream)
    print(
        f"\n{stream}: {len(rows)} records once each, {len(recorder.batches)} batches, "
        f"{len({row.shard for row in rows})} shards, {parents} children after their parents, "
        f"{met} of them in the same batch"
    )


def counters(rows: list[Row]) -> dict[str, list[int]]:
    """By key, the counters of its rows in the order in which they came."""
    found: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        key, counter = row.data.decode().split(":")
        found[key].append(int(counter))
    return found


def check_lineage(recorder: Recorder, streams: Streams, stream: str) -> tuple[int, int]:
    """Rows of a child came in later batches than those of its parents, or after them in the same task."""
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for place, row in enumerate(recorder.rows):
        places[row.shard].append((row.batch, place))
    checked = met = 0
    for shard in streams.shards(stream):
        for parent in (shard.get("ParentShardId"), shard.get("AdjacentParentShardId")):
            child = shard["ShardId"]
            if parent and places[parent] and places[child]:
                last, first = max(places[parent]), min(places[child])
                assert last < first, f"{child} came before {parent} was read"
                if (batch := last[0]) == first[0]:
                    tasks = recorder.tasks(batch, parent) | recorder.tasks(batch, child)
                    assert len(tasks) == 1, (
                        f"{parent} and {child} were read by tasks {tasks} of batch {batch}"
                    )
                    met += 1
                checked += 1
    assert checked
    return checked, met


@BOTH
def test_reshards_before_the_query_starts(
    spark: SparkSession, service: ModelStreams, checkpoint: str
) -> None:
    """Closed shards are read to their end, parents first: with a limit in several batches."""
    assert read_after_reshards(spark, service, checkpoint, maxRecordsPerTrigger="200") > 1


def test_reshards_of_an_emulator(spark: SparkSession, resharding_streams: Streams, checkpoint: str) -> None:
    """The same on a server that others have written."""
    read_after_reshards(spark, resharding_streams, checkpoint, maxRecordsPerTrigger="200")


def read_after_reshards(spark: SparkSession, streams: Streams, checkpoint: str, **options: str) -> int:
    """Returns how many batches it took."""
    stream = streams.create(2)
    producer = Producer(streams, stream)
    reshard(streams, stream, lambda: producer.put_rounds(20))
    if isinstance(streams, ModelStreams):
        streams.clock.advance(seconds=LISTED)

    recorder = Recorder(checkpoint)
    query = recorder.start(source(spark, streams, stream, **options))
    wait_for_all(recorder, query, producer)

    check(recorder, producer, streams, stream)
    return len(recorder.batches)


@BOTH
def test_reshards_while_the_query_runs(spark: SparkSession, service: ModelStreams, checkpoint: str) -> None:
    """The query follows a split, a merge and a change of count while a producer runs."""
    stream = service.create(2)
    producer = Producer(service, stream)
    recorder = Recorder(checkpoint)
    query = recorder.start(source(spark, service, stream))

    def until_more_is_read() -> None:
        read = len(recorder.rows)
        recorder.wait_for(query, read + 5 * KEYS)

    with producer.putting():
        reshard(service, stream, until_more_is_read)
    wait_for_all(recorder, query, producer)

    check(recorder, producer, service, stream)


@BOTH
def test_reshards_while_the_query_is_stopped(
    spark: SparkSession, service: ModelStreams, checkpoint: str
) -> None:
    """A restarted query reads the rest of the old shards, and then their children."""
    stream = service.create(2)
    producer = Producer(service, stream)
    recorder = Recorder(checkpoint)
    producer.put_rounds(20)
    query = recorder.start(source(spark, service, stream))
    wait_for_all(recorder, query, producer)

    reshard(service, stream, lambda: producer.put_rounds(20))
    query = recorder.start(source(spark, service, stream))
    wait_for_all(recorder, query, producer)
    reshard(service, stream, lambda: producer.put_rounds(5))
    query = recorder.start(source(spark, service, stream, maxRecordsPerTrigger="100"))
    wait_for_all(recorder, query, producer)

    check(recorder, producer, service, stream)


def test_shards_that_open_after_a_start_at_the_latest(
    spark: SparkSession, service: ModelStreams, checkpoint: str
) -> None:
    """``LATEST`` skips records that were there at the start. Later shards are read from their horizon."""
    stream = service.create(2)
    service.put(stream, [(f"key-{key}", b"old:0") for key in range(KEYS)])
    # The library knows the service's clock to a second.
    service.clock.advance(seconds=2)
    producer = Producer(service, stream)
    recorder = Recorder(checkpoint)
    frame = read_stream(
        spark, service.endpoint, stream, startingPosition="LATEST", shardDiscoveryInterval="2s"
    )
    query = recorder.start(frame)
    # The start is pinned before the first progress report.
    wait_until(lambda: query.lastProgress is not None, "the first trigger")

    reshard(service, stream, lambda: producer.put_rounds(10))  # most of it before shards are listed again
    wait_for_all(recorder, query, producer)

    check(recorder, producer, service, stream)
    first = logged_offsets(checkpoint)[0]["streams"][stream]
    assert {position.get("at") for position in first.values()} != {"TRIM_HORIZON"}
