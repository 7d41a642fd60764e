"""``sluice top``: what it shows, how it compares two looks, how it ends."""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from cli_support import sluice

import sluice.cli.commands.top as top_command
from sluice.cli.top_view import Look, frame, line, look_at_listener, rated
from sluice.errors import SluiceError
from sluice.metrics import (
    AgentMetrics,
    JsonExporter,
    QueryMetrics,
    ShardMetrics,
    SinkMetrics,
    SourceMetrics,
    StreamMetrics,
)
from sluice.metrics.board import Board

NOW = 1_000_100.0


def shard(name: str, lag: int | None, polled: int | None = 0, refused: int | None = 0) -> ShardMetrics:
    return ShardMetrics(
        shard=name,
        millis_behind_latest=lag,
        lag_basis="service",
        publisher="polling",
        polled=polled,
        pushed=None if polled is None else 0,
        bytes_read=None if polled is None else polled * 1000,
        reads_refused=refused,
        retries=refused,
    )


def metrics(*shards: ShardMetrics, at: float = NOW - 5, name: str | None = "orders") -> QueryMetrics:
    stream = StreamMetrics(stream="clicks", shards={each.shard: each for each in shards})
    agent = AgentMetrics(
        state="listening", subscribed=2, workers=0, buffered_bytes=3 * 2**20, buffer_size=2**28
    )
    source = SourceMetrics(source=0, streams={"clicks": stream}, rows=9, rows_per_second=None, agent=agent)
    sink = SinkMetrics(
        destination="kinesis stream 'out'",
        records=50,
        refused_by_code={"Throttled": 7},
        rate=1234.5,
        dead_letters=2,
        send_time_p95=0.048,
    )
    return QueryMetrics(
        query_id="q-1",
        run_id="r",
        name=name,
        batch_id=7,
        timestamp=at,
        batch_seconds=1.0,
        rows=100,
        sources=[source],
        sink=sink,
    )


def fetch(board: Board) -> Callable[[str], bytes]:
    """What a listener answers."""

    def get(url: str) -> bytes:
        assert url == "http://host:1/sluice.json"
        return json.dumps(board.to_json()).encode()

    return get


def look(board: Board, now: float = NOW, before: Look | None = None) -> Look:
    return rated(look_at_listener("host:1", now, fetch(board)), before)


def rows(text: str) -> list[list[str]]:
    """The cells of the lines about shards."""
    return [re.split(r"  +", each.strip()) for each in text.splitlines() if each.startswith("clicks/")]


# --- a listener ---------------------------------------------------------------------------------------


def test_the_shard_that_is_furthest_behind_comes_first() -> None:
    """With its refusals, so that the cause is visible."""
    board = Board()
    board.record(metrics(shard("a", 120), shard("b", 754_000, refused=31), shard("c", None)))
    text = frame(look(board))

    assert [row[:2] for row in rows(text)] == [
        ["clicks/b", "12.6 min"],
        ["clicks/a", "120 ms"],
        ["clicks/c", "?"],
    ]
    assert rows(text)[0][4] == "31"
    assert "query orders (q-1)" in text
    assert "batch 7" in text
    assert "lag 12.6 min" in text
    assert "31 reads refused" in text
    assert "refused Throttled 7" in text
    assert "dead letters 2" in text
    assert "p95 48 ms" in text
    assert "agent listening" in text
    assert "buffer 3.0 MiB of 256.0 MiB" in text


def test_rates_are_between_two_batches() -> None:
    """However often one looks in between; before the second one they are unknown."""
    board = Board()
    board.record(metrics(shard("a", 0, polled=100, refused=1), at=NOW - 20))
    first = look(board)
    same = look(board, NOW + 2, first)
    board.record(metrics(shard("a", 0, polled=600, refused=6), at=NOW - 10))
    second = look(board, NOW + 4, same)
    third = look(board, NOW + 6, second)

    assert rows(frame(first))[0][2:] == ["?", "?", "1", "?", "?", "polling"]
    assert rows(frame(same)) == rows(frame(first))
    assert rows(frame(second))[0][2:] == ["50", "48.8 KiB", "6", "0.5", "0.5", "polling"]
    assert rows(frame(third)) == rows(frame(second))
    assert "10 rows/s" in frame(second)
    assert "5 records/s" in frame(second)


def test_what_is_unknown_is_a_question_mark() -> None:
    """And not 0. Before the first batch there is nothing to show, and that is said."""
    board = Board()
    assert line(look(board)) == "no query has made progress yet"
    assert line(look(board)) in frame(look(board))
    board.record(metrics(shard("a", None, polled=None, refused=None), at=NOW - 20))
    first = look(board)
    board.record(metrics(shard("a", None, polled=None, refused=None)))
    text = frame(look(board, NOW + 1, first))

    assert rows(text)[0] == ["clicks/a", "?", "?", "?", "?", "?", "?", "polling"]
    assert "reads refused" not in text


def test_names_cannot_move_the_cursor() -> None:
    """Whoever may start a query names it."""
    board = Board()
    board.record(metrics(shard("a", 0), name="x\x1b[2Jy"))

    assert "\x1b" not in frame(look(board))
    assert "x?[2Jy" in line(look(board))


def test_many_shards_are_cut_to_what_fits() -> None:
    """Those furthest behind stay."""
    board = Board()
    board.record(metrics(*(shard(f"s{n:02}", n) for n in range(30))))
    text = frame(look(board), rows=4)

    assert [row[0] for row in rows(text)] == ["clicks/s29", "clicks/s28", "clicks/s27", "clicks/s26"]
    assert "and 26 shards that are less far behind" in text


@pytest.mark.parametrize("answer", [b"<html>", b"{}", b"[]", b'{"queries": [{}]}'])
def test_another_server_is_not_mistaken_for_a_listener(answer: bytes) -> None:
    """With its address."""
    with pytest.raises(SluiceError, match=r"what answers at http://host:1/sluice\.json is not a listener"):
        look_at_listener("host:1", NOW, lambda _url: answer)


def test_nobody_listens() -> None:
    """The command ends with 3, and says where it has asked."""
    done = sluice("top", "127.0.0.1:1", "--once")

    assert done.code == 3
    assert "no listener answers at http://127.0.0.1:1/sluice.json" in done.errors


@pytest.fixture
def listener() -> Iterator[str]:
    board, exporter = Board(), JsonExporter(port=0)
    exporter.start(board)
    board.record(metrics(shard("a", 1500)))
    yield exporter.address
    exporter.close()


@pytest.mark.parametrize("address", ["{}", "http://{}", "http://{}/", "http://{}/metrics"])
def test_a_real_listener_is_asked(listener: str, address: str) -> None:
    """By any form of its address."""
    done = sluice("top", address.format(listener), "--once", "--interval", "0")

    assert done.code == 0
    assert rows(done.out)[0][:2] == ["clicks/a", "1500 ms"]


def test_a_listener_is_asked_without_a_proxy(listener: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the same network, or reached by a tunnel; to a proxy, loopback is another host."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)

    assert sluice("top", listener, "--once", "--interval", "0").code == 0


def test_json_is_one_object(listener: str) -> None:
    """As that of each command."""
    done = sluice("top", listener, "--json", "--interval", "0.01")

    assert (done.value["command"], done.value["ok"]) == ("top", True)
    assert done.value["queries"][0]["shards"][0]["lag"] == 1.5


# --- how it runs and ends -----------------------------------------------------------------------------


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_it_refreshes_until_it_is_interrupted(
    listener: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C is how people end it, and no failure; the cursor comes back."""
    screen, left = Screen(), iter([None, None])
    command, real_sleep = threading.current_thread(), time.sleep

    def sleep(seconds: float) -> None:
        if threading.current_thread() is not command:  # the watchdog of requests sleeps, too
            real_sleep(seconds)
        elif next(left, "end") == "end":
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "12")
    done = sluice("top", listener)

    assert done.code == 0
    frames = screen.getvalue().split("\x1b[H\x1b[J")[1:]
    assert len(frames) == 3
    assert all(len(each) <= 60 for each in frames[0].splitlines())
    assert len(frames[0].splitlines()) <= 12
    assert screen.getvalue().startswith("\x1b[?25l")
    assert screen.getvalue().endswith("\x1b[?25h")


def test_in_a_pipe_it_prints_a_line_each_time(
    listener: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For logs."""
    sleeps = iter([None, None])
    monkeypatch.setattr(top_command, "time", SimpleNamespace(time=time.time, sleep=lambda _: next(sleeps)))
    with pytest.raises(StopIteration):
        top_command.run(argparse.Namespace(address=listener, interval=0.0, once=False, json=False))
    lines = capsys.readouterr().out.splitlines()

    assert len(lines) == 3
    assert all(each.startswith("query orders (q-1)  batch 7") for each in lines)


@pytest.mark.parametrize("wrong", ["localhost", "checkpoints/orders", "s3://bucket/checkpoint"])
def test_what_is_no_address_of_a_listener_is_refused(wrong: str) -> None:
    """Of a checkpoint another command shows the lag."""
    done = sluice("top", wrong, "--once")

    assert done.code == 2
    assert "is not the address of a listener, which has a port: 127.0.0.1:9464" in done.errors
    assert "sluice offsets show" in done.errors
    assert all(sluice("top", "host:1", "--interval", each).code == 2 for each in ("-1", "nan", "inf"))
