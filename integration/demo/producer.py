"""Puts clicks into a stream at a steady rate, from a separate process, and keeps a record of them.

``python -m integration.demo.producer endpoint stream record seconds rate``
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path

from integration.demo.events import Click, clicks
from integration.support.kinesis import Streams

TICK = 0.1  # seconds between two puts


def produce(endpoint: str, stream: str, record: Path, *, seconds: float, rate: float) -> None:
    """Puts `rate` clicks a second for `seconds`; `record` gets each one once the stream has it."""
    streams = Streams(endpoint)
    source = clicks(seed=int(time.time()))
    start = time.monotonic()
    done = 0
    with record.open("ab") as file:
        while (now := time.monotonic() - start) < seconds:
            due = int(now * rate) - done
            made = list(itertools.islice(source, due))
            streams.put(stream, [(click.user, click.to_json()) for click in made])
            file.writelines(click.to_json() + b"\n" for click in made)
            file.flush()
            done += due
            time.sleep(TICK)


class Record:
    """Reads what the producer has put so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.clicks: list[Click] = []

    def refresh(self) -> None:
        """Takes the whole lines that are new."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        self._offset += len(text)
        self.clicks += [Click(**json.loads(line)) for line in text.splitlines()]


if __name__ == "__main__":
    _, endpoint, stream, record, seconds, rate = sys.argv
    produce(endpoint, stream, Path(record), seconds=float(seconds), rate=float(rate))
