"""examples/iceberg.py without Spark: what no kill can bring about in time, and what it refuses."""

from __future__ import annotations

import gc
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from examples.iceberg import IcebergDestination
from integration.support.iceberg import IcebergTable
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyspark.sql.types import LongType, StructField, StructType

from sluice.destinations import read_sink
from sluice.errors import CommitError, OptionError
from sluice.retry import Backoff
from sluice.sink import Epoch, Origin
from sluice.sink.committing.epoch_commit import EpochCommit

ROOT = Path(__file__).resolve().parent.parent
NAME = f"{IcebergDestination.__module__}:{IcebergDestination.__name__}"
SCHEMA = StructType([StructField("id", LongType())])
ONCE_AGAIN = Backoff(max_retries=1, base=0.001, max=0.001, exponent=1.0)

# SQLAlchemy leaves connections to SQLite to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Closes connections here, where their warning is expected, and not during another test."""
    yield
    gc.collect()


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    return IcebergTable(tmp_path, ["id"])


def destination(table: IcebergTable) -> Any:
    """Made anew, as Spark does."""
    return read_sink({**table.options, "destination": NAME}).destination


def write(table: IcebergTable, run: str, ids: Sequence[int], *, batch: int | None = 0) -> list[Any]:
    """The committables of a task."""
    origin = Origin("iceberg", None if batch is None else "query", run, batch, 0, uuid.uuid4().int)
    writer = destination(table).create_writer(SCHEMA, origin)
    writer.write(pa.RecordBatch.from_pydict({"id": list(ids)}))
    return list(writer.prepare_commit())


def epoch(run: str, *, batch: int | None = 0, content: str | None = "rows") -> Epoch:
    return Epoch(None if batch is None else "query", run, batch, content)


def commit(table: IcebergTable, of: Epoch, files: list[Any]) -> None:
    EpochCommit(destination(table), of, backoff=ONCE_AGAIN).commit(files)


def abort(table: IcebergTable, of: Epoch, files: list[Any]) -> None:
    EpochCommit(destination(table), of, backoff=ONCE_AGAIN).abort(files)


def test_a_repeated_batch_is_committed_once_and_its_files_go(table: IcebergTable) -> None:
    """After other commits to the table, too."""
    commit(table, epoch("run-1"), write(table, "run-1", [1, 2]))
    commit(table, epoch("run-1", batch=1), write(table, "run-1", [3], batch=1))
    commit(table, epoch("run-2"), write(table, "run-2", [1, 2]))

    assert table.rows() == {1: 1, 2: 1, 3: 1}
    assert table.epochs() == ["0", "1"]
    assert table.orphans() == set()


def test_an_unknown_outcome_keeps_the_files(table: IcebergTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog executes the commit, and then does not answer until the epoch is aborted."""
    files = write(table, "run-1", [1, 2])
    executed = SqlCatalog.commit_table

    def no_answer(*arguments: Any) -> Any:
        executed(*arguments)
        raise ConnectionError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", no_answer)
        with pytest.raises(ConnectionError, match="no answer"):
            commit(table, epoch("run-1"), files)
    abort(table, epoch("run-1"), files)

    assert table.rows() == {1: 1, 2: 1}


def test_an_unknown_outcome_is_looked_up(table: IcebergTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that is repeated finds the snapshot."""
    executed = SqlCatalog.commit_table

    def no_answer(*arguments: Any) -> Any:
        executed(*arguments)
        raise CommitStateUnknownException("no answer")

    monkeypatch.setattr(SqlCatalog, "commit_table", no_answer)
    commit(table, epoch("run-1"), write(table, "run-1", [1, 2]))

    assert table.rows() == {1: 1, 2: 1}


def test_a_commit_that_arrives_after_the_abort(table: IcebergTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are still there, and the next run does nothing."""
    files = write(table, "run-1", [1, 2])
    late: list[Any] = []
    executed = SqlCatalog.commit_table

    def no_answer(*arguments: Any) -> Any:
        late[:] = arguments
        raise CommitStateUnknownException("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", no_answer)
        with pytest.raises(CommitError, match="no answer"):
            commit(table, epoch("run-1"), files)
        abort(table, epoch("run-1"), files)
    executed(*late)
    commit(table, epoch("run-2"), write(table, "run-2", [1, 2]))

    assert table.rows() == {1: 1, 2: 1}
    assert table.orphans() == set()


def test_two_drivers_commit_one_batch(table: IcebergTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one commits after this one has looked: PyIceberg does not repeat the refused commit."""
    executed = SqlCatalog.commit_table
    other = write(table, "run-2", [1, 2])

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", executed)
        commit(table, epoch("run-2"), other)
        return executed(*arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", overtaken)
    commit(table, epoch("run-1"), write(table, "run-1", [1, 2]))

    assert table.rows() == {1: 1, 2: 1}
    assert table.orphans() == set()


def test_an_older_checkpoint(table: IcebergTable) -> None:
    """Its rows are not dropped as those of a batch that is committed."""
    commit(table, epoch("run-1"), write(table, "run-1", [1, 2]))

    with pytest.raises(CommitError, match="the checkpoint is an older one"):
        commit(table, epoch("run-2", content="others"), write(table, "run-2", [3]))


def test_batch_writes_have_nothing_in_common(table: IcebergTable) -> None:
    """Two writes of the same rows are both committed; an aborted one is not, and keeps its files."""
    for run in ("run-1", "run-2"):
        commit(table, epoch(run, batch=None), write(table, run, [1], batch=None))
    abort(table, epoch("run-3", batch=None), write(table, "run-3", [1], batch=None))

    assert table.rows() == {1: 2}
    assert len(table.orphans()) == 1


def test_orphans_of_others_stay(table: IcebergTable) -> None:
    """Of another query, and of a later batch."""
    write(table, "run-1", [3], batch=1)
    write(table, "run-2", [9], batch=None)
    write(table, "run-0", [1, 2])
    commit(table, epoch("run-1"), write(table, "run-1", [1, 2]))

    assert table.written() == {1: 1, 2: 1, 3: 1, 9: 1}


def test_a_task_that_fails_leaves_nothing(table: IcebergTable) -> None:
    writer = destination(table).create_writer(SCHEMA, Origin("iceberg", "query", "run-1", 0))
    writer.write(pa.RecordBatch.from_pydict({"id": [1]}))
    writer.prepare_commit()
    writer.abort()

    assert table.files() == []


def test_a_table_must_be_there(table: IcebergTable) -> None:
    table.options["table"] = "web.orders"

    with pytest.raises(OptionError, match=r"option 'table' is 'web\.orders': Table does not exist"):
        destination(table).check()


def test_it_is_short() -> None:
    """With options, writer, committer and destination, and without the program that uses them."""
    code = (ROOT / "examples" / "iceberg.py").read_text().partition("\nif __name__")[0]

    assert len([line for line in code.splitlines() if line.strip()]) <= 115
