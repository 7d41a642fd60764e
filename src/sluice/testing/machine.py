"""Random histories of a source and a query. They check that every record comes once, in order, and in exactly
the batch that its offsets say, through restarts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sluice.source.contracts import Source
from sluice.source.settings import Limits
from sluice.testing.runner import QueryRunner, Row

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["Subject", "check_history", "histories"]

Step = tuple[Any, ...]


@dataclass
class Subject:
    """The source of which histories are checked, and what makes its records.

    Attributes:
        source: its class.
        options: its options, with which it reads every record, from the oldest on.
        put: makes a number of records. `check_history` calls it.
        expected: the identities of all records made so far, each once.
        identity: gives the identity of the record from which a row was made.
        split: gives the split of a row. The rows of a split come in the order of `position`.
        position: gives the position of a row in its split; any value that compares.
        events: by name, what else may happen to a source, such as a split that is divided. Each takes a
            number from 0 to 100, by which it may choose.
        wait: lets time pass (seconds).
    """

    source: type[Source]
    options: Mapping[str, str]
    put: Callable[[int], None]
    expected: Callable[[], Iterable[Hashable]]
    identity: Callable[[Row], Hashable]
    split: Callable[[Row], Hashable]
    position: Callable[[Row], Any]
    events: Mapping[str, Callable[[int], None]] = field(default_factory=dict)
    wait: Callable[[float], None] = time.sleep


def histories(
    *,
    puts: int = 300,
    waits: Iterable[float] = (0.3, 1.0, 12.0),
    events: Iterable[str] = (),
    length: int = 25,
) -> SearchStrategy[list[Step]]:
    """A Hypothesis strategy of histories for `check_history`.

    Args:
        puts: the most records made in one step.
        waits: seconds that may pass in one step.
        events: names of a subject's events.
        length: the most steps.
    """
    from hypothesis import strategies as st  # noqa: PLC0415 - an extra

    limits = st.sampled_from([None, Limits(), Limits(records=1), Limits(records=40), Limits(bytes=500)])
    steps: list[SearchStrategy[Any]] = [
        st.tuples(st.just("put"), st.integers(1, puts)),
        st.tuples(st.just("batch"), limits, st.booleans()),
        st.tuples(st.just("restart")),
        st.tuples(st.just("available"), limits),
    ]
    if waits := tuple(waits):
        steps.append(st.tuples(st.just("wait"), st.sampled_from(waits)))
    if events := tuple(events):
        steps.append(st.tuples(st.just("event"), st.sampled_from(events), st.integers(0, 100)))
    return st.lists(st.one_of(steps), max_size=length)


def check_history(subject: Subject, history: Iterable[Step], *, timeout: float = 30.0) -> QueryRunner:
    """Takes all steps, continues reading until every record has come, and checks what was read.

    - Every record has come once, and no other has.
    - The records of a split have come in their order, from batch to batch and within each.
    - Each batch, read again from its two offsets alone, has the same rows, and those of a split in the same
      order.
    - A batch read gives the same records.

    Args:
        timeout: seconds of `Subject.wait` after which no record is waited for any more.

    Raises:
        AssertionError: one of these does not hold.
    """
    with QueryRunner(subject.source, subject.options) as query:
        for step in history:
            _take(subject, query, step)
        expected = sorted(map(repr, subject.expected()))
        query.run_until(len(expected), timeout=timeout, wait=subject.wait)
        for _ in range(3):  # nothing is duplicated
            subject.wait(0.2)
            query.run_batch()
        read = sorted(repr(subject.identity(row)) for row in query.rows)
        _require(read == expected, f"each record comes once: {_difference(read, expected)}")
        _check_order(subject, query)
        for number, rows in enumerate(query.batches):
            again = query.read(number)
            _require(
                _by_split(subject, again) == _by_split(subject, rows),
                f"batch {number} has the same rows when it is read again; it had {len(rows)} and has "
                f"{len(again)}",
            )
        everything = sorted(repr(subject.identity(row)) for row in query.read_all())
        _require(everything == expected, f"a batch read has each record: {_difference(everything, expected)}")
    return query


def _take(subject: Subject, query: QueryRunner, step: Step) -> None:
    match step:
        case ("put", int(count)):
            subject.put(count)
        case ("wait", float(seconds)):
            subject.wait(seconds)
        case ("batch", limits, bool(crash)):
            query.run_batch(limits, crash=crash)
        case ("restart",):
            query.restart()
        case ("available", limits):
            query.run_available(limits)
        case ("event", str(name), int(number)):
            subject.events[name](number)
        case _:
            raise ValueError(step)


def _check_order(subject: Subject, query: QueryRunner) -> None:
    last: dict[Hashable, Any] = {}
    for number, rows in enumerate(query.batches):
        for row in rows:
            split, position = subject.split(row), subject.position(row)
            _require(
                split not in last or last[split] < position,
                f"rows of split {split} come in order; in batch {number}, {position!r} came behind "
                f"{last.get(split)!r}",
            )
            last[split] = position


def _by_split(subject: Subject, rows: Iterable[Row]) -> dict[Hashable, list[Row]]:
    found: dict[Hashable, list[Row]] = {}
    for row in rows:
        found.setdefault(subject.split(row), []).append(row)
    return found


def _difference(read: list[str], expected: list[str]) -> str:
    missing = [each for each in expected if each not in set(read)]
    extra = [each for each in read if each not in set(expected)]
    twice = sorted({each for each in read if read.count(each) > 1}) if len(read) < 10_000 else []
    return f"{len(missing)} missing {missing[:3]}, {len(extra)} unknown {extra[:3]}, twice {twice[:3]}"


def _require(condition: bool, rule: str) -> None:
    if not condition:
        raise AssertionError(rule)
