"""Counts every record at the end: how many were put, how many copies each has, and why.

An order is ``<key>:<number>:<padding>`` in stream `ORDERS`. Query copy makes of it
``<order>|<run>|<when the row was made>`` in stream `COPIED`; query lake writes each copy with the shard and
the sequence number that it has there.

- At least once: each order has been copied. One that is there more often tells by its copies what has
  happened, see `Repetition`, and all that one run wrote again must be of one batch: the one that had not been
  committed when the run before it ended.
- Exactly once: each copied record is in one row of a committed file, and the rows of a key are in the order
  of the stream.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

_SHOWN = 5

Repetition = Literal["batch", "task", "request"]
"""Why a record was written again: its batch ran again in another run of the query, its task ran again in the
same run, or the same task sent it again, because it did not learn that it had been accepted."""


class Order(NamedTuple):
    key: str
    number: int


class Copy(NamedTuple):
    """One record of `COPIED`."""

    order: Order
    run: tuple[int, int]
    made: str
    sequence_number: str

    @classmethod
    def parse(cls, sequence_number: str, data: bytes) -> Copy | None:
        """None where the pipeline has not made it."""
        try:
            order, run, made = data.decode().rsplit("|", 2)
            key, number, _ = order.split(":", 2)
            driver, start = run.split(".")
            return cls(Order(key, int(number)), (int(driver), int(start)), made, sequence_number)
        except ValueError:
            return None


class Row(NamedTuple):
    shard: str
    sequence_number: str
    key: str


def order_data(key: str, number: int, padding: int) -> bytes:
    return f"{key}:{number}:".encode() + b"x" * padding


@dataclass
class Copies:
    """What query copy has made of the orders."""

    put: int = 0  # orders
    copied: int = 0  # records of `COPIED`
    lost: int = 0  # orders that were never copied
    foreign: int = 0  # records that are a copy of nothing that was put
    needless: int = 0  # records that were sent again although the sink knew that they were accepted
    # records beyond the first copy of an order, by why they were written and in which run
    repeated: Counter[tuple[Repetition, tuple[int, int]]] = field(default_factory=Counter)
    # for each run, the batches that it, or a run before it, wrote again
    batches: dict[tuple[int, int], set[int | None]] = field(default_factory=lambda: defaultdict(set))
    examples: list[str] = field(default_factory=list)  # of what is wrong

    @property
    def unexplained(self) -> list[tuple[int, int]]:
        """Runs that wrote again more than the one batch that the run before had left uncommitted."""
        return [run for run, batches in self.batches.items() if len(batches) > 1 or None in batches]

    @property
    def is_right(self) -> bool:
        return not (self.lost or self.foreign or self.needless or self.unexplained)


@dataclass
class Files:
    """What query lake has made of the copied records."""

    rows: int = 0  # of committed files
    lost: int = 0  # copied records in no row
    doubled: int = 0  # rows beyond the first one of a copied record
    foreign: int = 0  # rows that are no copied record
    disordered: int = 0  # keys with a row behind one that comes later in the stream
    examples: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        return not (self.lost or self.doubled or self.foreign or self.disordered)


def count_copies(
    put: Mapping[str, int],
    copied: Sequence[tuple[str, bytes]],
    batch_of: Callable[[Order], int | None],
    unacknowledged: Container[str],
) -> Copies:
    """Compares the records in `COPIED` with the orders that were put.

    `put`: by key, how many orders; they are numbered from 0; `copied`: sequence number and data of all
    records of the stream; `batch_of`: the batch of query copy that an order is in; `unacknowledged`: the
    sequence numbers of records whose acceptance the sink may not have learned.
    """
    result = Copies(put=sum(put.values()), copied=len(copied))
    seen = {key: bytearray(count) for key, count in put.items()}
    again: dict[Order, list[Copy]] = {}
    for number, data in copied:
        copy = Copy.parse(number, data)
        if copy is None or copy.order.number >= put.get(copy.order.key, 0):
            result.foreign += 1
            _note(result.examples, f"copied, but never put: {data[:80]!r}")
        elif seen[copy.order.key][copy.order.number]:
            again.setdefault(copy.order, [])
        else:
            seen[copy.order.key][copy.order.number] = 1
    for number, data in copied if again else ():
        copy = Copy.parse(number, data)
        if copy is not None and copy.order in again:
            again[copy.order].append(copy)
    for key, numbers in seen.items():
        missing = numbers.count(0)
        if missing:
            result.lost += missing
            _note(result.examples, f"lost: {missing} orders of {key}, the first is {numbers.index(0)}")
    for order, copies in again.items():
        _explain(result, copies, batch_of(order), unacknowledged)
    return result


def _explain(
    result: Copies, copies: Sequence[Copy], batch: int | None, unacknowledged: Container[str]
) -> None:
    runs: dict[tuple[int, int], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for copy in copies:
        runs[copy.run][copy.made].append(copy.sequence_number)
    for index, (run, attempts) in enumerate(sorted(runs.items())):
        for sent in attempts.values():
            result.repeated["request", run] += len(sent) - 1
            result.needless += max(0, sum(number not in unacknowledged for number in sent) - 1)
        result.repeated["task", run] += len(attempts) - 1
        if index:
            result.repeated["batch", run] += 1
            result.batches[run].add(batch)


def count_rows(
    copied: Mapping[str, Sequence[str]], files: Iterable[tuple[int, Iterable[Sequence[Row]]]]
) -> Files:
    """Compares the rows of committed files with the records in `COPIED`.

    `copied`: by shard, the sequence numbers of all records in their order; `files`: batches in their order,
    each with the rows of its files.
    """
    result = Files()
    places = {shard: {number: place for place, number in enumerate(all_)} for shard, all_ in copied.items()}
    seen = {shard: bytearray(len(all_)) for shard, all_ in copied.items()}
    newest: dict[str, int] = {}
    disordered: set[str] = set()
    for batch, parts in files:
        before = dict(newest)
        for rows in parts:
            last: dict[str, int] = {}
            for row in rows:
                result.rows += 1
                place = places.get(row.shard, {}).get(row.sequence_number)
                if place is None:
                    result.foreign += 1
                    _note(result.examples, f"batch {batch}: {row} is in no stream")
                    continue
                if seen[row.shard][place]:
                    result.doubled += 1
                    _note(result.examples, f"batch {batch}: {row} is there twice")
                seen[row.shard][place] = 1
                number = int(row.sequence_number)
                if number < max(last.get(row.key, -1), before.get(row.key, -1)):
                    disordered.add(row.key)
                    _note(result.examples, f"batch {batch}: {row} comes too late")
                last[row.key] = number
                newest[row.key] = max(number, newest.get(row.key, -1))
    for shard, rows_seen in seen.items():
        missing = rows_seen.count(0)
        if missing:
            result.lost += missing
            first = rows_seen.index(0)
            _note(result.examples, f"lost: {missing} records of {shard}, the first is number {first}")
    result.disordered = len(disordered)
    return result


def _note(examples: list[str], what: str) -> None:
    if len(examples) < _SHOWN:
        examples.append(what)
