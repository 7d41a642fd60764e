"""Lists the contents of a sink's path by epoch, and removes old epochs.

A removed epoch stays committed, without files: if Spark runs its batch again, the batch is not written again.
Its manifest is replaced by an empty one, then a checkpoint without the files is put, then the files are
deleted. Readers that listed the files before may find some missing. If a removal is interrupted, the next one
deletes the remaining files, because no committed epoch lists them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain

from sluice.destinations.common.bucket import StoredObject
from sluice.destinations.files.checkpoint import FoldedFile
from sluice.destinations.files.commits import (
    CHECKPOINT_ATTEMPTS,
    newest_checkpoint,
    put_checkpoint,
    read_commits,
)
from sluice.destinations.files.layout import Layout
from sluice.destinations.files.manifest import Manifest
from sluice.destinations.files.pending import for_each
from sluice.destinations.files.store import Store
from sluice.destinations.files.symlinks import make_symlinks
from sluice.errors import CommitError

__all__ = ["CommittedEpoch", "SinkFiles", "expire", "sink_files"]


@dataclass(frozen=True)
class CommittedEpoch:
    """An epoch, or files of several epochs of a query that were merged.

    Attributes:
        query: the id of the streaming query; ``write-<run>`` for a batch write, ``write`` for several.
        batch: the id of the micro-batch; None for merged files.
        committed: when it was committed, or changed last (microseconds since the epoch).
        files: that are committed.
        orphans: paths of data files of this epoch that are not.
        manifest: what commits it; None if it is folded into a checkpoint.
    """

    query: str
    batch: int | None
    committed: int
    files: tuple[FoldedFile, ...]
    orphans: tuple[str, ...] = ()
    manifest: Manifest | None = None

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.files)

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(each.size for each in self.files)


@dataclass(frozen=True)
class SinkFiles:
    """What is below a path.

    Attributes:
        epochs: committed ones, by query and batch; merged files come first. Folded ones without files, and
            without orphans, are left out.
        replaced: files that were merged, and are still there for those who read them.
        uncommitted: data files of epochs without a manifest: being written, or left by a query that never
            came back.
    """

    epochs: Sequence[CommittedEpoch]
    replaced: Sequence[StoredObject]
    uncommitted: Sequence[StoredObject]


def sink_files(
    store: Store, layout: Layout, *, executor: Callable[[int], Executor] = ThreadPoolExecutor
) -> SinkFiles:
    """Lists everything below a path, except what is below the path of another sink inside of it.

    Raises:
        ServiceError: the store refuses a call.
        CommitError: a manifest or a checkpoint cannot be read.
    """
    # Listed first: what is committed later is not an orphan.
    objects = list(store.objects(layout.root))
    commits = read_commits(store, layout, executor)
    checkpoint = commits.checkpoint
    by_epoch: dict[tuple[str, int | None], list[FoldedFile]] = defaultdict(list)
    for file in checkpoint.files:
        by_epoch[_epoch_of(layout, layout.root + file.path) or ("", None)].append(file)
    found = {
        epoch: CommittedEpoch(*epoch, max(each.committed for each in files), tuple(files))
        for epoch, files in by_epoch.items()
    }
    for (query, batch), manifest in commits.manifests.items():
        committed = commits.objects[query, batch].modified
        folded = tuple(FoldedFile(each.path, each.rows, each.size, committed) for each in manifest.files)
        found[query, batch] = CommittedEpoch(query, batch, committed, folded, manifest=manifest)
    listed = {layout.root + file.path for epoch in found.values() for file in epoch.files}
    stay = {layout.root + file.path for file in checkpoint.replaced}
    inner_roots = tuple({root for each in objects if (root := layout.inner_root(each.key)) is not None})
    replaced, uncommitted = [], []
    for each in objects:
        epoch = _epoch_of(layout, each.key)
        if epoch is None or each.key in listed or each.key.startswith(inner_roots):
            continue
        owner, number = epoch
        if each.key in stay:
            replaced.append(each)
        elif epoch not in found and (number is None or not checkpoint.has(owner, number)):
            uncommitted.append(each)
        elif number is not None:
            known = found.get(epoch) or CommittedEpoch(owner, number, each.modified, ())
            found[epoch] = replace(known, orphans=(*known.orphans, layout.relative(each.key)))
    return SinkFiles([found[key] for key in sorted(found, key=_order)], replaced, uncommitted)


def expire(
    store: Store,
    layout: Layout,
    epochs: Sequence[CommittedEpoch],
    *,
    executor: Callable[[int], Executor] = ThreadPoolExecutor,
) -> int:
    """Removes the files of epochs.

    Returns:
        How many files were deleted.

    Raises:
        ServiceError: the store refuses a call; what is left is removed by the next call.
        CommitError: another process has merged some of the files, or puts one checkpoint after the other.
    """
    paths = {file.path for epoch in epochs for file in epoch.files}
    for epoch in epochs:
        if epoch.manifest and epoch.files:
            empty = replace(epoch.manifest, files=())
            store.put(layout.manifest(empty.query, empty.batch), empty.to_json())
    if paths:
        _put_without(store, layout, paths)
    if any(store.keys(layout.symlinks)):
        make_symlinks(store, layout, executor)
    removed = [*paths, *chain.from_iterable(epoch.orphans for epoch in epochs)]
    for_each(executor, [layout.root + path for path in removed], store.delete)
    return len(removed)


def _put_without(store: Store, layout: Layout, paths: set[str]) -> None:
    """Puts a checkpoint without files. What has read the manifests before can then put none."""
    for _ in range(CHECKPOINT_ATTEMPTS):
        before = newest_checkpoint(store, layout)
        if any(each.since and each.path in paths for each in before.replaced):
            raise CommitError(f"{layout.path}: files were merged meanwhile: try again", retryable=True)
        after = replace(before.without(paths), number=before.number + 1)
        if put_checkpoint(store, layout, after):
            return
    raise CommitError(
        f"{layout.path}: another process was faster {CHECKPOINT_ATTEMPTS} times", retryable=True
    )


def _epoch_of(layout: Layout, key: str) -> tuple[str, int | None] | None:
    """The query and the batch of a data file, which is None if it has the rows of several."""
    query = layout.query_of_compacted(key)
    return (query, None) if query else layout.epoch_of_data_file(key)


def _order(epoch: tuple[str, int | None]) -> tuple[str, int]:
    query, batch = epoch
    return query, -1 if batch is None else batch
