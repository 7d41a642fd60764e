"""The manifest of an epoch: the object that lists the epoch's files, and so commits it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from sluice.destinations.files.store import Store
from sluice.errors import CommitError

__all__ = ["Manifest", "ManifestFile", "read_manifest"]

_VERSION: Final = 1


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
        latest: the greatest value of `watermarkColumn` (microseconds since the epoch); None if there is none.
        is_visible: readers list the files.
    """

    query: str
    batch: int
    run: str
    files: tuple[ManifestFile, ...]
    content: str | None = None
    latest: int | None = None
    is_visible: bool = False

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
        if self.latest is not None:
            values["latest"] = self.latest
        if self.is_visible:
            values["visible"] = True
        return json.dumps(values, indent=1).encode()

    @classmethod
    def from_json(cls, text: bytes, key: str) -> Manifest:
        """Raises CommitError if `text` is not a manifest, or has a version that is not known."""
        try:
            values = json.loads(text)
            if values["version"] != _VERSION:
                raise CommitError(f"manifest {key} has version {values['version']}: {_VERSION} is known")
            files = tuple(ManifestFile(each["path"], each["rows"], each["bytes"]) for each in values["files"])
            optional = values.get("content"), values.get("latest"), values.get("visible", False)
            return cls(values["query"], values["batch"], values["run"], files, *optional)
        except (ValueError, KeyError, TypeError) as error:
            raise CommitError(f"manifest {key} is damaged: {type(error).__name__}: {error}") from None


def read_manifest(store: Store, key: str) -> Manifest | None:
    """The manifest with this key; None if it does not exist, and no listing shows it.

    Raises:
        ServiceError: the store lists it, and has not given it out.
        CommitError: it is not a manifest.
    """
    text = store.read(key)
    return None if text is None else Manifest.from_json(text, key)
