"""The format ``dynamodb-streams`` in Spark: a driver that is killed, and shards that roll over meanwhile."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from integration.model.clock import RealClock
from integration.streams_model import Laws, StreamsModel
from integration.streams_model.server import serving
from integration.support.background import repeating
from integration.support.drivers import Driver, Line, Outcome, started_drivers
from integration.support.replay_driver import BEFORE, HALF, WRITTEN, DriverPlan

TABLE = "orders"
OPTIONS = {"maxRecordsPerTrigger": "400", "splitsPerTask": "4"}


@dataclass
class Producer:
    """Changes items, and has shards roll over. `expected` has the rows that this makes."""

    model: StreamsModel
    expected: list[Line] = field(default_factory=list)

    def put(self, count: int) -> None:
        for _ in range(count):
            key = f"key-{len(self.expected)}"
            record = self.model.put(TABLE, key)
            data = json.dumps({"id": key}, separators=(",", ":")).encode().hex()
            self.expected.append((record.shard, str(record.number), 0, data))

    def putting(self) -> AbstractContextManager[None]:
        """Puts in a thread until the ``with`` block ends; every second or so a shard is replaced."""
        turns = itertools.count()

        def put() -> None:
            self.put(5)
            if next(turns) % 4 == 3:
                self.model.roll(TABLE, self.model.open_shards(TABLE)[0])

        return repeating(put, 0.25)


@pytest.fixture
def drivers() -> Iterator[list[Driver]]:
    with started_drivers() as started:
        yield started


@pytest.mark.parametrize(
    "moments",
    [
        pytest.param([(1, HALF)], id="once"),
        pytest.param([(1, WRITTEN), (3, BEFORE), (5, HALF)], id="often", marks=pytest.mark.soak(seconds=90)),
    ],
)
def test_a_killed_driver_reads_the_same_batches_again(
    tmp_path: Path, drivers: list[Driver], moments: list[tuple[int, str]]
) -> None:
    """A query is killed with SIGKILL in the middle of a batch and started again from its checkpoint, while
    shards roll over. It gets the same rows for the same batch id, and all batches together hold every record
    exactly once, those of a shard in order.
    """
    model = StreamsModel(Laws(), RealClock(), 20261122)
    model.enable(TABLE, shards=3)
    producer = Producer(model)
    producer.put(1200)
    with serving(model) as endpoint:
        plan = DriverPlan(0, endpoint, TABLE, str(tmp_path), OPTIONS)
        plan.output.mkdir()
        with producer.putting():
            for attempt, (batch, moment) in enumerate(moments):
                driver = _started(replace(plan, attempt=attempt, stop_at=(batch, moment)), drivers)
                driver.wait_for(f"reached {moment} of batch ")
                driver.kill()
        model.roll(TABLE)
        producer.put(300)  # a batch that is logged must not take in what comes later
        last = _started(replace(plan, attempt=len(moments)), drivers)
        last.wait_until(lambda: len(Outcome.of(plan.output).rows) >= len(producer.expected), "all changes")
        last.end()

    outcome = Outcome.of(plan.output)
    outcome.check_replays()
    assert Counter(outcome.rows) == Counter(producer.expected)
    # A batch that stood still before its first row has no rows twice.
    assert {batch for batch, moment in moments if moment != BEFORE} <= set(outcome.replayed())
    for shard in {line[0] for line in producer.expected}:
        numbers = [int(line[1]) for line in outcome.rows if line[0] == shard]
        assert numbers == sorted(numbers)


def test_a_table_is_copied_while_it_changes(tmp_path: Path, drivers: list[Driver]) -> None:
    """A query reads a table and then its changes, and is killed twice: in a batch of the scan, and in one of
    the stream. All that it ever wrote, applied by key in the order of batches, gives the table.
    """
    model = StreamsModel(Laws(), RealClock(), 20261129)
    model.enable(TABLE, shards=2)
    turns = itertools.count()

    def change() -> None:
        turn = next(turns)
        for number in range(5):
            key = f"key-{(7 * turn + number) % 700}"
            model.write(TABLE, key, None if (turn + number) % 4 == 0 else {"v": {"N": str(turn)}})
        if turn % 8 == 7:
            model.roll(TABLE, model.open_shards(TABLE)[0])

    for number in range(600):
        model.write(TABLE, f"key-{number}", {"v": {"N": "-1"}})
    options = {"initialSnapshot": "scan", "maxRecordsPerTrigger": "100", "splitsPerTask": "4"}
    with serving(model) as endpoint:
        plan = DriverPlan(0, endpoint, TABLE, str(tmp_path), options)
        plan.output.mkdir()
        with repeating(change, 0.2):
            for attempt, (batch, moment) in enumerate([(2, WRITTEN), (9, HALF)]):
                driver = _started(replace(plan, attempt=attempt, stop_at=(batch, moment)), drivers)
                driver.wait_for(f"reached {moment} of batch ")
                driver.kill()
        last = _started(replace(plan, attempt=2), drivers)
        last.wait_until(lambda: _copied(plan.output) == model.items(TABLE), "the copy is the table")
        last.end()
    assert len(Outcome.of(plan.output).whole[2]) == 2


def _copied(output: Path) -> dict[str, object]:
    """The table as a user has it who applies every row that was written, also by drivers that were killed."""
    outcome, copy = Outcome.of(output), dict[str, object]()
    for batch in sorted({*outcome.whole, *outcome.parts}):
        for attempt in range(3):
            for rows in (outcome.parts, outcome.whole):
                for line in rows.get(batch, {}).get(attempt, ()):
                    row = json.loads(bytes.fromhex(line[3]))
                    key = json.loads(row["keys"])["id"]
                    if row["eventName"] == "REMOVE":
                        copy.pop(key, None)
                    else:
                        value = json.loads(row["newImage"])["v"]
                        copy[key] = {"id": {"S": key}, "v": {"N": str(value)}}
    return copy


def _started(plan: DriverPlan, drivers: list[Driver]) -> Driver:
    drivers.append(Driver(plan, "integration.support.streams_driver"))
    return drivers[-1]
