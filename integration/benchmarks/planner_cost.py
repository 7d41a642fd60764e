"""What planning by probes costs: calls and time for each trigger, by number of shards, idle and busy.

The planner runs in this process, against a server whose shards are either empty or have a record every
millisecond. Every trigger is late enough to read every shard again. With fan-out a shard costs no call.

    python -m integration.benchmarks.planner_cost
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from integration.benchmarks import server
from integration.benchmarks.backlog import STREAM, summary
from integration.benchmarks.versus import write_table
from integration.support.chart import Line, Panel, draw
from integration.support.kinesis import REGION
from integration.support.spark import prepare_environment
from sluice.kinesis.log.client import KinesisLog
from sluice.kinesis.options.config import source_config_from_options
from sluice.kinesis.options.starting_positions import initial_positions
from sluice.source.logs.data_loss import DataLossPolicy
from sluice.source.logs.stream_log import IteratorStart, Page, StreamInfo, StreamLog
from sluice.source.model.splits import Split, SplitId
from sluice.source.planning.enumerator import EnumeratorSettings, StreamEnumerator
from sluice.source.planning.planner import Planner
from sluice.source.probing.probe import Probe, ProbeSettings

SHARDS = (1, 64, 512)
PAUSE = 1.2  # seconds between triggers; a shard is read at most once a second
WIDTH = 20  # digits of a number


def prepare(shards: int, *, busy: bool) -> server.Operations:
    """Every shard has a record for each millisecond (`busy`), or none."""
    created = time.time() - 3600
    listed = [
        {
            "ShardId": f"shardId-{index:012d}",
            "HashKeyRange": {"StartingHashKey": str(index), "EndingHashKey": str(index)},
            "SequenceNumberRange": {"StartingSequenceNumber": "1"},
        }
        for index in range(shards)
    ]

    def get_iterator(request: dict[str, Any]) -> dict[str, str]:
        if "StartingSequenceNumber" in request:
            return {"ShardIterator": request["StartingSequenceNumber"]}
        return {"ShardIterator": str(int(request.get("Timestamp", created) * 1000))}

    def get_records(request: dict[str, Any]) -> server.Page:
        start, now = int(request["ShardIterator"]), int(time.time() * 1000)
        count = min(request["Limit"], now - start) if busy else 0
        numbers = [str(start + index).zfill(WIDTH) for index in range(count)]
        end = start + count
        records = server.page(numbers, b"x" * 100, arrival=(end - 1) / 1000)
        behind = now - end if busy else 0
        return records.ended(NextShardIterator=str(end), MillisBehindLatest=behind)

    return {
        "DescribeStreamSummary": lambda _: summary(created),
        "ListShards": lambda _: {"Shards": listed},
        "GetShardIterator": get_iterator,
        "GetRecords": get_records,
    }


def prepare_idle(shards: int) -> server.Operations:
    return prepare(shards, busy=False)


def prepare_busy(shards: int) -> server.Operations:
    return prepare(shards, busy=True)


class CountingLog(StreamLog):
    """A `StreamLog` that counts its calls."""

    def __init__(self, log: KinesisLog) -> None:
        self._log = log
        self.calls: Counter[str] = Counter()

    def describe(self, stream: str) -> StreamInfo:
        self.calls["DescribeStreamSummary"] += 1
        return self._log.describe(stream)

    def list_splits(self, stream: str) -> Sequence[Split]:
        self.calls["ListShards"] += 1
        return self._log.list_splits(stream)

    def get_iterator(self, split: SplitId, start: IteratorStart) -> str | None:
        self.calls["GetShardIterator"] += 1
        return self._log.get_iterator(split, start)

    def get_records(self, split: SplitId, iterator: str, limit: int) -> Page:
        self.calls["GetRecords"] += 1
        return self._log.get_records(split, iterator, limit)

    def server_time(self) -> int:
        return self._log.server_time()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m integration.benchmarks.planner_cost", description=__doc__
    )
    parser.add_argument("--triggers", type=int, default=6)
    arguments = parser.parse_args()
    prepare_environment()
    titles = f"{'shards':>7} {'shards are':<10} {'calls a trigger':>16} {'a shard':>8} {'ms a trigger':>13}"
    lines = [f"{titles}  times 1 shard (lowest-highest)"]
    points: dict[str, list[tuple[float, float]]] = {}
    for kind, make in (("idle", prepare_idle), ("busy", prepare_busy)):
        for shards in SHARDS:
            with server.serving(make, shards) as endpoint:
                calls, times = measure(endpoint, arguments.triggers)
            seconds = statistics.median(times)
            points.setdefault(kind, []).append((shards, seconds * 1000))
            one = points[kind][0][1] / 1000
            lines.append(
                f"{shards:>7} {kind:<10} {calls:>16.1f} {calls / shards:>8.2f} {seconds * 1000:>13.1f}"
                f"  {seconds / one:.1f}  ({min(times) / one:.1f}-{max(times) / one:.1f})"
            )
    write_table("planner_cost", lines)
    panel = Panel("ms a trigger, by shards", [Line(kind, each) for kind, each in points.items()], unit="")
    print(draw("planner_cost", [panel]))
    return 0


def measure(endpoint: str, triggers: int) -> tuple[float, list[float]]:
    """Calls for each trigger without those that list shards, and the seconds of each trigger."""
    config = source_config_from_options(
        {"streamName": STREAM, "endpointUrl": endpoint, "region": REGION, "startingPosition": "LATEST"},
        streaming=True,
    )
    log = CountingLog(KinesisLog.of(config))
    data_loss = DataLossPolicy(log, fail=True, now=log.server_time)
    probe = Probe(log, data_loss, ProbeSettings(pause=time.sleep))
    settings = EnumeratorSettings([STREAM], initial_positions(config.start), 3600.0)
    enumerator = StreamEnumerator(settings, probe, Planner(probe, log.server_time))
    try:
        position = enumerator.initial()
        time.sleep(PAUSE)
        position = enumerator.advance(position)  # opens iterators
        log.calls.clear()
        times = []
        for _ in range(triggers):
            time.sleep(PAUSE)
            start = time.perf_counter()
            position = enumerator.advance(position)
            times.append(time.perf_counter() - start)
    finally:
        enumerator.close()
    return log.calls.total() / triggers, times


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)
