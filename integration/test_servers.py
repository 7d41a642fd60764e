"""The servers of the other tests: they answer, and nothing of them stays."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from integration.support.kinesis import Streams
from integration.support.paths import ROOT
from integration.support.servers import FaultProxy

PATIENCE = 180.0  # only broken code takes as long, on the busiest machine


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(30)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def is_gone(port: int, directory: Path | None = None) -> bool:
    """Returns when nothing of a server is left."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if not listens(port) and not (directory and directory.exists()):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_server_goes_with_the_process_that_started_it(number: signal.Signals) -> None:
    """However its parent ends, by Ctrl-C or by kill -9, a server ends soon."""
    program = (
        "import time\n"
        "from integration.support import servers\n"
        "with servers.ministack() as server:\n"
        "    print(server.port, server.directory, flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen(
        (sys.executable, "-c", program),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        port, directory = parent.stdout.readline().split()
        assert listens(int(port))

        parent.send_signal(number)

        assert is_gone(int(port), Path(directory))


def test_the_proxy_fails_as_often_as_requested_and_reports_it(ministack_faults: FaultProxy) -> None:
    """A rule with ``times`` fires that often; the SDK retries past it; ``fired`` has it on record."""
    streams = Streams(ministack_faults.endpoint)
    stream = streams.create()
    ministack_faults.set_rules(
        {
            "service": "kinesis",
            "operation": "ListShards",
            "times": 2,
            "error": {"code": "LimitExceededException"},
        },
    )

    assert len(streams.shards(stream)) == 1
    assert [fault["operation"] for fault in ministack_faults.fired()] == ["ListShards"] * 2

    ministack_faults.clear()
    assert streams.shards(stream)
    assert ministack_faults.fired() == []
