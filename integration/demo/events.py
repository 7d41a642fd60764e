"""Clicks on a shop's pages, and what the pipeline should make of them, worked out without Spark."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

WINDOW_SECONDS = 10
MARK = "mark"  # action, and section, of an event that is no click
MARK_AHEAD = 3_600_000  # ms
USERS = 400
LATEST = 1500  # a click comes up to this many ms after it happened
PAGES = {
    "books": ("/books/dune", "/books/emma", "/books/ulysses", "/books/walden"),
    "garden": ("/garden/rake", "/garden/spade", "/garden/hose"),
    "kitchen": ("/kitchen/kettle", "/kitchen/pan", "/kitchen/knife", "/kitchen/bowl"),
    "toys": ("/toys/kite", "/toys/yo-yo"),
}
ACTIONS = ("view", "view", "view", "view", "view", "view", "basket", "basket", "buy")


@dataclass(frozen=True, slots=True)
class Click:
    """One event. ``at``, when it happened, and ``sent`` are ms since the epoch, ``price`` is cents."""

    id: str
    user: str
    page: str
    action: str
    price: int
    at: int
    sent: int

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @property
    def section(self) -> str:
        return self.page.split("/")[1]

    @property
    def revenue(self) -> int:
        return self.price if self.action == "buy" else 0

    @property
    def window(self) -> int:
        """When its window starts, in seconds since the epoch."""
        return self.at // 1000 // WINDOW_SECONDS * WINDOW_SECONDS


def clicks(seed: int) -> Iterator[Click]:
    """Clicks without end, each at about the time it is asked for, not quite in order."""
    chance = random.Random(seed)
    users = [f"user-{number:04d}" for number in range(USERS)]
    weights = [1 / (rank + 3) for rank in range(USERS)]  # some are busier than others
    pages = [page for section in PAGES.values() for page in section]
    number = 0
    while True:
        number += 1
        page = chance.choice(pages)
        now = int(time.time() * 1000)
        yield Click(
            id=f"{seed}-{number:07d}",
            user=chance.choices(users, weights)[0],
            page=page,
            action=chance.choice(ACTIONS),
            price=499 + 100 * pages.index(page),
            at=now - chance.randrange(LATEST),
            sent=now,
        )


def mark(*, ahead: bool) -> Click:
    """An event that is in no output. One that is an hour ahead lets the watermark pass every window."""
    now = int(time.time() * 1000)
    return Click("mark", "nobody", f"/{MARK}", MARK, 0, now + ahead * MARK_AHEAD, now)


def expected_output(made: Iterable[Click]) -> Iterator[str]:
    """What the pass-through should write for each click, as canonical JSON."""
    for click in made:
        yield json.dumps(
            {**asdict(click), "section": click.section, "revenue": click.revenue}, sort_keys=True
        )


def expected_totals(made: Iterable[Click]) -> Iterator[str]:
    """What the aggregation should end with for each window and section, as canonical JSON."""
    totals: dict[tuple[int, str], list[int]] = {}
    for click in made:
        total = totals.setdefault((click.window, click.section), [0, 0])
        total[0] += 1
        total[1] += click.revenue
    for (start, section), (count, revenue) in totals.items():
        total_row = {"start": start, "section": section, "clicks": count, "revenue": revenue}
        yield json.dumps(total_row, sort_keys=True)
