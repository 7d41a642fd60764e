"""What fan-out leaves to be seen from outside: consumers, agents, and which calls reach the service."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from integration.support.kinesis import Streams
from integration.support.processes import marked_processes
from integration.support.queries import wait_until
from integration.support.recorder import Recorder

MARK = "SLUICE_TEST_MARK"
"""An environment variable: processes that these tests start have another value, which is passed on."""

_AGENT = b"sluice.kinesis.agent"
_ENOUGH = 10


class Counting(Protocol):
    """What counts the calls that a query makes: a model, or a fault proxy with a rule from `counting`."""

    def count(self, operation: str) -> int: ...


def agents(mark: str | None = None) -> list[int]:
    """The process ids of the agents that run.

    `mark`: of the driver that they belong to; the tests' own where it is not given.
    """
    found: dict[int, int] = {}
    for process in marked_processes(f"{MARK}={mark or os.environ[MARK]}"):
        with contextlib.suppress(OSError):  # gone
            if _AGENT in Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0"):
                found[process] = parent_of(process)
    # A child that an agent has forked looks like the agent until it runs its own program (``uname``, say).
    return [process for process, parent in found.items() if parent not in found]


def wait_for_agent(*, other_than: int | None = None, mark: str | None = None) -> int:
    """The process id of an agent, once there is one."""
    found: list[int] = []

    def is_there() -> bool:
        found[:] = [process for process in agents(mark) if process != other_than]
        return bool(found)

    wait_until(is_there, "an agent")
    return found[0]


def wait_for_no_agents(mark: str | None = None) -> None:
    wait_until(lambda: not agents(mark), "the agents to end")


def kill(process: int) -> None:
    """SIGKILL, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def parent_of(process: int) -> int:
    """An agent on the driver host is started by the process that plans."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def register(streams: Streams, stream: str, name: str) -> str:
    """A consumer that the tests register themselves: its ARN."""
    answer = streams.client.register_stream_consumer(StreamARN=_arn(streams, stream), ConsumerName=name)
    return answer["Consumer"]["ConsumerARN"]


def consumers(streams: Streams, stream: str) -> list[str]:
    """The ARNs of the stream's consumers, without those that are being deleted."""
    answer = streams.client.list_stream_consumers(StreamARN=_arn(streams, stream))
    return [each["ConsumerARN"] for each in answer["Consumers"] if each["ConsumerStatus"] != "DELETING"]


def _arn(streams: Streams, stream: str) -> str:
    summary = streams.client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
    return summary["StreamARN"]


def counting(operation: str) -> dict[str, Any]:
    """A fault proxy's rule that changes nothing (but a millisecond), and has every call on record."""
    return {"service": "kinesis", "operation": operation, "latency": 1}


def wait_until_pushed(
    recorder: Recorder,
    calls: Counting,
    *,
    batches: int = _ENOUGH,
    operations: Sequence[str] = ("GetRecords",),
) -> None:
    """Returns when so many batches in a row have come without a single poll; a producer has to be at work.

    On a machine that pauses for seconds, an agent is silent for seconds: then a query polls.

    `calls`: counts the calls of `operations`; `operations`: none of which is called meanwhile.
    """
    seen = [-1, 0]

    def is_pushed() -> bool:
        done = len(recorder.batches)
        polls = sum(map(calls.count, operations))
        if polls != seen[0]:
            seen[:] = [polls, done]
        return done >= seen[1] + batches

    wait_until(is_pushed, f"{batches} batches without a poll")
