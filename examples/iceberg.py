"""Commits to an Iceberg table with PyIceberg: each micro-batch is one snapshot, with each row once.

docs/custom-destinations.md explains the choices, and when Spark's own Iceberg sink is better. The table must
exist and have no partitions. Driver and executors need `pyiceberg[pyarrow,sql-sqlite]`.
"""

import tempfile
import uuid
from pathlib import Path

import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, NoSuchTableError
from pyiceberg.io.pyarrow import pyarrow_to_schema, write_file
from pyiceberg.table import WriteTask
from pyspark.sql import SparkSession

from sluice import CommitError, OptionError, SluiceError
from sluice.options import TEXT, Option
from sluice.sink import Committer, CommittingDestination, SinkWriter

URI = Option("catalogUri", TEXT, None, "URI of the catalog `default`, as sqlite:////x.db.", required=True)
TABLE = Option("table", TEXT, None, "Table without partitions, such as web.clicks.", required=True)
FILE_SIZE = 128 * 2**20  # bytes of rows in memory


def ids_of(epoch):
    """Of an `Epoch`, or of the `Origin` of its tasks. A batch write has only its run."""
    return {"sluice.query": epoch.query or epoch.run, "sluice.batch": str(epoch.batch)}


def snapshot_of(ids, table):
    """Looks at all snapshots, because others write to the table, too."""
    for snapshot in table.snapshots():
        if snapshot.summary and all(snapshot.summary[key] == value for key, value in ids.items()):
            return snapshot
    return None


def directory_of(ids, table):
    """Each epoch has its own, which `clean_up` can list. The name is a digest: `txnAppId` may be any text."""
    return f"{table.location()}/data/{uuid.uuid5(uuid.NAMESPACE_OID, repr(ids))}"


class TaskWriter(SinkWriter):
    def __init__(self, destination, ids):
        self._destination, self._ids = destination, ids
        self._table, self._batches, self._files = None, [], []

    def write(self, batch):
        self._batches.append(batch)
        if sum(each.nbytes for each in self._batches) >= FILE_SIZE:
            self._end_file()

    def prepare_commit(self):
        if self._batches:
            self._end_file()
        return self._files  # descriptions with statistics: the driver opens no data file

    def abort(self):
        for file in self._files:  # no committer knows them
            self._table.io.delete(file.file_path)

    def _end_file(self):
        if self._table is None:
            self._table = self._destination.load_table()
            # Only of this object: nothing of it is sent to the catalog.
            self._table.metadata.properties["write.data.path"] = directory_of(self._ids, self._table)
        names = self._table.schema().name_mapping
        schema = pyarrow_to_schema(self._batches[0].schema, name_mapping=names)
        task = WriteTask(uuid.uuid4(), 0, schema, self._batches)
        self._files += write_file(self._table.io, self._table.metadata, iter([task]))
        self._batches = []


class SnapshotCommitter(Committer):
    def __init__(self, destination, epoch):
        self._destination, self._ids, self._content = destination, ids_of(epoch), epoch.content or ""

    def commit(self, files):
        table = self._destination.load_table()
        if snapshot := snapshot_of(self._ids, table):  # of an earlier call or run
            if snapshot.summary["sluice.content"] != self._content:
                raise CommitError(f"{self._ids} has other rows: the checkpoint is an older one")
            return []
        # PyIceberg must not repeat a refused commit by itself: another driver may have committed this epoch.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        summary = {**self._ids, "sluice.content": self._content}
        try:
            with (
                table.transaction() as transaction,
                transaction.update_snapshot(snapshot_properties=summary).fast_append() as append,
            ):
                for file in files:
                    append.append_data_file(file)
        except (CommitFailedException, CommitStateUnknownException) as error:
            raise SluiceError(f"{TABLE.key}: {error}", retryable=True) from error  # looks again, then commits
        return []

    def abort(self, files):
        pass  # a commit may have failed after the catalog had executed it: see `clean_up`


class IcebergDestination(CommittingDestination):
    OPTIONS = (URI, TABLE)

    @classmethod
    def from_options(cls, values, connection):
        made = cls()
        made.uri, made.table = values.get(URI), values.get(TABLE)
        return made

    def load_table(self):
        return load_catalog("default", uri=self.uri).load_table(self.table)

    def check(self):
        try:
            partitions = self.load_table().spec().fields
        except NoSuchTableError as error:
            raise OptionError(f"option 'table' is {self.table!r}: {error}") from None
        if partitions:
            raise OptionError(f"option 'table' is {self.table!r}: allowed is a table without partitions")

    def create_writer(self, schema, origin):
        return TaskWriter(self, ids_of(origin))

    def create_committer(self, epoch):
        return SnapshotCommitter(self, epoch)

    def clean_up(self, epoch, *, committed):
        table = self.load_table()
        snapshot = snapshot_of(ids_of(epoch), table)
        if not committed or snapshot is None:
            return  # the catalog may still execute a commit whose outcome is unknown, of any of the files
        added = [
            each for each in snapshot.manifests(table.io) if each.added_snapshot_id == snapshot.snapshot_id
        ]
        entries = [entry for manifest in added for entry in manifest.fetch_manifest_entry(table.io)]
        named = {Path(entry.data_file.file_path).name for entry in entries}
        files, directory = FileSystem.from_uri(directory_of(ids_of(epoch), table))
        for file in files.get_file_info(FileSelector(directory, recursive=True)):
            if file.is_file and file.base_name not in named:
                files.delete_file(file.path)


if __name__ == "__main__":
    spark = SparkSession.builder.getOrCreate()
    lake = tempfile.mkdtemp()
    catalog = load_catalog("default", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}")
    catalog.create_namespace("web")
    clicks = catalog.create_table("web.clicks", pa.schema({"id": pa.int64(), "square": pa.int64()}))
    for _ in range(2):  # the second does nothing: version 1 is there already
        (
            spark.range(12)
            .selectExpr("id", "id * id AS square")
            .write.format("async-sink")
            .mode("append")
            .option("destination", "examples.iceberg:IcebergDestination")
            .option("catalogUri", f"sqlite:///{lake}/catalog.db")
            .option("table", "web.clicks")
            .option("txnAppId", "squares")
            .option("txnVersion", 1)
            .save()
        )
    print(f"{clicks.refresh().scan().to_arrow().num_rows} rows in {len(clicks.snapshots())} snapshot")
