"""What the demo shows while it runs: a live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from integration.demo.fanout import FanOutState
from integration.demo.progress import Figures

PLAIN_INTERVAL = 5.0


@dataclass(frozen=True)
class Snapshot:
    elapsed: float
    put: int
    put_rate: float
    figures: Mapping[str, Figures]
    rates: Mapping[str, float]
    fan_out: FanOutState

    @property
    def lag(self) -> dict[str, int]:
        """Of each shard, the larger where the queries differ."""
        lag: dict[str, int] = {}
        for figures in self.figures.values():
            for shard, behind in figures.lag.items():
                lag[shard] = max(behind, lag.get(shard, 0))
        return dict(sorted(lag.items()))


class Rate:
    """How fast a count has grown lately."""

    def __init__(self, seconds: float = 5.0) -> None:
        self._seconds = seconds
        self._points: deque[tuple[float, int]] = deque()

    def update(self, count: int) -> float:
        now = time.monotonic()
        self._points.append((now, count))
        while len(self._points) > 2 and self._points[1][0] < now - self._seconds:
            self._points.popleft()
        (then, before), span = self._points[0], now - self._points[0][0]
        return (count - before) / span if span and then < now else 0.0


class Display(Protocol):
    """Where the demo says what it does."""

    def say(self, what: str) -> None: ...
    def show(self, snapshot: Snapshot) -> None: ...
    def close(self) -> None: ...


def make_display() -> Display:
    return LiveDisplay() if sys.stdout.isatty() else PlainDisplay()


class PlainDisplay:
    """Lines, for logs and pipes."""

    def __init__(self) -> None:
        self._shown = 0.0

    def close(self) -> None:
        pass

    def say(self, what: str) -> None:
        print(f"== {what}" if not what.startswith(" ") else what, flush=True)

    def show(self, snapshot: Snapshot) -> None:
        if time.monotonic() - self._shown < PLAIN_INTERVAL:
            return
        self._shown = time.monotonic()
        parts = [f"{snapshot.elapsed:4.0f} s", f"put {snapshot.put:,} ({snapshot.put_rate:.0f}/s)"]
        for name, figures in snapshot.figures.items():
            rate = snapshot.rates[name]
            parts.append(f"{name} {figures.rows:,} ({rate:.0f}/s) in {figures.batches} batches")
            if (p50 := figures.latency.p50) is not None:
                parts[-1] += f", p50 {p50} ms"
        if snapshot.lag:
            parts.append(f"lag {lag_text(snapshot.lag.values())} ms")
        parts.append(str(snapshot.fan_out))
        print("   ".join(parts), flush=True)


class LiveDisplay:
    """A table that stays in place, under the lines said so far."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._live.start()

    def close(self) -> None:
        self._live.stop()

    def say(self, what: str) -> None:
        self._console.print(Text(f"== {what}" if not what.startswith(" ") else what))

    def show(self, snapshot: Snapshot) -> None:
        consumer = Text(f"{snapshot.fan_out.consumer}: {snapshot.fan_out.status}")
        self._live.update(Group(self._flow(snapshot), self._shards(snapshot), consumer))

    def _flow(self, snapshot: Snapshot) -> Table:
        table = right_aligned(
            f"{snapshot.elapsed:.0f} s", "records", "records/s", "batches", "p50 put to row"
        )
        table.add_row("put into the stream", f"{snapshot.put:,}", f"{snapshot.put_rate:,.0f}")
        for name, figures in snapshot.figures.items():
            rate = f"{snapshot.rates[name]:,.0f}"
            p50 = figures.latency.p50
            latency = "" if p50 is None else f"{p50:,} ms"
            table.add_row(f"query {name}", f"{figures.rows:,}", rate, str(figures.batches), latency)
        return table

    def _shards(self, snapshot: Snapshot) -> Table:
        table = right_aligned("shard", "ms behind latest", f"{snapshot.fan_out.consumer}")
        subscribed = snapshot.fan_out.subscribed
        for shard in sorted({*snapshot.lag, *subscribed}):
            behind = snapshot.lag.get(shard)
            table.add_row(
                shard, "" if behind is None else f"{behind:,}", "subscribed" if shard in subscribed else "-"
            )
        return table


def right_aligned(first: str, *others: str) -> Table:
    table = Table()
    table.add_column(first)
    for title in others:
        table.add_column(title, justify="right")
    return table


def lag_text(lag: Iterable[int]) -> str:
    values: Sequence[int] = list(lag)
    return "/".join(str(value) for value in values)
