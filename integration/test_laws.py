"""Laws of the service that no emulator has, met by real queries: limits, clocks, empty pages."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from integration.model import KIB, MIB
from integration.support.model_streams import ModelStreams
from integration.support.producer import Producer, check_exact
from integration.support.queries import WAIT, read_stream, wait_until
from integration.support.recorder import Recorder

BOTH = pytest.mark.usefixtures("publisher")

THROTTLED = ("GetRecords", "ProvisionedThroughputExceededException")


class Sizes:
    """Counts the records of each stream, and their bytes, without keeping them."""

    def __init__(self) -> None:
        self.records: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, frame: DataFrame, _batch: int) -> None:
        found = frame.groupBy("streamName").agg(f.count("*"), f.sum(f.length("data"))).collect()
        with self._lock:
            for stream, count, size in found:
                self.bytes[stream] += size
                self.records[stream] += count


def wait_while_running(query: StreamingQuery, condition: object, what: str) -> None:
    """Returns when `condition` holds; raises what the query has failed with."""
    assert callable(condition)

    def holds() -> object:
        if error := query.exception():
            raise error
        return condition()

    wait_until(holds, what, timeout=WAIT)


BACKLOGS: Mapping[int, int] = {100 * KIB: 110, MIB: 12, 10 * MIB: 2}
"""Bytes of a record to how many there are."""


@BOTH
def test_backlogs_of_large_records(spark: SparkSession, service: ModelStreams, checkpoint: str) -> None:
    """Each shard gives 2 MiB a second, and nothing for 5 s after a page of 10 MiB."""
    expected = {}
    for size, count in BACKLOGS.items():
        stream = service.create(1)
        expected[stream] = count
        data = bytes(size)
        for number in range(count):
            service.put(stream, [(str(number), data)])
            service.clock.advance(seconds=size / MIB)  # a producer may write 1 MiB a second
    seen = Sizes()
    query = (
        read_stream(spark, service.endpoint, ",".join(expected))
        .writeStream.foreachBatch(seen)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    wait_while_running(query, lambda: seen.records.total() >= sum(expected.values()), "all records")
    query.stop()

    assert seen.records == expected
    assert seen.bytes == {
        stream: size * count for stream, (size, count) in zip(expected, BACKLOGS.items(), strict=True)
    }


def test_a_stranger_who_polls_the_same_shards(
    spark: SparkSession, service: ModelStreams, checkpoint: str
) -> None:
    """Another reader takes all five reads a second as far as it can get them. The query waits, and reads."""
    producer = Producer(service, service.create(2))
    producer.put(300)
    service.model.add_stranger(producer.stream, calls=5)
    recorder = Recorder(checkpoint)
    query = recorder.start(read_stream(spark, service.endpoint, producer.stream))
    recorder.wait_for(query, producer.count)
    producer.put(300)
    recorder.wait_for(query, producer.count)
    query.stop()

    check_exact(recorder, producer)
    assert service.model.refusals[THROTTLED] > 0
