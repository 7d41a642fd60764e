"""SIGKILL for what fan-out consists of: nothing is lost or doubled, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.support.drivers import Driver, Outcome, started_drivers
from integration.support.fan_out import (
    MARK,
    agents,
    consumers,
    is_alive,
    kill,
    parent_of,
    wait_for_agent,
    wait_for_no_agents,
    wait_until_pushed,
)
from integration.support.model_streams import ModelStreams
from integration.support.processes import marked_processes
from integration.support.producer import Producer, check_exact
from integration.support.queries import WAIT, read_stream, wait_until
from integration.support.recorder import Recorder
from integration.support.replay_driver import HALF, DriverPlan
from integration.support.spark import Sessions

OPTIONS = {"consumerName": "reader"}
# As often as it takes to see that the second time is as good as the first, and more often in a soak.
KILLS = pytest.mark.parametrize("kills", [2, pytest.param(12, marks=pytest.mark.soak(seconds=120))])


@pytest.fixture(autouse=True)
def _no_agent_is_left(spark_sessions: Sessions) -> Iterator[None]:
    wait_for_no_agents()  # of tests before, which may take some seconds to deregister their consumers
    yield
    spark_sessions.stop_queries()
    wait_for_no_agents()


@pytest.fixture
def producer(service: ModelStreams) -> Producer:
    """Of a stream of two shards, where it has put 100 records."""
    made = Producer(service, service.create(2))
    made.put(100)
    return made


@KILLS
def test_an_agent_that_is_killed(
    spark: SparkSession, service: ModelStreams, producer: Producer, checkpoint: str, kills: int
) -> None:
    """SIGKILL in mid-stream, again and again: another agent takes its place, records are pushed again, and
    each comes once. The last agent deregisters the consumer that the first one read with.
    """
    recorder = Recorder(checkpoint)
    stream = producer.stream
    query = recorder.start(read_stream(spark, service.endpoint, stream, **OPTIONS))
    killed: list[int] = []
    with producer.putting():
        for _ in range(kills):
            wait_until_pushed(recorder, service)
            (agent,) = agents()
            kill(agent)
            killed.append(agent)
            wait_for_agent(other_than=agent)
        wait_until_pushed(recorder, service)
    recorder.wait_for(query, producer.count)
    assert len(consumers(service, stream)) == 1
    query.stop()
    wait_for_no_agents()

    check_exact(recorder, producer)
    assert len(set(killed)) == kills
    assert consumers(service, stream) == []
    print(f"\nagents: {kills} kills, {producer.count} records, {len(recorder.batches)} batches, all once")


@KILLS
def test_python_workers_that_are_killed(
    make_spark: Callable[..., SparkSession],
    producer: Producer,
    service: ModelStreams,
    checkpoint: str,
    kills: int,
) -> None:
    """SIGKILL for the workers that read, in the middle of batches: their tasks are tried again, from what
    the agent still has.
    """
    spark = make_spark(master="local[2,8]")
    recorder = Recorder(checkpoint)
    killed: list[int] = []
    busy = threading.Event()
    recorder.intervene = lambda _batch: busy.set()
    query = recorder.start(read_stream(spark, service.endpoint, producer.stream, **OPTIONS))
    with producer.putting():
        planning = parent_of(wait_for_agent())
        for _ in range(kills):
            read = len(recorder.rows)
            recorder.wait_for(query, read + 100)
            busy.clear()
            assert busy.wait(WAIT)
            victims = [each for each in workers() if each != planning]
            for worker in victims:
                kill(worker)
            killed += victims
    recorder.wait_for(query, producer.count)
    query.stop()

    assert len(killed) >= kills
    check_exact(recorder, producer)


def workers() -> list[int]:
    """The Python workers of this process' Spark: what its worker daemon has forked."""
    parents: dict[int, int] = {}  # of the daemon and the workers
    for process in marked_processes(os.environ[MARK]):
        with contextlib.suppress(OSError):  # gone
            if b"pyspark.worker" in Path(f"/proc/{process}/cmdline").read_bytes():
                parents[process] = parent_of(process)
    return [process for process, parent in parents.items() if parent in parents]


@pytest.fixture
def drivers() -> Iterator[list[Driver]]:
    with started_drivers() as started:
        yield started


def test_a_driver_that_is_killed(
    service: ModelStreams, producer: Producer, tmp_path: Path, drivers: list[Driver]
) -> None:
    """SIGKILL for the driver and its JVM, in the middle of a batch: the agent ends by itself, the consumer
    stays, and the next run resumes exactly, with the same consumer, which it deregisters when it stops.
    """
    plan = DriverPlan(0, service.endpoint, producer.stream, str(tmp_path), {**OPTIONS, "shardsPerTask": "1"})
    plan.output.mkdir()
    with producer.putting():
        first = Driver(replace(plan, stop_at=(3, HALF)))
        drivers.append(first)
        first.wait_for(f"reached {HALF} of batch ")
        agent = wait_for_agent(mark=first.mark)
        first.kill_only_driver()
        wait_until(lambda: not is_alive(agent), "the agent to end by itself")
        wait_until(lambda: not first.processes(), "the rest to end")
        registered = consumers(service, producer.stream)
    second = Driver(replace(plan, attempt=1))
    drivers.append(second)
    second.wait_until(lambda: len(Outcome.of(plan.output).rows) >= producer.count, "all that was put")
    assert consumers(service, producer.stream) == registered
    assert len(registered) == 1
    second.end()

    outcome = Outcome.of(plan.output)
    outcome.check_replays()
    found = Counter((shard, int(number), bytes.fromhex(data)) for shard, number, _, data in outcome.rows)
    assert found == producer.expected()
    assert outcome.replayed()
    assert consumers(service, producer.stream) == []
