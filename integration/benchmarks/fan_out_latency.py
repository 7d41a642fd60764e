"""The latency from PutRecords to the row in foreachBatch, by publisher, compared with the lowest that Spark
allows.

Two sources that cost next to nothing are measured for comparison. The floor makes a row when a batch is
planned. The fed floor makes rows at any time, so that they wait for the running batch to end, as records do.
The goal is 1.5 times the sum of the floor and the time that the embedded Kinesis takes to deliver a record. A
stricter goal, 1.5 times the floor plus the delivery, may be out of reach of any source: compare it with the
fed floor plus the delivery. All processes share the cores of this machine, at a low rate of records.

A subscription for each batch looks better here than it is: the service refuses one within 5 s of the last
one, but the embedded Kinesis refuses it only while the last one is open.

    python -m integration.benchmarks.fan_out_latency
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from integration.benchmarks.floor import FedSource, FloorSource
from integration.benchmarks.versus import OUTPUT
from integration.demo.quiet import quiet_spark
from integration.support import servers
from integration.support.kinesis import REGION, Streams

MODES: dict[str, dict[str, str]] = {
    "fan-out, agent": {"consumerName": "agent"},
    "fan-out, per batch": {"consumerName": "per-batch", "agent": "none"},
    "polling": {},
}
FLOOR, FED = "floor", "fed"
GOAL = 1.5  # times the sum of floor and delivery
PAUSES = (0.05, 0.15)  # seconds between two puts, at random: not in step with batches
PREHEAT = 15.0  # seconds of a floor that does not count: the JVM gets faster for a while
WARM_UP = 5.0  # seconds of each query after its first row, which waits for Spark to start workers
START_LIMIT = 60.0
DRAIN_LIMIT = 15.0


@dataclass(frozen=True)
class Measured:
    """The latencies of one source at one number of shards."""

    latencies: Sequence[float]  # seconds, in ascending order
    missing: int = 0  # records that did not come
    batches_a_second: float = 0.0

    def quantile(self, part: float) -> float:
        return self.latencies[min(len(self.latencies) - 1, int(len(self.latencies) * part))]

    @property
    def p50(self) -> float:
        return statistics.median(self.latencies)


class Producer:
    """One thread that puts a record into every shard, some 10 times a second. Its data is the time."""

    def __init__(self, streams: Streams, stream: str) -> None:
        self._client = streams.client
        self._stream = stream
        self._hash_keys = [s["HashKeyRange"]["StartingHashKey"] for s in streams.shards(stream)]
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent: list[float] = []  # one time for each record
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        chance = random.Random(7)
        while not self._stopped.wait(chance.uniform(*PAUSES)):
            now = time.time()
            data = repr(now).encode()
            self._client.put_records(
                StreamName=self._stream,
                Records=[
                    {"Data": data, "PartitionKey": "key", "ExplicitHashKey": key} for key in self._hash_keys
                ],
            )
            self.sent += [now] * len(self._hash_keys)


class Arrivals:
    """When each record was sent, and when its row arrived."""

    def __init__(self) -> None:
        self.pairs: list[tuple[float, float]] = []
        self.batches: list[float] = []

    def take(self, frame: DataFrame, _batch_id: int) -> None:
        rows = frame.select("data").collect()
        now = time.time()
        self.batches.append(now)
        self.pairs += [(float(bytes(row["data"])), now) for row in rows]

    def between(self, start: float, end: float) -> list[float]:
        return sorted(there - sent for sent, there in list(self.pairs) if start <= sent < end)


def measure(frame: DataFrame, producer: Producer | None, seconds: float) -> Measured:
    """Runs a query on `frame`, and measures it for `seconds` after it has warmed up."""
    arrivals = Arrivals()
    query = frame.writeStream.foreachBatch(arrivals.take).start()
    try:
        limit = time.monotonic() + START_LIMIT
        while not arrivals.pairs:
            if (error := query.exception()) is not None:
                raise error
            if time.monotonic() > limit:
                raise TimeoutError("no row comes")
            time.sleep(0.1)
        time.sleep(WARM_UP)
        start = time.time()
        time.sleep(seconds)
        end = time.time()
        limit = time.monotonic() + DRAIN_LIMIT
        while True:
            latencies = arrivals.between(start, end)
            expected = len(latencies) if producer is None else sum(start <= t < end for t in producer.sent)
            if len(latencies) >= expected or time.monotonic() > limit:
                break
            time.sleep(0.1)
    finally:
        query.stop()
    batches = sum(start <= at < end for at in arrivals.batches)
    return Measured(latencies, expected - len(latencies), batches / seconds)


def delivery(streams: Streams, stream: str, seconds: float) -> Measured:
    """The time from PutRecords to the event, by plain subscriptions to the embedded Kinesis."""
    client = streams.client
    stream_arn = client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamARN"]
    consumer: Any = client.register_stream_consumer(StreamARN=stream_arn, ConsumerName="bare")["Consumer"]
    arn = consumer["ConsumerARN"]
    while True:
        described = client.describe_stream_consumer(ConsumerARN=arn)["ConsumerDescription"]
        if described["ConsumerStatus"] == "ACTIVE":
            break
        time.sleep(0.1)
    found: list[float] = []
    end = time.time() + seconds

    def follow(shard: str) -> None:
        answer = client.subscribe_to_shard(
            ConsumerARN=arn, ShardId=shard, StartingPosition={"Type": "LATEST"}
        )
        with contextlib.closing(answer["EventStream"]) as events:
            for event in events:
                now = time.time()
                records = event["SubscribeToShardEvent"]["Records"]
                found.extend(now - float(record["Data"]) for record in records)
                if now > end:
                    return

    threads = [threading.Thread(target=follow, args=(shard,)) for shard in streams.open_shards(stream)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.deregister_stream_consumer(ConsumerARN=arn)
    return Measured(sorted(found))


def read(spark: SparkSession, endpoint: str, stream: str, options: dict[str, str]) -> DataFrame:
    base = {"streamName": stream, "endpointUrl": endpoint, "region": REGION}
    return spark.readStream.format("kinesis-efo").options(**base, **options).load()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m integration.benchmarks.fan_out_latency", description=__doc__
    )
    parser.add_argument("--shards", default="1,4,16", help="comma-separated (default 1,4,16)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement (default 10)")
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.shards.split(",")]
    good = True
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-")))
        server = stack.enter_context(servers.ministack())
        OUTPUT.mkdir(parents=True, exist_ok=True)
        log = OUTPUT / "fan_out_latency.log"
        spark = stack.enter_context(quiet_spark(directory / "spark", {}, log))
        for source in (FloorSource, FedSource):
            spark.dataSource.register(source)
        streams = Streams(server.endpoint)
        measure(spark.readStream.format(FLOOR).load(), None, PREHEAT)
        for count in counts:
            stream = streams.create(count)
            with contextlib.closing(Producer(streams, stream)) as producer:
                delay = delivery(streams, stream, arguments.seconds / 2)
                runs = dict(measure_all(spark, streams, stream, producer, arguments.seconds))
            good = report(count, runs, delay) and good
    print(f"log of Spark and its workers: {log}")
    return 0 if good else 1


def measure_all(
    spark: SparkSession, streams: Streams, stream: str, producer: Producer, seconds: float
) -> Iterator[tuple[str, Measured]]:
    # The producer continues meanwhile, so that all of them run under the same load.
    for source in (FLOOR, FED):
        yield source, measure(spark.readStream.format(source).load(), None, seconds)
    for mode, options in MODES.items():
        yield mode, measure(read(spark, streams.endpoint, stream, options), producer, seconds)


def report(count: int, runs: dict[str, Measured], delay: Measured) -> bool:
    """Prints a table. Returns whether the goal is met."""
    floor = runs[FLOOR].p50
    columns = ("p50 ms", "p95 ms", "p99 ms", "p50 / floor", "rows", "missing", "batches/s")
    print(f"{f'{count} shards':<20}" + "".join(f"{title:>12}" for title in columns))
    for mode, run in itertools.chain(runs.items(), [("delivery alone", delay)]):
        cells = [f"{1000 * value:,.0f}" for value in (run.p50, run.quantile(0.95), run.quantile(0.99))]
        cells += [f"{run.p50 / floor:.2f}", f"{len(run.latencies):,}", str(run.missing)]
        cells += [f"{run.batches_a_second:.1f}" if run.batches_a_second else ""]
        print(f"{mode:<20}" + "".join(f"{cell:>12}" for cell in cells))
    found, delivered = runs["fan-out, agent"].p50, delay.p50
    wanted, strict = GOAL * (floor + delivered), GOAL * floor + delivered
    good = found <= wanted
    for formula, limit in (
        (f"{GOAL:g} x (floor + delivery)", wanted),
        (f"{GOAL:g} x floor + delivery", strict),
    ):
        print(
            f"p50 of fan-out at most {formula} = {1000 * limit:,.0f} ms: "
            f"{'met' if found <= limit else 'NOT met'} ({1000 * found:,.0f} ms, {found / limit:.2f} of it)"
        )
    free = runs[FED].p50 + delivered
    print(f"a source that costs nothing, with that delivery: {1000 * free:,.0f} ms", flush=True)
    return good and not any(run.missing for run in runs.values())


if __name__ == "__main__":
    sys.exit(main())
