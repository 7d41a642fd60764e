"""What goes wrong, and when: drawn from a seed before anything runs, so that a history can be had again.

Faults lie on tracks that run side by side. On one track they come one after the other, so that two storms do
not add up to one that outlasts a query's patience, and so that a driver that was killed gets to run again.
A track deals its kinds like a deck of cards: all of them come before one comes a second time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

Ends = Literal["nothing", "query", "driver"]
Shared = Literal["tokens", "nothing"]


@dataclass(frozen=True)
class Kind:
    name: str  # as reports have it
    # how long one lasts, at least and at most; (0, 0): it is done at once
    seconds: tuple[float, float] = (0.0, 0.0)
    # what may have to be started again behind it. ``query``: Spark fails a query when this happens, whatever
    # its source and sink do. ``nothing``: queries have to live through it
    ends: Ends = "nothing"
    error: str = ""  # a regular expression for what such a query fails with
    often: int = 1  # how many failures of one query one fault may explain
    rest: float = 0.0  # seconds until the next fault of the track, in addition to the pause of all tracks


_STORM: Final = (3.0, 30.0)
_STOP: Final = (5.0, 60.0)
_WORKER_GONE: Final = (
    r"Python worker exited|connect back|EOFException|Connection reset|Broken pipe|Stream closed|Socket"
)
_SLOW_START: Final = "connect back"  # Spark gives Python ten seconds to start
_DISK: Final = r"File too large"

_SHARED: Final[tuple[Shared, ...]] = ("tokens", "nothing")

# Seconds from the end of one fault to the next one of the track, on average; and the kinds.
_TRACKS: Final[Mapping[str, tuple[float, tuple[Kind, ...]]]] = {
    "processes": (
        10.0,
        (
            Kind("kill driver", ends="driver", rest=20.0),
            Kind("kill planner", ends="query", error=_WORKER_GONE, rest=4.0),
            Kind("kill agent"),
            Kind("kill worker", ends="query", error=_WORKER_GONE),
            # There is a daemon for reading and one for writing, each with workers that wait. Spark learns of
            # each by a failure.
            Kind("kill all workers", ends="query", error=_WORKER_GONE, often=5),
            Kind("kill committer", ends="query", error=_WORKER_GONE),
            # As often as the query is started meanwhile.
            Kind("fill disk", (2.0, 8.0), ends="query", error=_DISK, often=4),
        ),
    ),
    "stops": (
        40.0,
        (
            Kind("stop driver", _STOP),
            Kind("stop planner", _STOP, ends="query", error=_SLOW_START),
            Kind("stop agent", _STOP),
            Kind("stop query server", _STOP),
            Kind("stop worker", _STOP, ends="query", error=_SLOW_START),
            Kind("stop committer", _STOP, ends="query", error=_SLOW_START),
        ),
    ),
    "service": (
        8.0,
        (
            Kind("throttle reads", _STORM),
            Kind("throttle writes", _STORM),
            Kind("throttle control", _STORM),
            Kind("throttle everything", _STORM),
            Kind("KMS throttling", _STORM),
            Kind("internal failures", _STORM),
            Kind("refuse records", _STORM),
            Kind("lose answers", _STORM),
            Kind("expire credentials"),
        ),
    ),
    "wire": (
        5.0,
        (
            Kind("cut answers", (2.0, 6.0)),
            Kind("reset connections", (2.0, 6.0)),
            Kind("damage answers", (2.0, 6.0)),
            Kind("hold up answers", (2.0, 6.0)),
            Kind("trickle answers", (2.0, 6.0)),
            Kind("cut event streams", (2.0, 6.0)),
            Kind("damage event streams", (2.0, 6.0)),
            Kind("silence subscriptions"),
            Kind("end subscriptions", (2.0, 6.0)),
            Kind("expire iterators"),
            Kind("delete consumer"),
        ),
    ),
    "clock": (
        12.0,
        (
            Kind("clock ahead"),
            Kind("clock behind"),
            Kind("clock drifts", (5.0, 30.0)),
        ),
    ),
    "shards": (
        6.0,
        (
            Kind("split"),
            Kind("split"),
            Kind("merge"),
            Kind("merge"),
            Kind("scale"),
        ),
    ),
    "load": (
        20.0,
        (
            Kind("burst of records"),
            Kind("large records"),
            Kind("pause of records", (3.0, 10.0)),
        ),
    ),
}

KINDS: Final[Mapping[str, Kind]] = {kind.name: kind for _, kinds in _TRACKS.values() for kind in kinds}
"""By name, in the order of reports."""


@dataclass(frozen=True)
class Fault:
    at: float  # seconds from the moment when the pipeline runs
    kind: Kind
    seconds: float  # how long it lasts
    # numbers in [0, 1) that decide what else there is to decide: which process, which shard
    draws: tuple[float, float, float]

    @property
    def until(self) -> float:
        """Seconds from the same moment; it is over."""
        return self.at + self.seconds


@dataclass(frozen=True)
class Incarnation:
    number: int
    tries: int  # attempts of a task. With one, Spark fails a query whose worker was killed
    pushed: frozenset[str]  # the queries that read by fan-out; the other one polls
    agent: str  # ``agent``
    shards_per_task: int
    # shards_per_task, max_records: options of the source; no limit of records where it is None
    max_records: int | None
    shared: Shared  # what the tasks of the query that writes to a stream share through its server


def longest_fault(seconds: float) -> float:
    """The longest fault of a run: a short run would see nothing but one stop of a minute."""
    return min(60.0, max(8.0, seconds / 10))


def draw_faults(seed: int, seconds: float) -> list[Fault]:
    """The faults of a run of so many seconds, in their order. All of them are over when it is."""
    found = [fault for track in _TRACKS for fault in _deal(random.Random(f"{seed}/{track}"), track, seconds)]
    return sorted(found, key=lambda fault: fault.at)


def _deal(rng: random.Random, track: str, seconds: float) -> Iterator[Fault]:
    gap, kinds = _TRACKS[track]
    gap = min(gap, seconds / 8)  # a short run has some of each track, too
    longest = longest_fault(seconds)
    at = gap * rng.random()
    while True:
        deck = list(kinds)
        rng.shuffle(deck)
        for kind in deck:
            low, high = kind.seconds
            low, high = min(low, longest), min(high, longest)
            lasts = low * (high / low) ** rng.random() if low else 0.0  # more short ones than long ones
            draws = (rng.random(), rng.random(), rng.random())
            if at + lasts >= seconds:
                return
            yield Fault(at, kind, lasts, draws)
            at += lasts + kind.rest + gap * rng.uniform(0.5, 1.5)


def draw_incarnation(seed: int, number: int, queries: tuple[str, str]) -> Incarnation:
    """How driver number `number` is started. The publishers change places with every one, and what
    tasks share changes, too.

    The first two have no limit of records. Later ones may find the backlog of a minute or more: a batch of
    all of it would take longer than the time until the next process is killed, and start again for ever.
    """
    rng = random.Random(f"{seed}/incarnation/{number}")
    limits = (2_000, 5_000, 10_000)
    return Incarnation(
        number,
        tries=rng.choice((1, 4)),
        pushed=frozenset({queries[number % 2]}),
        agent=rng.choice(("driver", "driver", "workers")),
        shards_per_task=rng.choice((16, 16, 2)),
        max_records=None if number < 2 else rng.choice(limits),
        shared=_SHARED[number % len(_SHARED)],
    )
