"""Agents that are silent rather than dead, and signals to all processes of a query at once."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.support.drivers import Driver, started_drivers
from integration.support.fan_out import (
    agents,
    consumers,
    wait_for_agent,
    wait_for_no_agents,
    wait_until_pushed,
)
from integration.support.model_streams import ModelStreams
from integration.support.producer import Producer, check_exact
from integration.support.queries import read_stream, wait_until
from integration.support.recorder import Recorder
from integration.support.replay_driver import DriverPlan
from integration.support.spark import Sessions

OPTIONS = {"consumerName": "reader"}
BOUND = 120.0
"""Seconds. What takes seconds takes as long on the busiest machine; what hangs does not end in it."""


@pytest.fixture(autouse=True)
def _no_agent_is_left(spark_sessions: Sessions) -> Iterator[None]:
    wait_for_no_agents()
    yield
    for agent in agents():
        _send(agent, signal.SIGCONT)
    spark_sessions.stop_queries()
    wait_for_no_agents()


@pytest.fixture
def producer(service: ModelStreams) -> Producer:
    """Of a stream of two shards, where it has put 100 records."""
    made = Producer(service, service.create(2))
    made.put(100)
    return made


def _send(process: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def longest_pause(recorder: Recorder, during: Callable[[], bool]) -> float:
    """The longest time in which no new row came while `during` held, in seconds."""
    longest, since, seen = 0.0, time.monotonic(), len(recorder.rows)
    while during():
        time.sleep(0.02)
        if (count := len(recorder.rows)) != seen:
            longest, since, seen = max(longest, time.monotonic() - since), time.monotonic(), count
    return max(longest, time.monotonic() - since)


def test_an_agent_that_is_stopped_and_resumes(
    spark: SparkSession, service: ModelStreams, producer: Producer, checkpoint: str, driver_log: Path
) -> None:
    """SIGSTOP in mid-stream: rows keep coming within seconds, by polling. SIGCONT: they are pushed again."""
    recorder = Recorder(checkpoint)
    query = recorder.start(read_stream(spark, service.endpoint, producer.stream, **OPTIONS))
    with producer.putting():
        wait_until_pushed(recorder, service)
        (agent,) = agents()
        os.kill(agent, signal.SIGSTOP)
        end, stopped = time.monotonic() + 10.0, len(recorder.rows)
        longest = longest_pause(recorder, lambda: time.monotonic() < end)
        wait_until(lambda: len(recorder.rows) > stopped + 100, "rows without the agent", timeout=BOUND)
        silent = f"(process {agent}) has said nothing for"
        wait_until(lambda: silent in driver_log.read_text(), "the log to say so", timeout=BOUND)
        _send(agent, signal.SIGCONT)
        # On the busiest machine that took so long that the agent was killed.
        wait_until(lambda: "speaks again" in driver_log.read_text() or agent not in agents(), "a word")
        wait_until_pushed(recorder, service)
    recorder.wait_for(query, producer.count)
    query.stop()
    wait_for_no_agents()

    check_exact(recorder, producer)
    assert consumers(service, producer.stream) == []
    print(f"\nan agent stopped for 10 s: {producer.count} records, at most {longest:.1f} s without a row")


# --- signals to all processes -----------------------------------------------------------------------------


def everything(driver: Driver) -> list[int]:
    """All processes of the application, as a service manager signals them."""
    return driver.processes()


def the_group(driver: Driver) -> list[int]:
    """What a terminal signals: the driver's process group."""
    return _those(driver, lambda each: os.getpgid(each) == driver.process.pid)


def the_driver(driver: Driver) -> list[int]:
    return [driver.process.pid]


def _those(driver: Driver, holds: Callable[[int], bool]) -> list[int]:
    """The processes of which `holds` is true; some may end while they are looked at."""
    found = []
    for process in driver.processes():
        with contextlib.suppress(OSError):  # gone
            if holds(process):
                found.append(process)
    return found


@pytest.mark.parametrize(
    ("whom", "number"),
    [
        pytest.param(everything, signal.SIGTERM, id="all, SIGTERM"),
        pytest.param(everything, signal.SIGINT, id="all, SIGINT", marks=pytest.mark.soak(seconds=40)),
        pytest.param(the_group, signal.SIGHUP, id="group, SIGHUP", marks=pytest.mark.soak(seconds=40)),
        pytest.param(the_group, signal.SIGTERM, id="group, SIGTERM", marks=pytest.mark.soak(seconds=40)),
        pytest.param(the_driver, signal.SIGTERM, id="driver, SIGTERM", marks=pytest.mark.soak(seconds=40)),
    ],
)
def test_a_stop_by_signals_deregisters_the_consumer(
    service: ModelStreams,
    producer: Producer,
    tmp_path: Path,
    *,
    whom: Callable[[Driver], list[int]],
    number: signal.Signals,
) -> None:
    """Whoever is signalled, the application ends, and its consumer with it."""
    plan = DriverPlan(0, service.endpoint, producer.stream, str(tmp_path), OPTIONS)
    plan.output.mkdir()
    with started_drivers() as drivers, producer.putting():
        driver = Driver(plan)
        drivers.append(driver)
        driver.wait_until(lambda: len(list(plan.output.glob("*.jsonl"))) > 5, "batches")
        agent = wait_for_agent(mark=driver.mark)
        assert len(consumers(service, producer.stream)) == 1
        processes = whom(driver)
        assert (agent in processes) == (whom is everything)
        for process in processes:
            _send(process, number)
        wait_until(lambda: not driver.processes(), "all processes to end", timeout=BOUND)

    assert consumers(service, producer.stream) == [], driver.log.read_text()[-3000:]
