"""Checkpoints: one object replaces many manifests, so that reading does not slow down over time.

A checkpoint lists the files of all epochs that were folded into it. Their manifests are then deleted.
Checkpoints are numbered, and each number can be put only once: a process that loses the race starts again.
Only the newest checkpoint counts, regardless of older ones and of manifests of folded epochs. An older
checkpoint is deleted after the next one is put, so its number may become free again: a checkpoint that is not
the newest when it is put has lost, too.
"""

from __future__ import annotations

import bisect
import gzip
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import msgspec

from sluice.destinations.files.manifest import Manifest
from sluice.errors import CommitError

__all__ = ["Checkpoint", "FoldedEpochs", "FoldedFile", "ReplacedFile"]

_VERSION: Final = 1
_KEPT_CONTENTS: Final = 1000
"""Newest batches of a query whose `Epoch.content` is kept. A repeated older batch is refused."""
_FORGOTTEN: Final = "forgotten"
_DAMAGED: Final = (
    msgspec.MsgspecError,  # a ValueError in newer versions only
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OSError,
    EOFError,
    zlib.error,
)
"""Errors of reading bytes that are not a checkpoint."""


class FoldedFile(NamedTuple):
    """A committed file.

    Attributes:
        path: relative to the path of the sink.
        rows: of the file.
        size: in bytes.
        committed: when the newest epoch in it was committed (microseconds since the epoch).
    """

    path: str
    rows: int
    size: int
    committed: int


class ReplacedFile(NamedTuple):
    """A file that is not committed any more, and stays for a while for those who read it.

    Attributes:
        path: relative to the path of the sink.
        since: when it was replaced (microseconds since the epoch).
    """

    path: str
    since: int


@dataclass(frozen=True)
class FoldedEpochs:
    """The epochs of a query that were folded.

    Attributes:
        ranges: first and last of the batches that follow one another, in order.
        contents: see `Epoch.content`, of the newest batches.
    """

    ranges: tuple[tuple[int, int], ...] = ()
    contents: Mapping[int, str] = field(default_factory=dict)

    def __contains__(self, batch: int) -> bool:
        index = bisect.bisect_right(self.ranges, batch, key=lambda each: each[0])
        return index > 0 and batch <= self.ranges[index - 1][1]

    def content(self, batch: int) -> str | None:
        """What a batch holds; something that no batch holds if that was forgotten; None if it had nothing."""
        unknown = _FORGOTTEN if self.contents and batch < min(self.contents) else None
        return self.contents.get(batch, unknown)

    def with_epochs(self, manifests: Iterable[Manifest]) -> FoldedEpochs:
        """These and others."""
        contents = dict(self.contents)
        single = []
        for manifest in manifests:
            single.append((manifest.batch, manifest.batch))
            if manifest.content is not None:
                contents[manifest.batch] = manifest.content
        ranges: list[tuple[int, int]] = []
        for first, last in sorted([*self.ranges, *single]):
            if ranges and first <= ranges[-1][1] + 1:
                ranges[-1] = (ranges[-1][0], max(last, ranges[-1][1]))
            else:
                ranges.append((first, last))
        newest = sorted(contents)[-_KEPT_CONTENTS:]
        return FoldedEpochs(tuple(ranges), {batch: contents[batch] for batch in newest})


@dataclass(frozen=True)
class Checkpoint:
    """What is folded.

    Attributes:
        number: of the checkpoint; 0: there is none yet.
        queries: the folded epochs by query.
        files: in the order in which they were folded.
        replaced: files that were merged, or expired.
        is_visible: some of the epochs were published with ``visible``.
    """

    number: int = 0
    queries: Mapping[str, FoldedEpochs] = field(default_factory=dict)
    files: tuple[FoldedFile, ...] = ()
    replaced: tuple[ReplacedFile, ...] = ()
    is_visible: bool = False

    def paths(self) -> frozenset[str]:
        """Of all files that it knows, replaced ones too."""
        return frozenset([each.path for each in self.files] + [each.path for each in self.replaced])

    def has(self, query: str, batch: int) -> bool:
        return query in self.queries and batch in self.queries[query]

    def epoch(self, query: str, batch: int) -> Manifest | None:
        """A folded epoch, without its files and its run; None if it was not folded."""
        if not self.has(query, batch):
            return None
        return Manifest(query, batch, "", (), self.queries[query].content(batch))

    def with_epochs(self, epochs: Iterable[tuple[Manifest, int]]) -> Checkpoint:
        """With more epochs, each with the time when it was committed."""
        by_query, files, is_visible = defaultdict(list), list(self.files), self.is_visible
        for manifest, committed in epochs:
            by_query[manifest.query].append(manifest)
            files += [FoldedFile(each.path, each.rows, each.size, committed) for each in manifest.files]
            is_visible |= manifest.is_visible
        queries = dict(self.queries)
        for query, manifests in by_query.items():
            queries[query] = queries.get(query, FoldedEpochs()).with_epochs(manifests)
        return replace(self, queries=queries, files=tuple(files), is_visible=is_visible)

    def with_merged(
        self, merged: Iterable[tuple[Sequence[FoldedFile], FoldedFile]], since: int
    ) -> Checkpoint:
        """With larger files in the place of others, which are replaced since then."""
        instead: dict[str, FoldedFile | None] = {}
        for files, file in merged:
            instead |= dict.fromkeys(each.path for each in files)
            instead[files[0].path] = file
        found = (instead.get(each.path, each) for each in self.files)
        replaced = (*self.replaced, *(ReplacedFile(path, since) for path in instead))
        return replace(self, files=tuple(each for each in found if each), replaced=replaced)

    def without(self, paths: Collection[str]) -> Checkpoint:
        """Without committed files, which may be deleted at once."""
        gone = (ReplacedFile(each.path, 0) for each in self.files if each.path in paths)
        files = tuple(each for each in self.files if each.path not in paths)
        return replace(self, files=files, replaced=(*self.replaced, *gone))

    def without_replaced(self, paths: Collection[str]) -> Checkpoint:
        """Without replaced files, which are deleted."""
        return replace(self, replaced=tuple(each for each in self.replaced if each.path not in paths))

    def to_bytes(self) -> bytes:
        values = {
            "version": _VERSION,
            "queries": {
                query: {"ranges": each.ranges, "contents": each.contents}
                for query, each in self.queries.items()
            },
            "files": self.files,
            "replaced": self.replaced,
            "visible": self.is_visible,
        }
        return gzip.compress(msgspec.json.encode(values), compresslevel=1, mtime=0)

    @classmethod
    def from_bytes(cls, body: bytes, number: int, key: str) -> Checkpoint:
        """Raises CommitError if `body` is not a checkpoint, or has a version that is not known."""
        try:
            values: Any = msgspec.json.decode(gzip.decompress(body))
            if values["version"] != _VERSION:
                raise CommitError(f"checkpoint {key} has version {values['version']}: {_VERSION} is known")
            return cls(
                number,
                {query: _folded(each) for query, each in values["queries"].items()},
                tuple(FoldedFile(*each) for each in values["files"]),
                tuple(ReplacedFile(*each) for each in values["replaced"]),
                values["visible"],
            )
        except _DAMAGED as error:
            raise CommitError(f"checkpoint {key} is damaged: {type(error).__name__}: {error}") from None


def _folded(values: Mapping[str, Any]) -> FoldedEpochs:
    ranges: Sequence[Sequence[int]] = values["ranges"]
    contents: Mapping[str, str] = values["contents"]
    return FoldedEpochs(
        tuple((first, last) for first, last in ranges), {int(each): contents[each] for each in contents}
    )
