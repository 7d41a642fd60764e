"""Writes one task's rows into staged files, by partition and file size."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Final, cast

from sluice.destinations.files.file_formats import FORMATS, RowFile, check_types
from sluice.destinations.files.layout import Layout
from sluice.destinations.files.partition_commit import Completion, latest_of
from sluice.destinations.files.partitions import Partitioning
from sluice.destinations.files.store import StagedFile, StagedStream, Stager
from sluice.errors import ServiceError, SluiceError
from sluice.sink import Origin, SinkWriter, StructType

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FileSettings", "FileWriter"]

# Arrow data that waits to become row groups, over all files of a task (bytes).
_MAX_BUFFERED: Final = 32 * 1024 * 1024


@dataclass(frozen=True)
class FileSettings:
    """How files are made and published.

    Attributes:
        file_format: ``parquet`` or ``jsonl``.
        compression: a compression of the format.
        partition_by: names of columns.
        max_file_size: bytes after which a file ends and another one begins.
        max_open_files: of one task.
        publish: ``manifest``, ``symlink`` or ``visible``.
        completion: when partitions are complete; None if nobody asks.
        target_file_size: bytes of the files that small ones are merged into; None: they are not.
        replaced_file_retention: seconds for which merged files stay.
    """

    file_format: str = "parquet"
    compression: str = "snappy"
    partition_by: tuple[str, ...] = ()
    max_file_size: int = 512 * 1024 * 1024
    max_open_files: int = 16
    publish: str = "manifest"
    completion: Completion | None = None
    target_file_size: int | None = None
    replaced_file_retention: float = 86_400.0


@dataclass
class _OpenFile:
    stream: StagedStream
    row_file: RowFile
    buffered: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0

    def write_buffered(self) -> None:
        if self.buffered:
            self.row_file.write(self.buffered)
            self.buffered.clear()


@contextlib.contextmanager
def _not_repeated() -> Iterator[None]:
    """Errors are final: a store repeats its own calls, and a repeated method would leave rows out."""
    try:
        yield
    except SluiceError as error:
        error.retryable = False
        raise


class FileWriter(SinkWriter[StagedFile]):
    """Writes rows into staged files.

    Memory is bounded: 32 MiB of rows, and in S3 a part for each open file and the parts that are being sent.

    Args:
        stager: takes the files; stopped with the writer.
        layout: the keys below the path.
        settings: how files are made.
        schema: of the rows.
        origin: the task.

    Raises:
        OptionError: a column cannot be written, or `partition_by` or `completion` does not fit the columns.
    """

    def __init__(
        self,
        stager: Stager,
        layout: Layout,
        settings: FileSettings,
        schema: StructType,
        origin: Origin,
    ) -> None:
        check_types(settings.file_format, schema)
        self._partitioning = Partitioning(settings.partition_by, schema)
        self._stager = stager
        self._layout = layout
        self._settings = settings
        self._origin = origin
        self._format = FORMATS[settings.file_format]
        # By directory of the partition; the least recently used first.
        self._open: OrderedDict[str, _OpenFile] = OrderedDict()
        self._finished: list[_OpenFile] = []
        self._streams: list[StagedStream] = []
        self._buffered = 0  # bytes
        self._time_column = settings.completion.find_column(schema) if settings.completion else None
        self._latest: int | None = None

    @property
    def bytes(self) -> int:  # type: ignore[override]
        """Bytes written to all files so far."""
        return sum(stream.size for stream in self._streams)

    @_not_repeated()
    def write(self, batch: pa.RecordBatch) -> None:
        """Takes rows.

        Raises:
            ServiceError: the store did not accept a part.
            InvalidRecordError: the values of the partition columns make a key longer than the store allows.
        """
        if self._time_column is not None:
            self._latest = latest_of(batch.column(self._time_column), self._latest)
        for directory, rows in self._partitioning.split(batch):
            file = self._file(directory, rows.schema)
            file.buffered.append(rows)
            file.rows += rows.num_rows
            self._buffered += rows.nbytes
            if self._buffered >= _MAX_BUFFERED:
                self._write_buffered()

    @_not_repeated()
    def prepare_commit(self) -> list[StagedFile]:
        """Finishes all files; returns when all of them are stored."""
        while self._open:
            self._finish_oldest()
        return [
            StagedFile(each.key, each.token, each.parts(), file.rows, each.size, self._latest)
            for file in self._finished
            for each in [file.stream]
        ]

    def abort(self) -> None:
        """Discards all files. If the store refuses that, they are orphans, and removed later."""
        self._stager.stop()
        for stream in self._streams:
            with contextlib.suppress(ServiceError):
                stream.discard()

    def close(self) -> None:
        self._stager.stop()

    def _file(self, directory: str, schema: pa.Schema) -> _OpenFile:
        file = self._open.get(directory)
        if file is None:
            if len(self._open) >= self._settings.max_open_files:
                self._finish_oldest()
            file = self._open[directory] = self._new_file(directory, schema)
        self._open.move_to_end(directory)
        return file

    def _new_file(self, directory: str, schema: pa.Schema) -> _OpenFile:
        extension = self._format.extensions[self._settings.compression]
        key = self._layout.data_file(self._origin, directory, len(self._streams), extension)
        stream = self._stager.open(key, self._format.content_type)
        self._streams.append(stream)
        row_file = self._format.open(cast("IO[bytes]", stream), schema, self._settings.compression)
        return _OpenFile(stream, row_file)

    def _write_buffered(self) -> None:
        """Writes the buffered rows of all files, and finishes files that are large enough."""
        self._buffered = 0
        for directory, file in list(self._open.items()):
            file.write_buffered()
            if file.stream.size >= self._settings.max_file_size:
                self._open.move_to_end(directory, last=False)
                self._finish_oldest()

    def _finish_oldest(self) -> None:
        """Finishes the least recently used file."""
        _, file = self._open.popitem(last=False)
        self._buffered -= sum(rows.nbytes for rows in file.buffered)
        file.write_buffered()
        file.row_file.close()
        file.stream.finish()
        self._finished.append(file)
