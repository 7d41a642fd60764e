"""Tests of ``sluice doctor``; what is checked has its own, in ``tests/test_environment.py``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cli_support import sluice


def checks(*arguments: str) -> tuple[int, dict[str, bool]]:
    done = sluice("doctor", "--json", *arguments)
    return done.code, {each["check"]: each["ok"] for each in done.value["findings"]}


def test_what_an_application_would_find_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """With this Python for Spark, all that concerns Python is well."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    _, found = checks()
    assert {"Python", "PySpark", "Java", "packages"} <= found.keys()
    assert found["Python of Spark's workers"]
    assert found["Python that Spark asks for formats"]


def test_a_python_without_sluice_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The exit code says so, and the text what to set."""
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "python"))
    code, found = checks()
    shown = sluice("doctor")
    assert (code, found["Python of Spark's workers"]) == (1, False)
    assert f"set PYSPARK_PYTHON={sys.executable} before the session starts" in shown.out
