"""Garbage collection in Python workers that Spark uses again."""

from __future__ import annotations

import gc

import pytest
from pyspark import TaskContext

from sluice.spark import workers


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: calls.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    monkeypatch.setattr(gc, "get_freeze_count", lambda: calls.count("freeze"))
    return calls


@pytest.mark.parametrize("collect", [True, False])
def test_what_is_loaded_is_frozen_in_the_first_task(
    calls: list[str], monkeypatch: pytest.MonkeyPatch, *, collect: bool
) -> None:
    """Once, whether a worker reads, writes or does both: what later tasks leave behind must be collected."""
    monkeypatch.setattr(TaskContext, "get", object)
    workers.freeze_loaded_objects(collect=collect)
    workers.freeze_loaded_objects(collect=True)

    assert calls == [*["collect"] * collect, "freeze"]


class FakeTask:
    """A task that Spark tells its settings, which it has from SQL's propagation of them to executors."""

    def __init__(self, **told: str) -> None:
        self._told = told

    def getLocalProperty(self, key: str) -> str | None:  # noqa: N802 - Spark's name
        return self._told.get(key.replace(".", "_"))


def test_a_task_knows_where_the_driver_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, the driver is assumed to be on this host."""
    assert workers.driver_host() == "127.0.0.1"
    monkeypatch.setattr(TaskContext, "get", FakeTask)
    assert workers.driver_host() == "127.0.0.1"
    monkeypatch.setattr(TaskContext, "get", lambda: FakeTask(spark_driver_host="driver.example"))
    assert workers.driver_host() == "driver.example"
