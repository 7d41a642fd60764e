"""The speed of reading: this source, one written by hand, and the most that Spark takes from Python.

One task reads one shard from a server with prepared answers. The source written by hand uses the SDK's own
parser and a tuple for each row. Ours asks for records in CBOR, and in a second run in JSON
(``wireFormat=json``). The limit is a source that yields one record batch again and again.

    python -m integration.benchmarks.source_speed
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from integration.benchmarks import server
from integration.benchmarks.backlog import backlog, read_options
from integration.benchmarks.plain import READY_BYTES, PlainSource, ReadySource
from integration.benchmarks.versus import TITLES, Rates, compare, rows, session_with, write_table

OURS, IN_JSON, BY_HAND, READY, BARE = "sluice", "sluice in JSON", "by hand", "ready batches", "bare client"
GOALS = {100: 10.0, 1024: 4.0}  # times the rate of the source written by hand, by bytes of a record
GOAL_OF_LIMIT = 0.5


@dataclass(frozen=True)
class Load:
    """The records of the shard: `pages` of `records` of `size` bytes each."""

    size: int
    records: int
    pages: int

    @property
    def total(self) -> int:
        return self.records * self.pages


LOADS = (Load(100, 10_000, 40), Load(1024, 7_000, 20), Load(10_240, 700, 30))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m integration.benchmarks.source_speed", description=__doc__
    )
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    lines = [f"{TITLES}   sluice, times it (lowest-highest)"]
    met = True
    with session_with(PlainSource, ReadySource) as spark:
        for load in LOADS:
            with server.serving(backlog, 1, load.pages, load.records, load.size) as endpoint:
                rates = compare(_ways(spark, endpoint, load), arguments.turns)
            lines += rows(load.size, rates, OURS)
            met = _is_met(load, rates) and met
    lines.append(f"goals ({GOAL_OF_LIMIT} of ready batches; by hand {GOALS}): {'met' if met else 'NOT met'}")
    write_table("source_speed", lines)
    return 0 if met else 1


def _ways(spark: SparkSession, endpoint: str, load: Load) -> dict[str, Callable[[], int]]:
    ours = read_options(endpoint)
    count = max(1, min(load.total, READY_BYTES // load.size))
    batches = -(-load.total // count)
    ready = {"size": str(load.size), "rows": str(count), "batches": str(batches)}
    requests = [json.dumps({"ShardIterator": str(n), "Limit": 10_000}).encode() for n in range(load.pages)]

    def bare() -> int:
        server.bare_call(endpoint, "GetRecords", requests)
        return load.total

    return {
        OURS: partial(_drain, spark.read.format("kinesis-efo").options(**ours).load(), load.total),
        IN_JSON: partial(
            _drain, spark.read.format("kinesis-efo").options(wireFormat="json", **ours).load(), load.total
        ),
        BY_HAND: partial(_drain, spark.read.format("plain-kinesis").options(**ours).load(), load.total),
        READY: partial(_drain, spark.read.format("ready-batches").options(**ready).load(), count * batches),
        BARE: bare,
    }


def _drain(frame: DataFrame, count: int) -> int:
    frame.write.format("noop").mode("overwrite").save()
    return count


def _is_met(load: Load, rates: dict[str, Rates]) -> bool:
    by_hand, _, _ = rates[OURS].against(rates[BY_HAND])
    of_limit, _, _ = rates[OURS].against(rates[READY])
    return by_hand >= GOALS.get(load.size, 0.0) and of_limit >= GOAL_OF_LIMIT


if __name__ == "__main__":
    sys.exit(main())
