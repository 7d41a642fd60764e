"""Faults of the service: each can be made, is felt, and can be taken back."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from integration.chaos.pipeline import COPIED, ORDERS, consumer_of
from integration.chaos.plan import KINDS, Fault
from integration.chaos.reader_clock import ReaderClock
from integration.chaos.weather import Weather
from integration.model import KinesisModel, Laws, ModelError, RealClock
from integration.model.sending import WireFaults

NOT_OF_THE_SERVICE = ("kill", "stop", "fill", "burst", "large", "pause")
NAMES = [name for name in KINDS if not name.startswith(NOT_OF_THE_SERVICE)]


class World:
    """A service with both streams and a consumer, and its weather."""

    def __init__(self, directory: Path) -> None:
        self.clock = ReaderClock(directory / "clock")
        self.model = KinesisModel(Laws(consumer_delay=(0.0, 0.0)), RealClock(offset=-40.0))
        self.wire = WireFaults()
        for stream in (ORDERS, COPIED):
            self.model.create(stream, 4)
        summary = self.call("DescribeStreamSummary")["StreamDescriptionSummary"]
        self.call("RegisterStreamConsumer", StreamARN=summary["StreamARN"], ConsumerName=consumer_of("copy"))
        server: Any = SimpleNamespace(model=self.model, wire=self.wire)
        self.weather = Weather(server, self.clock, lambda: "OLD")

    def call(self, operation: str, **request: Any) -> dict[str, Any]:
        named = {} if "StreamARN" in request else {"StreamName": ORDERS}
        return self.model.call(operation, {**named, **request}, access_key="OLD")

    def refusals(self, operation: str, calls: int = 300) -> int:
        """How many of so many calls of an operation are refused."""
        requests: dict[str, dict[str, Any]] = {
            "GetShardIterator": {"ShardId": "shardId-000000000000", "ShardIteratorType": "TRIM_HORIZON"},
            "PutRecords": {"Records": [{"PartitionKey": "k", "Data": b""}]},
        }
        self.model.laws = Laws.kind()
        return sum(self._is_refused(operation, requests.get(operation, {})) for _ in range(calls))

    def _is_refused(self, operation: str, request: dict[str, Any]) -> bool:
        try:
            self.call(operation, **request)
        except ModelError:
            return True
        return False


def fault(name: str, *draws: float) -> Fault:
    return Fault(0.0, KINDS[name], 1.0, draws if len(draws) == 3 else (0.5, 0.5, 0.5))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("draw", [0.0, 0.4, 0.999])
def test_each_kind_can_be_made_and_taken_back(name: str, draw: float, tmp_path: Path) -> None:
    """For any draw; a strike without a target says so."""
    world = World(tmp_path)
    made = fault(name, draw, draw, draw)
    hit = world.weather.begin(made)
    assert (hit is None) == (name == "silence subscriptions")  # there are none
    world.weather.end(made)
    world.weather.clear()
    if name != "expire credentials":
        assert world.refusals("ListShards") == 0
