"""What a trigger costs on the driver host, by number of shards: CPU, memory, and bytes that Spark is given.

Each line is a separate process and nothing is sent: the log is in memory, and so are subscriptions. Every
shard gets a record for each batch. The clock is a counter, so that each trigger may read every shard again.

- CPU of a batch: `latestOffset`, `partitions` and a report of progress, as Spark calls them for a batch.
- CPU of a call without news: `latestOffset` and a report, as Spark calls them some 90 times a second.
- memory: what the process takes at most beyond its start, when all is imported.
- bytes: of all partitions, pickled, and of the largest; of the offsets and of the report, as JSON.

    python -m integration.benchmarks.planning [--shards 64,512]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pickle
import resource
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest.mock import patch

from integration.benchmarks.versus import write_table
from integration.model import numbers
from integration.support.kinesis import REGION
from sluice.channels.channel import Address
from sluice.kinesis.options.config import source_config_from_options
from sluice.kinesis.options.starting_positions import initial_positions
from sluice.kinesis.planner.coordinator import SourceCoordinator
from sluice.kinesis.shared.assignment import FanOutAssignment
from sluice.kinesis.source import KinesisSource
from sluice.source.logs.data_loss import DataLossPolicy
from sluice.source.logs.stream_log import IteratorStart, Page, Record, StreamInfo, StreamLog
from sluice.source.model.offsets import Position, SplitRange
from sluice.source.model.splits import Split, SplitId
from sluice.source.planning.enumerator import EnumeratorSettings, StreamEnumerator
from sluice.source.planning.planner import Planner, PlannerSettings
from sluice.source.probing.probe import Probe, ProbeSettings
from sluice.source.state.cut_points import CutPoint
from sluice.source.state.subscriptions import SubscriptionProgress, Subscriptions
from sluice.spark.source_reader import make_stream_reader
from sluice.spark_settings import SparkSettings

SHARDS = (1, 64, 512, 2_048, 10_000)
BATCHES = 5
IDLE_CALLS = 90  # in a second
STREAM = "bench"
ARN = f"arn:aws:kinesis:{REGION}:000000000000:stream/{STREAM}/consumer/bench:1"
START = 1_800_000_000_000_000  # microseconds
BETWEEN_BATCHES = 2.0  # seconds
OPENED = 600  # seconds in which the shards were opened, two days before
MOST_RECORDS = 2**33  # that a shard has had
SPREAD = 900_000  # microseconds between the arrivals of the shards' records


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    @property
    def micros(self) -> int:
        return START + int(self.seconds * 1e6)


class OneRecordABatch(StreamLog):
    """A `StreamLog` of which every shard has got one record for each batch, and the `Subscriptions` to it.

    Its sequence numbers are made as the service makes them, for shards that have had any number of records.
    """

    def __init__(self, shards: int, clock: Clock) -> None:
        self._clock = clock
        self.batch = 0
        random = Random(shards)
        second = START // 10**6
        self._made = [
            (second - 2 * 86_400 + index * OPENED // shards, random.randrange(MOST_RECORDS))
            for index in range(shards)
        ]
        self._late = [random.randrange(SPREAD) for _ in range(shards)]
        self.splits = [
            Split(
                SplitId(STREAM, f"shardId-{index:012d}"),
                starting_sequence=numbers.encode(self._made[index][0], index, 0, self._made[index][0]),
                hash_range=(index * 2**100, (index + 1) * 2**100 - 1),
            )
            for index in range(shards)
        ]
        self._index = {split.id: index for index, split in enumerate(self.splits)}

    def arrival(self, split: SplitId, batch: int) -> int:
        """Microseconds since the epoch."""
        return START + int(batch * BETWEEN_BATCHES * 1e6) + self._late[self._index[split]]

    def number(self, split: SplitId, batch: int) -> str:
        index = self._index[split]
        created, first = self._made[index]
        return numbers.encode(created, index, first + batch, self.arrival(split, batch) // 10**6)

    def batch_of(self, split: SplitId, number: str) -> int:
        found = numbers.decode(number)
        assert found is not None
        return found.place - self._made[self._index[split]][1]

    # --- StreamLog ---

    def describe(self, stream: str) -> StreamInfo:
        return StreamInfo(stream, START - 10**9, 86_400.0)

    def list_splits(self, stream: str) -> Sequence[Split]:
        del stream
        return self.splits

    def get_iterator(self, split: SplitId, start: IteratorStart) -> str:
        if start.sequence_number is None:
            return "0"
        batch = self.batch_of(split, start.sequence_number)
        return str(batch + (start.kind == "AFTER_SEQUENCE_NUMBER"))

    def get_records(self, split: SplitId, iterator: str, limit: int) -> Page:
        first = int(iterator)
        last = min(first + limit, self.batch + 1)
        records = [
            Record(self.number(split, n), self.arrival(split, n), "key", b"x" * 100)
            for n in range(first, last)
        ]
        return Page(records, str(max(first, last)), 0)

    def server_time(self) -> int:
        return self._clock.micros

    # --- Subscriptions ---

    @property
    def version(self) -> int:
        return self.batch

    def follow(self, positions: Mapping[SplitId, Position]) -> None:
        del positions

    def progress(self, split: SplitId, position: Position) -> SubscriptionProgress:
        newest = self.number(split, self.batch)
        is_new = getattr(position, "number", "0") != newest
        points = [CutPoint(newest, self.arrival(split, self.batch), 100)] if is_new else []
        return SubscriptionProgress(points, 0, caught_up_at=self._clock.micros)

    def close(self) -> None:
        pass


class Coordinator(SourceCoordinator):
    """A coordinator of such shards; with subscriptions, eight agents hold them."""

    def __init__(self, log: OneRecordABatch, clock: Clock, *, pushed: bool) -> None:
        data_loss = DataLossPolicy(log, fail=True, now=log.server_time)
        probe = Probe(log, data_loss, ProbeSettings(pause=lambda _: None, clock=clock))
        planner = Planner(probe, log.server_time, PlannerSettings())
        settings = EnumeratorSettings([STREAM], initial_positions(CONFIG.start), 10.0)
        subscriptions: Subscriptions | None = log if pushed else None
        enumerator = StreamEnumerator(settings, probe, planner, subscriptions=subscriptions)
        with patch.object(KinesisSource, "create_enumerator", lambda *_, **__: enumerator):
            super().__init__(KinesisSource(CONFIG), spark=SparkSettings("local[2]"))
        self._is_pushed = pushed
        self._agents = [Address(f"10.0.0.{n}", 40_000, os.urandom(32), os.urandom(16)) for n in range(8)]

    def assign(self, ranges: Sequence[SplitRange]) -> FanOutAssignment | None:
        if not self._is_pushed:
            return None
        agents = {each.split: self._agents[n % 8] for n, each in enumerate(ranges)}
        hosts = frozenset(agent.host for agent in self._agents)
        return FanOutAssignment({STREAM: ARN}, agents, self._agents[0], hosts)


CONFIG = source_config_from_options(
    {"streamName": STREAM, "region": REGION, "startingPosition": "TRIM_HORIZON"}, streaming=True
)


@dataclass
class Cost:
    """Medians of a few batches: seconds of CPU, and bytes; the memory of all."""

    batch: float
    idle: float
    partitions: float
    largest: float
    offset: float
    report: float
    memory: float = 0.0


def measure(shards: int, *, pushed: bool) -> Cost:
    """Measures in another process, which has had no other number of shards."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measure, shards, pushed).result()


def _measure(shards: int, pushed: bool) -> Cost:
    before = _peak_memory()
    clock = Clock()
    log = OneRecordABatch(shards, clock)
    reader: Any = make_stream_reader(KinesisSource(CONFIG))
    reader._coordinator = Coordinator(log, clock, pushed=pushed)
    spark = Spark(reader)
    offset = spark.initial()
    costs = []
    for batch in range(BATCHES + 1):
        log.batch = batch
        clock.seconds += BETWEEN_BATCHES
        begin = time.process_time()
        end, report = spark.trigger(offset)
        partitions = reader.partitions(offset, end)
        seconds = spark.own_time(begin)
        sizes = [len(pickle.dumps(partition)) for partition in partitions]
        assert sum(len(partition.ranges) for partition in partitions) == shards
        offset = end
        begin = time.process_time()
        for _ in range(IDLE_CALLS):
            clock.seconds += 1 / IDLE_CALLS
            assert spark.trigger(offset)[0] == offset
        idle = spark.own_time(begin) / IDLE_CALLS
        costs.append(
            Cost(seconds, idle, sum(sizes), max(sizes), len(json.dumps(offset)), len(json.dumps(report)))
        )
    reader._coordinator.close()
    fields = [name for name in Cost.__dataclass_fields__ if name != "memory"]
    medians = {name: statistics.median(getattr(cost, name) for cost in costs[1:]) for name in fields}
    return Cost(**medians, memory=_peak_memory() - before)


def _peak_memory() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak * 1024)


class Spark:
    """Calls a reader with the copies that Spark's JSON makes; its own time for that does not count."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._foreign = 0.0

    def initial(self) -> dict[str, Any]:
        start: dict[str, Any] = self._copied(self._reader.initialOffset())
        return start

    def trigger(self, start: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        end = self._copied(self._reader.latestOffset(self._copied(start), None))
        report: dict[str, Any] = getattr(self._reader, "reportLatestOffset", dict)()
        return end, report

    def own_time(self, begin: float) -> float:
        seconds, self._foreign = time.process_time() - begin - self._foreign, 0.0
        return seconds

    def _copied(self, value: Any) -> Any:
        begin = time.process_time()
        copy = json.loads(json.dumps(value))
        self._foreign += time.process_time() - begin
        return copy


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.planning", description=__doc__)
    parser.add_argument("--shards", default=",".join(map(str, SHARDS)))
    shards = [int(text) for text in parser.parse_args().shards.split(",")]
    titles = f"{'':<8} {'shards':>7} {'batch, ms':>10} {'no news, ms':>12} {'MiB':>6}"
    lines = [f"{titles} {'partitions, kB':>15} {'largest, B':>11} {'offset, kB':>11} {'report, kB':>11}"]
    for name, pushed in (("polling", False), ("efo", True)):
        for count in shards:
            cost = measure(count, pushed=pushed)
            took = f"{cost.batch * 1000:>10.1f} {cost.idle * 1000:>12.2f} {cost.memory / 2**20:>6.0f}"
            lines.append(
                f"{name:<8} {count:>7} {took} {cost.partitions / 1e3:>15,.1f} {cost.largest:>11,.0f} "
                f"{cost.offset / 1e3:>11,.1f} {cost.report / 1e3:>11,.1f}"
            )
    write_table("planning", lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
