"""A driver that is killed in the middle of batches: every batch is read again with the same rows."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from aws_kinesis_agg.aggregator import RecordAggregator
from pyspark.sql import SparkSession

from integration.model.sending import WireFault
from integration.support.background import repeating
from integration.support.drivers import Driver, Line, Outcome, started_drivers
from integration.support.model_streams import ModelStreams
from integration.support.queries import publisher_options, read_stream
from integration.support.recorder import Recorder
from integration.support.replay_driver import BEFORE, HALF, WRITTEN, DriverPlan

SHARDS = 3
BACKLOG = 3000
PER_PUT = 5
MEANWHILE = 400
PER_AGGREGATE = 5
OPTIONS = {"maxRecordsPerTrigger": "600", "shardsPerTask": "1"}
SEED = 20261121


@dataclass
class Producer:
    """Puts plain and aggregated records. `expected` has the rows that they make."""

    streams: ModelStreams
    stream: str
    expected: list[Line] = field(default_factory=list)
    _count: int = 0

    def put(self, records: int) -> None:
        made = [self._record() for _ in range(records)]
        placed = self.streams.put(self.stream, [(key, blob) for key, blob, _ in made])
        for where, (_, _, contents) in zip(placed, made, strict=True):
            self.expected += [
                (where.shard, where.sequence_number, sub, data.hex()) for sub, data in enumerate(contents)
            ]

    def _record(self) -> tuple[str, bytes, list[bytes]]:
        """A partition key, the data to put, and the data of its rows. One record in ten is aggregated."""
        self._count += 1
        key = f"key-{self._count % 41}"
        if self._count % 10:
            data = f"record {self._count}".encode()
            return key, data, [data]
        contents = [f"record {self._count}.{sub}".encode() for sub in range(PER_AGGREGATE)]
        aggregator = RecordAggregator()
        for data in contents:
            aggregator.add_user_record(key, data)
        return key, aggregator.clear_and_get().get_contents()[2], contents

    def putting(self) -> AbstractContextManager[None]:
        """Puts in a thread until the ``with`` block ends."""
        return repeating(lambda: self.put(PER_PUT), 0.25)


@pytest.fixture
def drivers() -> Iterator[list[Driver]]:
    with started_drivers() as started:
        yield started


@pytest.mark.parametrize("at_random", [0, pytest.param(5, marks=pytest.mark.soak(seconds=150))])
@pytest.mark.usefixtures("publisher")
def test_a_killed_driver_reads_the_same_batches_again(
    service: ModelStreams, tmp_path: Path, drivers: list[Driver], at_random: int
) -> None:
    """A query is killed with SIGKILL at any moment of a batch and started again from its checkpoint, while
    records keep coming. It gets the same rows for the same batch id, in the same order in each shard, and
    all batches together hold every record exactly once.
    """
    chosen = random.Random(SEED)
    stream = service.create(SHARDS)
    producer = Producer(service, stream)
    producer.put(BACKLOG)
    plan = DriverPlan(0, service.endpoint, stream, str(tmp_path), {**publisher_options(), **OPTIONS})
    plan.output.mkdir()
    moments = [(2, HALF), (4, WRITTEN), (4, BEFORE)]
    attempts = itertools.count(len(moments))

    with producer.putting():
        for attempt, (batch, moment) in enumerate(moments):
            driver = Driver(replace(plan, attempt=attempt, stop_at=(batch, moment)))
            drivers.append(driver)
            driver.wait_for(f"reached {moment} of batch ")
            driver.kill()
            producer.put(MEANWHILE)  # a batch that is logged must not take in what comes later
        for _ in range(at_random):
            driver = Driver(replace(plan, attempt=next(attempts)))
            drivers.append(driver)
            newest = max(Outcome.of(plan.output).whole)
            driver.wait_until(
                lambda newest=newest: max(Outcome.of(plan.output).whole) > newest,  # type: ignore[misc]
                "the batches after the last kill",
            )
            time.sleep(chosen.uniform(0.1, 1.0))
            driver.kill()
    producer.put(MEANWHILE)
    last = Driver(replace(plan, attempt=next(attempts)))
    drivers.append(last)
    last.wait_until(lambda: len(Outcome.of(plan.output).rows) >= len(producer.expected), "all that was put")
    last.end()

    outcome = Outcome.of(plan.output)
    outcome.check_replays()
    assert Counter(outcome.rows) == Counter(producer.expected)
    replayed = outcome.replayed()
    assert {2, 4} <= set(replayed)
    print(
        f"\nreplay: {len(moments) + at_random} kills, {len(outcome.whole)} batches, {len(replayed)} read "
        f"more than once, {len(outcome.rows)} rows, all of them once"
    )


def test_the_first_batch_after_a_start_at_the_latest_is_read_again(
    spark: SparkSession, service: ModelStreams, checkpoint: str
) -> None:
    """The time of `LATEST` is logged with the end of the batch, so no row is skipped when the batch fails."""
    # Records are compared from the first one on that was read. With disorder, a later one may be from before.
    service.change_laws(arrival_disorder=0.0)
    stream = service.create(2)
    put: list[bytes] = []
    last: dict[str, bytes] = {}  # by shard

    def put_next() -> None:
        put.append(f"record {len(put) + 1}".encode())
        (where,) = service.put(stream, [(f"key-{len(put)}", put[-1])])
        last[where.shard] = put[-1]

    put_next()
    service.clock.advance(seconds=2)  # the library knows the service's clock to a second
    # Records arrive while shards are listed for the first time, after the start is pinned.
    service.damage(WireFault(operation="ListShards", kind="stall", seconds=2.0))
    recorder = Recorder(checkpoint)

    def fail(batch: int) -> None:
        raise RuntimeError(f"the application fails in batch {batch}")

    recorder.intervene = fail
    frame = read_stream(spark, service.endpoint, stream, startingPosition="LATEST")
    query = recorder.start(frame)
    while query.isActive:
        put_next()
        time.sleep(0.005)
    assert service.damaged == 1
    logged = json.loads(Path(checkpoint, "offsets", "0").read_text().splitlines()[-1])
    ends = logged["streams"][stream]
    assert any("after" in position for position in ends.values()), "the first batch had no records"

    recorder.intervene = lambda _batch: None
    query = recorder.start(frame)
    recorder.wait_for_data(query, last.values())
    query.stop()

    read = recorder.data()
    first = min(int(data.split()[1]) for data in read)
    assert Counter(read) == Counter(put[first - 1 :])
    assert any(row.batch == 0 for row in recorder.rows)
    assert first > 1
