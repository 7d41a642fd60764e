"""What a run has shown, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from integration.chaos.history import History, Struck
from integration.chaos.pipeline import COPY, QUERIES
from integration.chaos.plan import KINDS
from integration.chaos.run import LONGEST_STALL, Verdict

_SHOWN: Final = 14  # lines of an error

_WHY: Final = {
    "batch": "the batch ran again",
    "task": "a task ran again",
    "request": "an answer was lost, and the request was sent again",
}


def table(verdict: Verdict) -> str:
    return "\n".join(
        [
            *_faults(verdict.history),
            "",
            *_failures(verdict.history),
            *_copies(verdict),
            "",
            *_files(verdict),
            "",
            *_times(verdict),
            "",
            *_outcome(verdict),
        ]
    )


def _faults(history: History) -> Iterator[str]:
    yield f"{'fault':<24} {'made':>5} {'missed':>7} {'restarts':>9} {'both queries went on within':>30}"
    for name in KINDS:
        struck = [each for each in history.struck if each.fault.kind.name == name]
        if not struck:
            continue
        made = [each for each in struck if each.hit is not None]
        restarts = sum(len(each.ended) for each in made)
        if name == "kill driver":
            restarts = len(made)
        yield (
            f"{name:<24} {len(made):>5} {len(struck) - len(made):>7} {restarts or '':>9} "
            f"{_longest(history, made):>30}"
        )
    made = [each for each in history.struck if each.hit is not None]
    yield f"{'all':<24} {len(made):>5} {len(history.struck) - len(made):>7}"


def _longest(history: History, made: Sequence[Struck]) -> str:
    times = [history.recovery(each) for each in made]
    if None in times:
        return "never"
    return f"{max((time for time in times if time is not None), default=0.0):.1f} s"


def _failures(history: History) -> Iterator[str]:
    for failure in history.unexplained:
        yield f"{failure.query} FAILED BY ITSELF at {failure.at:.0f} s:"
        yield from (f"    {line[:200]}" for line in _essence(failure.error))
        yield ""


def _essence(error: str) -> list[str]:
    """Lines of our modules, and the message of each cause."""
    lines = [line for line in error.splitlines() if line.strip().strip("^") and "site-packages" not in line]
    return [*lines[:3], "...", *lines[-_SHOWN:]] if len(lines) > _SHOWN + 3 else lines


def _copies(verdict: Verdict) -> Iterator[str]:
    copies = verdict.copies
    yield f"orders put {copies.put}, records copied {copies.copied} (at least once)"
    yield f"  lost {copies.lost}, foreign {copies.foreign}, more than once {copies.repeated.total()}:"
    began = dict(verdict.runs)
    for (why, run), count in sorted(copies.repeated.items(), key=lambda item: item[0][1]):
        if not count:
            continue
        at = began.get(f"{run[0]}.{run[1]}", 0.0)
        line = f"    {count:>6} in run {run[0]}.{run[1]}, from {at:.0f} s on: {_WHY[why]}"
        if why == "batch":
            batches = ", ".join(map(str, copies.batches[run]))
            line += f": batch {batches}, after {verdict.history.ended_before(at, COPY)}"
        yield line
    if copies.needless:
        yield f"  NEEDLESS: {copies.needless} were sent again although the sink knew that they were accepted"
    for run in copies.unexplained:
        yield f"  UNEXPLAINED: run {run} wrote batches {copies.batches[run]} again"
    yield from (f"  {example}" for example in copies.examples)


def _files(verdict: Verdict) -> Iterator[str]:
    files = verdict.files
    yield f"records to file {verdict.copies.copied}, rows committed {files.rows} (exactly once)"
    yield (
        f"  lost {files.lost}, doubled {files.doubled}, foreign {files.foreign}, "
        f"keys out of order {files.disordered}"
    )
    yield from (f"  {example}" for example in files.examples)


def _times(verdict: Verdict) -> Iterator[str]:
    history, seconds = verdict.history, verdict.settings.seconds
    for query in QUERIES:
        (stall, began), (late, _) = history.longest_stall(query), history.longest_stall(query, seconds)
        yield (
            f"{query}: longest stall {stall:.1f} s (from {began:.0f} s on), {late:.1f} s at the end; "
            f"most behind {max((lag for _, lag in history.lag(query)), default=0.0):.1f} s"
        )
    drained = "never" if verdict.drained is None else f"{verdict.drained:.1f} s after the last fault"
    yield f"drained {drained}, with no stall of {LONGEST_STALL:.0f} s allowed; {verdict.drivers} drivers"


def _outcome(verdict: Verdict) -> Iterator[str]:
    yield from (f"PROBLEM: {problem}" for problem in verdict.problems)
    settings = verdict.settings
    again = f"make chaos SEED={settings.seed} MINUTES={settings.seconds / 60:g} S3={settings.s3}"
    yield f"seed {settings.seed}: {'every promise kept' if verdict.is_right else 'FAILED'} ({again})"
