"""A real agent among programs that connect to it without the secret, with few descriptors left."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from integration.support.fan_out import register
from integration.support.hostile import hostile
from integration.support.kinesis import REGION
from integration.support.model_streams import ModelStreams
from integration.support.producer import Producer
from integration.support.queries import wait_until
from sluice.errors import ServiceError
from sluice.kinesis.consumers.ownership import QueryConsumers
from sluice.kinesis.options.config import source_config_from_options
from sluice.kinesis.planner.agent_client import AgentClient
from sluice.kinesis.planner.agent_process import AgentProcess
from sluice.kinesis.shared.launch import AgentSetup
from sluice.kinesis.task.connection_pool import ConnectionPool
from sluice.kinesis.task.publishers import AgentRecordPublisher
from sluice.source.model.offsets import HORIZON, After, Position, SplitRange
from sluice.source.model.splits import SplitId

SHARDS = 3
CONNECTIONS = 10_000
SECONDS = 30.0
"""How long an agent may take to answer."""
PATIENCE = 120.0
"""How long a task may be kept out, on the busiest machine."""


class Query:
    """A planner and tasks without Spark: ranges from a real agent, and nothing polled.

    Attributes:
        records: data of the records that were read.
        ranges: how many ranges were read.
        longest: seconds that reading a range took at most, with all attempts.
    """

    def __init__(self, service: ModelStreams, stream: str, arn: str) -> None:
        config = source_config_from_options(
            {"streamName": stream, "endpointUrl": service.endpoint, "region": REGION, "consumerArn": arn}
            | {"awsAccessKeyId": "test", "awsSecretAccessKey": "test"},
            streaming=True,
        )
        assert config.fan_out is not None
        setup = AgentSetup.beside_driver(config)
        consumers = QueryConsumers(config)
        consumers.arns = {stream: arn}
        self.client = AgentClient(setup, consumers, launch=self._launch)
        splits = [SplitId(stream, shard) for shard in service.open_shards(stream)]
        self.positions: dict[SplitId, Position] = dict.fromkeys(splits, HORIZON)
        self.pid = 0
        self.records: list[bytes] = []
        self.ranges = 0
        self.longest = 0.0

    def _launch(self, setup: AgentSetup) -> AgentProcess:
        self._process = AgentProcess(setup)
        self.pid = self._process.pid
        return self._process

    def close(self) -> None:
        self.client.close()
        self._process.end(SECONDS)

    def run_batch(self) -> bool:
        """Plans what the agent reports, and reads it with a new connection for each range. Returns whether
        that was anything.
        """
        ranges = self.ranges
        self.client.follow(self.positions)
        for split, position in self.positions.items():
            progress = self.client.progress(split, position)
            if progress is not None and progress.cut_points:
                end = After(progress.cut_points[-1].number, arrival=progress.cut_points[-1].arrival)
                begun = time.monotonic()
                self.records += self._read(SplitRange(split, position, end))
                self.longest = max(self.longest, time.monotonic() - begun)
                self.ranges += 1
                self.positions[split] = end
        return self.ranges > ranges

    def _read(self, wanted: SplitRange) -> list[bytes]:
        address = self.client.agents([wanted.split])[wanted.split]
        end = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(ServiceError):
                return _read_once(
                    AgentRecordPublisher(
                        address, wanted, wanted.start, max_wait=SECONDS, pool=ConnectionPool(limit=0)
                    ),
                    wanted,
                )
            assert time.monotonic() < end, "a task is kept out"

    # --- what the agent takes ---------------------------------------------------------------------------

    @property
    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    @property
    def highest_descriptor(self) -> int:
        return max(int(entry.name) for entry in Path(f"/proc/{self.pid}/fd").iterdir())

    @property
    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    @property
    def memory(self) -> float:
        """MiB."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _read_once(publisher: AgentRecordPublisher, wanted: SplitRange) -> list[bytes]:
    after = wanted.start.sequence if isinstance(wanted.start, After) else -1
    assert isinstance(wanted.end, After)
    records = []
    with closing(publisher):
        while True:
            for record in publisher.next_page().records:
                number = int(record.sequence_number)
                if after < number <= wanted.end.sequence:
                    records.append(record.data)
                if number >= wanted.end.sequence:
                    return records


@pytest.fixture
def producer(service: ModelStreams) -> Producer:
    return Producer(service, service.create(SHARDS), per_put=20, pause=0.05)


@contextlib.contextmanager
def started(service: ModelStreams, stream: str) -> Iterator[Query]:
    """A query whose agent was started with the usual limit of descriptors."""
    arn = register(service, stream, "reader")
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, 1024), most))
    try:
        query = Query(service, stream, arn)
        query.client.wait_for_agent(PATIENCE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    with closing(query):
        yield query


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_tasks_are_served_among_ten_thousand_strangers(
    service: ModelStreams, producer: Producer, capfd: pytest.CaptureFixture[str]
) -> None:
    """They connect as fast as they can, and others trickle; the agent runs out of descriptors all the while.
    Every record is read from it. Nothing of the strangers stays, and the log has some lines a minute, and no
    thousands.
    """
    began = time.monotonic()
    with started(service, producer.stream) as query:
        figures = check_among_strangers(query, producer)
    minutes = (time.monotonic() - began) / 60.0
    warnings = [line for line in capfd.readouterr().err.splitlines() if "WARNING" in line]
    assert 1 <= sum("did not prove the query's secret" in line for line in warnings) <= 3 + minutes
    assert len(warnings) < 10 + 3 * minutes
    print(f"\n{figures}")


def check_among_strangers(query: Query, producer: Producer) -> str:
    producer.put(50)
    # Each shard has its subscription, whose connection is one of those before.
    while query.ranges < 2 * SHARDS or HORIZON in query.positions.values():
        if query.run_batch():
            producer.put(50)
    before = query.descriptors, query.threads, query.memory
    limit, most_allowed = resource.prlimit(query.pid, resource.RLIMIT_NOFILE)
    assert limit == min(most_allowed, 65_536)  # one for each shard and each task that asks
    bound = query.highest_descriptor + 20
    resource.prlimit(query.pid, resource.RLIMIT_NOFILE, (bound, bound))
    port = query.client.hub.port if query.client.hub is not None else 0
    ranges = query.ranges
    with producer.putting(), hostile(port, "trickle", 40), hostile(port, "flood", CONNECTIONS) as flood:
        most = (0, 0)
        while flood.poll() is None:
            query.run_batch()
            most = max(most[0], query.descriptors), max(most[1], query.threads)
        assert flood.stdout is not None
        accepted = int(flood.stdout.read())
    during = query.ranges - ranges
    wait_until(lambda: not query.run_batch() and len(query.records) >= producer.count, "the rest")

    put = Counter({data: count for (_, _, data), count in producer.expected().items()})
    assert Counter(query.records) == put
    assert during > 3  # how many depends on the machine
    assert accepted > CONNECTIONS * 0.9
    assert most[0] <= bound
    assert most[1] <= before[1] + 10
    wait_until(lambda: query.descriptors <= before[0], "the strangers' connections to be closed")
    wait_until(lambda: query.threads <= before[1] + 1, "threads to end")
    assert query.memory < before[2] + 30
    return (
        f"{accepted} of {CONNECTIONS} connections accepted, {during} ranges read meanwhile, the slowest in "
        f"{query.longest * 1000:.0f} ms; at most {most[0]} descriptors and {most[1]} threads"
    )
