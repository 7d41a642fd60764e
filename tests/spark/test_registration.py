"""`sluice.register` without a session of Spark's."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkFiles
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from sluice.errors import SluiceError
from sluice.spark.registration import register_formats

FORMATS = ["kinesis-efo", "async-sink", "dynamodb-streams"]


class FakeRegistration:
    """``spark.dataSource``."""

    def __init__(self, *found: str, message: str = "[DATA_SOURCE_ALREADY_EXISTS] It is there.") -> None:
        self.names: list[str] = []  # what was registered
        self.found = found  # what Spark has found itself, and refuses
        self._message = message

    def register(self, source: Any) -> None:
        if source.name() in self.found:
            raise AnalysisException(self._message)
        self.names.append(source.name())


class ClassicSession(SparkSession):
    """A session with its own driver, without the driver.

    Args:
        found: formats that Spark finds by itself.
        includes: names of files of ``--py-files``.
    """

    def __init__(
        self,
        python: str,
        registration: FakeRegistration,
        *,
        found: Sequence[str] = (),
        includes: Sequence[str] = (),
    ) -> None:
        self._context = SimpleNamespace(pythonExec=python, _python_includes=includes)
        self._registration = registration
        self.is_active = False
        manager = SimpleNamespace(dataSourceExists=found.__contains__)
        state = SimpleNamespace(dataSourceManager=lambda: manager)
        self._jsparkSession = SimpleNamespace(sessionState=lambda: state)

    def createDataFrame(self, *_: Any, **__: Any) -> Any:  # noqa: N802 - Spark's name
        self.is_active = True

    @property
    def sparkContext(self) -> Any:  # noqa: N802 - Spark's name
        return self._context

    @property
    def dataSource(self) -> Any:  # noqa: N802 - Spark's name
        return self._registration


def session(*found: str, message: str = "[DATA_SOURCE_ALREADY_EXISTS] It is there.") -> Any:
    return SimpleNamespace(dataSource=FakeRegistration(*found, message=message))


def test_all_formats_are_registered() -> None:
    """With the session that is given, also one of Spark Connect."""
    spark = session()
    register_formats(spark)
    assert spark.dataSource.names == FORMATS


@pytest.mark.parametrize("found", [FORMATS, FORMATS[:1], FORMATS[1:]])
def test_what_spark_has_found_itself_is_left(found: list[str]) -> None:
    """PySpark 4.0 refuses to register such a format again; the others are registered."""
    spark = session(*found)
    register_formats(spark)
    assert spark.dataSource.names == [name for name in FORMATS if name not in found]


@pytest.mark.parametrize("found", [FORMATS, FORMATS[:1], []])
def test_what_spark_finds_in_the_same_python_is_not_registered(
    monkeypatch: pytest.MonkeyPatch, found: list[str]
) -> None:
    """Spark would warn that a format was replaced, for each format and query."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    formats = FakeRegistration()
    register_formats(ClassicSession(sys.executable, formats, found=found))
    assert formats.names == [name for name in FORMATS if name not in found]


def test_what_spark_finds_in_another_python_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is everything if files of --py-files may have another version."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    for python, includes in (("/other/python", ()), (sys.executable, ["sluice.zip"])):
        monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", python)
        formats = FakeRegistration()
        register_formats(ClassicSession(sys.executable, formats, found=FORMATS, includes=includes))
        assert formats.names == FORMATS


@pytest.fixture(autouse=True)
def _files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: "/files")


def test_a_python_without_sluice_is_named_before_anything_is_registered() -> None:
    """Otherwise the first read fails, with a traceback of Spark's own."""
    formats = FakeRegistration()
    with pytest.raises(SluiceError) as refused:
        register_formats(ClassicSession("/no/such/python", formats))
    assert str(refused.value) == (
        "Spark runs data sources in '/no/such/python', which does not run a Python: set "
        f"PYSPARK_PYTHON={sys.executable} before the session starts"
    )
    assert formats.names == []


def test_the_session_becomes_that_of_the_thread() -> None:
    """Spark looks for the format of a write there. A thread of the program's own has no session."""
    spark = ClassicSession(sys.executable, FakeRegistration())
    register_formats(spark)
    assert spark.is_active
