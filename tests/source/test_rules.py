"""A source that breaks a rule of its contract gets an error that names the source, the split and the rule."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
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
from sluice.source.finite import finite_enumerator
from sluice.source.settings import NO_LIMITS
from sluice.testing import MemoryLog, MemorySource, QueryRunner

SCHEMA = pa.schema([("n", pa.int64())])
SPLIT = SplitId("bad", "0")
EARLIEST = {"startingPosition": "EARLIEST"}


class BadLog(StreamLog):
    """Gives two pages of records, and then is at the tip."""

    pages: Sequence[Sequence[str]] = (("1", "2"), ("3", "4"))
    splits: Sequence[Split] = (Split(SPLIT),)

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
        return Page(records, str(min(number + 1, len(self.pages))), int(number + 1 < len(self.pages)))


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


def run(source: type[Source], options: dict[str, str] | None = None) -> Any:
    with QueryRunner(source, EARLIEST if options is None else options) as query:
        return query.run_batch()


@pytest.mark.parametrize(
    ("pages", "rule"),
    [
        ((("1", "2"), ("2", "3")), "after record 2 came record 2"),
        ((("1", "5"), ("4", "6")), "after record 5 came record 4"),
        ((("5", "4"),), "goes from record 5 to record 4"),
        ((("b", "a"),), "goes from record b to record a"),
        ((("1", "3", "2", "4"),), "after record 3 came record 2"),
        ((("1", "2", "2", "4"),), "after record 2 came record 2"),
    ],
)
def test_positions_rise(pages: Sequence[Sequence[str]], rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From record to record, and from page to page."""
    monkeypatch.setattr(BadLog, "pages", pages)
    with pytest.raises(SourceRuleError, match=f"source bad, split bad/0: positions rise; .*{rule}"):
        run(BadSource)


def test_positions_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number is not: its digits are."""
    monkeypatch.setattr(BadLog, "pages", ((1, 2),))
    with pytest.raises(SourceRuleError, match=r"source bad, split bad/0: positions are text; .* 1$"):
        run(BadSource)


def test_nothing_is_nearer_than_the_tip(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch read would look for the tip for ever."""

    def get_records(_log: BadLog, split: SplitId, iterator: str, limit: int) -> Page:
        del split, limit
        return Page((), iterator, -3)

    monkeypatch.setattr(BadLog, "get_records", get_records)
    with pytest.raises(SourceRuleError, match=r"source bad, split bad/0: millis_behind is 0 at the tip.* -3"):
        run(BadSource)


CHILD = SplitId("bad", "1")


@pytest.mark.parametrize(
    ("splits", "rule"),
    [
        ((Split(SPLIT), Split(SPLIT)), "split bad/0: a split is listed once"),
        ((Split(SplitId("other", "0")),), "split other/0: .* of that stream alone"),
        ((Split(SplitId("bad", 0)),), "split bad/0: the names of splits are text"),  # type: ignore[arg-type]
        ((Split(SPLIT, parents="10"),), "split bad/0: parents are a tuple of names"),  # type: ignore[arg-type]
        ((Split(SPLIT, parents=(1,)),), "split bad/0: parents are a tuple of names"),  # type: ignore[arg-type]
        ((Split(SPLIT, parents=("0",)),), "split bad/0: a split does not descend from itself"),
        (
            (Split(SPLIT, parents=("1",)), Split(CHILD, parents=("0",))),
            "split bad/[01]: a split does not descend from itself",
        ),
    ],
)
def test_splits_are_listed_once(splits: Sequence[Split], rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under their own stream."""
    monkeypatch.setattr(BadLog, "splits", splits)
    with pytest.raises(SourceRuleError, match=f"source bad, {rule}"):
        run(BadSource)


@pytest.mark.parametrize("rows", [pa.schema([("m", pa.int64())]), pa.schema([("n", pa.int32())])])
def test_rows_have_the_columns_that_the_schema_says(rows: pa.Schema, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and types."""
    monkeypatch.setattr(BadSource, "rows", rows)
    with pytest.raises(SourceRuleError, match="source bad, split bad/0: rows have the columns of schema"):
        run(BadSource)


class Rows(SplitSource):
    """One split, whose rows are what a test wants."""

    name = "rows"
    declared: pa.Schema = SCHEMA
    given: Any = None

    @classmethod
    def from_options(cls, values: OptionValues) -> Rows:
        del values
        return cls()

    def schema(self) -> pa.Schema:
        return self.declared

    def list_splits(self) -> Sequence[FiniteSplit]:
        return [FiniteSplit("a")]

    def read_range(self, split: FiniteRange) -> Iterator[pa.RecordBatch]:
        del split
        yield type(self).given


@pytest.mark.parametrize("given", [None, {"n": 1}, pa.table({"n": [1]})])
def test_rows_come_as_record_batches(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not as tables, which Spark does not take."""
    monkeypatch.setattr(Rows, "given", given)
    with pytest.raises(SourceRuleError, match=r"source rows, split a: rows come as pyarrow.RecordBatch, not"):
        run(Rows, {})


def test_a_column_without_nulls_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark reads it as the schema says, and finds a null too late to name the column."""
    monkeypatch.setattr(Rows, "declared", pa.schema([pa.field("n", pa.int64(), nullable=False)]))
    monkeypatch.setattr(Rows, "given", pa.record_batch({"n": pa.array([1, None])}))
    with pytest.raises(SourceRuleError, match="source rows, split a: column n is declared without nulls"):
        run(Rows, {})


def test_values_are_values_of_spark() -> None:
    """A value that Spark's type cannot hold names its column."""
    declared = pa.schema([("at", pa.timestamp("ns", tz="UTC"))])
    batch = pa.record_batch([pa.array([1_000_001], declared[0].type)], schema=declared)
    spark = pa.schema([("at", pa.timestamp("us", tz="UTC"))])

    class Times(Rows):
        def schema(self) -> pa.Schema:
            return declared

    with pytest.raises(SourceRuleError, match=r"source rows, split a: column at .*timestamp\[us"):
        list(checked_rows(Times(), [FiniteRange("a")], [batch], spark))


class Numbers(PositionLog):
    """Says of the answer to a read whatever a test wants."""

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


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        (lambda at: ([str(at - 1)], at + 1), "gave record 4 behind 4"),
        (lambda at: ([str(at), str(at)], at + 1), "gave record 5 behind 5"),
        (lambda at: ([str(at)], at), "which is not behind it"),
    ],
)
def test_numbers_rise(
    answer: Callable[[int], tuple[Sequence[str], int]], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a log that is read by numbers."""
    monkeypatch.setattr(Numbers, "answer", staticmethod(answer), raising=False)
    monkeypatch.setattr(BadSource, "log", Numbers)
    with pytest.raises(SourceRuleError, match=f"split bad/0: .*{rule}"):
        run(BadSource)


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
    """One split of which every part is a row."""

    name = "parts"
    positions: Sequence[Any] = (1, 2)
    ids: Sequence[str] = ("a",)

    @classmethod
    def from_options(cls, values: OptionValues) -> Parts:
        del values
        return cls()

    def schema(self) -> pa.Schema:
        return SCHEMA

    def list_splits(self) -> Sequence[FiniteSplit]:
        return [FiniteSplit(each) for each in self.ids]

    def ends(self, split: FiniteSplit) -> Sequence[SplitEnd]:
        del split
        return [*(SplitEnd(each, records=1) for each in self.positions), SplitEnd(None, records=1)]

    def read_range(self, split: FiniteRange) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([split.start or 0], pa.int64())], schema=SCHEMA)


@pytest.mark.parametrize(
    ("positions", "rule"),
    [((2, 1), "positions rise; ends.. gave 1 behind 2"), ((1, 1), "each position once"), ((None, 1), "once")],
)
def test_ends_rise(positions: Sequence[Any], rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And only the last has no position."""
    monkeypatch.setattr(Parts, "positions", positions)
    with pytest.raises(SourceRuleError, match=f"source parts, split a: .*{rule}"):
        run(Parts, {})


def test_ends_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch goes on behind one of them."""
    with QueryRunner(Parts) as query:
        assert query.run_batch(Limits(records=1)) == [{"n": 0}]
        query.restart()
        monkeypatch.setattr(Parts, "positions", (3, 4))
        with pytest.raises(
            SourceRuleError, match=r"source parts, split a: .*; 1, where a batch ended, is none"
        ):
            query.run_batch()


def test_a_finite_split_is_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its id tells it from all others."""
    monkeypatch.setattr(Parts, "ids", ("a", "a"))
    with pytest.raises(SourceRuleError, match=r"source parts, split a: list_splits.. lists a split once"):
        run(Parts, {})


@pytest.mark.parametrize(
    "split",
    [FiniteSplit(1), FiniteSplit("a", version=None), FiniteSplit("a", version=0)],  # type: ignore[arg-type]
)
def test_ids_and_versions_are_text(split: FiniteSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another value comes back from the offset log as another one, as if the split had been replaced."""
    monkeypatch.setattr(Parts, "list_splits", lambda _: [split])
    with pytest.raises(SourceRuleError, match=r"source parts, split .: ids and versions of splits are text"):
        run(Parts, {"failOnDataLoss": "false"})


@pytest.mark.parametrize("position", [b"1", {1, 2}])
def test_ends_are_json(position: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the offset log keeps them."""
    monkeypatch.setattr(Parts, "positions", (position,))
    with pytest.raises(SourceRuleError, match=r"source parts, split a: positions of ends.. are JSON"):
        run(Parts, {})


class Endless(SplitEnumerator[Any, Any]):
    """Has offsets that are no JSON."""

    def initial(self) -> Any:
        return {1: (2, 3)}

    def advance(self, start: Any, limits: Limits = NO_LIMITS) -> Any:
        del limits
        return start

    def ranges(self, start: Any, end: Any) -> Sequence[Any]:
        del start, end
        return ()


class OwnSource(BadSource):
    """Has an enumerator of its own."""

    create_coordinator = Source.create_coordinator
    offsets_to_json = Source.offsets_to_json

    def create_enumerator(self, **_: Any) -> Any:
        return Endless()


def test_offsets_come_back_from_json_as_they_were() -> None:
    """Spark keeps them as text."""
    with pytest.raises(SourceRuleError, match="source bad: offsets come back from JSON as they were"):
        run(OwnSource)


@pytest.mark.parametrize("offsets", [None, 5, [1, 2], "text"])
def test_offsets_are_a_dict(offsets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless `Source.offsets_to_json` makes one."""
    monkeypatch.setattr(Endless, "initial", lambda _: offsets)
    with pytest.raises(SourceRuleError, match=r"source bad: offsets are a dict, .*, not"):
        run(OwnSource)


def test_an_enumerator_inherits_the_optional_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its base class brings them; Spark would ask for one of them in the middle of a query."""

    class Bare:
        initial, advance, ranges = Endless.initial, Endless.advance, Endless.ranges

    monkeypatch.setattr(OwnSource, "create_enumerator", lambda _, **__: Bare())
    with pytest.raises(SourceRuleError, match=r"Bare must inherit from sluice.source.SplitEnumerator"):
        run(OwnSource)


def test_a_run_of_what_is_available_needs_an_end() -> None:
    """An enumerator that has none is refused by name."""
    with pytest.raises(
        OptionError, match=r"Endless: Trigger.AvailableNow and batch reads need stop_at_avail"
    ):
        Endless().stop_at_available()


def test_an_idle_query_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark asks some 90 times a second, and there may be 100,000 splits: they are gone through once."""
    enumerator = Parts.configured({}).create_enumerator()
    end = enumerator.advance(enumerator.initial())
    looked: list[Any] = []
    look = finite_enumerator._splits

    def looking(offsets: Any) -> Any:
        looked.append(offsets)
        return look(offsets)

    monkeypatch.setattr(finite_enumerator, "_splits", looking)
    for _ in range(5):
        assert enumerator.advance(end) is end
    assert len(looked) == 1
    monkeypatch.setattr(Parts, "ids", ("a", "b"))
    enumerator._list()
    assert enumerator.advance(end) is not end


def test_ends_are_asked_for_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may take a request; and a batch with limits asks for no more than it may need."""
    meeting = threading.Barrier(16)
    asked: list[str] = []

    def ends(_source: Parts, split: FiniteSplit) -> Sequence[SplitEnd]:
        asked.append(split.id)
        meeting.wait(30)  # breaks if they are asked one after the other
        return (SplitEnd(None, records=1),)

    monkeypatch.setattr(Parts, "ends", ends)
    monkeypatch.setattr(Parts, "ids", [str(number) for number in range(64)])
    with QueryRunner(Parts) as query:
        rows = query.run_batch(Limits(records=10))
    assert len(rows or ()) == 10
    assert len(asked) == 16
