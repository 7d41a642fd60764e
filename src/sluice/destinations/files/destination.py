"""Files that become visible, exactly once, when their epoch is committed (FLIP-143)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, ClassVar, Final

from sluice.aws.calling.connection import ConnectionConfig
from sluice.destinations.common.object_settings import OBJECT_OPTIONS, ObjectSettings
from sluice.destinations.files.committer import (
    MANIFEST,
    SYMLINK,
    VISIBLE,
    FileCommitter,
    ManifestCommitter,
    OrphanRemoval,
    Place,
)
from sluice.destinations.files.file_formats import FORMATS
from sluice.destinations.files.layout import EpochKey, Layout
from sluice.destinations.files.maintenance import FOLD_AFTER, VISIBLE_REASON, Maintenance
from sluice.destinations.files.partition_commit import PARTITION_OPTIONS, Completion
from sluice.destinations.files.places import ANY_PATH, S3_PATH, open_store
from sluice.destinations.files.store import StagedFile, Store
from sluice.destinations.files.upload import PART_SIZE
from sluice.destinations.files.writer import FileSettings, FileWriter
from sluice.options import BOOLEAN, Kind, Option, OptionValues, choice, duration, integer, size
from sluice.sink import CommittingDestination, Epoch, Origin, StructType
from sluice.sink.options import MAX_RETRY_DURATION

__all__ = ["FilesDestination", "S3Destination"]

_log = logging.getLogger(__name__)

_DEFAULTS: Final = FileSettings()
_LARGEST_FILE: Final = 8000 * PART_SIZE  # an upload has at most 10,000 parts; files may exceed the limit


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError(text)
    return names


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
    "Compression of files: `snappy`, `zstd`, `gzip` or `none` for `parquet`; `none` or `gzip` for `jsonl`.",
    shown_default="`snappy` for `parquet`, `none` for `jsonl`",
)
PARTITION_BY = Option(
    "partitionBy",
    Kind("columns", "names of columns with a comma between", _columns),
    (),
    "Columns whose values become directories, such as `country=DE/`; the files lack these columns.",
    shown_default="none",
)
MAX_FILE_SIZE = Option(
    "maxFileSize",
    size(PART_SIZE),
    _DEFAULTS.max_file_size,
    "Size after which a task begins another file. A file may exceed it by up to 32 MiB.",
    shown_default="512MiB",
)
MAX_OPEN_FILES = Option(
    "maxOpenFiles",
    integer(1, 1000),
    _DEFAULTS.max_open_files,
    "The most open files of a task, one per partition. To open another one, the task ends the least "
    "recently used.",
)
PUBLISH = Option(
    "publish",
    choice(MANIFEST, SYMLINK, VISIBLE),
    _DEFAULTS.publish,
    "How readers find committed files: by `manifest`; also by `symlink` manifests for Athena, Trino and "
    "Hive; or by listing the path, where only committed files are `visible`.",
)
TARGET_FILE_SIZE = Option(
    "targetFileSize",
    size(1),
    None,
    "Size of merged files. Small committed files are merged every 10 batches.",
    shown_default="nothing is merged",
)
REPLACED_FILE_RETENTION = Option(
    "replacedFileRetention",
    duration(),
    _DEFAULTS.replaced_file_retention,
    "How long files stay after they were merged, for current readers.",
    shown_default="24h",
)
ALLOW_UNSAFE_COMMITS = Option(
    "allowUnsafeCommits",
    BOOLEAN,
    False,
    "Allow a store without conditional writes, in which two drivers could commit one batch twice.",
)

_OPTIONS: Final[Sequence[Option[Any]]] = (
    FILE_FORMAT,
    PARTITION_BY,
    COMPRESSION,
    MAX_FILE_SIZE,
    MAX_OPEN_FILES,
    PUBLISH,
    *PARTITION_OPTIONS,
    TARGET_FILE_SIZE,
    REPLACED_FILE_RETENTION,
    *OBJECT_OPTIONS,
    ALLOW_UNSAFE_COMMITS,
)
_KILL_TIMEOUT: Final = 3.0
"""Seconds until tasks have ended that Spark kills, by default (``spark.python.task.killTimeout`` is 2 s)."""


class FilesDestination(CommittingDestination[StagedFile]):
    """Writes files below a path.

    Args:
        layout: the keys below the path.
        store: of the path.
        settings: how files are made and published.
        executor: makes an executor with a number of threads; replaced in tests.
        pause: sleeps for a number of seconds; replaced in tests.
    """

    NAME: ClassVar[str] = "files"
    PATH: ClassVar[Option[str]] = ANY_PATH
    OPTIONS: ClassVar[Sequence[Option[Any]]] = (ANY_PATH, *_OPTIONS)

    def __init__(
        self,
        layout: Layout,
        store: Store,
        settings: FileSettings = _DEFAULTS,
        *,
        executor: Callable[[int], Executor] = ThreadPoolExecutor,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._place = Place(store, layout, settings.publish, executor, settings.completion)
        self._pause = pause
        self._settings = settings
        self.name = f"{self.NAME} path '{layout.path}'"

    @classmethod
    def from_options(cls, values: OptionValues, connection: ConnectionConfig) -> FilesDestination | None:
        """See `DestinationClass.from_options`."""
        path = values.get(cls.PATH)
        file_format = values.require(FILE_FORMAT)
        compressions = FORMATS[file_format].extensions
        compression = values.get(COMPRESSION) or next(iter(compressions))
        if compression not in compressions:
            values.reject_value(COMPRESSION, f"allowed with {file_format} are {', '.join(compressions)}")
        if values.require(MAX_FILE_SIZE) > _LARGEST_FILE:
            values.reject_value(MAX_FILE_SIZE, f"at most {_LARGEST_FILE}")
        if values.get(TARGET_FILE_SIZE) and values.require(PUBLISH) == VISIBLE:
            values.reject_value(TARGET_FILE_SIZE, f"needs another 'publish' than visible: {VISIBLE_REASON}")
        object_settings = ObjectSettings.of(values)
        completion = Completion.from_options(values, values.require(PARTITION_BY))
        if path is None:
            return None
        layout = Layout(path)
        if not layout.bucket:
            values.reject_each(OBJECT_OPTIONS, "only for a 'path' in S3")
        settings = FileSettings(
            file_format,
            compression,
            values.require(PARTITION_BY),
            values.require(MAX_FILE_SIZE),
            values.require(MAX_OPEN_FILES),
            values.require(PUBLISH),
            completion,
            values.get(TARGET_FILE_SIZE),
            values.require(REPLACED_FILE_RETENTION),
        )
        store = open_store(
            layout,
            connection,
            object_settings,
            allows_unsafe_commits=values.require(ALLOW_UNSAFE_COMMITS),
            patience=values.require(MAX_RETRY_DURATION),
        )
        return cls(layout, store, settings)

    def check(self) -> None:
        """Raises OptionError if the store has no conditional writes, or the hook cannot be called."""
        if self._settings.completion is not None:
            self._settings.completion.load_hook()
        self._place.store.check_conditional_writes(self._place.layout.manifests)

    def create_writer(self, schema: StructType, origin: Origin) -> FileWriter:
        """Raises OptionError for columns that cannot be written."""
        place = self._place
        stager = place.store.stager(place.executor)
        return FileWriter(stager, place.layout, self._settings, schema, origin)

    def create_committer(self, epoch: Epoch) -> FileCommitter:
        return FileCommitter(self._place, EpochKey.of(epoch))

    def create_global_committer(self, epoch: Epoch) -> ManifestCommitter:
        return ManifestCommitter(self._place, epoch)

    def clean_up(self, epoch: Epoch, *, committed: bool) -> None:
        """Removes orphans, see `OrphanRemoval`; every few epochs, folds manifests, see `Maintenance`."""
        is_aborted_write = epoch.batch is None and not committed
        removal = OrphanRemoval(
            self._place, EpochKey.of(epoch), is_committed=committed, is_aborted_write=is_aborted_write
        )
        manifests = removal.run()
        if committed and manifests > FOLD_AFTER:
            self._maintain()
        if is_aborted_write:
            # No later epoch removes what the other tasks of the write leave, which run on for a moment.
            self._pause(_KILL_TIMEOUT)
            removal.run()

    def _maintain(self) -> None:
        place = self._place
        done = Maintenance(
            place.store,
            place.layout,
            target=self._settings.target_file_size,
            retention=self._settings.replaced_file_retention,
            executor=place.executor,
        ).run()
        for failure in done.failures:
            _log.warning("%s: not merged: %s", self.name, failure)


class S3Destination(FilesDestination):
    """Writes files below a path of a bucket."""

    NAME = "s3"
    PATH = S3_PATH
    OPTIONS = (S3_PATH, *_OPTIONS)
