"""However a query ends, it leaves no consumer that it registered and that its next run would not deregister.

A planning process runs against the strict model, with a real agent, and is ended at some moment.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest
from integration.model import Laws
from integration.model.sending import WireFault
from integration.model.server import ModelServer, serving

CREATION = 2.0
"""Seconds until a consumer is active."""
LAWS = Laws(
    empty_pages=0,
    listing_delay=0,
    status_delay=(0, 0),
    consumer_delay=(CREATION, CREATION),
    creating_limit=None,
)
SLOW_PUSH = replace(LAWS, event_bytes=1000, event_interval=0.2)
"""A batch of 10 KB is pushed for some two seconds."""
PATIENT = 20.0
SHARD = "shardId-000000000000"

PLANNING = textwrap.dedent("""
    import json, sys, time
    from sluice.kinesis.options.config import source_config_from_options
    from sluice.kinesis.source import KinesisSource
    from sluice.source.model.offsets import Offsets

    config = source_config_from_options(json.loads(sys.argv[1]), streaming=True)
    coordinator = KinesisSource(config).create_coordinator()
    enumerator = coordinator.enumerator
    start = enumerator.initial()
    coordinator.restore(start)
    while (end := enumerator.advance(start)) is start:
        time.sleep(0.1)
    print("planned", coordinator._agent._supervisor._agent.process.pid, flush=True)
    input()
    end = Offsets.from_json(end.to_json())  # from the offset log
    coordinator.restore(end)
    coordinator.assign(enumerator.ranges(start, end))
    print("logged", flush=True)
    while True:
        enumerator.advance(end)
        time.sleep(0.1)
""")

BATCHES = textwrap.dedent("""
    import json, sys, time
    from sluice.kinesis.options.config import source_config_from_options
    from sluice.kinesis.source import KinesisSource
    from sluice.spark.source_reader import make_stream_reader

    config = source_config_from_options(json.loads(sys.argv[1]), streaming=True)
    reader = make_stream_reader(KinesisSource(config))
    start = json.loads(sys.argv[2]) if sys.argv[2:] else reader.initialOffset()
    while True:
        end = reader.latestOffset(start)
        if end != start:
            partitions = reader.partitions(start, end)
            print(json.dumps(end), flush=True)
            for partition in partitions:
                for _batch in reader.read(partition):
                    pass
            start = end
        time.sleep(0.05)
""")
"""As Spark calls a reader, in one process. Each line is the end of a batch that is in the offset log."""


class Query:
    """The planning process of a query, and the service that it reads from."""

    def __init__(self, server: ModelServer, process: subprocess.Popen[str]) -> None:
        self.model = server.model
        self.process = process
        self.logged = ""
        summary = self.model.call("DescribeStreamSummary", {"StreamName": "s"})["StreamDescriptionSummary"]
        self._stream_arn = summary["StreamARN"]

    # --- moments ---

    def is_asked(self) -> None:
        """It has asked for a consumer, and has no answer yet."""
        self._wait(lambda: self.model.calls["RegisterStreamConsumer"] > 0)

    def is_creating(self) -> None:
        """It waits for its consumer."""
        self.is_asked()
        time.sleep(CREATION / 5)
        assert self._statuses() == ["CREATING"]

    def is_planned(self) -> None:
        """It has planned a batch, which nobody has logged."""
        assert self.process.stdout is not None
        word, agent = self.process.stdout.readline().split()
        assert word == "planned"
        self._agent = int(agent)

    def has_no_agent(self) -> None:
        """Its agent has died, and there is no trigger that would start another one."""
        self.is_planned()
        os.kill(self._agent, signal.SIGKILL)
        time.sleep(CREATION / 5)

    def is_logged(self) -> None:
        """The end of a batch is in the offset log."""
        self.is_planned()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "logged\n"

    def next_batch(self) -> str:
        """The end of the next batch that it logs."""
        assert self.process.stdout is not None
        self.logged = self.process.stdout.readline()
        assert self.logged
        return self.logged

    def is_taken_over_in_a_batch(self) -> None:
        """Another reader has taken its consumer while it read; two batches have been logged since."""
        self.next_batch()
        self._wait(self._is_pushed)
        self.model.subscriptions("s", SHARD)[0].take_over()
        time.sleep(CREATION)  # the rest is polled
        for _ in range(2):
            self.model.put("s", "key", b"data")
            self.next_batch()

    def loses_consumer_to_others(self) -> None:
        """Somebody has deleted its consumer while a subscription was open, and it has registered another."""
        self.is_logged()
        self._wait(self._is_pushed)
        old = self.model.call("ListStreamConsumers", {"StreamARN": self._stream_arn})["Consumers"][0]
        self.model.call("DeregisterStreamConsumer", {"ConsumerARN": old["ConsumerARN"]})
        self.model.faults.force("SubscribeToShard.event", "ResourceInUseException")
        self.model.put("s", "key", b"data")
        self._wait(lambda: self.model.calls["RegisterStreamConsumer"] > 1)
        self._wait(self._is_pushed)

    def has_failed(self) -> None:
        """It could not begin."""
        assert self.process.wait(PATIENT) == 1

    # --- what is left ---

    def loses_consumer(self) -> None:
        """No consumer is left after a while."""
        self._wait(lambda: not self._statuses())

    def keeps_consumer(self) -> None:
        """It is there after longer than it takes to go."""
        time.sleep(2 * CREATION)
        assert self._statuses() == ["ACTIVE"]

    def _is_pushed(self) -> bool:
        """Whether a subscription has brought an event."""
        return any(each._last for each in self.model.subscriptions("s", SHARD))

    def _statuses(self) -> Sequence[str]:
        consumers = self.model.call("ListStreamConsumers", {"StreamARN": self._stream_arn})["Consumers"]
        return [each["ConsumerStatus"] for each in consumers]

    @staticmethod
    def _wait(is_there: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENT
        while not is_there():
            assert time.monotonic() < end
            time.sleep(0.25)  # within the limits of calls


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serving(LAWS) as server:
        server.model.create("s", 1)
        server.model.put("s", "key", b"data")
        yield server


@contextmanager
def running(
    server: ModelServer, script: str = PLANNING, logged: Sequence[str] = (), **options: str
) -> Iterator[Query]:
    """A query that starts; its driver is this process.

    Args:
        logged: the end of the last batch in the offset log, where there is one.
    """
    given = {
        "streamName": "s",
        "region": "us-east-1",
        "endpointUrl": server.endpoint,
        "awsAccessKeyId": "key",
        "awsSecretAccessKey": "secret",
        "consumerName": "app",
        "startingPosition": "TRIM_HORIZON",
        **options,
    }
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        (sys.executable, "-c", script, json.dumps(given), *logged),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            yield Query(server, process)
        finally:
            process.kill()


@pytest.mark.parametrize("agent", ["driver", "none"])
@pytest.mark.parametrize(
    "moment",
    [Query.is_asked, Query.is_creating, Query.is_planned, Query.is_logged, Query.has_no_agent],
)
def test_a_query_that_is_stopped_leaves_no_consumer(
    server: ModelServer, moment: Callable[[Query], None], agent: str
) -> None:
    """At any moment from the call on that registers it; it is known to be the query's before it is active."""
    if moment is Query.is_asked:
        server.wire.set(WireFault(operation="RegisterStreamConsumer", kind="stall", seconds=CREATION / 2))
    with running(server, agent=agent) as query:
        moment(query)
        query.process.send_signal(signal.SIGTERM)

        assert query.process.wait(PATIENT) == -signal.SIGTERM
        query.loses_consumer()


@pytest.mark.parametrize("moment", [Query.is_creating, Query.is_planned])
def test_a_query_that_dies_before_its_log_names_the_consumer(
    server: ModelServer, moment: Callable[[Query], None]
) -> None:
    """Its next run could not know the consumer for its own, and would never deregister it."""
    with running(server) as query:
        moment(query)
        query.process.kill()

        query.loses_consumer()


def test_a_query_that_dies_later_keeps_its_consumer(server: ModelServer) -> None:
    """The next run learns from the offset log that the consumer is the query's."""
    with running(server) as query:
        query.is_logged()
        query.process.kill()

        query.keeps_consumer()


def test_a_query_whose_consumer_somebody_deletes_leaves_none(server: ModelServer) -> None:
    """The service ends a subscription with such a consumer as if another reader had taken it over."""
    with running(server) as query:
        query.loses_consumer_to_others()
        query.process.send_signal(signal.SIGTERM)

        query.loses_consumer()


def test_a_query_that_gets_no_consumer_for_its_second_stream(server: ModelServer) -> None:
    """It fails, and the consumer of the first stream goes."""
    with running(server, streamName="s,gone") as query:
        query.has_failed()
        assert server.model.calls["RegisterStreamConsumer"] == 1
        query.loses_consumer()


@pytest.mark.parametrize("moment", [Query.is_creating, Query.is_planned])
def test_a_consumer_that_is_to_stay_stays(server: ModelServer, moment: Callable[[Query], None]) -> None:
    with running(server, consumerDeregistration="never") as query:
        moment(query)
        query.process.send_signal(signal.SIGTERM)

        query.keeps_consumer()


@pytest.mark.parametrize("agent", ["driver", "none"])
def test_a_consumer_that_another_reader_has_taken_in_a_batch_stays(server: ModelServer, agent: str) -> None:
    """Without an agent only the task that reads the batch sees it."""
    server.model.laws = SLOW_PUSH
    for _ in range(100):
        server.model.put("s", "key", bytes(100))
    with running(server, BATCHES, agent=agent) as query:
        query.is_taken_over_in_a_batch()
        query.process.send_signal(signal.SIGTERM)

        query.keeps_consumer()


def test_the_next_run_deregisters_a_consumer_that_nobody_else_uses(server: ModelServer) -> None:
    with running(server, BATCHES) as query:
        query.next_batch()
        query.process.kill()
    server.model.put("s", "key", b"data")
    with running(server, BATCHES, [query.logged]) as query:
        query.next_batch()
        query.process.send_signal(signal.SIGTERM)

        query.loses_consumer()
