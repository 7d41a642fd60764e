"""The table of congestion control: what is accepted of what a service can take, whatever fails meanwhile.

A service with a token bucket that several tasks share, in virtual time: with and without a burst, with
answers after 5 ms to 2 s, with entries and requests that fail whatever the load is, with steps of its
capacity. For each: what is accepted of min(C, offered) * (1 - p), what is refused for load, the smallest
share of a task by the largest, and when it has settled (from when on enough is accepted in any two seconds,
or in the time of two answers); from the sixth second on, and for steps from ten seconds after the step. For
each row there are the worst of all seeds, how many of them met all goals, and the mean, with the goals that
each of the two misses. Takes eight minutes on two cores.

    python -m integration.benchmarks.congestion --seeds 5 --only "told,tasks=16"

With `--known`, each row has beside it what a sender reaches that knows the capacity, and the part of the
capacity that it sends: the highest of `PARTS` at which it meets all goals; else the one at which it meets
most of them, or of several the one at which most is accepted. What is assumed of it: see
`integration.support.known_capacity`. Takes nine minutes on two cores.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from integration.support.chart import Line, Panel, draw
from integration.support.known_capacity import KnownCapacityStrategy
from integration.support.shared_capacity import Make, Run, Scenario
from sluice.sink import (
    AIMDScalingStrategy,
    AsyncSinkConfig,
    CongestionControlRateLimitingStrategy,
    NoRateLimitingStrategy,
    TokenBucketRateLimitingStrategy,
)

CAPACITY: Final = 4000.0
PARTS: Final = (1.05, 1.0, 0.95, 0.9, 0.85, 0.8, 0.65)
Clock = Callable[[], float]


def aimd(*, paced: bool, seed: int = 1) -> Make:
    tasks = itertools.count()

    def make(config: AsyncSinkConfig, clock: Clock) -> CongestionControlRateLimitingStrategy:
        most = config.max_batch_size * config.max_in_flight_requests
        return CongestionControlRateLimitingStrategy(
            max_in_flight_requests=config.max_in_flight_requests,
            initial_max_in_flight_messages=most,
            scaling_strategy=AIMDScalingStrategy(rate_threshold=most),
            clock=clock if paced else None,
            wall_clock=lambda: clock() + 1.3 * seed,  # runs begin at different times of the wall clock
            jitter=random.Random(f"{seed} {next(tasks)}").random,
        )

    return make


def token_bucket(tasks: int) -> Make:
    def make(_: AsyncSinkConfig, clock: Clock) -> TokenBucketRateLimitingStrategy:
        rate = 0.95 * CAPACITY / tasks
        return TokenBucketRateLimitingStrategy(rate=rate, burst=max(1, round(rate / 10)), clock=clock)

    return make


def known_capacity(scenario: Scenario, part: float, *, seed: int = 1) -> Make:
    tasks = itertools.count()

    def make(_: AsyncSinkConfig, clock: Clock) -> KnownCapacityStrategy:
        jitter = random.Random(f"{seed} {next(tasks)}").random
        return KnownCapacityStrategy(scenario, part, clock=clock, jitter=jitter)

    return make


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    group: str
    name: str
    scenario: Scenario

    @property
    def measured(self) -> tuple[int, int]:
        """The seconds that count."""
        return (20, 30) if self.scenario.steps else (5, 20)

    @property
    def settles_within(self) -> int:
        return 10 if self.scenario.steps else 5


def rows() -> Iterator[Row]:
    """The table; names tell what differs from answers after 0.1 s, a burst of a second, and no failures."""
    for tasks in (1, 4, 16):
        for latency in (0.005, 0.1, 2.0):
            for burst in (1.0, 0.1):
                name = f"latency={latency:g}s burst={burst:g}s tasks={tasks}"
                yield Row("told", name, Scenario(latency=latency, burst=burst, tasks=tasks))
    for told in (True, False):
        group = "told, failing" if told else "untold, failing"
        for tasks in (1, 4, 16):
            base = Scenario(latency=0.1, told=told, tasks=tasks)
            for p in (0.1, 0.5):
                yield Row(group, f"entries p={p} tasks={tasks}", replace(base, failing_entries=p))
                yield Row(group, f"requests p={p} tasks={tasks}", replace(base, failing_requests=p))
    both = Scenario(latency=2.0, tasks=4, failing_entries=0.1, failing_requests=0.1)
    yield Row("told, failing", "both p=0.1 latency=2s tasks=4", both)
    for tasks in (1, 4, 16):
        for latency in (0.1, 2.0):
            for before, after in ((400.0, 4000.0), (4000.0, 400.0)):
                name = f"from {before:g} to {after:g} latency={latency:g}s tasks={tasks}"
                steps = {10.0: after}
                yield Row("steps", name, Scenario(capacity=before, steps=steps, latency=latency, tasks=tasks))
            untold = Scenario(told=False, latency=latency, tasks=tasks)
            yield Row("untold", f"latency={latency:g}s tasks={tasks}", untold)
        yield Row("others", f"bytes bind, tasks={tasks}", Scenario(byte_capacity=2e6, tasks=tasks))
        yield Row("others", f"whole requests are refused, tasks={tasks}", Scenario(whole=True, tasks=tasks))


def noncongestive_rows() -> Iterator[Row]:
    """A part of the requests is refused for load whatever the pace is. It counts as refused."""
    many = Scenario(failing_entries=0.02, lost_answers=0.08, refused_requests=0.02)
    for tasks in (1, 4, 16):
        for latency in (0.02, 0.1, 1.0):
            name = f"many faults, 2% refused latency={latency:g}s tasks={tasks}"
            yield Row("noncongestive", name, replace(many, tasks=tasks, latency=latency))
        steps = replace(many, tasks=tasks, latency=0.1, capacity=400.0, steps={10.0: 4000.0})
        yield Row("noncongestive", f"many faults, 2% refused from 400 to 4000 tasks={tasks}", steps)
        for part in (0.005, 0.05):
            scenario = Scenario(refused_requests=part, latency=0.1, tasks=tasks)
            yield Row("noncongestive", f"{part:.1%} refused latency=0.1s tasks={tasks}", scenario)
        for part in (0.005, 0.02, 0.05):
            for latency in (0.02, 0.1):
                scenario = Scenario(refused_entries=part, latency=latency, tasks=tasks)
                name = f"{part:.1%} of entries refused latency={latency:g}s tasks={tasks}"
                yield Row("noncongestive", name, scenario)


def late_rows() -> Iterator[Row]:
    """It is not told why entries are refused, some fail whatever the pace is, and answers are late."""
    for tasks in (1, 4, 16):
        for latency in (0.5, 1.0, 2.0):
            base = Scenario(told=False, latency=latency, tasks=tasks)
            for p in (0.1, 0.5):
                name = f"entries p={p} latency={latency:g}s tasks={tasks}"
                yield Row("untold, late", name, replace(base, failing_entries=p))
            name = f"requests p=0.1 latency={latency:g}s tasks={tasks}"
            yield Row("untold, late", name, replace(base, failing_requests=0.1))
            if latency < 2.0:  # the table has the others
                yield Row("untold, late", f"p=0 latency={latency:g}s tasks={tasks}", base)


def in_flight_rows() -> Iterator[Row]:
    """Not 50 requests of up to 500 entries: more, where they are needed most; and few, which tell least."""
    for in_flight in (100, 200, 400):
        size = 10_000 // in_flight  # so that 4,000 entries a second have 0.8 of the requests in flight
        scenario = Scenario(latency=2.0, burst=0.1, in_flight=in_flight, batch=size)
        yield Row("in flight", f"{in_flight} of {size}, latency=2s burst=0.1s tasks=1", scenario)
    few = Scenario(tasks=2, capacity=1000.0, told=False, in_flight=4)
    for latency, p in ((0.3, 0.1), (0.6, 0.0)):
        scenario = replace(few, latency=latency, failing_entries=p)
        yield Row("in flight", f"4 of 500, not told, latency={latency:g}s p={p} tasks=2", scenario)


class Outcome(NamedTuple):
    """What came of a run: see the table's goals."""

    accepted: float
    refused: float
    fair: float
    settled: float

    def misses(self, row: Row) -> list[str]:
        """Which of the four goals it misses."""
        goals = (
            self.accepted >= 0.85,
            self.refused < 0.05 + row.scenario.refused_requests + row.scenario.refused_entries,
            self.fair >= 0.5,
            self.settled <= row.settles_within,
        )
        return [name for name, met in zip(self._fields, goals, strict=True) if not met]

    def __str__(self) -> str:
        return f"{self.accepted:9.2f}{self.refused:9.1%}{self.fair:8.2f}{self.settled:8.0f}s"


def outcome(job: tuple[Row, int]) -> Outcome:
    row, seed = job
    return outcome_of(row, Run(row.scenario, aimd(paced=True, seed=seed), seed=seed))


def outcome_of(row: Row, run: Run) -> Outcome:
    start, end = row.measured
    run.until(end)
    # Of two seconds in which the answers differ by two, less may have arrived by chance: a sender at 0.95 C
    # all the time would not count as settled in a third of the runs.
    width = max(2, math.ceil(2 * row.scenario.latency))
    settled = run.settled_after(10 if row.scenario.steps else 0, end, width)
    return Outcome(run.utilisation(start, end), run.refusals(start, end), run.fairness(start, end), settled)


def worst(runs: list[Outcome]) -> Outcome:
    accepted, refused, fair, settled = zip(*runs, strict=True)
    return Outcome(min(accepted), max(refused), min(fair), max(settled))


def mean(runs: list[Outcome]) -> Outcome:
    return Outcome(*(math.fsum(values) / len(runs) for values in zip(*runs, strict=True)))


def known(job: tuple[Row, int]) -> tuple[float, Outcome]:
    """What a sender reaches that knows the capacity, and at which part of it: see `PARTS`."""
    row, seeds = job
    tried: list[tuple[float, Outcome]] = []
    for part in PARTS:
        runs = [
            Run(row.scenario, known_capacity(row.scenario, part, seed=seed), seed=seed)
            for seed in range(1, seeds + 1)
        ]
        tried.append((part, worst([outcome_of(row, run) for run in runs])))
        if not tried[-1][1].misses(row):
            return tried[-1]
    return best(row, tried)


def best(row: Row, tried: list[tuple[float, Outcome]]) -> tuple[float, Outcome]:
    """The one that meets most goals; of several the one at which most is accepted."""
    return min(tried, key=lambda each: (len(each[1].misses(row)), -each[1].accepted))


def table(chosen: list[Row], seeds: int, jobs: int, *, knows: bool = False) -> None:
    """Prints the rows, each when it is there, and how many of them miss each goal."""
    head = f"{'accepted':>9}{'refused':>9}{'fair':>8}{'settled':>9}"
    print(
        f"{'':65}{head}  met  misses{'':26}mean:{head}  misses"
        + (f"{'':24}known:{head}  misses" if knows else "")
    )
    missed: Counter[tuple[str, str]] = Counter()
    met: Counter[str] = Counter()
    met_by_mean: Counter[str] = Counter()
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        work = [
            (
                [pool.apply_async(outcome, ((row, seed),)) for seed in range(1, seeds + 1)],
                pool.apply_async(known, ((row, seeds),)) if knows else None,
            )
            for row in chosen
        ]
        for row, (runs, reached) in zip(chosen, work, strict=True):
            outcomes = [run.get() for run in runs]
            cells = worst(outcomes)
            misses = cells.misses(row)
            missed.update((row.group, goal) for goal in misses)
            good = sum(not each.misses(row) for each in outcomes)
            met[row.group] += good
            text = f"{row.group:<16} {row.name:<48}{cells}  {good}/{seeds}  {', '.join(misses):<32}"
            cells = mean(outcomes)
            misses = cells.misses(row)
            met_by_mean[row.group] += not misses
            text += f"     {cells}  {', '.join(misses):<30}"
            if reached is not None:
                part, cells = reached.get()
                misses = cells.misses(row)
                missed.update((row.group, f"known: {goal}") for goal in misses)
                text += f"{part:6.2f}{cells}  {', '.join(misses)}"
            print(text.rstrip(), flush=True)
    for group in dict.fromkeys(row.group for row in chosen):
        count = sum(row.group == group for row in chosen)
        misses = [f"{goal} {missed[group, goal]}" for goal in Outcome._fields]
        runs_met = f"{met[group]} of {count * seeds} runs meet all goals"
        rows_met = f"{met_by_mean[group]} rows by their mean"
        print(f"{group}: {count} rows; misses: {', '.join(misses)}; {runs_met}, and {rows_met}")
        if knows:
            misses = [f"{goal} {missed[group, f'known: {goal}']}" for goal in Outcome._fields]
            print(f"{group}: {count} rows; misses where C is known: {', '.join(misses)}")


def picture(name: str, scenario: Scenario) -> str:
    """`aimd` beside the other strategies: what is accepted, and what is refused for load."""
    makes = {
        "aimd": aimd(paced=True),
        "none": lambda _, __: NoRateLimitingStrategy(),
        "token-bucket": token_bucket(scenario.tasks),
        "Flink's arithmetic": aimd(paced=False),
    }
    runs = {each: Run(scenario, make).until(30) for each, make in makes.items()}
    seconds = range(30)
    takes = [(float(n), scenario.admitted(n + 0.5) * scenario.passing) for n in seconds]

    def accepted(run: Run) -> list[tuple[float, float]]:
        return [(float(n), float(sum(run.accepted[n, task.number] for task in run.tasks))) for n in seconds]

    panels = [
        Panel(
            f"{name}: accepted, records/s (dashed: C (1 - p))",
            [
                *(Line(each, accepted(run)) for each, run in runs.items()),
                Line("C (1 - p)", takes, dashed=True),
            ],
            top=2 * CAPACITY,
        ),
        Panel(
            "refused for load, records/s",
            [Line(each, [(float(n), float(run.refused[n])) for n in seconds]) for each, run in runs.items()],
            top=2 * CAPACITY,
        ),
    ]
    return str(draw(f"congestion_{name.replace(' ', '_').replace(',', '')}", panels))


PICTURES: Final = {
    "told": Scenario(latency=0.1, tasks=4),
    "told, answers after 2 s": Scenario(latency=2.0, tasks=4),
    "told, half of entries fail": Scenario(latency=0.1, tasks=4, failing_entries=0.5),
    "steps": Scenario(capacity=400.0, steps={10.0: CAPACITY, 20.0: 400.0}, latency=0.1, tasks=4),
    "untold": Scenario(told=False, latency=0.1, tasks=4),
    "untold, a tenth of entries fails": Scenario(told=False, latency=0.1, tasks=4, failing_entries=0.1),
    "others, whole requests are refused": Scenario(whole=True, tasks=4),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.congestion", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="runs of each row")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--only", default="", help="rows that have all of these in them, with commas between")
    parser.add_argument("--known", action="store_true", help="and what a sender reaches that knows C")
    arguments = parser.parse_args()
    words = [word for word in arguments.only.split(",") if word]
    chosen = [
        row
        for row in (*rows(), *noncongestive_rows(), *late_rows(), *in_flight_rows())
        if all(word in f"{row.group} {row.name}" for word in words)
    ]
    table(chosen, arguments.seeds, arguments.jobs, knows=arguments.known)
    for name, scenario in PICTURES.items():
        if not words:
            print(f"picture: {picture(name, scenario)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
