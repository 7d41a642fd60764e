"""`aimdScope=query` in real Spark: tasks of a query find the server, and go on when it is gone."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from integration.support.fan_out import MARK
from integration.support.kinesis import REGION
from integration.support.model_streams import ModelStreams
from integration.support.processes import marked_processes
from integration.support.queries import wait_until

TASKS = 6
CAPACITY = 1000
"""Records a second of a stream with one shard."""
SERVER = b"sluice.query_bucket"
NO_BUCKET = b'"bucket":null'
ESTABLISHED = "01"


def servers() -> set[int]:
    """The processes by which tasks compare their paces, of all tests of this run."""
    found = set()
    for process in marked_processes(f"{MARK}={os.environ[MARK]}"):
        with contextlib.suppress(OSError):  # gone
            command = Path(f"/proc/{process}/cmdline").read_bytes()
            if SERVER in command.split(b"\0") and NO_BUCKET in command:
                found.add(process)
    return found


def connections(server: int) -> int:
    """How many tasks are connected to a server."""
    sockets = set()
    with contextlib.suppress(OSError):  # gone
        for descriptor in Path(f"/proc/{server}/fd").iterdir():
            sockets.add(str(descriptor.readlink()))
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(line[3] == ESTABLISHED and f"socket:[{line[9]}]" in sockets for line in lines)


def rows(spark: SparkSession, count: int) -> DataFrame:
    """Rows that say which task writes them."""
    made = spark.range(0, count, 1, TASKS)
    return made.selectExpr(
        "concat(spark_partition_id(), ' ', id) AS data", "cast(id AS string) AS partitionKey"
    )


def write(frame: DataFrame, service: ModelStreams, stream: str) -> None:
    given = {"region": REGION, "endpointUrl": service.endpoint, "streamName": stream}
    frame.write.format("async-sink").option("destination", "kinesis").options(**given).mode("append").save()


def stored(service: ModelStreams, stream: str) -> list[tuple[float, str, str]]:
    """By time (seconds): which task has written which row."""
    records = service.model.oracle.records(stream)
    return sorted((each.arrival / 1e6, *each.data.decode().split()) for each in records)  # type: ignore[misc]


@pytest.mark.parametrize("survives", [True, False])
def test_six_tasks_on_one_shard(
    make_spark: Callable[..., SparkSession], module_service: ModelStreams, *, survives: bool
) -> None:
    """All of them compare their paces, and share the shard about evenly. The server ends with the write.

    Killed meanwhile, it leaves nothing to wait for: each task goes on at its own pace.
    """
    spark = make_spark(master=f"local[{TASKS}]")
    before = servers()
    stream = module_service.create(1)
    count = 9_000 if survives else 4_500
    frame = rows(spark, count)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write, frame, module_service, stream)
        wait_until(lambda: any(connections(each) > 1 for each in servers() - before), "tasks to be connected")
        if not survives:
            [server] = servers() - before
            os.kill(server, signal.SIGKILL)
        writing.result()

    found = stored(module_service, stream)
    assert Counter(int(row) for _, _, row in found) == Counter(range(count))
    begin = max(min(at for at, task, _ in found if task == str(each)) for each in range(TASKS))
    end = min(max(at for at, task, _ in found if task == str(each)) for each in range(TASKS))
    shares = Counter(task for at, task, _ in found if begin <= at <= end)
    least, most = min(shares.values()), max(shares.values())
    used = len(found) / (found[-1][0] - found[0][0]) / CAPACITY
    print(f"\n{used:.0%} used; in {end - begin:.1f} s tasks write {least} to {most} records")
    assert used > 0.7
    if survives:
        assert least > most / 3
    wait_until(lambda: not servers() - before, "the server to end with the write")
