"""A table is read first, then its changes: applied by key in the order of batches they give the table."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from integration.model import FaultPlan, ManualClock
from integration.streams_model import Laws, ModelCalls, StreamsModel

from sluice.aws.calling.calls import Calls
from sluice.dynamodb_streams.client import DynamoDbStreamsLog
from sluice.dynamodb_streams.source import DynamoDbStreamsSource
from sluice.dynamodb_streams.table_scan import UNIT_BYTES, ScanRange, scan_pages
from sluice.errors import OptionError, SluiceError
from sluice.source.probing.probe import ProbeSettings
from sluice.source.settings import NO_LIMITS, Limits
from sluice.testing.runner import QueryRunner, Row

TABLE: Final = "orders"
_world: dict[str, StreamsModel] = {}  # the source goes through pickle


class ModelSource(DynamoDbStreamsSource):
    """Reads the model, by its clock."""

    def _connect(
        self, pause: Callable[[float], None], empty_pages: int, *, is_endpoint_known: bool = False
    ) -> DynamoDbStreamsLog:
        del pause, is_endpoint_known
        calls = ModelCalls(_world["model"])
        return DynamoDbStreamsLog(calls, self.config.tables, empty_pages=empty_pages, arns=self._arns)

    def _table_calls(self, pause: Callable[[float], None]) -> Calls:
        del pause
        return ModelCalls(_world["model"])

    def probe_settings(self) -> ProbeSettings:
        clock = _world["model"].clock
        return ProbeSettings(pause=clock.sleep, clock=clock.elapsed)


def new_model(laws: Laws | None = None, seed: int = 0, *, shards: int = 1, **others: Any) -> StreamsModel:
    """A model with one table."""
    model = _world["model"] = StreamsModel(laws, ManualClock(), seed, **others)
    model.enable(TABLE, shards=shards)
    return model


def fill(model: StreamsModel, count: int, value: int = 0, *, table: str = TABLE) -> None:
    for number in range(count):
        model.write(table, f"key-{number}", {"v": {"N": str(value)}})
        model.clock.advance(0.01)


def query(**options: str) -> QueryRunner:
    given = {"tableName": TABLE, "initialSnapshot": "scan", "getRecordsInterval": "0"}
    return QueryRunner(ModelSource, {**given, **options})


def run_to_end(runner: QueryRunner, model: StreamsModel, *, empty: int = 4) -> None:
    """Runs until so many triggers in a row have found nothing."""
    found = 0
    while found < empty:
        batches = len(runner.offsets)
        runner.run_batch()
        found = 0 if len(runner.offsets) > batches else found + 1
        model.clock.advance(12.0)


def apply(state: dict[str, Any], rows: list[Row]) -> None:
    """What a user does who keeps a copy of the table."""
    for row in rows:
        key = json.loads(row["keys"])["id"]
        if row["eventName"] == "REMOVE":
            state.pop(key, None)
        else:
            state[key] = json.loads(row["newImage"])


def plain_items(model: StreamsModel, table: str = TABLE) -> dict[str, Any]:
    return {key: {"id": key, "v": int(item["v"]["N"])} for key, item in model.items(table).items()}


# --- histories -----------------------------------------------------------------------------------------


class History:
    """A table that changes at any moment, and a query that dies at any moment and keeps a copy of it."""

    def __init__(self, seed: int, shards: int, segments: int | None, units: int | None) -> None:
        self.pending: list[tuple[str, int | None]] = []
        faults = FaultPlan(callback=self._between_pages)
        laws = Laws(retention=None, read_calls=None, portion=30, scan_bytes=150)
        self.model = new_model(laws, seed, shards=shards, faults=faults)
        fill(self.model, 25)
        options = {} if segments is None else {"scanSegments": str(segments)}
        options |= {} if units is None else {"scanReadUnits": str(units)}
        self.runner = query(**options)
        self.copy: dict[str, Any] = {}
        self.values: dict[str, list[tuple[int, int | None]]] = {}  # by key, what each record made of it
        self.before = plain_items(self.model)
        self.read: set[int] = set()
        self.last_read: dict[str, int] = {}
        self.moments: list[tuple[dict[str, Any], set[int], dict[str, int]]] = []
        self.newest = self.scanned_until = 0
        self._counter = itertools.count(1)

    def write(self, key: str, is_deleted: bool) -> None:
        value = None if is_deleted else next(self._counter)
        item = None if value is None else {"v": {"N": str(value)}}
        if (record := self.model.write(TABLE, key, item)) is not None:
            self.values.setdefault(key, []).append((record.number, value))
            self.newest = record.number

    def _between_pages(self, operation: str, request: Mapping[str, Any]) -> None:
        del request
        if operation == "Scan" and self.pending:
            self.write(*self.pending.pop())  # type: ignore[arg-type]

    @property
    def is_scanning(self) -> bool:
        if not self.runner.offsets:
            return True
        scan: dict[str, Any] = self.runner.offsets[-1].get("scan", {})
        return any(each["next"] < each["segments"] for each in scan.values())

    def start(self) -> None:
        """The positions are taken: later writes are in the stream."""
        if not self.runner.offsets:
            self.model.clock.advance(3.0)  # of eventually consistent reads, see `Laws.stale_reads`
            self.write("key-0", is_deleted=True)  # and earlier writes are in every scanned item
            self.runner.offsets.append(self.runner._to_json(self.runner._enumerator().initial()))
            self.before, self.values = plain_items(self.model), {}

    def batch(self, limits: Limits, crash: bool, replayed: int) -> None:
        """A batch is read. If `replayed`, this share of it was written before, by a run that died."""
        self.start()
        was_scanning, known = self.is_scanning, len(self.runner.offsets)
        rows = self.runner.run_batch(limits, crash=crash)
        if len(self.runner.offsets) == known:
            return
        if replayed:
            apply(self.copy, rows[: len(rows) * replayed // 100])
            for key in ("key-1", "key-2", "key-3", "key-26"):
                self.write(key, is_deleted=key != "key-26")
            self.runner.restart()
            again = self.runner.read(-1)
            assert was_scanning or again == rows
            rows = again
        apply(self.copy, rows)
        assert {row["eventName"] == "SNAPSHOT" for row in rows} <= {was_scanning}
        if was_scanning:
            self.scanned_until = self.newest
        for row in rows:
            if not was_scanning:
                self.read.add(int(row["sequenceNumber"]))
                self.last_read[json.loads(row["keys"])["id"]] = int(row["sequenceNumber"])
        if not self.is_scanning:
            self.moments.append((dict(self.copy), set(self.read), dict(self.last_read)))

    def check(self, copy: Mapping[str, Any], read: set[int], last_read: Mapping[str, int]) -> None:
        """The copy was the table as it was when the last change was made up to which all had been read.

        A restart may read changes again that were made less than a minute before the positions were taken.
        """
        made = sorted(self.read.union(*({number for number, _ in values} for values in self.values.values())))
        until = next((number - 1 for number in made if number not in read), 2**127)
        if until < self.scanned_until:
            return  # some items may be newer than the changes read
        for key in {*self.before, *self.values}:
            value = self.before[key]["v"] if key in self.before else None
            for number, changed in self.values.get(key, ()):
                if number <= max(until, last_read.get(key, 0)):
                    value = changed
            assert copy.get(key) == (None if value is None else {"id": key, "v": value}), key

    def wait(self, seconds: float) -> None:
        if self.is_scanning:
            seconds = min(seconds, 1_000.0)
            self.runner.restart()  # a run that is as slow would not end in time
        self.model.clock.advance(seconds)

    def finish(self) -> None:
        self.pending.clear()
        empty = 0
        while empty < 4:
            known = len(self.runner.offsets)
            self.batch(NO_LIMITS, crash=False, replayed=0)
            empty = 0 if len(self.runner.offsets) > known else empty + 1
            self.model.clock.advance(12.0)
        assert self.copy == plain_items(self.model)
        for moment in self.moments:
            self.check(*moment)


KEYS = st.integers(0, 30).map(lambda number: f"key-{number}")
CHANGE = st.tuples(KEYS, st.booleans())
STEP = st.one_of(
    st.tuples(st.just("write"), CHANGE),
    st.tuples(st.just("between"), st.lists(CHANGE, min_size=1, max_size=6)),
    st.tuples(
        st.just("batch"),
        st.sampled_from([NO_LIMITS, Limits(records=1), Limits(records=6), Limits(bytes=200)]),
        st.booleans(),
        st.sampled_from([0, 0, 50, 100]),
    ),
    st.tuples(st.just("restart")),
    st.tuples(st.just("throttle"), st.integers(1, 4)),
    st.tuples(st.just("roll"), st.integers(0, 5)),
    st.tuples(st.just("wait"), st.sampled_from([0.3, 12.0, 1_000.0, 16_000.0])),
)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    shards=st.integers(1, 3),
    segments=st.one_of(st.none(), st.integers(1, 9)),
    units=st.sampled_from([None, 1_000_000]),
    steps=st.lists(STEP, max_size=16),
)
def test_every_history_gives_the_table(
    seed: int, shards: int, segments: int | None, units: int | None, steps: list[Any]
) -> None:
    history = History(seed, shards, segments, units)
    for step in steps:
        match step:
            case ("write", change):
                history.write(*change)
            case ("between", changes):
                history.pending += changes
            case ("batch", limits, crash, replayed):
                history.batch(limits, crash, replayed)
            case ("restart",):
                history.runner.restart()
            case ("throttle", times):
                history.model.faults.force("Scan", "ProvisionedThroughputExceededException", times=times)
            case ("roll", number):
                found = history.model.open_shards(TABLE)
                if len(found) < 6:
                    history.model.roll(TABLE, found[number % len(found)], children=1 + number % 2)
            case ("wait", seconds):
                history.wait(seconds)
        history.model.clock.advance(0.05)
    history.finish()


# --- batches -------------------------------------------------------------------------------------------


def scan_of(runner: QueryRunner, table: str = TABLE) -> dict[str, int]:
    scan: dict[str, int] = runner.offsets[-1]["scan"][table]
    return scan


def test_rows_of_a_scan_have_keys_and_new_images() -> None:
    model = new_model()
    fill(model, 1)
    (row,) = query(imageFormat="dynamodb-json").run_batch()
    assert {name: value for name, value in row.items() if value is not None} == {
        "eventName": "SNAPSHOT",
        "keys": '{"id":{"S":"key-0"}}',
        "newImage": '{"id":{"S":"key-0"},"v":{"N":"0"}}',
        "tableName": TABLE,
    }


def test_a_batch_of_the_scan_holds_what_the_limit_allows() -> None:
    model = new_model()
    fill(model, 1_000)
    runner = query(maxRecordsPerTrigger="100")
    counts = [len(runner.run_batch()) for _ in range(10)]
    assert sum(counts) == 1_000
    assert scan_of(runner)["segments"] == 80
    assert max(counts) <= 150  # segments differ in size


def test_segments_come_from_the_size_of_the_table() -> None:
    model = new_model()
    runner = query()
    assert len(runner.run_batch()) == 0
    assert scan_of(runner) == {**scan_of(runner), "segments": 256, "from": 0, "next": 256}  # nothing is known
    fill(model, 100)
    for number in range(4):
        model.write(TABLE, f"large-{number}", {"v": {"S": "x" * 400_000}})
    runner = query()
    runner.run_batch()
    assert scan_of(runner)["segments"] == 4


def test_a_first_batch_runs_again_though_the_query_starts_elsewhere_by_now() -> None:
    """Spark asks for the start of the first batch again. The end alone says what it reads, and from where the
    stream is read then."""
    model = new_model()
    fill(model, 50)
    runner = query(scanSegments="5")
    runner.run_batch(Limits(records=20))
    model.write(TABLE, "key-7", None)
    model.write(TABLE, "later", {"v": {"N": "1"}})
    fill(model, 50, 2)
    model.clock.advance(100.0)
    runner.restart()
    runner._options["scanSegments"] = "3"
    runner.restart()
    runner.offsets[0] = runner._to_json(runner._enumerator().initial())
    runner.batches = [runner.read(-1)]
    run_to_end(runner, model)
    copy: dict[str, Any] = {}
    for rows in runner.batches:
        apply(copy, rows)
    assert copy == plain_items(model)


def test_available_now_reads_the_table_and_what_was_changed_by_then() -> None:
    model = new_model(shards=2)
    fill(model, 200)
    runner = query(maxRecordsPerTrigger="30")
    runner.run_batch()
    fill(model, 50, 1)
    rows = runner.run_available()
    assert sum(row["eventName"] == "SNAPSHOT" for row in rows) + len(runner.batches[0]) == 200
    assert sum(row["eventName"] == "MODIFY" for row in rows) == 50


def test_an_older_checkpoint_resumes_without_a_scan() -> None:
    model = new_model()
    fill(model, 10)
    runner = query(initialSnapshot="none")
    runner.run_batch()
    fill(model, 5, 1)
    runner._options["initialSnapshot"] = "scan"
    runner.restart()
    run_to_end(runner, model)
    assert [row["eventName"] for row in runner.rows[-5:]] == ["MODIFY"] * 5
    assert all(row["eventName"] != "SNAPSHOT" for row in runner.rows)
    assert all("scan" not in offsets for offsets in runner.offsets)


def test_a_scan_continues_although_the_option_was_removed() -> None:
    model = new_model()
    fill(model, 40)
    runner = query(scanSegments="4")
    runner.run_batch(Limits(records=10))
    del runner._options["initialSnapshot"], runner._options["scanSegments"]
    runner.restart()
    run_to_end(runner, model)
    assert sum(row["eventName"] == "SNAPSHOT" for row in runner.rows) == 40


def test_a_table_added_to_a_query_is_scanned_too() -> None:
    model = new_model()
    fill(model, 20)
    runner = query()
    run_to_end(runner, model)
    model.enable("others")
    fill(model, 30, table="others")
    runner._options["tableName"] = f"{TABLE},others"
    runner.restart()
    runner.run_batch(crash=True)
    fill(model, 30, 1, table="others")
    fill(model, 20, 1)
    run_to_end(runner, model)
    copies: dict[str, dict[str, Any]] = {TABLE: {}, "others": {}}
    for row in runner.rows:
        apply(copies[row["tableName"]], [row])
    assert copies == {TABLE: plain_items(model), "others": plain_items(model, "others")}
    names = [(row["tableName"], row["eventName"]) for row in runner.rows]
    assert names.count(("others", "SNAPSHOT")) == 30
    assert names.count((TABLE, "SNAPSHOT")) == 20


def test_the_positions_outlive_the_iterators_of_the_service() -> None:
    """A scan takes longer than the 15 minutes for which the service keeps an iterator."""
    model = new_model(shards=2)
    fill(model, 60)
    model.clock.advance(100.0)
    runner = query(scanSegments="3")
    for number in range(3):
        runner.run_batch(Limits(records=20))
        fill(model, 20, number + 1)
        model.clock.advance(590.0)
    run_to_end(runner, model)
    copy: dict[str, Any] = {}
    apply(copy, runner.rows)
    assert copy == plain_items(model)
    assert [row["eventName"] for row in runner.rows[60:]] == ["MODIFY"] * 60


def test_a_stopped_query_resumes_its_scan_hours_later() -> None:
    model = new_model(shards=2)
    fill(model, 60)
    runner = query(scanSegments="6")
    runner.run_batch(Limits(records=20))
    for hour in range(20):
        model.write(TABLE, f"key-{hour}", {"v": {"N": "9"}} if hour % 3 else None)
        model.clock.advance(3_600.0)
    runner.restart()
    run_to_end(runner, model)
    copy: dict[str, Any] = {}
    apply(copy, runner.rows)
    assert copy == plain_items(model)


# --- time ----------------------------------------------------------------------------------------------


def test_a_scan_that_cannot_end_in_time_fails_as_soon_as_that_shows() -> None:
    model = new_model()
    fill(model, 1_000)
    runner = query(scanSegments="1000")
    for _ in range(4):
        runner.run_batch(Limits(records=5))  # one of 200 batches
        model.clock.advance(500.0)
    with pytest.raises(SluiceError, match=r"expire, after 24 hours: 980 of 1000 segments are left .* export"):
        runner.run_batch(Limits(records=5))


def test_a_scan_that_can_end_in_time_does() -> None:
    model = new_model()
    fill(model, 1_000)
    runner = query(scanSegments="1000")
    for _ in range(201):
        runner.run_batch(Limits(records=5))
        model.clock.advance(390.0)
        if len(runner.batches) == 100:
            model.clock.advance(3_000.0)
            runner.restart()
    assert sum(row["eventName"] == "SNAPSHOT" for row in runner.rows) == 1_000


def test_a_scan_that_is_resumed_too_late_fails() -> None:
    model = new_model()
    fill(model, 100)
    runner = query(scanSegments="10")
    runner.run_batch(Limits(records=10))
    model.clock.advance(23.5 * 3_600)
    runner.restart()
    with pytest.raises(SluiceError, match=r"after 24 hours: 9 of 10 segments are left after 23.5 hours"):
        runner.run_batch()


def test_too_few_read_units_are_refused_before_anything_is_read() -> None:
    model = new_model()
    fill(model, 1)
    for number in range(1_000):
        model.write(TABLE, f"large-{number}", {"v": {"S": "x" * 400_000}})
    with pytest.raises(OptionError, match=r"'scanReadUnits' is 1: .* it takes at least 2, or .* export"):
        query(scanReadUnits="1").run_batch()
    assert not model.calls["Scan"]


@pytest.mark.parametrize(("units", "tells"), [(50.0, True), (4.0, True), (50.0, False)])
def test_a_task_consumes_what_it_may_a_second(units: float, tells: bool) -> None:
    model = new_model()
    for number in range(300):
        model.write(TABLE, f"key-{number}", {"v": {"S": "x" * 3_000}})
    clock, calls = model.clock, ModelCalls(model)
    if not tells:
        answer = model._scan
        model._scan = lambda request: answer(  # type: ignore[method-assign]
            {name: value for name, value in request.items() if name != "ReturnConsumedCapacity"}
        )
    ranges = [ScanRange(TABLE, TABLE, ("id",), segment, 3, units) for segment in range(3)]
    begun, consumed, most, in_all = clock.elapsed(), 0.0, 0.0, 0.0
    for _, items in scan_pages(calls, ranges, clock.sleep, clock.elapsed):
        page = sum(len(bytes(item)) for item in items) / UNIT_BYTES
        consumed, most, in_all = consumed + page, max(most, page), in_all + page
        assert consumed <= units * (clock.elapsed() - begun) + most
        if in_all > 50 and consumed == in_all:
            clock.advance(30.0)  # idle time is not saved up
            begun, consumed = clock.elapsed(), 0.0
    assert most <= 2 * units
    assert in_all > 200


def test_tasks_share_the_read_units() -> None:
    new_model()
    source = ModelSource.configured(
        {"tableName": TABLE, "initialSnapshot": "scan", "scanReadUnits": "2500"}, streaming=True
    )
    ranges = [ScanRange(TABLE, TABLE, ("id",), segment, 10) for segment in range(10)]
    tasks = source.deal(ranges)
    assert [len(task) for task in tasks] == [4, 3, 3]
    assert sum(task[0].units for task in tasks) == pytest.approx(2_500)
    assert sorted(each.segment for task in tasks for each in task) == list(range(10))


# --- what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"initialSnapshot": "export"}, "'initialSnapshot' is 'export'.*none.*scan"),
        (
            {"initialSnapshot": "scan", "startingPosition": "TRIM_HORIZON"},
            "'startingPosition' does not go with",
        ),
        ({"scanSegments": "4"}, "'scanSegments' needs 'initialSnapshot' scan"),
        ({"scanReadUnits": "4"}, "'scanReadUnits' needs 'initialSnapshot' scan"),
        ({"initialSnapshot": "scan", "scanSegments": "0"}, "'scanSegments' is '0'"),
        ({"initialSnapshot": "scan", "scanReadUnits": "0.5"}, "'scanReadUnits' is '0.5'"),
    ],
)
def test_options_that_do_nothing_are_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        ModelSource.configured({"tableName": TABLE, **options}, streaming=True)


def test_a_batch_read_has_no_snapshot() -> None:
    with pytest.raises(OptionError, match="'initialSnapshot' is for streaming reads only"):
        ModelSource.configured({"tableName": TABLE, "initialSnapshot": "scan"}, streaming=False)


def test_a_stream_without_new_images_is_refused() -> None:
    model = _world["model"] = StreamsModel(Laws(), ManualClock())
    model.enable(TABLE, view="KEYS_ONLY")
    with pytest.raises(OptionError, match="view type KEYS_ONLY, without new images"):
        query().run_batch()


def test_a_disabled_stream_is_refused() -> None:
    model = new_model()
    fill(model, 3)
    model.disable(TABLE)
    with pytest.raises(OptionError, match="table orders has no enabled stream"):
        query().run_batch()
