"""Consumers that are registered at ``load()``: readers know them, though Spark pickles the source first."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from sluice.kinesis.consumers import registration as consumers
from sluice.kinesis.options.config import SourceConfig
from sluice.spark.source import KinesisDataSource

OPTIONS = {"streamname": "clicks", "region": "eu-west-1", "consumername": "me"}
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/clicks/consumer/me:1700000000"


def test_a_pickled_source_knows_the_consumers_registered_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when Spark asks for the schema again, and the consumer exists by then."""
    answers: list[Mapping[str, str]] = [{"clicks": ARN}, {}]
    asked: list[SourceConfig] = []

    def register(config: SourceConfig) -> Mapping[str, str]:
        asked.append(config)
        return answers.pop(0)

    monkeypatch.setattr(consumers, "register_at_load", register)
    source = KinesisDataSource(OPTIONS | {"consumerregistration": "eager"})
    for _ in range(2):
        source.schema()
    assert [config.fan_out.registration for config in asked if config.fan_out] == ["eager", "eager"]

    copy = pickle.loads(pickle.dumps(source))
    for streaming in (True, False):
        fan_out = copy._source(streaming=streaming).config.fan_out
        assert fan_out.registered == {"clicks": ARN}


@pytest.mark.parametrize("more", [{}, {"consumerregistration": "lazy"}, {"consumerarn": ARN}])
def test_nothing_else_is_registered_at_load(more: Mapping[str, str]) -> None:
    """Otherwise the query registers its consumer, or the user has."""
    source: Any = KinesisDataSource(OPTIONS | dict(more))
    source.schema()
    fan_out = source._source(streaming=True).config.fan_out
    assert fan_out is not None
    assert fan_out.registered == {}
