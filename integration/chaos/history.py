"""What has happened in a run: faults, failures of queries and samples of how far they are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from integration.chaos.pipeline import COPY, QUERIES
from integration.chaos.plan import Fault

_EXPLAINS: Final = 90.0
"""Seconds after its end in which a fault may be why a query failed: a driver that was stopped learns late."""
_OURS: Final = "sluice.errors."


@dataclass
class Struck:
    fault: Fault
    at: float  # seconds from the moment when the pipeline ran
    hit: str | None  # what it has hit; None: there was nothing
    ended: list[str] = field(default_factory=list)  # the queries that it has ended

    @property
    def until(self) -> float:
        return self.at + self.fault.seconds

    def may_end(self, failure: Failure) -> bool:
        """Whether it may be why a query has failed."""
        kind = self.fault.kind
        return (
            self.hit is not None
            and kind.ends == "query"
            and self.ended.count(failure.query) < kind.often
            and self.at <= failure.at <= self.until + _EXPLAINS
            and re.search(kind.error, failure.error) is not None
        )


@dataclass
class Failure:
    """A query, or a driver, that ended without a request to stop."""

    at: float
    query: str  # its name; ``driver`` for a driver
    error: str
    cause: Struck | None = None  # the fault that may do that. None: nothing may, so a promise is broken


class Sample(NamedTuple):
    at: float
    put: int
    copied: int  # put, copied: records in the streams so far
    waiting: Mapping[str, int]  # records that a query has not committed, by query
    committed: Mapping[str, int]  # the last batch that is committed, by query

    @property
    def is_drained(self) -> bool:
        """Whether everything that was put has been processed."""
        return not any(self.waiting.values())


@dataclass
class History:
    """Everything that a report needs, but for the records."""

    struck: list[Struck] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)  # of drivers

    def fail(self, at: float, query: str, error: str) -> Failure:
        """A query has failed: finds the fault that it may blame."""
        failure = Failure(at, query, error)
        if _OURS not in error:  # else the library has raised it, and not Spark about a process that has died
            failure.cause = next((each for each in reversed(self.struck) if each.may_end(failure)), None)
        if failure.cause is not None:
            failure.cause.ended.append(query)
        self.failures.append(failure)
        return failure

    @property
    def unexplained(self) -> list[Failure]:
        """The failures that nothing explains."""
        return [failure for failure in self.failures if failure.cause is None]

    def ended_before(self, at: float, query: str) -> str:
        """What ended the run of a query before the one that began at a time."""
        ends = [(kill, "kill driver") for kill in self.kills if kill < at]
        ends += [
            (failure.at, failure.cause.fault.kind.name if failure.cause else "it failed by itself")
            for failure in self.failures
            if failure.query in (query, "driver") and failure.at < at
        ]
        return max(ends, default=(0.0, "nothing"))[1]

    def recovery(self, struck: Struck) -> float | None:
        """Seconds from the end of a fault until each query has committed a batch since, or has nothing to do;
        None where that never came.
        """
        left = set(QUERIES)
        before: Sample | None = None
        for sample in self.samples:
            if sample.at < struck.until:
                before = sample
                continue
            for query in list(left):
                goes_on = before is not None and sample.committed[query] > before.committed[query]
                if goes_on or not sample.waiting[query]:
                    left.discard(query)
            if not left:
                return sample.at - struck.until
        return None

    def longest_stall(self, query: str, since: float = 0.0) -> tuple[float, float]:
        """The longest time in which records waited and the query committed nothing: its seconds, and when it
        began.
        """
        longest, began = 0.0, since
        stalled: Sample | None = None
        for sample in self.samples:
            if sample.at < since:
                continue
            waits = sample.waiting[query] > 0
            if stalled is None or not waits or sample.committed[query] != stalled.committed[query]:
                stalled = sample if waits else None
            elif sample.at - stalled.at > longest:
                longest, began = sample.at - stalled.at, stalled.at
        return longest, began

    def stalled(self, query: str, since: float) -> float:
        """Seconds for which records have waited and the query has committed nothing, up to now."""
        last = self.samples[-1]
        began = last.at
        for sample in reversed(self.samples):
            if sample.at < since or not sample.waiting[query]:
                break
            if sample.committed[query] != last.committed[query]:
                break
            began = sample.at
        return last.at - began

    def lag(self, query: str) -> list[tuple[float, float]]:
        """By time, the seconds that a query is behind its stream: since as long ago what waits was put."""
        return _lag([(s.at, s.put if query == COPY else s.copied, s.waiting[query]) for s in self.samples])


def _lag(samples: Sequence[tuple[float, int, int]]) -> list[tuple[float, float]]:
    found = []
    place = 0
    for at, count, waiting in samples:
        # Counts rise, and so does the committed position: the place moves forward only.
        while place < len(samples) - 1 and samples[place + 1][1] <= count - waiting:
            place += 1
        found.append((at, 0.0 if not waiting else max(0.0, at - samples[place][0])))
    return found
