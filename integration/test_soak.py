"""A query that reads by fan-out for a while from a stream whose producer never pauses: it counts every
record.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.support.fan_out import agents, consumers, counting, wait_for_agent, wait_for_no_agents
from integration.support.kinesis import Streams
from integration.support.producer import Producer, check_exact
from integration.support.queries import WAIT, read_stream, wait_until
from integration.support.recorder import Recorder
from integration.support.servers import FaultProxy

SECONDS = float(os.environ.get("SLUICE_SOAK_SECONDS", "600"))
RENEWED_BY = 275.0
SHARDS = 2


@pytest.mark.soak(seconds=SECONDS + 60)
def test_a_query_that_runs_for_long(
    spark: SparkSession, ministack_faults: FaultProxy, streams: Streams, checkpoint: str, driver_log: Path
) -> None:
    """Every record once and in order, by one agent; a subscription for each shard, and one more for each
    renewal. When it has found its stride nothing is polled.
    """
    stream = streams.create(SHARDS)
    producer = Producer(streams, stream, per_put=20, pause=0.2)
    producer.put(100)
    ministack_faults.set_rules(counting("GetRecords"), counting("SubscribeToShard"))
    recorder = Recorder(checkpoint)
    query = recorder.start(read_stream(spark, ministack_faults.endpoint, stream, consumerName="soak"))
    recorder.wait_for(query, producer.count)
    agent = wait_for_agent()
    end = time.monotonic() + SECONDS

    def is_over() -> bool:
        if error := query.exception():
            raise error
        return time.monotonic() > end

    with producer.putting():
        wait_until(is_over, "the time to be over", timeout=SECONDS + WAIT)
    recorder.wait_for(query, producer.count)
    assert agents() == [agent]
    query.stop()
    wait_for_no_agents()

    check_exact(recorder, producer)
    assert consumers(streams, stream) == []
    calls, polls = (ministack_faults.count(each) for each in ("SubscribeToShard", "GetRecords"))
    rounds = 1 + int(SECONDS // RENEWED_BY)
    assert calls >= SHARDS * rounds
    assert "not subscribed; polling" not in driver_log.read_text()
    print(
        f"\nsoak: {producer.count} records in {SECONDS:g} s, {len(recorder.batches)} batches, all once; "
        f"{calls} subscriptions ({calls - SHARDS} renewals), {polls} polls"
    )
