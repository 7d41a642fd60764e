"""The table of congestion control: what is accepted of what a service can take, whatever fails meanwhile.

A service with a token bucket that several tasks share, in virtual time: with and without a burst, with
answers after 5 ms to 2 s, with entries and requests that fail whatever the load is, with steps of its
capacity. For each: what is accepted of min(C, offered) * (1 - p), what is refused for load, and the smallest
share of a task by the largest; from the sixth second on, and for steps from ten seconds after the step.
Tasks compare their paces, as by default; not so with --scope task.

    python -m integration.benchmarks.congestion
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from typing import Final

from integration.support.chart import Line, Panel, draw
from integration.support.shared_capacity import Make, Run, Scenario
from integration.support.shared_pace import MakeOwn, PacedRun
from sluice.sink import (
    AIMDScalingStrategy,
    AsyncSinkConfig,
    CongestionControlRateLimitingStrategy,
    NoRateLimitingStrategy,
    RateLimitingStrategy,
    TokenBucketRateLimitingStrategy,
)

CAPACITY: Final = 4000.0
Clock = Callable[[], float]


def aimd(*, paced: bool) -> MakeOwn:
    def make(config: AsyncSinkConfig, clock: Clock) -> CongestionControlRateLimitingStrategy:
        most = config.max_batch_size * config.max_in_flight_requests
        return CongestionControlRateLimitingStrategy(
            max_in_flight_requests=config.max_in_flight_requests,
            initial_max_in_flight_messages=most,
            scaling_strategy=AIMDScalingStrategy(rate_threshold=most),
            clock=clock if paced else None,
            wall_clock=clock,
            jitter=random.Random(3).random,
        )

    return make


def token_bucket(tasks: int) -> Make:
    def make(_: AsyncSinkConfig, clock: Clock) -> RateLimitingStrategy:
        rate = 0.95 * CAPACITY / tasks
        return TokenBucketRateLimitingStrategy(rate=rate, burst=max(1, round(rate / 10)), clock=clock)

    return make


def scenarios(latencies: list[float]) -> Iterator[tuple[str, Scenario]]:  # noqa: C901 - a table
    """The cells of the table, with their names."""
    for told in (True, False):
        for tasks in (1, 4, 16):
            for kind in ("entries", "requests", "both"):
                for p in (0.0, 0.02, 0.1, 0.3, 0.5):
                    if not p and kind != "entries":
                        continue
                    for burst in (1.0, 0.1):
                        for latency in latencies:
                            yield (
                                " ".join(
                                    (
                                        "told" if told else "untold",
                                        f"{kind} p={p:g} burst={burst:g}s latency={latency:g}s tasks={tasks}",
                                    )
                                ),
                                Scenario(
                                    capacity=CAPACITY,
                                    burst=burst,
                                    latency=latency,
                                    told=told,
                                    tasks=tasks,
                                    failing_entries=p if kind != "requests" else 0.0,
                                    failing_requests=p if kind != "entries" else 0.0,
                                ),
                            )
    for tasks in (1, 4, 16):
        yield f"bytes bind, tasks={tasks}", Scenario(byte_capacity=2e6, tasks=tasks)
        yield f"whole requests are refused, tasks={tasks}", Scenario(whole=True, tasks=tasks)
        for latency in latencies:
            for before, after in ((400.0, 4000.0), (4000.0, 400.0)):
                yield (
                    f"from {before:g} to {after:g} latency={latency:g}s tasks={tasks}",
                    Scenario(capacity=before, steps={10.0: after}, latency=latency, tasks=tasks),
                )


def verdict(run: Run, start: int, end: int) -> tuple[str, tuple[bool, bool, bool, bool]]:
    """The figures of a run from a second to another, and which of the four goals it meets."""
    used, refused = run.utilisation(start, end), run.refusals(start, end)
    fair, settled = run.fairness(start, end), run.settled_after(10 if start >= 20 else 0, end)
    limit = 10.0 if start >= 20 else 5.0
    return (
        f"{used:9.1%}{refused:9.2%}{fair:8.2f}{settled:8.0f}s",
        (used >= 0.85, refused < 0.05, fair >= 0.5, settled <= limit),
    )


def picture(failing: float, latency: float, tasks: int) -> str:
    """`aimd` beside the other strategies, with a step of the capacity down and up again."""
    steps = {15.0: CAPACITY / 10, 30.0: CAPACITY}
    faults = Scenario(capacity=CAPACITY, failing_entries=failing, latency=latency, tasks=tasks, steps=steps)
    makes = {
        "none": lambda _, __: NoRateLimitingStrategy(),
        "token-bucket": token_bucket(tasks),
        "Flink's arithmetic": aimd(paced=False),
    }
    runs: dict[str, Run] = {"aimd": PacedRun(faults, aimd(paced=True)).until(45)}
    runs |= {name: Run(faults, make).until(45) for name, make in makes.items()}
    seconds = range(45)
    takes = [(float(n), faults.admitted(n + 0.5) * faults.passing) for n in seconds]

    def accepted(run: Run) -> list[tuple[float, float]]:
        return [(float(n), float(sum(run.accepted[n, each] for each in range(tasks)))) for n in seconds]

    panels = [
        Panel(
            "accepted, records/s (dashed: C (1 - p))",
            [
                *(Line(name, accepted(run)) for name, run in runs.items()),
                Line("C (1 - p)", takes, dashed=True),
            ],
            top=2 * CAPACITY,
        ),
        Panel(
            "refused for load, records/s",
            [Line(name, [(float(n), float(run.refused[n])) for n in seconds]) for name, run in runs.items()],
            top=2 * CAPACITY,
        ),
    ]
    return str(draw(f"congestion_{tasks}_tasks_p{failing:g}_latency{latency:g}", panels))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.congestion", description=__doc__)
    parser.add_argument("--latency", type=float, nargs="*", default=[0.005, 0.1, 2.0], help="seconds")
    parser.add_argument("--only", default="", help="scenarios whose name has this in it")
    parser.add_argument("--scope", choices=["query", "task"], default="task", help="aimdScope")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(f"{'':66}{'accepted':>9}{'refused':>9}{'fair':>8}{'settled':>9}")
    met: list[tuple[str, tuple[bool, ...]]] = []
    for name, scenario in scenarios(arguments.latency):
        if arguments.only not in name:
            continue
        start, end = (20, 30) if scenario.steps else (5, 20)
        kind_of_run = PacedRun if arguments.scope == "query" else Run
        run = kind_of_run(scenario, aimd(paced=True), seed=arguments.seed)
        text, goals = verdict(run.until(end), start, end)
        misses = [
            goal
            for goal, reached in zip(("accepted", "refused", "fair", "settled"), goals, strict=True)
            if not reached
        ]
        met.append((name.partition(" ")[0], goals))
        print(f"{name:66}{text}  {'misses ' + ', '.join(misses) if misses else ''}", flush=True)
    for kind in sorted({kind for kind, _ in met}):
        cells = [goals for each, goals in met if each == kind]
        columns = (sum(goals[n] for goals in cells) for n in range(4))
        print(f"{kind:<8} {len(cells)} cells; accepted, refused, fair, settled:", *columns)
    for failing, latency, tasks in ((0.0, 0.02, 1), (0.1, 0.02, 4), (0.5, 0.1, 16), (0.0, 2.0, 4)):
        print(f"picture: {picture(failing, latency, tasks)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
