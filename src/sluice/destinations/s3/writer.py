"""One task's rows, into as many uploads as their partitions and sizes ask for."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Final, cast

from sluice.destinations.s3.bucket import Store
from sluice.destinations.s3.file_formats import FORMATS, RowFile, check_types
from sluice.destinations.s3.layout import Layout
from sluice.destinations.s3.partitions import Partitioning
from sluice.destinations.s3.upload import PartSender, PartStream, Upload
from sluice.errors import InvalidRecordError, ServiceError
from sluice.sink.contracts import StructType
from sluice.sink.dead_letters import Origin

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FileSettings", "S3Writer"]

# Parts of one task that are being sent, and threads that send them.
_SENDING: Final = 4
# Arrow data that wait, over all files of a task, to become row groups (bytes).
_HELD: Final = 32 * 1024 * 1024
_LONGEST_KEY: Final = 1024  # bytes


@dataclass(frozen=True)
class FileSettings:
    """How files are made.

    Attributes:
        file_format: ``parquet`` or ``jsonl``.
        compression: one of those that the format has.
        partition_by: columns.
        max_file_size: bytes after which another file is begun.
        max_open_files: of one task.
    """

    file_format: str = "parquet"
    compression: str = "snappy"
    partition_by: tuple[str, ...] = ()
    max_file_size: int = 512 * 1024 * 1024
    max_open_files: int = 16


@dataclass
class _OpenFile:
    stream: PartStream
    rows_file: RowFile
    held: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0

    def spill(self) -> None:
        if self.held:
            self.rows_file.write(self.held)
            self.held.clear()


class S3Writer:
    """Streams rows into multipart uploads: `SinkWriter` of destination ``s3``.

    Memory is bounded whatever comes: a part for each open file, the parts under way, and `_HELD`.

    Args:
        name: of the destination, for messages.
        store: the bucket.
        layout: keys below the path.
        settings: how files are made.
        schema: of the rows.
        origin: which task this is.
        executor: makes what sends parts, of so many threads; replaced in tests.

    Raises:
        OptionError: columns that cannot be written.
    """

    def __init__(  # noqa: PLR0913 - what a task's files are made of
        self,
        name: str,
        store: Store,
        layout: Layout,
        *,
        settings: FileSettings,
        schema: StructType,
        origin: Origin,
        executor: Callable[[int], Executor] = ThreadPoolExecutor,
    ) -> None:
        check_types(name, settings.file_format, schema)
        self._partitioning = Partitioning(name, settings.partition_by, schema)
        self._name = name
        self._layout = layout
        self._settings = settings
        self._origin = origin
        self._format = FORMATS[settings.file_format]
        self._sender = PartSender(store, executor(_SENDING), _SENDING)
        self._open: OrderedDict[str, _OpenFile] = OrderedDict()  # the least recently used first
        self._ended: list[_OpenFile] = []
        self._begun: list[PartStream] = []
        self._held = 0

    @property
    def bytes(self) -> int:
        return sum(stream.size for stream in self._begun)

    def write(self, batch: pa.RecordBatch) -> None:
        """Takes rows.

        Raises:
            ServiceError: S3 did not take a part.
            InvalidRecordError: the values of partition columns make a name longer than S3 allows.
        """
        for directory, rows in self._partitioning.split(batch):
            file = self._file(directory, rows.schema)
            file.held.append(rows)
            file.rows += rows.num_rows
            self._held += rows.nbytes
            if self._held >= _HELD:
                self._spill()

    def prepare_commit(self) -> list[Upload]:
        """Returns when all of every file is with S3; the uploads, ready to be completed."""
        while self._open:
            self._end_oldest()
        return [
            Upload(
                self._layout.bucket,
                file.stream.key,
                file.stream.upload,
                file.stream.parts(),
                file.rows,
                file.stream.size,
            )
            for file in self._ended
        ]

    def abort(self) -> None:
        """Aborts all uploads, as far as S3 lets it: what stays is found by the sweep."""
        self._sender.stop()
        for stream in self._begun:
            with contextlib.suppress(ServiceError):
                self._sender.store.abort_upload(stream.key, stream.upload)

    def close(self) -> None:
        self._sender.stop()

    def _file(self, directory: str, schema: pa.Schema) -> _OpenFile:
        file = self._open.get(directory)
        if file is None:
            if len(self._open) >= self._settings.max_open_files:
                self._end_oldest()
            file = self._open[directory] = self._begin(directory, schema)
        self._open.move_to_end(directory)
        return file

    def _begin(self, directory: str, schema: pa.Schema) -> _OpenFile:
        extension = self._format.compressions[self._settings.compression]
        key = self._layout.data_key(self._origin, directory, len(self._begun), extension)
        if len(key.encode()) > _LONGEST_KEY:
            raise InvalidRecordError(
                f"destination '{self._name}': the values of the partition columns make a key of "
                f"{len(key.encode())} bytes; S3 takes {_LONGEST_KEY}"
            )
        stream = PartStream(self._sender, key, self._format.content_type)
        self._begun.append(stream)
        rows_file = self._format.open(cast("IO[bytes]", stream), schema, self._settings.compression)
        return _OpenFile(stream, rows_file)

    def _spill(self) -> None:
        """Writes what is held, and ends files that have become large enough."""
        self._held = 0
        for directory, file in list(self._open.items()):
            file.spill()
            if file.stream.size >= self._settings.max_file_size:
                self._open.move_to_end(directory, last=False)
                self._end_oldest()

    def _end_oldest(self) -> None:
        _, file = self._open.popitem(last=False)
        self._held -= sum(rows.nbytes for rows in file.held)
        file.spill()
        file.rows_file.close()
        file.stream.end()
        self._ended.append(file)
