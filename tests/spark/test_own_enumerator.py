"""A custom enumerator may change the offsets that it received or returned: they pass through JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from sluice.errors import OptionError
from sluice.options import OptionValues
from sluice.source import Limits, Source, SplitEnumerator
from sluice.source.settings import NO_LIMITS
from sluice.spark.source_reader import HAS_ADMISSION_CONTROL, StreamReader, make_stream_reader
from sluice.testing import QueryRunner

SCHEMA = pa.schema([("n", pa.int64())])
LAST, STEP = 12, 5
BATCHES = [list(range(5)), list(range(5, 10)), list(range(10, 12))]

Offsets = dict[str, Any]


class ChangesStart(SplitEnumerator[range, Offsets]):
    """Counts to `LAST`. Moves the start on, and returns it."""

    def initial(self) -> Offsets:
        return {"at": {"n": 0}}

    def advance(self, start: Offsets, limits: Limits = NO_LIMITS) -> Offsets:
        del limits
        start["at"]["n"] = min(start["at"]["n"] + STEP, LAST)
        return start

    def ranges(self, start: Offsets, end: Offsets) -> Sequence[range]:
        return [range(start["at"]["n"], end["at"]["n"])] if start != end else []

    def stop_at_available(self) -> None:
        """There is an end anyway."""


class Keeps(ChangesStart):
    """Gives one and the same object, always."""

    def __init__(self) -> None:
        self.here: Offsets = {"at": {"n": 0}}

    def initial(self) -> Offsets:
        return self.here

    def advance(self, start: Offsets, limits: Limits = NO_LIMITS) -> Offsets:
        self.here.update(super().advance(start, limits))
        return self.here


class Reordered(ChangesStart):
    """Nothing new has its keys in another order, which is another text for Spark."""

    def initial(self) -> Offsets:
        return {"at": {"n": 0}, "of": "numbers"}

    def advance(self, start: Offsets, limits: Limits = NO_LIMITS) -> Offsets:
        return {"of": "numbers", "at": super().advance(start, limits)["at"]}


class Numbers(Source):
    """Has the enumerator that a test wants, and reads itself."""

    name = "numbers"
    enumerator: type[ChangesStart]

    @classmethod
    def from_options(cls, values: OptionValues) -> Numbers:
        del values
        return cls()

    def schema(self) -> pa.Schema:
        return SCHEMA

    def create_enumerator(self) -> ChangesStart:
        return self.enumerator()

    def create_reader(self) -> Numbers:
        return self

    def read(self, split: range) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array(split, pa.int64())], schema=SCHEMA)


@pytest.fixture(params=[ChangesStart, Keeps, Reordered])
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Numbers]:
    monkeypatch.setattr(Numbers, "enumerator", request.param, raising=False)
    return Numbers


@pytest.mark.parametrize("is_told", [True, False])
def test_every_row_comes_in_a_stream(source: type[Numbers], is_told: bool) -> None:
    """Whether or not Spark says where the batch starts; 4.0 and 4.1 do not."""
    reader = StreamReader(source.configured({}))
    log = [json.dumps(reader.initialOffset())]
    batches: list[list[int]] = []
    for _ in range(6):
        end = json.dumps(reader.latestOffset(json.loads(log[-1]) if is_told else None))
        if end == log[-1]:  # what Spark goes by
            continue
        partitions: Any = reader.partitions(json.loads(log[-1]), json.loads(end))
        batches.append([n for each in partitions for n in each.ranges[0]])
        log.append(end)
    assert batches == BATCHES


def test_every_row_comes_without_spark(source: type[Numbers]) -> None:
    """Also when a batch is read again, and in a batch read, in which nothing is logged."""
    with QueryRunner(source) as query:
        assert [[row["n"] for row in query.run_batch()] for _ in BATCHES] == BATCHES
        assert query.run_batch() == []
        assert [query.read(number) for number in range(len(BATCHES))] == query.batches
        assert query.read_all() == query.rows


@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="Spark 4.0 and 4.1 do not say which trigger it is")
def test_a_source_without_an_end_has_no_trigger_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Numbers, "boundedness", "continuous")
    reader: Any = make_stream_reader(Numbers.configured({}))
    with pytest.raises(OptionError, match="numbers: this source never ends"):
        reader.prepareForTriggerAvailableNow()
