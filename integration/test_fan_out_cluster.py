"""Fan-out on a cluster: a master and two workers, each at a separate address, so that each is a host."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.support.cluster import HOSTS, standalone_cluster
from integration.support.fan_out import (
    agents,
    consumers,
    counting,
    kill,
    wait_for_no_agents,
    wait_until_pushed,
)
from integration.support.kinesis import Streams
from integration.support.producer import Producer, check_exact
from integration.support.queries import read_stream, wait_until
from integration.support.recorder import Recorder
from integration.support.servers import FaultProxy
from integration.support.spark import JVM_OPTIONS, Sessions

SHARDS = 4
OPTIONS = {"consumerName": "reader", "shardsPerTask": "1"}


@pytest.fixture(scope="module")
def cluster(spark_sessions: Sessions) -> Iterator[str]:
    with standalone_cluster() as master:
        yield master
        spark_sessions.stop()  # before the cluster goes


@pytest.fixture
def spark(make_spark: Callable[..., SparkSession], cluster: str) -> SparkSession:
    settings = {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": os.environ[JVM_OPTIONS],
    }
    return make_spark(settings, master=cluster)


@pytest.fixture
def producer(streams: Streams) -> Producer:
    made = Producer(streams, streams.create(SHARDS), per_put=20, pause=0.1)
    made.put(200)
    return made


@pytest.fixture
def recorder(checkpoint: str) -> Recorder:
    return Recorder(checkpoint)


def on_workers() -> list[int]:
    """The agents that tasks have started: they get their orders on standard input."""
    return [each for each in agents() if _command(each).endswith(b".agent\0")]


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:  # gone
        return b""


def test_an_agent_on_each_worker_host(
    spark: SparkSession, producer: Producer, recorder: Recorder, ministack_faults: FaultProxy
) -> None:
    """With ``agent`` ``workers`` each host gets one agent, and the shards are dealt out to them; one
    that is killed is replaced. Every record comes once, and nothing is left after the query.
    """
    ministack_faults.set_rules(counting("GetRecords"))
    frame = read_stream(spark, ministack_faults.endpoint, producer.stream, agent="workers", **OPTIONS)
    query = recorder.start(frame)
    with producer.putting():
        wait_until(lambda: len(on_workers()) == len(HOSTS), "an agent on each host")
        wait_until_pushed(recorder, ministack_faults)
        killed = on_workers()[0]
        kill(killed)
        wait_until(
            lambda: killed not in on_workers() and len(on_workers()) == len(HOSTS), "another agent there"
        )
        wait_until_pushed(recorder, ministack_faults)
        wait_until(lambda: len(agents()) == len(HOSTS) + 1, "as many agents, and the one on the driver host")
    recorder.wait_for(query, producer.count)
    query.stop()
    wait_for_no_agents()

    check_exact(recorder, producer)
    assert consumers(producer.streams, producer.stream) == []
    print(
        f"\nagents on {len(HOSTS)} hosts: {producer.count} records, {len(recorder.batches)} batches, all once"
    )


def test_a_silent_agent_on_a_worker_host(
    spark: SparkSession, producer: Producer, recorder: Recorder, ministack_faults: FaultProxy
) -> None:
    """SIGSTOP: its shards go to the agent of the other host, and are pushed again within seconds."""
    ministack_faults.set_rules(counting("GetRecords"))
    frame = read_stream(spark, ministack_faults.endpoint, producer.stream, agent="workers", **OPTIONS)
    query = recorder.start(frame)
    with producer.putting():
        wait_until(lambda: len(on_workers()) == len(HOSTS), "an agent on each host")
        wait_until_pushed(recorder, ministack_faults)
        stopped = on_workers()[0]
        os.kill(stopped, signal.SIGSTOP)
        try:
            rows = len(recorder.rows)
            wait_until(lambda: len(recorder.rows) > rows + 500, "rows without it")
            wait_until_pushed(recorder, ministack_faults)
        finally:
            os.kill(stopped, signal.SIGCONT)
        wait_until(lambda: len(on_workers()) == len(HOSTS), "an agent on each host again")
        wait_until_pushed(recorder, ministack_faults)
    recorder.wait_for(query, producer.count)
    query.stop()
    wait_for_no_agents()

    check_exact(recorder, producer)
    assert consumers(producer.streams, producer.stream) == []


def test_one_agent_on_the_driver_host(
    spark: SparkSession, producer: Producer, recorder: Recorder, ministack_faults: FaultProxy
) -> None:
    """By default the tasks of all hosts read from the one agent."""
    ministack_faults.set_rules(counting("GetRecords"))
    query = recorder.start(read_stream(spark, ministack_faults.endpoint, producer.stream, **OPTIONS))
    with producer.putting():
        wait_until_pushed(recorder, ministack_faults)
        assert len(agents()) == 1
        assert on_workers() == []
    recorder.wait_for(query, producer.count)
    query.stop()
    wait_for_no_agents()

    check_exact(recorder, producer)
    assert consumers(producer.streams, producer.stream) == []
