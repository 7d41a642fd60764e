"""How many MB/s of 1 KiB records one fan-out agent passes on, and how much CPU that takes.

A server pushes prepared events to a real agent process. The benchmark plans batches, and clients in separate
processes read the ranges as tasks do, first without decoding them and then with; first in clear and then
encrypted, as between hosts. All processes share the cores of this machine, so the figure to compare is MB of
record data per second of the agent's CPU. The connections to the service are plain HTTP.

    python -m integration.benchmarks.fan_out_throughput
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import multiprocessing
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from integration.benchmarks import server
from integration.support.kinesis import REGION
from integration.support.spark import prepare_environment
from sluice.channels.channel import Address, connect
from sluice.kinesis.consumers.ownership import QueryConsumers
from sluice.kinesis.options.config import source_config_from_options
from sluice.kinesis.planner.agent_client import AgentClient
from sluice.kinesis.planner.agent_process import AgentProcess
from sluice.kinesis.shared.coverage import exclusive_start
from sluice.kinesis.shared.launch import AgentSetup
from sluice.kinesis.shared.protocol import DONE, EVENT, ReadRange, encode
from sluice.kinesis.task.publishers import AgentRecordPublisher
from sluice.source.logs.cursor import iterator_start
from sluice.source.model.offsets import HORIZON, After, Position, SplitRange
from sluice.source.model.splits import SplitId

GOAL = 200.0  # MB of record data per second of the agent's CPU
STREAM = "bench"
CONSUMER_ARN = f"arn:aws:kinesis:{REGION}:000000000000:stream/{STREAM}/consumer/bench:1"
SIZE = 1024  # bytes of a record
TICK = os.sysconf("SC_CLK_TCK")
LIMIT = 60.0  # seconds that a pass may take
MAX_WAIT = 10.0
PAUSE = 0.002


@dataclass(frozen=True)
class Load:
    """What each shard pushes in a pass: `events` of `records` each."""

    shards: int
    events: int
    records: int

    @property
    def shard_bytes(self) -> int:
        return self.events * self.records * SIZE


def prepare(load: Load) -> server.Operations:
    """A service whose shards all push the same bytes, as fast as they are read, and then nothing."""
    source = random.Random(7)
    data = [source.randbytes(SIZE) for _ in range(load.records)]
    now = time.time()
    events = [
        server.event(index * load.records, data, arrival=now, millis_behind=1) for index in range(load.events)
    ]

    def subscribe(request: dict[str, Any]) -> Iterator[bytes]:
        del request
        yield server.initial_response()
        yield from events
        threading.Event().wait(LIMIT)  # without an end, at which the agent would subscribe again

    return {"SubscribeToShard": subscribe}


# --- clients --------------------------------------------------------------------------------------------


def run_client(requests: Connection, *, decodes: bool) -> None:
    """A client: reads the ranges that it receives, and sends back how many bytes it has read of each."""
    read = read_decoded if decodes else read_raw
    with contextlib.suppress(EOFError):
        while True:
            address, split_range = requests.recv()
            requests.send((split_range.split, split_range.end, read(address, split_range)))


def read_raw(address: Address, split_range: SplitRange) -> int:
    """Reads a range as `AgentRecordPublisher` does, without decoding. Returns the bytes of its payloads."""
    position, end = split_range.start, split_range.end
    assert isinstance(end, After)
    after = exclusive_start(position)
    request = ReadRange(
        split_range.split,
        iterator_start(position),
        None if after is None else str(after),
        end.number,
        MAX_WAIT,
    )
    with contextlib.closing(connect(address, timeout=MAX_WAIT)) as channel:
        channel.send(encode(request))
        done = 0
        while bytes((frame := channel.receive())[:1]) == EVENT:
            done += len(frame) - 1
        if bytes(frame[:1]) != DONE:
            raise RuntimeError(bytes(frame[1:]).decode())
        return done


def read_decoded(address: Address, split_range: SplitRange) -> int:
    """Reads and decodes a range. Returns the bytes of its records' data."""
    end = split_range.end
    assert isinstance(end, After)
    with contextlib.closing(
        AgentRecordPublisher(address, split_range, split_range.start, max_wait=MAX_WAIT)
    ) as publisher:
        done = 0
        while True:
            page = publisher.next_page()
            done += sum(len(record.data) for record in page.records)
            if page.records[-1].sequence_number == end.number:
                return done


# --- one pass -------------------------------------------------------------------------------------------


@dataclass
class Pass:
    """One run of all data through the agent."""

    seconds: float
    cpu: float  # seconds of the agent
    data: float  # MB of record data

    @property
    def rate(self) -> float:
        return self.data / self.seconds

    @property
    def rate_per_core(self) -> float:
        return self.data / self.cpu


class Bench:
    """One agent, and a planner that plans ranges of all data again in each pass."""

    def __init__(self, endpoint: str, load: Load, encryption: str) -> None:
        config = source_config_from_options(
            {
                "streamName": STREAM,
                "endpointUrl": endpoint,
                "region": REGION,
                "consumerArn": CONSUMER_ARN,
                "agentEncryption": encryption,
            },
            streaming=True,
        )
        self._load = load
        self._pid = 0
        assert config.fan_out is not None
        consumers = QueryConsumers(config)
        consumers.arns = {STREAM: CONSUMER_ARN}
        self._client = AgentClient(
            AgentSetup.beside_driver(config),
            consumers,
            launch=self._launch,
        )
        self._splits = [SplitId(STREAM, f"shardId-{index:012d}") for index in range(load.shards)]

    def close(self) -> None:
        self._client.close()

    def measure(self, clients: Sequence[Connection]) -> Pass:
        """Reads every shard from its horizon to its end, one range after the other."""
        self._client.follow({})  # ends the subscriptions of the pass before
        last = server.NUMBERS_START + self._load.events * self._load.records - 1
        owner = dict(zip(self._splits, itertools.cycle(clients), strict=False))
        positions: dict[SplitId, Position] = dict.fromkeys(self._splits, HORIZON)
        self._wait_for_agent()
        before, start = self._cpu(), time.monotonic()
        busy: set[SplitId] = set()
        fetched = 0.0
        while any(not isinstance(p, After) or p.sequence < last for p in positions.values()):
            if time.monotonic() > start + LIMIT:
                raise TimeoutError(f"a pass takes longer than {LIMIT:g} s: {positions}")
            self._client.follow(positions)
            for split in set(self._splits) - busy:
                if self._request(split, positions[split], owner[split]):
                    busy.add(split)
            for client in clients:
                while client.poll():
                    split, end, _ = client.recv()
                    had = positions[split]
                    begin = had.sequence if isinstance(had, After) else server.NUMBERS_START - 1
                    fetched += (end.sequence - begin) * SIZE / 1e6
                    positions[split] = end
                    busy.discard(split)
            time.sleep(PAUSE)
        seconds, cpu = time.monotonic() - start, self._cpu() - before
        return Pass(seconds, cpu, fetched)

    def _request(self, split: SplitId, position: Position, client: Connection) -> bool:
        progress = self._client.progress(split, position)
        if progress is None or not progress.cut_points:
            return False
        cut_point = progress.cut_points[-1]
        end = After(cut_point.number, arrival=cut_point.arrival)
        client.send((self._client.agents([split])[split], SplitRange(split, position, end)))
        return True

    def _wait_for_agent(self) -> None:
        end = time.monotonic() + LIMIT
        while self._client.hub is None:
            if time.monotonic() > end:
                raise TimeoutError("the agent does not start")
            self._client.start()
            time.sleep(0.05)

    def _launch(self, setup: AgentSetup) -> AgentProcess:
        process = AgentProcess(setup)
        self._pid = process.pid
        return process

    def _cpu(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK


@contextlib.contextmanager
def clients(count: int, *, decodes: bool) -> Iterator[list[Connection]]:
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            run = functools.partial(run_client, theirs, decodes=decodes)
            process = context.Process(target=run, daemon=True)
            process.start()
            theirs.close()
            stack.callback(process.join, 5.0)
            stack.callback(ours.close)
            found.append(ours)
        yield found


def server_limit(endpoint: str, load: Load) -> float:
    """MB/s of record data that a client reads which does nothing with it."""
    start = time.monotonic()
    bare_bytes = server.bare_read(endpoint, "SubscribeToShard", {}, load.shard_bytes)
    seconds = time.monotonic() - start
    overhead = len(server.event(0, [bytes(SIZE)] * load.records, arrival=time.time())) / (load.records * SIZE)
    return bare_bytes / overhead / seconds / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m integration.benchmarks.fan_out_throughput", description=__doc__
    )
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--records", type=int, default=256, help="in an event (default 256)")
    parser.add_argument("--megabytes", type=int, default=100, help="of data in a shard (default 100)")
    parser.add_argument(
        "--passes", type=int, default=3, help="that count, for each kind of client (default 3)"
    )
    parser.add_argument("--clients", type=int, default=2, help="processes that read (default 2)")
    arguments = parser.parse_args()
    prepare_environment()
    events = max(1, arguments.megabytes * 1_000_000 // (arguments.records * SIZE))
    load = Load(arguments.shards, events, arguments.records)
    runs: dict[str, list[Pass]] = {}
    with contextlib.ExitStack() as stack:
        endpoint = stack.enter_context(server.serving(prepare, load))
        limit = statistics.median(server_limit(endpoint, load) for _ in range(3))
        for encryption, more in (("none", ""), ("tls", ", TLS")):
            with contextlib.closing(Bench(endpoint, load, encryption)) as bench:
                for name, decodes in (("passed on", False), ("passed on, decoded", True)):
                    with clients(arguments.clients, decodes=decodes) as connections:
                        bench.measure(connections)
                        runs[name + more] = [bench.measure(connections) for _ in range(arguments.passes)]
        limit_after = statistics.median(server_limit(endpoint, load) for _ in range(3))
    return report(load, runs, min(limit, limit_after))


def report(load: Load, runs: dict[str, list[Pass]], limit: float) -> int:
    total = load.shards * load.shard_bytes / 1e6
    print(
        f"{load.shards} shards, events of {load.records} records of {SIZE} bytes, "
        f"{total:,.0f} MB of data a pass; medians of {len(next(iter(runs.values())))} passes"
    )
    columns = ("MB/s", "of the server's", "agent CPU s/GB", "MB/s per core", "of the goal")
    print(f"{'':<26}" + "".join(f"{title:>17}" for title in columns))
    print(f"{'server, bare client':<26}{limit:>17,.0f}{1:>17.2f}")
    rates = {}
    for name, passes in runs.items():
        rate = statistics.median(each.rate for each in passes)
        rates[name] = statistics.median(each.rate_per_core for each in passes)
        print(
            f"{name:<26}{rate:>17,.0f}{rate / limit:>17.2f}{1000 / rates[name]:>17.2f}"
            f"{rates[name]:>17,.0f}{rates[name] / GOAL:>17.2f}"
        )
    good = rates["passed on"] >= GOAL
    print(f"one core of the agent passes on {'at least' if good else 'LESS than'} {GOAL:g} MB/s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
