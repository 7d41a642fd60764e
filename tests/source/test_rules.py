"""A source that breaks a rule of its contract gets an error that names the source, the split and the rule."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from sluice.errors import DataLossError, OptionError, SourceRuleError
from sluice.options import OptionValues
from sluice.source import (
    FiniteRange,
    FiniteSplit,
    IteratorStart,
    Limits,
    LogSource,
    Page,
    PositionLog,
    Source,
    Split,
    SplitEnd,
    SplitEnumerator,
    SplitId,
    SplitSource,
    StreamLog,
    ValueRecord,
)
from sluice.source.checks import checked_rows
from sluice.source.settings import NO_LIMITS
from sluice.testing import MemoryLog, MemorySource, QueryRunner

SCHEMA = pa.schema([("n", pa.int64())])
SPLIT, CHILD = SplitId("bad", "0"), SplitId("bad", "1")
EARLIEST = {"startingPosition": "EARLIEST"}


class BadLog(StreamLog):
    """Gives two pages of records, and then is at the tip."""

    pages: Sequence[Sequence[Any]] = (("1", "2"), ("3", "4"))
    splits: Sequence[Any] = (Split(SPLIT),)
    tip = 0

    def list_splits(self, stream: str) -> Sequence[Split]:
        del stream
        return self.splits

    def get_iterator(self, split: SplitId, start: IteratorStart) -> str:
        del split, start
        return "0"

    def get_records(self, split: SplitId, iterator: str, limit: int) -> Page:
        del split, limit
        number = int(iterator)
        numbers = self.pages[number] if number < len(self.pages) else ()
        records = [ValueRecord(each, 1, 1) for each in numbers]
        behind = 1 if number + 1 < len(self.pages) else self.tip
        return Page(records, str(min(number + 1, len(self.pages))), behind)


class Numbers(PositionLog):
    """Answers reads as the test wants."""

    answer: Callable[[int], tuple[Sequence[str], int]]

    def list_splits(self, stream: str) -> Sequence[Split]:
        return [Split(SplitId(stream, "0"))]

    def bounds(self, split: SplitId) -> tuple[int, int]:
        del split
        return 5, 20

    def read(self, split: SplitId, number: int, limit: int) -> tuple[Sequence[Any], int]:
        del split, limit
        numbers, following = type(self).answer(number)
        return [ValueRecord(each, 1, 1) for each in numbers], following


class BadSource(LogSource):
    """Reads the log that `log` makes."""

    name = "bad"
    log: Callable[[], StreamLog] = BadLog
    rows: pa.Schema = SCHEMA

    @classmethod
    def from_options(cls, values: OptionValues) -> BadSource:
        del values
        return cls()

    def schema(self) -> pa.Schema:
        return SCHEMA

    def create_log(self, pause: Callable[[float], None]) -> StreamLog:
        del pause
        return type(self).log()

    def to_record_batch(self, split: SplitId, records: Sequence[ValueRecord]) -> pa.RecordBatch:
        del split
        values = [pa.array([each.value for each in records], field.type) for field in self.rows]
        return pa.RecordBatch.from_arrays(values, schema=self.rows)


def run(source: type[Source], options: Mapping[str, str] = EARLIEST) -> Any:
    with QueryRunner(source, options) as query:
        return query.run_batch()


@pytest.mark.parametrize(
    ("attribute", "value", "rule"),
    [
        ("pages", (("1", "2"), ("2", "3")), "bad/0: positions rise; after record 2 came record 2"),
        ("pages", (("1", "5"), ("4", "6")), "bad/0: positions rise; after record 5 came record 4"),
        ("pages", (("5", "4"),), "bad/0: positions rise; a page goes from record 5 to record 4"),
        ("pages", (("b", "a"),), "bad/0: positions rise; a page goes from record b to record a"),
        ("pages", (("1", "3", "2", "4"),), "bad/0: positions rise; after record 3 came record 2"),
        ("pages", ((1, 2),), "bad/0: positions are text; .* 1$"),
        ("tip", -3, "bad/0: millis_behind is 0 at the tip.* -3"),
        ("splits", (Split(SPLIT), Split(SPLIT)), "bad/0: a split is listed once"),
        ("splits", (Split(SplitId("other", "0")),), "other/0: .* of that stream alone"),
        ("splits", (Split(SplitId("bad", 0)),), "bad/0: the names of splits are text"),  # type: ignore[arg-type]
        ("splits", (Split(SPLIT, parents="10"),), "bad/0: parents are a tuple"),  # type: ignore[arg-type]
        ("splits", (Split(SPLIT, parents=(1,)),), "bad/0: parents are a tuple"),  # type: ignore[arg-type]
        ("splits", (Split(SPLIT, parents=("0",)),), "bad/0: a split does not descend from itself"),
        (
            "splits",
            (Split(SPLIT, parents=("1",)), Split(CHILD, parents=("0",))),
            "bad/[01]: a split does not descend from itself",
        ),
    ],
)
def test_a_log_that_breaks_a_rule(
    attribute: str, value: Any, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BadLog, attribute, value)
    with pytest.raises(SourceRuleError, match=f"source bad, split {rule}"):
        run(BadSource)


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        (lambda at: ([str(at - 1)], at + 1), "gave record 4 after 4"),
        (lambda at: ([str(at), str(at)], at + 1), "gave record 5 after 5"),
        (lambda at: ([str(at)], at), "which is not higher"),
    ],
)
def test_numbers_rise(answer: Any, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a log that is read by numbers."""
    monkeypatch.setattr(Numbers, "answer", staticmethod(answer), raising=False)
    monkeypatch.setattr(BadSource, "log", Numbers)
    with pytest.raises(SourceRuleError, match=f"split bad/0: .*{rule}"):
        run(BadSource)


@pytest.mark.parametrize("rows", [pa.schema([("m", pa.int64())]), pa.schema([("n", pa.int32())])])
def test_rows_have_the_columns_that_the_schema_says(rows: pa.Schema, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and types."""
    monkeypatch.setattr(BadSource, "rows", rows)
    with pytest.raises(SourceRuleError, match="source bad, split bad/0: rows have the columns of schema"):
        run(BadSource)


def test_values_are_values_of_spark() -> None:
    """A value that Spark's type cannot hold names its column."""
    declared = pa.schema([("at", pa.timestamp("ns", tz="UTC"))])
    batch = pa.record_batch([pa.array([1_000_001], declared[0].type)], schema=declared)
    spark = pa.schema([("at", pa.timestamp("us", tz="UTC"))])
    source = Parts()
    source.declared = declared
    with pytest.raises(SourceRuleError, match=r"source parts, split a: column at .*timestamp\[us"):
        list(checked_rows(source, [FiniteRange("a")], [batch], spark))


def test_a_split_that_vanishes_is_a_data_loss() -> None:
    """It names the source and the split."""
    log = MemoryLog()
    (split,) = log.create("s")
    log.put("s", "key")
    with QueryRunner(MemorySource.of(log), EARLIEST) as query:
        query.run_batch()
        log.expire(split)
        log.pass_time(20)
        with pytest.raises(DataLossError, match=r"source memory.*s/shardId-000000000000"):
            query.run_batch()


class Parts(SplitSource):
    """Splits of which every part is a row."""

    name = "parts"
    declared: pa.Schema = SCHEMA
    positions: Sequence[Any] = (1, 2)
    splits: Sequence[FiniteSplit] = (FiniteSplit("a"),)
    given: Any = ...

    @classmethod
    def from_options(cls, values: OptionValues) -> Parts:
        del values
        return cls()

    def schema(self) -> pa.Schema:
        return self.declared

    def list_splits(self) -> Sequence[FiniteSplit]:
        return self.splits

    def ends(self, split: FiniteSplit) -> Sequence[SplitEnd]:
        del split
        return [*(SplitEnd(each, records=1) for each in self.positions), SplitEnd(None, records=1)]

    def read_range(self, split: FiniteRange) -> Iterator[pa.RecordBatch]:
        row = pa.record_batch([pa.array([split.start or 0], pa.int64())], schema=SCHEMA)
        yield row if self.given is ... else self.given


NO_NULLS = pa.schema([pa.field("n", pa.int64(), nullable=False)])


@pytest.mark.parametrize(
    ("attributes", "rule"),
    [
        ({"positions": (2, 1)}, "positions rise; ends.. gave 1 behind 2"),
        ({"positions": (1, 1)}, "ends.. gives each position once"),
        ({"positions": (None, 1)}, "ends.. gives each position once"),
        ({"positions": (b"1",)}, "positions of ends.. are JSON"),
        ({"splits": (FiniteSplit("a"), FiniteSplit("a"))}, "list_splits.. lists a split once"),
        ({"splits": (FiniteSplit("a", version=0),)}, "ids and versions of splits are text"),  # type: ignore[arg-type]
        ({"splits": (FiniteSplit("a", version=None),)}, "ids and versions of splits are"),  # type: ignore[arg-type]
        ({"given": None}, "rows come as pyarrow.RecordBatch, not"),
        ({"given": {"n": 1}}, "rows come as pyarrow.RecordBatch, not"),
        ({"given": pa.table({"n": [1]})}, "rows come as pyarrow.RecordBatch, not"),
        (
            {"declared": NO_NULLS, "given": pa.record_batch({"n": pa.array([1, None])})},
            "column n is declared without nulls",
        ),
    ],
)
def test_finite_splits_that_break_a_rule(
    attributes: dict[str, Any], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in attributes.items():
        monkeypatch.setattr(Parts, name, value)
    with pytest.raises(SourceRuleError, match=f"source parts, split a: {rule}"):
        run(Parts, {"failOnDataLoss": "false"})


def test_ends_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next batch starts behind one of them."""
    with QueryRunner(Parts) as query:
        assert query.run_batch(Limits(records=1)) == [{"n": 0}]
        query.restart()
        monkeypatch.setattr(Parts, "positions", (3, 4))
        with pytest.raises(SourceRuleError, match=r"split a: .*; 1, where a batch ended, is none"):
            query.run_batch()


def test_ends_are_asked_for_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may take a request; and a batch with limits asks for no more than it may need."""
    meeting = threading.Barrier(16)
    asked: list[str] = []

    def ends(_source: Parts, split: FiniteSplit) -> Sequence[SplitEnd]:
        asked.append(split.id)
        meeting.wait(30)  # breaks if they are asked one after the other
        return (SplitEnd(None, records=1),)

    monkeypatch.setattr(Parts, "ends", ends)
    monkeypatch.setattr(Parts, "splits", [FiniteSplit(str(number)) for number in range(64)])
    with QueryRunner(Parts) as query:
        assert len(query.run_batch(Limits(records=10))) == 10
    assert len(asked) == 16


class Endless(SplitEnumerator[Any, Any]):
    """Has offsets that are no JSON."""

    offsets: Any = None

    def initial(self) -> Any:
        return self.offsets

    def advance(self, start: Any, limits: Limits = NO_LIMITS) -> Any:
        del limits
        return start

    def ranges(self, start: Any, end: Any) -> Sequence[Any]:
        del start, end
        return ()


class OwnSource(BadSource):
    """Has a custom enumerator."""

    create_coordinator = Source.create_coordinator
    offsets_to_json = Source.offsets_to_json

    def create_enumerator(self, **_: Any) -> Any:
        return Endless()


@pytest.mark.parametrize(
    ("offsets", "rule"),
    [
        ({1: (2, 3)}, "come back from JSON as they were"),
        (None, "are a dict, .*, not"),
        ([1, 2], "are a dict, .*, not"),
    ],
)
def test_offsets_are_json(offsets: Any, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark keeps them as text. They are a dict unless `Source.offsets_to_json` makes one."""
    monkeypatch.setattr(Endless, "offsets", offsets)
    with pytest.raises(SourceRuleError, match=f"source bad: offsets {rule}"):
        run(OwnSource)


def test_an_enumerator_inherits_what_it_does_not_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark would ask for it in the middle of a query. What cannot be inherited is refused by name."""
    monkeypatch.setattr(OwnSource, "create_enumerator", lambda _, **__: object())
    with pytest.raises(SourceRuleError, match=r"object must inherit from sluice\.source\.SplitEnumerator"):
        run(OwnSource)
    with pytest.raises(OptionError, match=r"Endless: Trigger.AvailableNow and batch reads need stop_at_"):
        Endless().stop_at_available()
