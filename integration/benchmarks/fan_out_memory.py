"""What a fan-out agent takes of memory while its buffer is full, by the number of shards.

A server pushes prepared events to a real agent process as fast as it takes them. No task reads, so the buffer
fills up and stays full. Before that the shards push nothing, which shows what subscriptions cost without
records.

    python -m integration.benchmarks.fan_out_memory
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from integration.benchmarks import server
from integration.support.kinesis import REGION
from integration.support.spark import prepare_environment
from sluice.kinesis.consumers.ownership import QueryConsumers
from sluice.kinesis.options.config import source_config_from_options
from sluice.kinesis.planner.agent_client import AgentClient
from sluice.kinesis.planner.agent_process import AgentProcess
from sluice.kinesis.shared.launch import AgentSetup
from sluice.source.model.offsets import HORIZON
from sluice.source.model.splits import SplitId

STREAM: Final = "bench"
CONSUMER_ARN: Final = f"arn:aws:kinesis:{REGION}:000000000000:stream/{STREAM}/consumer/bench:1"
SHARDS: Final = (100, 1000)
HEARTBEAT: Final = 2.0
SETTLED: Final = 6.0
"""Seconds in which no more memory is taken."""
LIMIT: Final = 180.0


def prepare(events: int, size: int) -> server.Operations:
    """A service whose shards push heartbeats, or as many events of this size as the agent takes."""
    data = [random.Random(7).randbytes(size * 3 // 4)]
    now = time.time()
    prepared = [server.event(index, data, arrival=now, millis_behind=1) for index in range(events)]
    idle = server.event(0, [], arrival=now)

    def subscribe(request: dict[str, Any]) -> Iterator[bytes]:
        del request
        yield server.initial_response()
        yield from prepared
        while True:
            yield idle
            threading.Event().wait(HEARTBEAT)

    return {"SubscribeToShard": subscribe}


def measure(shards: int, events: int, size: int, buffer_mib: int) -> tuple[float, int]:
    """MiB that an agent takes at most, and its threads."""
    with contextlib.ExitStack() as stack:
        endpoint = stack.enter_context(server.serving(prepare, events, size))
        config = source_config_from_options(
            {
                "streamName": STREAM,
                "endpointUrl": endpoint,
                "region": REGION,
                "consumerArn": CONSUMER_ARN,
                "agentBufferSize": f"{buffer_mib}MiB",
            },
            streaming=True,
        )
        assert config.fan_out is not None
        started: list[AgentProcess] = []

        def launch(setup: AgentSetup) -> AgentProcess:
            started.append(AgentProcess(setup))
            return started[-1]

        consumers = QueryConsumers(config)
        consumers.arns = {STREAM: CONSUMER_ARN}
        client = AgentClient(
            AgentSetup.beside_driver(config),
            consumers,
            launch=launch,
        )
        stack.callback(lambda: started[-1].end(LIMIT))
        stack.callback(client.close)
        splits = [SplitId(STREAM, f"shardId-{index:012d}") for index in range(shards)]
        positions = dict.fromkeys(splits, HORIZON)
        client.wait_for_agent(LIMIT)
        most, since, begun = 0.0, time.monotonic(), time.monotonic()
        subscribed = 0
        while time.monotonic() - since < SETTLED or (subscribed < shards and events == 0):
            client.follow(positions)
            subscribed = sum(client.progress(split, HORIZON) is not None for split in splits)
            if (now := _memory(started[-1].pid)) > most + 1.0:
                most, since = now, time.monotonic()
            if time.monotonic() - begun > LIMIT:
                break
            time.sleep(0.2)
        return _memory(started[-1].pid, peak=True), _threads(started[-1].pid)


def _threads(process: int) -> int:
    return len(list(Path(f"/proc/{process}/task").iterdir()))


def _memory(process: int, *, peak: bool = False) -> float:
    """MiB of resident memory."""
    name = "VmHWM:" if peak else "VmRSS:"
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m integration.benchmarks.fan_out_memory", description=__doc__
    )
    parser.add_argument("--buffer", type=int, default=64, help="MiB of agentBufferSize (default 64)")
    parser.add_argument("--kib", type=int, nargs="*", default=[1024, 64], help="sizes of events (KiB)")
    parser.add_argument("--shards", type=int, nargs="*", default=list(SHARDS))
    arguments = parser.parse_args()
    prepare_environment()
    print(f"agentBufferSize {arguments.buffer} MiB; peak resident memory of the agent")
    columns = ("event, KiB", "pushed, MiB", "agent, MiB", "without", "threads")
    print(f"{'shards':>7}" + "".join(f"{column:>13}" for column in columns))
    for shards in arguments.shards:
        without, _ = measure(shards, 0, 0, arguments.buffer)
        for kib in arguments.kib:
            events = max(2, -(-4 * arguments.buffer * 1024 // (shards * kib)))
            peak, threads = measure(shards, events, kib * 1024, arguments.buffer)
            pushed = shards * events * kib / 1024
            print(f"{shards:>7}{kib:>13}{pushed:>13,.0f}{peak:>13,.0f}{without:>13,.0f}{threads:>13}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
