"""Amazon S3: files that are there once their epoch is committed, once, whatever is restarted (FLIP-143)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, ClassVar, Final

from sluice.aws.clients import client_for
from sluice.aws.connection import ConnectionConfig
from sluice.destinations.s3.bucket import Store
from sluice.destinations.s3.committer import Sweep, UploadCommitter
from sluice.destinations.s3.file_formats import FORMATS
from sluice.destinations.s3.layout import Layout, Owner
from sluice.destinations.s3.manifest import ManifestCommitter
from sluice.destinations.s3.upload import PART_SIZE
from sluice.destinations.s3.writer import FileSettings, S3Writer
from sluice.options import Kind, Option, OptionValues, choice, integer, matching, size
from sluice.retry import Retrier
from sluice.sink.contracts import Epoch, StructType
from sluice.sink.dead_letters import Origin

__all__ = ["PATH", "S3Destination"]

_NAME: Final = "s3"
_DEFAULTS: Final = FileSettings()
_LARGEST_FILE: Final = 8000 * PART_SIZE  # S3 takes 10,000 parts; a file may pass its limit by some


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError(text)
    return names


_PATH_SPELLING: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w!.()=+@,~-]+)*/?", re.ASCII)

PATH = Option(
    "path",
    matching("path", "s3://bucket/prefix, of letters, digits, / and any of !_.()=+@,~-", _PATH_SPELLING),
    None,
    "`s3://bucket/prefix`, below which the files and their manifests are.",
    required=True,
)
FILE_FORMAT = Option(
    "fileFormat",
    choice(*FORMATS),
    "parquet",
    "Format of the files: `parquet` or `jsonl`.",
    shown_default="`parquet`",
)
COMPRESSION = Option(
    "compression",
    choice("none", "snappy", "gzip", "zstd"),
    None,
    "Of the files: `snappy`, `zstd`, `gzip` or `none` for `parquet`; `none` or `gzip` for `jsonl`.",
    shown_default="`snappy` for `parquet`, `none` for `jsonl`",
)
PARTITION_BY = Option(
    "partitionBy",
    Kind("columns", "names of columns with a comma between", _columns),
    (),
    "Columns whose values make directories, as `country=DE/`; they are left out of the files.",
    shown_default="none",
)
MAX_FILE_SIZE = Option(
    "maxFileSize",
    size(PART_SIZE),
    _DEFAULTS.max_file_size,
    "Bytes after which a task begins another file; passed by what one write holds, up to 32 MiB.",
    shown_default="512MiB",
)
MAX_OPEN_FILES = Option(
    "maxOpenFiles",
    integer(1, 1000),
    _DEFAULTS.max_open_files,
    "Files, one a partition, that a task has open; for another one, that used least recently is ended.",
)


class S3Destination:
    """A prefix of a bucket, as the unified sink sees it: `CommittingDestination`.

    Args:
        connection: how to reach the service.
        path: ``s3://bucket/prefix``.
        settings: how files are made.
        client: makes the SDK's client; replaced in tests.
        retrier: how throttling and lost connections are waited out; replaced in tests.
        executor: makes what runs requests side by side, of so many threads; replaced in tests.
    """

    OPTIONS: ClassVar[Sequence[Option[Any]]] = (
        PATH,
        FILE_FORMAT,
        PARTITION_BY,
        COMPRESSION,
        MAX_FILE_SIZE,
        MAX_OPEN_FILES,
    )

    def __init__(  # noqa: PLR0913 - three of them for tests alone
        self,
        connection: ConnectionConfig,
        path: str,
        settings: FileSettings = _DEFAULTS,
        *,
        client: Callable[[ConnectionConfig, str], Any] = client_for,
        retrier: Retrier | None = None,
        executor: Callable[[int], Executor] = ThreadPoolExecutor,
    ) -> None:
        self._layout = Layout(path)
        self._settings = settings
        self._store = Store(self._layout.bucket, connection, client=client, retrier=retrier)
        self._executor = executor
        self.name = f"s3 path '{path}'"

    @classmethod
    def from_options(cls, values: OptionValues, connection: ConnectionConfig) -> S3Destination | None:
        """Makes the destination from the options. What cannot be is noted in `values`."""
        path = values.get(PATH)
        file_format = values.require(FILE_FORMAT)
        compressions = FORMATS[file_format].compressions
        compression = values.get(COMPRESSION) or next(iter(compressions))
        if compression not in compressions:
            values.reject_value(COMPRESSION, f"allowed with {file_format} are {', '.join(compressions)}")
        if values.require(MAX_FILE_SIZE) > _LARGEST_FILE:
            values.reject_value(MAX_FILE_SIZE, f"at most {_LARGEST_FILE}")
        if path is None:
            return None
        settings = FileSettings(
            file_format,
            compression,
            values.require(PARTITION_BY),
            values.require(MAX_FILE_SIZE),
            values.require(MAX_OPEN_FILES),
        )
        return cls(connection, path, settings)

    def create_writer(self, schema: StructType, origin: Origin) -> S3Writer:
        """Raises OptionError for columns that cannot be written."""
        return S3Writer(
            _NAME,
            self._store,
            self._layout,
            settings=self._settings,
            schema=schema,
            origin=origin,
            executor=self._executor,
        )

    def create_committer(self, epoch: Epoch) -> UploadCommitter:
        return UploadCommitter(self._store, self._layout, Owner.of(epoch), self._executor)

    def create_global_committer(self, epoch: Epoch) -> ManifestCommitter:
        return ManifestCommitter(self._store, self._layout, Owner.of(epoch))

    def clean_up(self, epoch: Epoch, *, committed: bool) -> None:
        """Sweeps: see `sluice.destinations.s3.committer`."""
        is_last_word = epoch.batch is None and not committed
        Sweep(self._store, self._layout, Owner.of(epoch), is_last_word=is_last_word).run()
