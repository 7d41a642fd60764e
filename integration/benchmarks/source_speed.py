"""Reading: this source against one written by hand, and against the most that Spark takes from Python.

One shard in one task, from a server that answers with prepared bytes. By hand means the SDK's own parser
and a tuple for each row; the limit is a source that yields one ready record batch again and again.

    python -m integration.benchmarks.source_speed
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from integration.benchmarks import server
from integration.benchmarks.plain import SHARD, PlainSource, ReadySource
from integration.benchmarks.versus import Rates, compare, write_table
from integration.support.chart import Line, Panel, draw
from integration.support.kinesis import REGION
from integration.support.spark import spark_session

STREAM = "bench"
OURS, BY_HAND, READY, BARE = "sluice", "by hand", "ready batches", "bare client"
GOALS = {100: 10.0, 1024: 4.0}  # times what is written by hand, by bytes of a record
GOAL_OF_LIMIT = 0.5
MARK = "999999"  # of the page, in the numbers of a prepared one
READY_BYTES = 8 * 2**20


@dataclass(frozen=True)
class Load:
    """What the shard holds: `pages` of `records` of `size` bytes each."""

    size: int
    records: int
    pages: int

    @property
    def total(self) -> int:
        return self.records * self.pages


LOADS = (Load(100, 10_000, 40), Load(1024, 7_000, 20), Load(10_240, 700, 50))


def prepare(load: Load) -> server.Operations:
    """A closed shard: where it ends is known, and nothing has to be looked for."""
    now = time.time()
    numbers = [f"49{'0' * 42}{MARK}{index:06d}" for index in range(load.records)]
    prepared = server.page(numbers, b"x" * load.size, arrival=now)
    shard = {
        "ShardId": SHARD,
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)},
        "SequenceNumberRange": {
            "StartingSequenceNumber": f"49{'0' * 54}",
            "EndingSequenceNumber": f"49{'0' * 41}9{'0' * 12}",
        },
    }
    summary = {
        "StreamName": STREAM,
        "StreamARN": f"arn:aws:kinesis:{REGION}:000000000000:stream/{STREAM}",
        "StreamStatus": "ACTIVE",
        "RetentionPeriodHours": 24,
        "StreamCreationTimestamp": now - 3600,
        "EnhancedMonitoring": [],
        "OpenShardCount": 0,
    }

    def get_records(request: dict[str, Any]) -> bytes:
        number = int(request["ShardIterator"])
        tail: dict[str, Any] = {"MillisBehindLatest": 0 if number + 1 == load.pages else 1}
        if number + 1 < load.pages:
            tail["NextShardIterator"] = str(number + 1)
        records = prepared.replace(MARK.encode(), b"%06d" % number)
        return records + b"," + json.dumps(tail).encode()[1:]

    return {
        "DescribeStreamSummary": lambda _: {"StreamDescriptionSummary": summary},
        "ListShards": lambda _: {"Shards": [shard]},
        "GetShardIterator": lambda _: {"ShardIterator": "0"},
        "GetRecords": get_records,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m integration.benchmarks.source_speed", description=__doc__
    )
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    lines = [f"{'record':>9} {'way':<14} {'records/s':>12} {'MB/s':>8}   sluice, times it (lowest-highest)"]
    met = True
    panels = []
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-")))
        spark = stack.enter_context(spark_session(directory / "spark", {"spark.log.level": "ERROR"}))
        for source in (PlainSource, ReadySource):
            spark.dataSource.register(source)
        for load in LOADS:
            with server.serving(prepare, load) as endpoint:
                rates = compare(_ways(spark, endpoint, load), arguments.turns)
            lines += _rows(load, rates)
            met = _is_met(load, rates) and met
            panels.append(_panel(load, rates))
    lines.append(f"goals ({GOAL_OF_LIMIT} of ready batches; by hand {GOALS}): {'met' if met else 'NOT met'}")
    write_table("source_speed", lines)
    print(draw("source_speed", panels))
    return 0 if met else 1


def _ways(spark: SparkSession, endpoint: str, load: Load) -> dict[str, Callable[[], int]]:
    ours = {
        "streamName": STREAM,
        "startingPosition": "TRIM_HORIZON",
        "endpointUrl": endpoint,
        "region": REGION,
        "getRecordsInterval": "0",
    }
    rows = max(1, min(load.total, READY_BYTES // load.size))
    batches = -(-load.total // rows)
    ready = {"size": str(load.size), "rows": str(rows), "batches": str(batches)}
    requests = [json.dumps({"ShardIterator": str(n), "Limit": 10_000}).encode() for n in range(load.pages)]

    def bare() -> int:
        server.bare_call(endpoint, "GetRecords", requests)
        return load.total

    return {
        OURS: partial(_drain, spark.read.format("kinesis-efo").options(**ours).load(), load.total),
        BY_HAND: partial(_drain, spark.read.format("plain-kinesis").options(**ours).load(), load.total),
        READY: partial(_drain, spark.read.format("ready-batches").options(**ready).load(), rows * batches),
        BARE: bare,
    }


def _drain(frame: DataFrame, count: int) -> int:
    frame.write.format("noop").mode("overwrite").save()
    return count


def _rows(load: Load, rates: dict[str, Rates]) -> list[str]:
    lines = []
    for way, rate in rates.items():
        ratio, low, high = rates[OURS].against(rate)
        shown = "" if way == OURS else f"{ratio:6.2f}  ({low:.2f}-{high:.2f})"
        megabytes = rate.median * load.size / 1e6
        lines.append(f"{load.size:>7} B {way:<14} {rate.median:>12,.0f} {megabytes:>8,.1f}   {shown}")
    return lines


def _is_met(load: Load, rates: dict[str, Rates]) -> bool:
    by_hand, _, _ = rates[OURS].against(rates[BY_HAND])
    of_limit, _, _ = rates[OURS].against(rates[READY])
    return by_hand >= GOALS.get(load.size, 0.0) and of_limit >= GOAL_OF_LIMIT


def _panel(load: Load, rates: dict[str, Rates]) -> Panel:
    shown = [way for way in rates if way != BARE]
    lines = [Line(way, list(enumerate(rates[way].values))) for way in shown]
    return Panel(f"{load.size} B: records a second, by turn", lines, unit="")


if __name__ == "__main__":
    sys.exit(main())
