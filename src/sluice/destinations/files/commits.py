"""What is committed below a path: the newest checkpoint, and the manifests that are not folded into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from sluice.destinations.common.bucket import CONCURRENT_REQUESTS, StoredObject
from sluice.destinations.files.checkpoint import Checkpoint
from sluice.destinations.files.layout import Layout
from sluice.destinations.files.manifest import Manifest, ManifestFile
from sluice.destinations.files.store import Store

__all__ = [
    "CHECKPOINT_ATTEMPTS",
    "Commits",
    "find_epoch",
    "newest_checkpoint",
    "put_checkpoint",
    "read_commits",
]

CHECKPOINT_ATTEMPTS: Final = 5
"""If several processes put a checkpoint, one succeeds; the others begin anew."""
_LISTINGS: Final = 3
"""How often objects are listed, because a fold may delete a listed one before it is read."""


@dataclass(frozen=True)
class Commits:
    """What is committed.

    Attributes:
        checkpoint: the newest one, or an empty one.
        manifests: of the epochs that are not folded, by query and batch, in order.
        objects: the manifest's own objects, by query and batch.
        begun: epochs with a pending list.
        superseded: keys of manifests of folded epochs, and of older checkpoints.
    """

    checkpoint: Checkpoint
    manifests: Mapping[tuple[str, int], Manifest]
    objects: Mapping[tuple[str, int], StoredObject]
    begun: frozenset[tuple[str, int]]
    superseded: tuple[str, ...]

    def files(self) -> Iterator[ManifestFile]:
        """Of all epochs, also of those that are about to be shown."""
        for file in self.checkpoint.files:
            yield ManifestFile(file.path, file.rows, file.size)
        for manifest in self.manifests.values():
            yield from manifest.files

    @property
    def version(self) -> object:
        """Equal for two readings if nothing was committed, folded or removed in between."""
        return self.checkpoint.number, self.objects


def read_commits(
    store: Store, layout: Layout, executor: Callable[[int], Executor] = ThreadPoolExecutor
) -> Commits:
    """Reads what is committed.

    Manifests are listed before checkpoints: what is folded in between is in the checkpoint then.

    Raises:
        ServiceError: the store refuses a call.
        CommitError: a manifest or a checkpoint is damaged.
    """
    for left in reversed(range(_LISTINGS)):
        found = _read_listed(store, layout, executor, is_last=left == 0)
        if found is not None:
            return found
    raise AssertionError  # the last listing raises if something cannot be read


def _read_listed(
    store: Store, layout: Layout, executor: Callable[[int], Executor], *, is_last: bool
) -> Commits | None:
    """None if something that was listed is gone."""

    def body(key: str) -> bytes | None:
        return store.get_listed(key) if is_last else store.get(key)

    listed = list(store.objects(layout.manifests))
    checkpoints = [key for key in store.keys(layout.checkpoints) if layout.checkpoint_number(key)]
    checkpoint = Checkpoint()
    if checkpoints:
        key = checkpoints[-1]
        content = body(key)
        if content is None:
            return None
        checkpoint = Checkpoint.from_bytes(content, layout.checkpoint_number(key), key)
    objects, superseded = {}, checkpoints[:-1]
    for each in listed:
        epoch = layout.epoch_of_manifest(each.key)
        if epoch is not None and checkpoint.has(*epoch):
            superseded.append(each.key)
        elif epoch is not None:
            objects[epoch] = each
    with executor(CONCURRENT_REQUESTS) as pool:
        bodies = list(pool.map(lambda each: body(each.key), objects.values()))
    manifests = {}
    for (epoch, each), content in zip(objects.items(), bodies, strict=True):
        if content is None:
            return None
        manifests[epoch] = Manifest.from_json(content, each.key)
    begun = frozenset(found for each in listed if (found := layout.epoch_of_pending_list(each.key)))
    return Commits(checkpoint, manifests, objects, begun, tuple(superseded))


def put_checkpoint(store: Store, layout: Layout, checkpoint: Checkpoint) -> bool:
    """Puts the next checkpoint, and deletes the one before; returns whether it did.

    If not, another process was faster; or this one was, and the answer was lost.

    Raises:
        ServiceError: the store refuses a call.
    """
    if not store.put_if_absent(layout.checkpoint(checkpoint.number), checkpoint.to_bytes()):
        return False
    # To a slow process the number may look free because it was used and deleted: then a newer checkpoint
    # exists.
    if newest_key(store, layout) != layout.checkpoint(checkpoint.number):
        return False
    store.delete(layout.checkpoint(checkpoint.number - 1))
    return True


def newest_key(store: Store, layout: Layout) -> str | None:
    """The key of the newest checkpoint."""
    keys = [key for key in store.keys(layout.checkpoints) if layout.checkpoint_number(key)]
    return keys[-1] if keys else None


def newest_checkpoint(store: Store, layout: Layout) -> Checkpoint:
    """The newest checkpoint, or an empty one. Raises as `read_commits` does."""
    for left in reversed(range(_LISTINGS)):
        keys = [key for key in store.keys(layout.checkpoints) if layout.checkpoint_number(key)]
        if not keys:
            break
        body = store.get(keys[-1]) if left else store.get_listed(keys[-1])
        if body is not None:
            return Checkpoint.from_bytes(body, layout.checkpoint_number(keys[-1]), keys[-1])
    return Checkpoint()


def find_epoch(store: Store, layout: Layout, query: str, batch: int) -> Manifest | None:
    """The manifest of an epoch, without its files if it is folded; None if it is not committed.

    The newest manifest of a query is never folded, so most epochs need no look at the checkpoint.

    Raises:
        ServiceError: the store refuses a call.
        CommitError: it is damaged.
    """
    own = layout.manifest(query, batch)
    listed = [key for key in store.keys(layout.manifests_of(query)) if layout.epoch_of_manifest(key)]
    if listed and listed[-1] < own:
        return None
    # A manifest that came late, of a batch that is folded, is none.
    folded = newest_checkpoint(store, layout).epoch(query, batch) if listed[-1:] != [own] else None
    if folded is None and own in listed:
        return Manifest.from_json(store.get_listed(own), own)
    return folded
