"""The Iceberg table of `examples.iceberg`, with steps at which tests kill the driver; and its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from examples.iceberg import IcebergDestination, SnapshotCommitter, TaskWriter
from pyiceberg.catalog import load_catalog

from integration.support.steps import COMMITTING, announce

WRITTEN: Final = "written"  # the files of a task are in the table's directory
ASKED: Final = "asked"  # the committer has found no snapshot of the epoch, and is about to ask for one
EXECUTED: Final = "executed"  # the catalog has the snapshot, and the committer has no answer
CLEANING: Final = "cleaning"  # the epoch is committed; orphans are still there
STEPS: Final = (EXECUTED, WRITTEN, COMMITTING, ASKED, CLEANING)


class SteppedWriter(TaskWriter):
    def prepare_commit(self) -> Any:
        files = super().prepare_commit()
        announce(WRITTEN)
        return files


class SteppedCommitter(SnapshotCommitter):
    def __init__(self, destination: Any, epoch: Any) -> None:
        super().__init__(destination, epoch)
        destination.announces = True


class SteppedIceberg(IcebergDestination):
    """Announces its steps."""

    announces = False

    def create_writer(self, schema: Any, origin: Any) -> Any:
        return SteppedWriter(self, super().create_writer(schema, origin)._ids)

    def create_committer(self, epoch: Any) -> Any:
        return SteppedCommitter(self, epoch)

    def load_table(self) -> Any:
        table = super().load_table()
        if self.announces:
            commit_table = table.catalog.commit_table

            def stepped(*arguments: Any) -> Any:
                announce(ASKED)
                answer = commit_table(*arguments)
                announce(EXECUTED)
                return answer

            table.catalog.commit_table = stepped
        return table

    def clean_up(self, epoch: Any, *, committed: bool) -> None:
        if committed:
            announce(CLEANING)
        super().clean_up(epoch, committed=committed)


class IcebergTable:
    """A table in a catalog in SQLite, read without Spark."""

    def __init__(self, directory: Path, columns: Sequence[str]) -> None:
        self.options = {"catalogUri": f"sqlite:///{directory}/catalog.db", "table": "web.clicks"}
        catalog = load_catalog(
            "default", uri=self.options["catalogUri"], warehouse=f"file://{directory}/lake"
        )
        catalog.create_namespace("web")
        self._table = catalog.create_table("web.clicks", pa.schema([(name, pa.int64()) for name in columns]))

    def rows(self) -> Counter[int]:
        """The ids that a reader of the table finds."""
        return Counter(self._table.refresh().scan().to_arrow().column("id").to_pylist())

    def epochs(self) -> list[str | None]:
        """The batches of the snapshots, in their order."""
        found = self._table.refresh().snapshots()
        return [each.summary["sluice.batch"] for each in found if each.summary]

    def orphans(self) -> set[str]:
        """The data files that no snapshot names."""
        named = set(self._table.refresh().inspect.all_files().column("file_path").to_pylist())
        return {path.as_uri() for path in self.files()} - named

    def files(self) -> list[Path]:
        location = Path(self._table.location().removeprefix("file://"))
        return list(location.glob("data/**/*.parquet"))

    def written(self) -> Counter[int]:
        """The ids in all data files, read or not."""
        return Counter(row for path in self.files() for row in pq.read_table(path).column("id").to_pylist())
