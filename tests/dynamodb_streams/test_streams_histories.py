"""The source passes the histories that every source has to pass, as its author would run them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from integration.model import ManualClock
from integration.streams_model import Laws, ModelCalls, StreamsModel

from sluice.dynamodb_streams.client import DynamoDbStreamsLog
from sluice.dynamodb_streams.source import DynamoDbStreamsSource
from sluice.source.probing.probe import ProbeSettings
from sluice.testing.machine import Subject, check_history, histories

_MODELS: dict[str, StreamsModel] = {}  # by table: the source goes through pickle
_numbers = itertools.count()


class ModelSource(DynamoDbStreamsSource):
    """Reads the model of a table, by its clock."""

    def _connect(
        self, pause: Callable[[float], None], empty_pages: int, *, is_endpoint_known: bool = False
    ) -> DynamoDbStreamsLog:
        del pause, is_endpoint_known
        calls = ModelCalls(_MODELS[self.config.tables[0].name])
        return DynamoDbStreamsLog(calls, self.config.tables, empty_pages=empty_pages, arns=self._arns)

    def probe_settings(self) -> ProbeSettings:
        clock = _MODELS[self.config.tables[0].name].clock
        return ProbeSettings(pause=clock.sleep, clock=clock.elapsed)


def subject_of(laws: Laws, seed: int, shards: int) -> Subject:
    table = f"table-{next(_numbers)}"
    _MODELS.clear()
    model = _MODELS[table] = StreamsModel(laws, ManualClock(), seed)
    arn = model.enable(table, shards=shards)

    def put(count: int) -> None:
        for _ in range(count):
            model.put(table, f"key-{next(_numbers)}")
            model.clock.advance(0.01)

    def roll(number: int) -> None:
        found = model.open_shards(table)
        if len(found) < 6:
            model.roll(table, found[number % len(found)], children=1 + number % 2)

    def identity(row: dict[str, Any]) -> tuple[str, int]:
        return row["shardId"], int(row["sequenceNumber"])

    return Subject(
        ModelSource,
        {"tableName": table, "startingPosition": "TRIM_HORIZON", "getRecordsInterval": "0"},
        put,
        lambda: [(record.shard, record.number) for record in model.records(arn)],
        identity,
        lambda row: row["shardId"],
        lambda row: int(row["sequenceNumber"]),
        {"roll": roll, "expire": lambda _: model.expire_iterators()},
        model.clock.advance,
    )


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    shards=st.integers(1, 3),
    history=histories(puts=200, waits=(0.3, 12.0, 16_000.0), events=("roll", "expire"), length=12),
)
def test_every_history_is_read_exactly(seed: int, shards: int, history: list[Any]) -> None:
    """From options to rows, through pickle and JSON as in Spark; also a batch read of all of it."""
    laws = Laws(retention=None, read_calls=None, portion=60)
    check_history(subject_of(laws, seed, shards), history, timeout=600.0)
