"""The manifest of an epoch: the object that lists the epoch's files, and so commits it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from sluice.destinations.common.bucket import CONCURRENT_REQUESTS, Bucket, StoredObject
from sluice.destinations.files.layout import EpochKey, Layout
from sluice.destinations.files.upload import Upload
from sluice.errors import CommitError
from sluice.sink import Epoch, GlobalCommitter
from sluice.sink.committing.epoch_commit import other_content

__all__ = ["Manifest", "ManifestCommitter", "ManifestFile", "read_manifest", "read_manifests"]

_VERSION: Final = 1

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ManifestFile:
    """A file of an epoch.

    Attributes:
        path: relative to the path of the sink, so that everything below it can be moved.
        rows: of the file.
        size: in bytes.
    """

    path: str
    rows: int
    size: int


@dataclass(frozen=True)
class Manifest:
    """The files of an epoch.

    Attributes:
        query: the id of the streaming query; ``write-<run>`` for a batch write.
        batch: the id of the micro-batch; 0 for a batch write.
        run: the run that committed it.
        files: sorted by path; empty for a batch write that was aborted.
        content: what the batch holds, see `Epoch.content`; None in manifests of earlier versions.
    """

    query: str
    batch: int
    run: str
    files: tuple[ManifestFile, ...]
    content: str | None = None

    def to_json(self) -> bytes:
        files = [{"path": each.path, "rows": each.rows, "bytes": each.size} for each in self.files]
        values = {
            "version": _VERSION,
            "query": self.query,
            "batch": self.batch,
            "run": self.run,
            "rows": sum(each.rows for each in self.files),
            "files": files,
        }
        if self.content is not None:
            values["content"] = self.content
        return json.dumps(values, indent=1).encode()

    @classmethod
    def from_json(cls, text: bytes, key: str) -> Manifest:
        """Raises CommitError if `text` is no manifest, or has a version that is not known."""
        try:
            values = json.loads(text)
            if values["version"] != _VERSION:
                raise CommitError(f"manifest {key} has version {values['version']}: {_VERSION} is known")
            files = tuple(ManifestFile(each["path"], each["rows"], each["bytes"]) for each in values["files"])
            return cls(values["query"], values["batch"], values["run"], files, values.get("content"))
        except (ValueError, KeyError, TypeError) as error:
            raise CommitError(f"manifest {key} is damaged: {type(error).__name__}: {error}") from None


def read_manifest(bucket: Bucket, key: str) -> Manifest | None:
    """The manifest with this key; None if it does not exist, and no listing shows it.

    Raises:
        ServiceError: S3 lists it, and has not given it out.
        CommitError: it is no manifest.
    """
    text = bucket.get(key)
    if text is None and key in bucket.keys(key):
        text = bucket.get_listed(key)
    return None if text is None else Manifest.from_json(text, key)


def read_manifests(
    bucket: Bucket,
    layout: Layout,
    objects: Iterable[StoredObject],
    executor: Callable[[int], Executor] = ThreadPoolExecutor,
) -> list[tuple[StoredObject, Manifest]]:
    """Reads the manifests among `objects`, which are of a listing. Nothing of the project deletes manifests.

    Raises:
        ServiceError: one cannot be read. Its files would be missing from what is committed.
        CommitError: one is no manifest.
    """
    stored = [each for each in objects if layout.is_manifest(each.key)]
    with executor(CONCURRENT_REQUESTS) as pool:
        read = pool.map(lambda each: Manifest.from_json(bucket.get_listed(each.key), each.key), stored)
        return list(zip(stored, read, strict=True))


class ManifestCommitter(GlobalCommitter[Upload, Manifest]):
    """Puts the manifest: the `GlobalCommitter` of destination ``s3``."""

    def __init__(self, bucket: Bucket, layout: Layout, epoch: Epoch) -> None:
        self._bucket = bucket
        self._layout = layout
        self._epoch = EpochKey.of(epoch)
        self._content = epoch.content

    def combine(self, committables: Sequence[Upload]) -> Manifest:
        files = [ManifestFile(self._layout.relative(each.key), each.rows, each.size) for each in committables]
        files.sort(key=lambda each: each.path)
        return Manifest(self._epoch.query, self._epoch.batch, self._epoch.run, tuple(files), self._content)

    def filter_recovered_committables(self, committables: Sequence[Manifest]) -> list[Manifest]:
        """Those whose batch has no manifest yet.

        Raises:
            CommitError: a batch has one of other contents.
        """
        return [each for each in committables if self._find_existing(each) is None]

    def commit(self, committables: Sequence[Manifest]) -> list[Manifest]:
        """Puts the manifest unless the batch has one.

        The existing one is probably this one, put by an attempt whose answer was lost. If it is that of
        another run, the batch consists of the other run's files, and those of this run are orphans.

        Raises:
            CommitError: the existing one is of other contents.
        """
        for manifest in committables:
            key = self._key(manifest)
            if (
                not self._bucket.put_if_absent(key, manifest.to_json())
                and self._find_existing(manifest) != manifest
            ):
                _log.warning(
                    "query %s: another run has committed batch %d; the files of run %s are removed",
                    manifest.query,
                    manifest.batch,
                    manifest.run,
                )
        return []

    def _find_existing(self, manifest: Manifest) -> Manifest | None:
        key = self._key(manifest)
        if not self._bucket.exists(key):
            return None
        found = Manifest.from_json(self._bucket.get_listed(key), key)
        if found.content and manifest.content and found.content != manifest.content:
            raise CommitError(other_content(f"batch {manifest.batch}", manifest.query))
        return found

    def _key(self, manifest: Manifest) -> str:
        return self._layout.manifest(manifest.query, manifest.batch)
