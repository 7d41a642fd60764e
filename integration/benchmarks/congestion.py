"""The table of congestion control: which share of a service's capacity is used, through failures of any kind.

Services with token buckets, or that work on few requests at a time, shared by several tasks, in virtual time.
Each row has the mean over the seeds, and below it what was aimed at and missed:

- accepted: of what the service can take, less what fails anyway;
- refused: for load, as a share of the sent entries;
- share: the smallest of a task by the largest;
- settled: seconds until enough is accepted in any two seconds (for steps: after the step);
- entries of a request, and CPU time of a request in the scheduler and the strategy (microseconds).

It also prints what FLIP-242's arithmetic and no limit reach.

    python -m integration.benchmarks.congestion --seeds 5 --only "tasks=16"
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import os
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from integration.support.shared_capacity import Make, Run, Scenario
from sluice.sink import (
    AIMDScalingStrategy,
    AsyncSinkConfig,
    CongestionControlRateLimitingStrategy,
    NoRateLimitingStrategy,
    PacedRateLimitingStrategy,
    RateLimitingStrategy,
)

CAPACITY: Final = 4000.0
Clock = Callable[[], float]


def aimd(seed: int = 1) -> Make:
    """As `rateLimiting=aimd` makes it."""
    tasks = itertools.count()

    def make(config: AsyncSinkConfig, clock: Clock) -> RateLimitingStrategy:
        return PacedRateLimitingStrategy(
            max_in_flight_requests=config.max_in_flight_requests,
            max_batch_size=config.max_batch_size,
            scaling_strategy=_scaling(config),
            clock=clock,
            jitter=random.Random(f"{seed} {next(tasks)}").random,
        )

    return make


def flink(_seed: int = 1) -> Make:
    def make(config: AsyncSinkConfig, _: Clock) -> RateLimitingStrategy:
        return CongestionControlRateLimitingStrategy(
            max_in_flight_requests=config.max_in_flight_requests,
            initial_max_in_flight_messages=config.max_batch_size * config.max_in_flight_requests,
            scaling_strategy=_scaling(config),
        )

    return make


def none(_seed: int = 1) -> Make:
    return lambda _, __: NoRateLimitingStrategy()


def _scaling(config: AsyncSinkConfig) -> AIMDScalingStrategy:
    return AIMDScalingStrategy(rate_threshold=config.max_batch_size * config.max_in_flight_requests)


STRATEGIES: Final[Mapping[str, Callable[[int], Make]]] = {
    "aimd": aimd,
    "FLIP-242": flink,
    "none": none,
}


class Outcome(NamedTuple):
    accepted: float
    refused: float
    share: float
    settled: float
    size: float
    cpu: float

    def __str__(self) -> str:
        return (
            f"{self.accepted:6.2f}{self.refused:8.1%}{self.share:6.2f}{self.settled:6.1f}s"
            f"{self.size:6.0f}{self.cpu:6.0f}"
        )


@dataclass(frozen=True)
class Row:
    """A scenario, the seconds that count, and its aims."""

    name: str
    scenario: Scenario
    measured: tuple[int, int] = (5, 20)
    accepted: float = 0.95
    refused: float = 0.08
    share: float = 0.15
    settled: float = 5.0
    beats: tuple[int, ...] = field(default=())  # requests in flight of a task: the best of these is 1.0

    def misses(self, found: Outcome) -> list[str]:
        goals = {
            "accepted": found.accepted >= self.accepted,
            "refused": found.refused <= self.refused,
            "share": found.share >= self.share,
            "settled": found.settled <= self.settled,
        }
        return [name for name, met in goals.items() if not met]


def rows() -> Iterator[Row]:
    """The table; names tell what differs from answers after 0.1 s, a burst of a second, and no failures."""
    for tasks in (1, 4, 16):
        base = Scenario(latency=0.1, tasks=tasks)
        end = f"tasks={tasks}"
        for burst in (1.0, 0.1):
            for latency in (0.02, 0.1):
                yield Row(
                    f"latency={latency:g}s burst={burst:g}s {end}",
                    replace(base, latency=latency, burst=burst),
                )
        for p in (0.02, 0.1, 0.5):
            yield Row(f"entries fail p={p} {end}", replace(base, failing_entries=p))
            yield Row(f"requests fail p={p} {end}", replace(base, failing_requests=p))
        yield Row(f"latency=0.5s {end}", replace(base, latency=0.5), accepted=0.8, refused=0.12, settled=99.0)
        for before, after in ((400.0, CAPACITY), (CAPACITY, 400.0)):
            yield Row(
                f"from {before:g} to {after:g} {end}",
                replace(base, capacity=before, steps={10.0: after}),
                measured=(10, 22),
                accepted=0.0,
                refused=0.2,
                share=0.0,
                settled=12.0,
            )
        refused = replace(base, refused_requests=0.02)
        yield Row(f"2% of requests refused anyway {end}", refused, accepted=0.8, refused=0.1, settled=99.0)
        stalls = replace(base, stall=0.15, stall_every=10_000 // tasks)
        yield Row(f"stalls of 0.15s every {stalls.stall_every} {end}", stalls, accepted=0.8, settled=99.0)
        yield Row(
            f"stalls, ten times the rate {end}",
            replace(stalls, capacity=40_000.0),
            (10, 40),
            0.8,
            settled=99.0,
        )
        yield Row(
            f"batches of 3s, pauses of 2s {end}", replace(base, pauses=(3.0, 2.0)), (5, 30), 0.8, settled=30
        )
        for burst in (60.0, 300.0):
            stored = replace(base, burst=burst)
            used = round(burst / 10) + 20
            yield Row(f"stored burst of {burst:g}s {end}", stored, (used, used + 20), 0.8, 0.3, settled=99)
        yield Row(f"a hot shard {end}", replace(base, hot=0.8), accepted=0.8, settled=99.0)
        yield Row(
            f"whole requests refused {end}",
            replace(base, whole=True),
            accepted=0.8,
            refused=0.15,
            settled=99.0,
        )
        for batch, latency in ((1, 0.1), (1, 0.3), (10, 0.3), (500, 0.1)):
            limited = replace(base, capacity=50.0 * batch, burst=1e9, requests_a_second=50.0, batch=batch)
            yield Row(
                f"50 requests/s of {batch}, latency={latency:g}s {end}",
                replace(limited, latency=latency),
                (10, 40),
                0.75,
                0.3,
                settled=99.0,
            )
        for most in (1, 4, 20):
            limited = replace(base, capacity=1e9, at_a_time=most, batch=50)
            least = max(1, most // tasks)
            yield Row(
                f"{most} requests at a time {end}",
                limited,
                (5, 30),
                0.75 if tasks <= most else 0.0,
                1.0,
                settled=99.0,
                beats=(least,),
            )


def outcome(job: tuple[Row, str, int]) -> Outcome:
    row, name, seed = job
    return measured(row, STRATEGIES[name](seed), seed)


def measured(row: Row, make: Make, seed: int) -> Outcome:
    """What a strategy reaches in a row."""
    start, end = row.measured
    run = Run(row.scenario, make, seed=seed).until(end)
    accepted = run.utilisation(start, end)
    if row.beats:
        accepted = run.accepted_between(start, end) / max(
            _fixed(row, in_flight, seed) for in_flight in row.beats
        )
    after = 10 if row.scenario.steps else 0
    return Outcome(
        accepted,
        run.refusals(start, end),
        run.fairness(start, end),
        run.settled_after(after, end, max(2, math.ceil(2 * row.scenario.latency))),
        sum(run.sent.values()) / max(1, run.requests),
        run.cpu / max(1, run.requests) * 1e6,
    )


def _fixed(row: Row, in_flight: int, seed: int) -> float:
    start, end = row.measured
    fixed = replace(row.scenario, in_flight=in_flight)
    return Run(fixed, none(), seed=seed).until(end).accepted_between(start, end)


def table(chosen: list[Row], seeds: int, jobs: int, strategies: list[str]) -> None:
    """Prints each row as soon as it is measured, and how many miss something."""
    head = f"{'acc.':>6}{'refused':>8}{'share':>6}{'settled':>7}{'size':>6}{'cpu':>6}  "
    print(f"{'':40}" + "".join(f"{each:{len(head)}}" for each in strategies))
    print(f"{'':40}" + head * len(strategies) + "aimd misses")
    missed = 0
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        work = [
            [
                [pool.apply_async(outcome, ((row, each, seed),)) for seed in range(1, seeds + 1)]
                for each in strategies
            ]
            for row in chosen
        ]
        for row, cells in zip(chosen, work, strict=True):
            means = [mean([run.get() for run in runs]) for runs in cells]
            misses = row.misses(means[0])
            missed += bool(misses)
            print(f"{row.name:40}" + "".join(f"{each}  " for each in means) + ", ".join(misses), flush=True)
    print(f"{len(chosen)} rows, {missed} miss something")


def mean(runs: list[Outcome]) -> Outcome:
    return Outcome(*(math.fsum(values) / len(runs) for values in zip(*runs, strict=True)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.congestion", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="runs of each row")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--only", default="", help="rows that have all of these in them, with commas between")
    parser.add_argument("--alone", action="store_true", help="aimd alone")
    arguments = parser.parse_args()
    words = [word for word in arguments.only.split(",") if word]
    chosen = [row for row in rows() if all(word in row.name for word in words)]
    table(chosen, arguments.seeds, arguments.jobs, list(STRATEGIES)[: 1 if arguments.alone else None])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
