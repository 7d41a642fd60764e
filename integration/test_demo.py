"""The demo: what it proves, how it ends, and that nothing of it stays."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from integration.demo.display import LiveDisplay, PlainDisplay, Snapshot
from integration.demo.events import Click, expected_totals, mark
from integration.demo.fanout import FanOut, FanOutState
from integration.demo.pipeline import CONSUMER
from integration.demo.producer import Record
from integration.demo.progress import Figures, Latency, PipelineError, lags
from integration.demo.proof import checksum, compare_clicks
from integration.support.kinesis import Stored, Streams
from integration.support.paths import ROOT

PATIENCE = 60.0
CLICK = Click("1-1", "user-1", "/toys/kite", "buy", 499, 1_767_225_601_500, 1_767_225_602_000)


def process_table() -> list[str]:
    """A line a process, its environment included."""
    if Path("/proc/self/environ").exists():  # a small Linux has no ps
        lines = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environment = (process / "environ").read_bytes().decode(errors="replace")
                lines.append(f"{process.name} {environment}")
        return lines
    table = subprocess.run(("/bin/ps", "axeww"), capture_output=True, text=True, check=True).stdout
    return table.splitlines()


@dataclass(frozen=True)
class Running:
    """A demo in a process group of its own; all it starts has `mark` in its environment."""

    process: subprocess.Popen[str]
    temporary: Path
    mark: str

    def left_behind(self) -> list[str]:
        """Processes of it, and files in its temporary directory."""
        processes = [line for line in process_table() if self.mark in line]
        return processes + [str(path) for path in self.temporary.iterdir()]

    def check_nothing_is_left(self) -> None:
        """What has been told to end may take a moment."""
        end = time.monotonic() + PATIENCE
        while left := self.left_behind():
            assert time.monotonic() < end, left
            time.sleep(0.05)

    def wait_for(self, text: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if text in line:
                return
        raise AssertionError(f"the demo ended before it said {text!r}")


@pytest.fixture
def demo(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    """The demo with so many seconds of clicks."""
    temporary = tmp_path / "t"
    temporary.mkdir()
    mark = uuid.uuid4().hex
    with subprocess.Popen(
        (sys.executable, "-m", "integration.demo", "--seconds", request.param, "--rate", "200"),
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary), "SLUICE_TEST_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    ) as process:
        yield Running(process, temporary, mark)
        if process.poll() is None:
            process.kill()


@pytest.mark.parametrize("demo", ["5"], indirect=True)
def test_the_demo_proves_its_output_and_leaves_nothing(demo: Running) -> None:
    """It ends by itself with status 0, every click and total accounted for, no process and no file left.

    One query reads by fan-out: its consumer is registered, subscribed to every shard and deregistered.
    """
    output, _ = demo.process.communicate(timeout=600)

    assert demo.process.returncode == 0, output
    assert "clicks: equal" in output
    assert "totals: equal" in output
    assert f"consumer/{CONSUMER}:" in output
    assert f"consumer {CONSUMER} ACTIVE, 4 of 4 subscribed" in output
    assert f"consumer {CONSUMER} deregistered" in output
    demo.check_nothing_is_left()


@pytest.mark.parametrize("demo", ["600"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing(demo: Running, number: signal.Signals) -> None:
    """Ctrl-C, which reaches every process of the terminal, and a plain kill end it."""
    demo.wait_for("putting 200 clicks")
    time.sleep(3)  # in the midst of it

    if number == signal.SIGINT:
        os.killpg(demo.process.pid, number)
    else:
        demo.process.send_signal(number)
    output, _ = demo.process.communicate(timeout=600)

    assert demo.process.returncode == 130, output
    assert "Traceback" not in output
    demo.check_nothing_is_left()


def test_the_proof_finds_what_is_missing_changed_or_twice() -> None:
    """A lost record, a record too many and a changed one each make the comparison unequal."""
    first, second = CLICK, replace(CLICK, id="1-2")
    good = [stored(first), stored(second)]

    assert compare_clicks([first, second], good).is_equal
    assert compare_clicks([first, second], good[:1]).missing == 1
    assert compare_clicks([first, second], [*good, good[0]]).surplus == 1
    changed = stored(replace(second, price=1))
    assert not compare_clicks([first, second], [good[0], changed]).is_equal


def test_the_checksum_does_not_depend_on_order_but_on_count() -> None:
    """The same rows in any order sum up to the same; a row twice does not."""
    assert checksum(Counter(["a", "b", "b"])) == checksum(Counter(["b", "a", "b"]))
    assert checksum(Counter(["a", "b"])) != checksum(Counter(["a", "b", "b"]))


def test_totals_are_worked_out_by_window_and_section() -> None:
    """Clicks are counted where their time falls; only what was bought earns."""
    later = replace(CLICK, id="1-2", action="view", at=CLICK.at + 9_000)

    assert list(expected_totals([CLICK, CLICK, later])) == [
        '{"clicks": 2, "revenue": 998, "section": "toys", "start": 1767225600}',
        '{"clicks": 1, "revenue": 0, "section": "toys", "start": 1767225610}',
    ]


def test_the_last_mark_closes_all_windows() -> None:
    """The last mark lies so far ahead that the watermark passes every window of a click."""
    assert mark(ahead=True).window > time.time() + 3000
    assert mark(ahead=False).section == "mark"


def test_a_line_half_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    """The producer's record is read while it grows."""
    record = Record(tmp_path / "clicks.jsonl")
    record.refresh()
    line = CLICK.to_json() + b"\n"

    with (tmp_path / "clicks.jsonl").open("wb", buffering=0) as file:
        file.write(line + line[:10])
        record.refresh()
        assert record.clicks == [CLICK]
        file.write(line[10:])
        record.refresh()
        assert record.clicks == [CLICK, CLICK]


@pytest.mark.parametrize(
    ("offset", "found"),
    [
        ('{"streams": {"s": {"a": {"after": "1"}}}, "millisBehindLatest": {"s": {"a": 5}}}', {"a": 5}),
        ({"millisBehindLatest": {"a": 1, "b": 2.0}}, {"a": 1, "b": 2}),
        (None, {}),
        ("not json", {}),
    ],
)
def test_lag_is_found_in_the_newest_offset(offset: object, found: dict[str, int]) -> None:
    """Lag by shard, as text or parsed; none where Spark does not report it."""
    assert dict(lags(offset)) == found


def test_latency_is_the_median_of_late_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches count by their rows; without rows there is none, and what is old is forgotten."""
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("integration.demo.progress.time", clock)
    latency = Latency(seconds=0.2)
    assert latency.p50 is None

    latency.add(900, 1)
    latency.add(100, 5)
    latency.add(200, 3)
    assert latency.p50 == 100

    now[0] += 0.25
    assert latency.p50 is None


def test_subscriptions_are_read_from_the_log(streams: Streams, tmp_path: Path) -> None:
    """A shard counts as subscribed from the line that says so to the one that says it is not."""
    stream = streams.create(2)
    log = tmp_path / "log"
    log.touch()
    fan_out = FanOut(streams, stream, log)
    assert str(fan_out.state()) == f"consumer {CONSUMER} not registered, 0 of 2 subscribed"
    with pytest.raises(PipelineError, match="not registered"):
        fan_out.arn()

    with log.open("a") as file:
        file.write(f"INFO {stream}/a: subscribed; batches end at the last record that was pushed\n")
        file.write(f"INFO {stream}/b: subscribed; batches end at the last record that was pushed\nhalf a li")
    assert fan_out.state().subscribed == {"a", "b"}
    with log.open("a") as file:
        file.write(f"ne\nINFO {stream}/a: no subscription covers its position; ")
        file.write("probes find the ends of batches\n")
    assert fan_out.state().subscribed == {"b"}


def test_both_displays_show_rates_lag_and_fan_out(capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe gets a line, a terminal a table; both have the figures."""
    figures = {"clicks": Figures(batches=3, rows=1234, lag={"shardId-000000000001": 70})}
    figures["clicks"].latency.add(345, 10)
    fan_out = FanOutState("app", "ACTIVE", frozenset({"shardId-000000000001"}), 4)
    snapshot = Snapshot(12.0, 1300, 500.0, figures, {"clicks": 480.0}, fan_out)

    PlainDisplay().show(snapshot)
    plain = capsys.readouterr().out
    terminal = io.StringIO()
    live = LiveDisplay(Console(file=terminal, force_terminal=True, width=100))
    live.show(snapshot)
    live.say("done")
    live.close()
    table = terminal.getvalue()

    assert "clicks 1,234 (480/s) in 3 batches, p50 345 ms" in plain
    assert "consumer app ACTIVE, 1 of 4 subscribed" in plain
    assert "lag 70 ms" in plain
    assert all(text in table for text in ("1,234", "480", "345 ms", "subscribed", "ACTIVE", "done"))


def stored(click: Click) -> Stored:
    row = compare_clicks([click], []).expected
    return Stored("shard", 1, click.user, next(iter(row)).encode())
