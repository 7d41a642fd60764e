"""The manifest of an epoch: the one object that makes its files count."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from sluice.destinations.s3.bucket import Store
from sluice.destinations.s3.layout import Layout, Owner
from sluice.destinations.s3.upload import Upload
from sluice.errors import CommitError

__all__ = ["Manifest", "ManifestCommitter", "ManifestFile", "read_manifest"]

_VERSION = 1

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ManifestFile:
    """A file of an epoch; its path is relative to the path of the sink, so that all of it can be moved."""

    path: str
    rows: int
    size: int


@dataclass(frozen=True)
class Manifest:
    """What an epoch consists of.

    Attributes:
        owner: the query, or batch write.
        batch: the micro-batch.
        run: which run of the query has committed it.
        files: in the order of their paths; none where a batch write was aborted.
    """

    owner: str
    batch: int
    run: str
    files: tuple[ManifestFile, ...]

    def to_json(self) -> bytes:
        files = [{"path": each.path, "rows": each.rows, "bytes": each.size} for each in self.files]
        values = {
            "version": _VERSION,
            "query": self.owner,
            "batch": self.batch,
            "run": self.run,
            "rows": sum(each.rows for each in self.files),
            "files": files,
        }
        return json.dumps(values, indent=1).encode()

    @classmethod
    def from_json(cls, text: bytes, key: str) -> Manifest:
        """Raises CommitError for what is no manifest that this version can read."""
        try:
            values = json.loads(text)
            if values["version"] != _VERSION:
                raise CommitError(f"manifest {key} has version {values['version']}: {_VERSION} is known")
            files = tuple(ManifestFile(each["path"], each["rows"], each["bytes"]) for each in values["files"])
            return cls(values["query"], values["batch"], values["run"], files)
        except (ValueError, KeyError, TypeError) as error:
            raise CommitError(f"manifest {key} is damaged: {type(error).__name__}: {error}") from None


def read_manifest(store: Store, key: str) -> Manifest | None:
    text = store.get(key)
    return None if text is None else Manifest.from_json(text, key)


class ManifestCommitter:
    """Seals an epoch: `GlobalCommitter` of destination ``s3``."""

    def __init__(self, store: Store, layout: Layout, owner: Owner) -> None:
        self._store = store
        self._layout = layout
        self._owner = owner

    def combine(self, committables: Sequence[Upload]) -> Manifest:
        files = [ManifestFile(self._layout.relative(each.key), each.rows, each.size) for each in committables]
        files.sort(key=lambda each: each.path)
        return Manifest(self._owner.name, self._owner.batch, self._owner.run, tuple(files))

    def filter_recovered_committables(self, committables: Sequence[Manifest]) -> list[Manifest]:
        """Those whose batch id has no manifest yet."""
        return [each for each in committables if not self._store.exists(self._key(each))]

    def commit(self, committables: Sequence[Manifest]) -> list[Manifest]:
        """Puts the manifest, unless there is one.

        The one that is there is most likely this one, put by an attempt whose answer was lost. If it
        is another run's, that run has won, and what this one has written does not count.
        """
        for manifest in committables:
            key = self._key(manifest)
            if (
                not self._store.put_new(key, manifest.to_json())
                and read_manifest(self._store, key) != manifest
            ):
                _log.warning("another run has committed batch %d of %s", manifest.batch, manifest.owner)
        return []

    def end_of_input(self) -> None:
        """Nothing is open."""

    def _key(self, manifest: Manifest) -> str:
        return self._layout.manifest(manifest.owner, manifest.batch)
