"""Fan-out where it is at home: on a cluster of several hosts, which lose their power or their network.

The hosts are network namespaces (`integration.support.hosts`). In each scene every record comes once and in
order, and no lag of 0 is reported for a shard that has waited for more than 15 s. No record waits for longer
than 30 s, and what Spark takes to start Python on a host: in place of an executor that is lost it does so in
the midst of a batch.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from integration.support.cluster_driver import ROWS, TASKS
from integration.support.hosts import find_obstacle
from integration.support.network_cluster import (
    DRIVER,
    MASTER,
    WORKERS,
    Cluster,
    Query,
    TimedProducer,
    running_cluster,
)
from integration.support.producer import check_exact
from integration.support.spark import JVM_OPTIONS

pytestmark = pytest.mark.cluster

SHARDS = 12
SINK_SHARDS = 2
EPOCHS = 4
LONGEST_UNREAD = 30.0
OPTIONS = {"shardsPerTask": "2"}
PUSHED = {"consumerName": "reader", **OPTIONS}
OF_AGENTS = (1, 1_900)
"""What an agent that polls asks for at most in a read, and neither the planner nor a task does."""
SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": os.environ.get(JVM_OPTIONS, ""),
}

DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.executorIdleTimeout": "5s",
    "spark.executor.cores": "2",
    "spark.task.cpus": "2",  # an executor does one task at a time
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if (obstacle := find_obstacle()) is not None:
        pytest.skip(f"no cluster of hosts: {obstacle}")
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def application(cluster: Cluster) -> Cluster:
    cluster.start_driver(SETTINGS)
    return cluster


@pytest.fixture
def producer(cluster: Cluster) -> TimedProducer:
    return TimedProducer(cluster.service, cluster.service.create(SHARDS))


@contextlib.contextmanager
def reading(
    cluster: Cluster,
    producer: TimedProducer,
    scene: str,
    *,
    before: Query | None = None,
    millis_per_row: int = 0,
    base: Mapping[str, str] = PUSHED,
    **options: str,
) -> Iterator[Scene]:
    """Reads the records that are put meanwhile; then checks the promises of each scene, and prints its
    figures.

    `before`: a run of the query from which this one resumes; `millis_per_row`: extra time of a task for a
    row.
    """
    made = Scene(scene, cluster, producer)
    given = {**base, **options}
    with cluster.query(producer.stream, given, before=before, millis_per_row=millis_per_row) as query:
        made.query = query
        with producer.putting():
            begin = time.time()
            made.wait_for_rows()
            made.since = time.time()
            made.cold_start = made.since - begin
            yield made
        made.finish()
    made.check()


class ReadsOfOthers:
    """Counts the reads that are not an agent's, as a fault plan that has nothing fail."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, operation: str, request: Mapping[str, Any]) -> None:
        if operation == "GetRecords" and request.get("Limit") not in OF_AGENTS:
            self.count += 1


@dataclass
class Scene:
    """A query on the cluster, and its measurements."""

    name: str
    cluster: Cluster
    producer: TimedProducer
    since: float = 0.0  # when the first rows had come
    cold_start: float = 0.0  # what Spark takes until then, to start Python on its hosts (seconds)
    figures: dict[str, float] = field(default_factory=dict)  # seconds
    query: Query = field(init=False)

    def wait_until_pushed(self, figure: str, *, polls: Callable[[], int] | None = None) -> None:
        """Waits until nothing is polled any more. The seconds that it took are a figure.

        `polls`: how many there were; by default all of the stream.
        """
        self.figures[figure] = self.cluster.wait_until_pushed(self.query, polls)

    def wait_until(self, holds: Callable[[], object], what: str) -> None:
        self.cluster.wait_until(holds, what)

    def wait_for_rows(self, more: int = 1) -> None:
        wanted = self.query.count() + more
        self.wait_until(lambda: self.query.count() >= wanted, f"{more} more rows")

    def wait_for_agents(self, hosts: Sequence[str] = WORKERS) -> None:
        self.wait_until(lambda: all(self.cluster.agents(host) for host in hosts), "an agent on each host")

    def wait_for_executors(self, count: int, figure: str) -> None:
        """Waits until so many hosts have an executor. The seconds that it took are a figure."""
        self.figures[figure] = self.cluster.wait_until(
            lambda: sum(bool(self.cluster.executors(host)) for host in WORKERS) == count,
            f"{count} hosts with an executor",
        )

    def finish(self) -> None:
        count = self.producer.count
        self.wait_until(lambda: self.query.count() >= count, f"{count} rows")

    def check(self) -> None:
        check_exact(self.query, self.producer)
        waited, shard = self.query.longest_unread(self.producer, self.since)
        told = [f"{self.producer.count} records, each once and in order", f"at most {waited:.1f} s unread"]
        told.append(f"cold start: {self.cold_start:.1f} s")
        told += [f"{name}: {value:.1f} s" for name, value in self.figures.items()]
        print(f"\n{self.name}: {'; '.join(told)}", flush=True)
        assert waited < LONGEST_UNREAD + self.cold_start, f"{shard} was not read for {waited:.1f} s"
        assert self.query.lies(self.producer) == []


def test_defaults(application: Cluster, producer: TimedProducer) -> None:
    """Nothing is said of addresses: the tasks of all hosts read from the one agent on the driver host."""
    with reading(application, producer, "defaults") as scene:
        scene.wait_until_pushed("all is pushed after")
        assert len(application.agents(DRIVER)) == 1
        application.wait_until_pushed(scene.query, batches=25)


def test_agents_on_workers(application: Cluster, producer: TimedProducer) -> None:
    """Each host, whose name means 127.0.1.1 there, gets an agent that the others reach."""
    with reading(application, producer, "workers", agent="workers") as scene:
        scene.wait_for_agents()
        scene.wait_until_pushed("all is pushed after")
        assert [len(application.agents(host)) for host in WORKERS] == [1, 1, 1]
    assert "can't serve" not in application.executor_logs()


def test_power_off(application: Cluster, producer: TimedProducer) -> None:
    """A worker's host fails, with its agent. What was its is read at once, and it is taken in again."""
    lost = WORKERS[0]
    with reading(application, producer, "power off", agent="workers") as scene:
        scene.wait_for_agents()
        scene.wait_until_pushed("all is pushed after")
        application.host(lost).power_off()
        try:
            scene.wait_for_rows(2000)
            scene.wait_until_pushed("pushed without it after")
        finally:
            application.host(lost).plug_cable()
            application.start_worker(lost, wait=False)
        scene.wait_for_agents()
        scene.wait_until_pushed("pushed with it after")
    lost_address = application.host(lost).address
    [warning] = scene.query.lines("WARNING", "has said nothing", lost_address)
    assert "shardId-" in warning


def test_cable_out(application: Cluster, producer: TimedProducer) -> None:
    """A worker's host loses its network for half a minute. Its processes keep running."""
    cut = application.host(WORKERS[1])
    with reading(application, producer, "cable out", agent="workers") as scene:
        scene.wait_for_agents()
        scene.wait_until_pushed("all is pushed after")
        cut.pull_cable()
        try:
            time.sleep(30)
        finally:
            cut.plug_cable()
        scene.wait_for_agents()
        scene.wait_until_pushed("pushed again after")


@pytest.mark.parametrize("agent", ["driver", "workers"])
def test_frozen_agent(application: Cluster, producer: TimedProducer, agent: str) -> None:
    """An agent is frozen for a quarter of a minute, and resumes."""
    host = DRIVER if agent == "driver" else WORKERS[2]
    with reading(application, producer, f"frozen agent ({agent})", agent=agent) as scene:
        scene.wait_for_agents([host])
        scene.wait_until_pushed("all is pushed after")
        [frozen] = application.agents(host)
        os.kill(frozen, signal.SIGSTOP)
        try:
            time.sleep(15)
        finally:
            os.kill(frozen, signal.SIGCONT)
        scene.wait_until_pushed("pushed again after")


def test_replaced_executor(application: Cluster, producer: TimedProducer) -> None:
    """An executor is killed, and Spark starts another one. The agent of its host stays as it is."""
    host = WORKERS[0]
    with reading(application, producer, "replaced executor", agent="workers") as scene:
        scene.wait_for_agents()
        scene.wait_until_pushed("all is pushed after")
        before, executors = application.agents(host), application.executors(host)
        for executor in executors:
            os.kill(executor, signal.SIGKILL)
        scene.wait_until(lambda: set(application.executors(host)) - set(executors), "another executor")
        scene.wait_for_rows(500)
        scene.wait_until_pushed("pushed again after")
        assert application.agents(host) == before


def test_polling_agents_on_workers(application: Cluster, producer: TimedProducer) -> None:
    """They poll, and a worker's host fails. Planner and tasks read its shards until another agent does."""
    lost = WORKERS[2]
    reads = ReadsOfOthers()
    application.service.fail_if(reads)
    try:
        with reading(application, producer, "polling agents", base=OPTIONS, agent="workers") as scene:
            scene.wait_for_agents()
            scene.wait_until_pushed("agents alone read after", polls=lambda: reads.count)
            application.host(lost).power_off()
            try:
                scene.wait_for_rows(2000)
                scene.wait_until_pushed("those that are left alone after", polls=lambda: reads.count)
            finally:
                application.host(lost).plug_cable()
                application.start_worker(lost, wait=False)
            scene.wait_for_agents()
            scene.wait_until_pushed("all agents alone after", polls=lambda: reads.count)
    finally:
        application.service.clear_faults()
    [warning] = scene.query.lines("WARNING", "has said nothing", application.host(lost).address)
    assert "shardId-" in warning


def test_sink(application: Cluster) -> None:
    """Six tasks on three hosts write to one stream, as much as it takes, and share it."""
    stream = application.service.create(SINK_SHARDS)
    with application.query(stream, {}, sink={"destination": "kinesis"}) as query:
        application.wait_until(lambda: len(query.lines("committed destination")) >= EPOCHS, "epochs")
    written: dict[int, list[tuple[float, str]]] = {}
    for record in application.service.model.oracle.records(stream):
        task, number = record.data.decode().split()
        written.setdefault(int(number) // ROWS, []).append((record.arrival / 1e6, task))
    settled = []
    for epoch, line in zip(range(EPOCHS), query.lines("committed destination"), strict=False):
        records = sorted(written[epoch])
        assert len(records) >= ROWS
        figures = {key: float(value) for key, value in re.findall(r"(records_out|refused)=(\d+)", line)}
        used = len(records) / (records[-1][0] - records[0][0]) / (1_000.0 * SINK_SHARDS)
        refused = figures["refused"] / figures["records_out"]
        shares = shares_of_tasks(records)
        settled.append((used, refused, min(shares) / max(shares)))
        print(
            f"\nsink, epoch {epoch}: {used:.0%} of the capacity used, {refused:.1%} refused; while all tasks "
            f"write, they write {min(shares)} to {max(shares)} records",
            flush=True,
        )
    used, refused, even = (sum(each) / (EPOCHS - 1) for each in zip(*settled[1:], strict=True))
    print(f"\nsink, settled: {used:.0%} used, {refused:.1%} refused, shares {even:.2f}", flush=True)
    assert used > 0.85
    assert refused < 0.05
    assert even > 0.5


def shares_of_tasks(records: Sequence[tuple[float, str]]) -> list[int]:
    """What each task has written from when the last one has begun until the first one ends."""
    tasks = {task for _, task in records}
    assert len(tasks) == TASKS
    begin = max(min(at for at, task in records if task == name) for name in tasks)
    end = min(max(at for at, task in records if task == name) for name in tasks)
    return [1 + sum(begin <= at <= end and task == name for at, task in records) for name in tasks]


def test_dynamic_allocation(cluster: Cluster, producer: TimedProducer) -> None:
    """Spark gives executors back while there is little to do, and takes others when there is more."""
    cluster.start_driver({**SETTINGS, **DYNAMIC})
    with reading(
        cluster, producer, "dynamic allocation", millis_per_row=5, agent="workers", shardsPerTask="1"
    ) as scene:
        scene.wait_for_agents()
        scene.wait_until_pushed("all is pushed after")
        before = [cluster.agents(host) for host in WORKERS]
        with producer.trickling():
            scene.wait_for_executors(1, "one executor is left after")
        scene.wait_for_executors(len(WORKERS), "each host has one again after")
        scene.wait_until_pushed("pushed again after")
        assert [cluster.agents(host) for host in WORKERS] == before
    assert not scene.query.lines("WARNING", "has said nothing")


def test_driver_known_by_name(cluster: Cluster, producer: TimedProducer) -> None:
    """The name of the driver means 127.0.1.1 on its own host. A worker runs there, too."""
    everywhere = "0.0.0.0"  # noqa: S104 - of the network namespace
    cluster.start_driver({**SETTINGS, "spark.driver.host": DRIVER, "spark.driver.bindAddress": everywhere})
    cluster.start_worker(DRIVER, wait=False)
    with reading(cluster, producer, "driver known by name", agent="workers") as scene:
        scene.wait_until(lambda: len(cluster.agents(DRIVER)) == 2, "an agent beside that of the driver")
        scene.wait_for_agents()
        scene.wait_until_pushed("all is pushed after")


def test_driver_elsewhere(cluster: Cluster, producer: TimedProducer) -> None:
    """The driver's host fails. Its query resumes on another host, and reads each record once."""
    settings = {**SETTINGS, "spark.cores.max": "3"}
    cluster.start_driver(settings)
    with cluster.query(producer.stream, {**PUSHED, "agent": "workers"}) as first:
        with producer.putting():
            cluster.wait_until_pushed(first)
        cluster.lose_driver(DRIVER)
    try:
        cluster.start_driver(settings, host=MASTER)
        with reading(cluster, producer, "driver elsewhere", before=first, agent="workers") as scene:
            scene.wait_until_pushed("all is pushed after")
    finally:
        cluster.host(DRIVER).plug_cable()
