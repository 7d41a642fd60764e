"""The servers of the other tests: they answer, and nothing of them stays."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from integration.support import servers
from integration.support.kinesis import Streams
from integration.support.paths import ROOT
from integration.support.servers import FaultProxy, Server

STARTS: dict[str, Callable[[], AbstractContextManager[Server]]] = {
    "ministack": servers.ministack,
    "moto": servers.moto,
    "kinesis-local": servers.kinesis_local,
}

PATIENCE = 180.0  # only what is broken takes as long, however busy the machine is


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


@pytest.mark.parametrize("name", STARTS)
def test_a_server_is_there_for_the_length_of_its_block(name: str) -> None:
    """A server answers inside its block; after it, its port is closed and its directory is gone."""
    with STARTS[name]() as server:
        assert listens(server.port)
        assert server.directory.exists()

    assert is_gone(server.port, server.directory)


def test_two_servers_of_a_kind_stand_side_by_side() -> None:
    """Ports are chosen free, so two of the same server do not meet."""
    with servers.ministack() as one, servers.ministack() as other:
        Streams(one.endpoint).create(name="mine")

        assert Streams(other.endpoint).client.list_streams()["StreamNames"] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_server_goes_with_the_process_that_started_it(number: signal.Signals) -> None:
    """However its parent ends, by Ctrl-C or by kill -9, a server is gone soon."""
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


def test_an_error_in_the_block_ends_the_server_too() -> None:
    """A test that fails leaves no server behind."""
    with contextlib.suppress(ZeroDivisionError), servers.ministack() as server:
        raise ZeroDivisionError

    assert is_gone(server.port, server.directory)


def test_a_server_that_does_not_start_fails_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server said before it gave up is in the error; there is no skip."""
    monkeypatch.setattr(sys, "executable", "/bin/ls")

    with pytest.raises(RuntimeError, match=r"(?s)ministack does not start.*ministack|leash"):
        servers.ministack().__enter__()


@pytest.mark.parametrize("name", ["streams", "resharding_streams"])
def test_what_is_put_is_read_back(name: str, request: pytest.FixtureRequest) -> None:
    """`Streams` puts more than one request's worth and reads all of it, each shard in order."""
    streams: Streams = request.getfixturevalue(name)
    stream = streams.create(3)
    records = [(f"key-{number}", b"%d" % number) for number in range(1200)]

    placed = streams.put(stream, records)
    found = streams.read(stream)

    assert sorted((record.partition_key, record.data) for record in found) == sorted(records)
    assert {(put.shard, int(put.sequence_number)) for put in placed} == {
        (record.shard, record.sequence_number) for record in found
    }
    for shard in {record.shard for record in found}:
        numbers = [record.sequence_number for record in found if record.shard == shard]
        assert numbers == sorted(numbers)


def test_resharding_keeps_parents_and_opens_children(resharding_streams: Streams) -> None:
    """After a split and a merge on kinesis-local the parents are closed and still hold their records."""
    streams = resharding_streams
    stream = streams.create(2)
    streams.put(stream, [(f"key-{number}", b"before") for number in range(100)])
    first, second = streams.open_shards(stream)

    streams.split(stream, first)
    left, right = (shard for shard in streams.open_shards(stream) if shard != second)
    streams.merge(stream, left, right)

    assert len(streams.open_shards(stream)) == 2
    assert len(streams.shards(stream)) == 5
    assert len(streams.read(stream)) == 100


def test_a_stream_made_again_is_another_one(streams: Streams) -> None:
    """`recreate` leaves a stream of the same name and none of its records."""
    stream = streams.create(1)
    streams.put(stream, [("key", b"data")])

    streams.recreate(stream)

    assert streams.read(stream) == []


def test_the_proxy_fails_as_often_as_told_and_says_so(ministack_faults: FaultProxy) -> None:
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
