"""docs/custom-destinations.md: the printed code does what the page says."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import LongType, StructField, StructType

from sluice.errors import OptionError
from sluice.spark import sink_writer
from sluice.spark.sink import AsyncSinkDataSource

PAGE = Path(__file__).resolve().parent.parent / "docs" / "custom-destinations.md"
NAME = "sqlite_sink:SqliteDestination"
SCHEMA = StructType([StructField("id", LongType())])


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Saves the module as the page says."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (code,) = [block for block in blocks if block.startswith('"""Writes rows to a table in SQLite')]
    directory = tmp_path / "modules"
    directory.mkdir()
    (directory / "sqlite_sink.py").write_text(code)
    monkeypatch.syspath_prepend(directory)
    yield code
    sys.modules.pop("sqlite_sink", None)


class Query:
    """Spark's calls for a streaming query, over several runs."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.database = directory / "rows.db"
        self.context: dict[str, str] = {}
        self.attempts = 0
        context = SimpleNamespace(
            getLocalProperty=self.local_property,
            partitionId=lambda: 0,
            taskAttemptId=lambda: self.attempts,
        )
        monkeypatch.setattr(sink_writer, "TaskContext", SimpleNamespace(get=lambda: context))

    def local_property(self, name: str) -> str | None:
        return self.context.get(name)

    def writer(self, *, streaming: bool = True) -> Any:
        options = {"destination": NAME, "directory": str(self.directory)}
        source = AsyncSinkDataSource(CaseInsensitiveDict(options))
        return source.streamWriter(SCHEMA, False) if streaming else source.writer(SCHEMA, False)

    def task(self, run: str, batch: int, *ids: int) -> Any:
        self.attempts += 1
        self.context = {
            "sql.streaming.queryId": "q",
            "spark.jobGroup.id": run,
            "streaming.sql.batchId": str(batch),
        }
        return self.writer().write(iter([rows(*ids)] if ids else []))

    @property
    def task_files(self) -> list[Path]:
        return [path for path in self.directory.iterdir() if path.name != "rows.db"]

    @property
    def stored(self) -> list[int]:
        database = sqlite3.connect(self.database)
        found = [json.loads(row)["id"] for (row,) in database.execute("SELECT json FROM rows")]
        database.close()
        return sorted(found)


def rows(*ids: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(ids, pa.int64())], names=["id"])


@pytest.fixture
def query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Query:
    directory = tmp_path / "shared"
    directory.mkdir()
    made = Query(directory, monkeypatch)
    (tables,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    database = sqlite3.connect(made.database)
    database.executescript(tables)
    database.close()
    return made


# The page's code does not close its connections.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")


def test_it_has_under_70_lines(module: str) -> None:
    """With options, writer, committer and destination."""
    assert len(module.splitlines()) < 70


def test_a_repeated_batch_is_committed_once(query: Query) -> None:
    """After a crash between the commit and Spark's log of it. No file is left."""
    query.writer().commit([query.task("run-1", 0, 1, 2), query.task("run-1", 0, 3)], batchId=0)
    query.writer().commit([query.task("run-2", 0, 1, 2), query.task("run-2", 0, 3)], batchId=0)
    query.writer().commit([query.task("run-2", 1, 4), query.task("run-2", 1)], batchId=1)

    assert query.stored == [1, 2, 3, 4]
    assert query.task_files == []


def test_a_commit_that_is_called_again_changes_nothing(query: Query) -> None:
    """With the same committables: their files no longer exist."""
    messages = [query.task("run-1", 0, 1, 2)]
    for _ in range(2):
        query.writer().commit(messages, batchId=0)

    assert query.stored == [1, 2]


def test_an_aborted_batch_leaves_nothing(query: Query) -> None:
    """The abort is called twice, with None for the failed task."""
    message = query.task("run-1", 0, 1)
    for _ in range(2):
        query.writer().abort([message, None], batchId=0)

    assert query.task_files == []
    query.writer().commit([query.task("run-2", 0, 1)], batchId=0)
    assert query.stored == [1]


def test_a_task_that_fails_leaves_nothing(query: Query) -> None:
    """It raises while it writes."""
    with pytest.raises(AttributeError):
        query.writer().write(iter([rows(1), None]))

    assert query.task_files == []


def test_a_batch_write(query: Query) -> None:
    """Each has its own id: two writes of the same rows are committed both."""
    for _ in range(2):
        writer = query.writer(streaming=False)
        writer.commit([writer.write(iter([rows(1, 2)]))])

    assert query.stored == [1, 1, 2, 2]


def test_options_are_checked() -> None:
    """Like those of a built-in destination."""
    with pytest.raises(OptionError, match="option 'directory' is required"):
        AsyncSinkDataSource({"destination": NAME}).writer(SCHEMA, overwrite=False)
