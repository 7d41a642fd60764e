"""What is below the path of a sink, by epoch, and the removal of old epochs.

An epoch that is removed keeps its manifest, with no files in it: if Spark runs its batch again, it is still
committed, and is not written a second time. The manifest is replaced first. A reader that has listed the
files before finds some of them gone; one that lists them now does not see them. Files that are left behind
when a removal is cut short are removed by the next one, since their epoch has a manifest that does not list
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace

from sluice.destinations.common.bucket import StoredObject
from sluice.destinations.files.layout import Layout
from sluice.destinations.files.manifest import Manifest, read_manifests
from sluice.destinations.files.store import Store
from sluice.destinations.files.symlinks import make_symlinks

__all__ = ["CommittedEpoch", "SinkFiles", "expire", "sink_files"]


@dataclass(frozen=True)
class CommittedEpoch:
    """An epoch, as its manifest has it.

    Attributes:
        key: of the manifest.
        committed: when the manifest was written last (microseconds since the epoch).
        orphans: keys of data files of this epoch that the manifest does not list.
    """

    key: str
    committed: int
    manifest: Manifest
    orphans: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.manifest.files)

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(each.size for each in self.manifest.files)


@dataclass(frozen=True)
class SinkFiles:
    """What is below a path.

    Attributes:
        epochs: committed ones, by query and batch.
        uncommitted: data files of epochs without a manifest: being written, or left by a query that never
            came back.
    """

    epochs: Sequence[CommittedEpoch]
    uncommitted: Sequence[StoredObject]


def sink_files(
    store: Store, layout: Layout, *, executor: Callable[[int], Executor] = ThreadPoolExecutor
) -> SinkFiles:
    """Lists everything below a path, except what is below the path of another sink inside of it.

    Raises:
        ServiceError: the store refuses a call.
        CommitError: a manifest cannot be read.
    """
    objects = list(store.objects(layout.root))
    found = {
        (manifest.query, manifest.batch): CommittedEpoch(each.key, each.modified, manifest)
        for each, manifest in read_manifests(store, layout, objects, executor)
    }
    listed = {layout.root + file.path for epoch in found.values() for file in epoch.manifest.files}
    uncommitted = []
    inner_roots = tuple({root for each in objects if (root := layout.inner_root(each.key)) is not None})
    for each in objects:
        key = layout.epoch_of_data_file(each.key)
        if key is None or each.key.startswith(inner_roots):
            continue
        if key not in found:
            uncommitted.append(each)
        elif each.key not in listed:
            found[key] = replace(found[key], orphans=(*found[key].orphans, each.key))
    return SinkFiles([found[key] for key in sorted(found)], uncommitted)


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
    """
    for epoch in epochs:
        if epoch.manifest.files:
            store.put(epoch.key, replace(epoch.manifest, files=()).to_json())
    if any(store.keys(layout.symlinks)):
        make_symlinks(store, layout, executor)
    removed = [
        key
        for epoch in epochs
        for key in (*(layout.root + file.path for file in epoch.manifest.files), *epoch.orphans)
    ]
    for key in removed:
        store.delete(key)
    return len(removed)
