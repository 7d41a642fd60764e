"""An agent that polls the tips of shards: each record is read once, and no failure of the agent loses one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration.support.fan_out import agents, kill, wait_for_agent, wait_for_no_agents
from integration.support.model_streams import ModelStreams
from integration.support.producer import Producer, check_exact
from integration.support.queries import read_stream, wait_until
from integration.support.recorder import Recorder
from integration.support.spark import Sessions

_PAGE = 1_900
"""The limit that an agent asks for, and neither the planner nor a task does."""
_ENOUGH = 8
_THROTTLED = ("GetRecords", "ProvisionedThroughputExceededException")


class ReadsOfOthers:
    """Counts the reads that are not an agent's, as a fault plan that has nothing fail."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, operation: str, request: Any) -> None:
        if operation == "GetRecords" and request.get("Limit") not in (1, _PAGE):
            self.count += 1


@pytest.fixture(autouse=True)
def _no_agent_is_left(spark_sessions: Sessions) -> Iterator[None]:
    wait_for_no_agents()  # of tests before, which may take some seconds to deregister their consumers
    yield
    spark_sessions.stop_queries()
    wait_for_no_agents()


def wait_until_polled(
    recorder: Recorder, reads: ReadsOfOthers, refused: Callable[[], int] = lambda: 0
) -> None:
    """Returns when so many batches in a row have come without a read of planner or tasks, which there are
    when the machine pauses for as long as an agent may be silent.

    `refused`: counts the reads that the service has refused; none of them either.
    """
    seen = [-1, 0]

    def is_polled() -> bool:
        done = len(recorder.batches)
        if (count := reads.count + refused()) != seen[0]:
            seen[:] = [count, done]
        return done >= seen[1] + _ENOUGH

    wait_until(is_polled, f"{_ENOUGH} batches from the agent alone")


@pytest.mark.parametrize("place", ["driver", pytest.param("workers", marks=pytest.mark.soak(seconds=40))])
def test_the_tip_is_read_once_and_an_agent_that_is_killed_costs_no_record(
    spark: SparkSession, service: ModelStreams, checkpoint: str, place: str
) -> None:
    """SIGKILL in mid-stream: planner and tasks read until another agent does."""
    producer = Producer(service, service.create(2))
    producer.put(100)
    reads = ReadsOfOthers()
    service.fail_if(reads)
    recorder = Recorder(checkpoint)
    query = recorder.start(read_stream(spark, service.endpoint, producer.stream, agent=place))
    with producer.putting():
        wait_until_polled(recorder, reads)
        wait_until_polled(recorder, reads, lambda: service.model.refusals[_THROTTLED])
        (agent,) = agents()[:1] if place == "workers" else agents()
        kill(agent)
        wait_for_agent(other_than=agent)
        wait_until_polled(recorder, reads)
    recorder.wait_for(query, producer.count)
    query.stop()

    check_exact(recorder, producer)


def test_a_run_of_what_is_available_starts_no_agent(
    spark: SparkSession, service: ModelStreams, checkpoint: str
) -> None:
    """It ends at the tip, so there is none to follow."""
    producer = Producer(service, service.create(2))
    producer.put(200)
    recorder = Recorder(checkpoint)
    seen: list[int] = []
    recorder.intervene = lambda _batch: seen.extend(agents())
    recorder.run_available(read_stream(spark, service.endpoint, producer.stream, agent="driver"))

    check_exact(recorder, producer)
    assert seen == []
