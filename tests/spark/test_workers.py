"""What is done for tasks that follow in the same worker."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from pyspark import TaskContext

from sluice.spark import workers


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    calls: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: calls.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    workers._freeze.cache_clear()
    yield calls
    workers._freeze.cache_clear()


def test_what_is_loaded_is_left_alone_from_the_first_task_on(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: what later tasks leave behind is garbage, and is to be collected."""
    monkeypatch.setattr(TaskContext, "get", object)
    workers.freeze_loaded_objects()
    workers.freeze_loaded_objects()

    assert calls == ["collect", "freeze"]


def test_nobody_else_s_process_is_meddled_with(calls: list[str]) -> None:
    """On the driver and in tests there is no task."""
    workers.freeze_loaded_objects()

    assert calls == []
