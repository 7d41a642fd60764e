"""Merges small files of a partition into larger ones.

Only files of one query that were committed one after the other are merged, so that the content of a merged
file can be traced. A file is merged only with at least its own size of newer data, so a row is rewritten when
its file doubles, not with each compaction.
"""

from __future__ import annotations

import contextlib
import io
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from itertools import groupby
from typing import IO, Final, NamedTuple, cast

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.destinations.common.bucket import CONCURRENT_REQUESTS
from sluice.destinations.files.checkpoint import FoldedFile
from sluice.destinations.files.file_formats import FORMATS, ParquetFile
from sluice.destinations.files.layout import Layout
from sluice.destinations.files.store import StagedFile, StagedStream, Store
from sluice.errors import CommitError

__all__ = ["Merge", "OtherColumnsError", "find_merges", "is_write", "merge"]

_AT_ONCE: Final = 32 * 1024 * 1024
"""Bytes of files that are read side by side; also bytes of a row group, as of the files of tasks."""
_WRITE: Final = "write"
_EXTENSIONS: Final = {
    extension: (name, compression)
    for name, file_format in FORMATS.items()
    for compression, extension in file_format.extensions.items()
}


class OtherColumnsError(CommitError):
    """A file has other columns than those before it.

    Attributes:
        index: of the file.
    """

    def __init__(self, index: int) -> None:
        super().__init__("files have different columns")
        self.index = index


class Merge(NamedTuple):
    """Files that become one.

    Attributes:
        directory: of their partition, ending in a slash; empty without partitioning.
        query: whose files they are; ``write`` for batch writes.
        extension: of their names.
        files: in the order in which they were committed.
    """

    directory: str
    query: str
    extension: str
    files: Sequence[FoldedFile]


def is_write(query: str) -> bool:
    """Whether these are the files of a batch write, or of several that were merged: see `EpochKey`."""
    return query == _WRITE or query.startswith(f"{_WRITE}-")


def find_merges(layout: Layout, files: Iterable[FoldedFile], target: int) -> Iterator[Merge]:
    """What there is to merge among committed files.

    Args:
        layout: the keys below the path.
        files: in the order in which they were committed.
        target: bytes that a merged file may have.
    """
    groups = defaultdict(list)
    for file in files:
        directory, _, name = file.path.rpartition("/")
        key = layout.root + file.path
        epoch = layout.epoch_of_data_file(key)
        query = epoch[0] if epoch else layout.query_of_compacted(key)
        extension = name.partition(".")[2]
        if query and extension in _EXTENSIONS:
            owner = _WRITE if is_write(query) else query
            groups[f"{directory}/" if directory else "", owner, extension].append(file)
    for group, found in groups.items():
        for is_small, neighbours in groupby(found, key=lambda each: each.size <= target // 2):
            for part in _parts(list(neighbours), target) if is_small else ():
                yield Merge(*group, part)


def _parts(files: Sequence[FoldedFile], target: int) -> Iterator[Sequence[FoldedFile]]:
    """Neighbours that make a file of at most `target` bytes, and whose first one at least doubles."""
    parts: list[list[FoldedFile]] = [[]]
    size = 0
    for file in files:
        size += file.size
        if size > target:
            parts.append([])
            size = file.size
        parts[-1].append(file)
    for part in parts:
        while len(part) > 1 and part[0].size > sum(each.size for each in part[1:]):
            del part[0]
        if len(part) > 1:
            yield part


def merge(
    store: Store, layout: Layout, found: Merge, key: str, executor: Callable[[int], Executor]
) -> StagedFile:
    """Writes the rows of files into one, and stages it.

    Args:
        store: has the files.
        layout: the keys below the path.
        found: the files.
        key: of the new file.
        executor: makes an executor with a number of threads.

    Raises:
        ServiceError: the store refuses a call.
        OtherColumnsError: not all of them have the same columns.
        CommitError: a file has not the rows that it was committed with, or cannot be read.
    """
    name, compression = _EXTENSIONS[found.extension]
    stager = store.stager(executor)
    stream = stager.open(key, FORMATS[name].content_type)
    write = _merge_parquet if name == "parquet" else _merge_lines
    try:
        write(_bodies(store, layout, found.files, executor), stream, compression)
        stream.finish()
        rows = sum(each.rows for each in found.files)
        return StagedFile(key, stream.token, stream.parts(), rows, stream.size)
    except BaseException:
        stager.stop()
        stream.discard()
        raise
    finally:
        stager.stop()


def _bodies(
    store: Store, layout: Layout, files: Sequence[FoldedFile], executor: Callable[[int], Executor]
) -> Iterator[tuple[FoldedFile, bytes]]:
    """The files with their bytes, some read side by side."""
    waiting: list[FoldedFile] = []
    with executor(CONCURRENT_REQUESTS) as pool:
        for file in [*files, None]:
            if waiting and (file is None or sum(each.size for each in waiting) + file.size > _AT_ONCE):
                keys = [layout.root + each.path for each in waiting]
                yield from zip(waiting, pool.map(store.get_listed, keys), strict=True)
                waiting = []
            if file is not None:
                waiting.append(file)


def _merge_parquet(
    bodies: Iterable[tuple[FoldedFile, bytes]], stream: StagedStream, compression: str
) -> None:
    with contextlib.ExitStack() as stack:
        writer: ParquetFile | None = None
        schema = None
        buffered: list[pa.RecordBatch] = []
        for index, (file, body) in enumerate(bodies):
            try:
                source = pq.ParquetFile(io.BytesIO(body))
            except (pa.ArrowException, OSError) as error:
                raise CommitError(f"{file.path} cannot be read: {error}") from None
            _check_rows(file, source.metadata.num_rows)
            if writer is None:
                schema = source.schema_arrow
                writer = ParquetFile(cast("IO[bytes]", stream), schema, compression)
                stack.callback(writer.close)
            if source.schema_arrow != schema:
                raise OtherColumnsError(index)
            for group in range(source.num_row_groups):
                try:
                    buffered += source.read_row_group(group).to_batches()
                except (pa.ArrowException, OSError) as error:
                    raise CommitError(f"{file.path} cannot be read: {error}") from None
                if sum(each.nbytes for each in buffered) >= _AT_ONCE:
                    writer.write(buffered)
                    buffered = []
        if writer is not None and buffered:
            writer.write(buffered)


def _merge_lines(bodies: Iterable[tuple[FoldedFile, bytes]], stream: StagedStream, compression: str) -> None:
    packer = zlib.compressobj(wbits=31) if compression == "gzip" else None
    for file, body in bodies:
        try:
            lines = body if packer is None else zlib.decompress(body, wbits=31)
        except zlib.error as error:
            raise CommitError(f"{file.path} cannot be read: {error}") from None
        _check_rows(file, lines.count(b"\n"))
        stream.write(lines if packer is None else packer.compress(lines))
    if packer is not None:
        stream.write(packer.flush())


def _check_rows(file: FoldedFile, rows: int) -> None:
    if rows != file.rows:
        raise CommitError(f"{file.path} has {rows} rows, and was committed with {file.rows}")
