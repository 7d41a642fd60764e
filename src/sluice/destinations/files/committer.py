"""Commits the files of an epoch, and removes files of failed attempts.

First the driver puts a pending list. With ``publish=manifest`` and ``symlink``, it then publishes the files,
and puts the manifest last: readers can read every file that a manifest lists. With ``visible``, it puts the
manifest first: every file that a listing shows is committed.

After each commit and each abort, these orphans are removed:

- Staged files of this query, up to the current batch. Spark runs one batch at a time, and once a batch is
  committed or aborted, none of its attempts needs them.
- Files on a pending list that no manifest will ever list. This is certain if the batch is an earlier one, or
  has its manifest. If the current batch has no manifest, its files stay, even after an abort: the store may
  still execute an unanswered request to put the manifest.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from sluice.destinations.files.commits import find_epoch, newest_checkpoint
from sluice.destinations.files.layout import EpochKey, Layout
from sluice.destinations.files.manifest import Manifest, ManifestFile, read_manifest
from sluice.destinations.files.partition_commit import Completion, PartitionCommit
from sluice.destinations.files.pending import finish, for_each, pending_list, read_pending_list
from sluice.destinations.files.store import StagedFile, Store
from sluice.destinations.files.symlinks import add_to_symlinks, make_symlinks
from sluice.errors import CommitError
from sluice.sink import Committer, Epoch, GlobalCommitter
from sluice.sink.committing.epoch_commit import other_content

__all__ = ["MANIFEST", "SYMLINK", "VISIBLE", "FileCommitter", "ManifestCommitter", "OrphanRemoval", "Place"]

MANIFEST: Final = "manifest"
SYMLINK: Final = "symlink"
VISIBLE: Final = "visible"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """Where epochs are committed, and how.

    Attributes:
        store: has the files.
        layout: the keys below the path.
        publish: ``manifest``, ``symlink`` or ``visible``.
        executor: makes an executor with a number of threads.
        completion: when partitions are complete; None if nobody asks.
    """

    store: Store
    layout: Layout
    publish: str
    executor: Callable[[int], Executor]
    completion: Completion | None = None

    def finish(self, query: str, last: int, *, keeps_lists: bool = False) -> None:
        """See `pending.finish`."""
        finish(self.store, self.layout, query, last, self.executor, keeps_lists=keeps_lists)


class FileCommitter(Committer[StagedFile]):
    """Publishes files, unless they have to wait for their manifest: the `Committer`.

    Args:
        place: where.
        epoch: the epoch that is committed.
    """

    def __init__(self, place: Place, epoch: EpochKey) -> None:
        self._place = place
        self._epoch = epoch
        self._published: set[str] = set()

    def commit(self, committables: Sequence[StagedFile]) -> Sequence[StagedFile]:
        """Puts the pending list, and publishes all files.

        Raises:
            ServiceError: a file could not be published. If it is retryable, the next call skips those that
                were.
        """
        place = self._place
        for_each(place.executor, committables, lambda each: place.store.check_staged(each.key, each.token))
        pending = pending_list(committables, is_visible=place.publish == VISIBLE)
        digest = hashlib.sha256(pending).hexdigest()[:16]
        place.store.put(place.layout.pending_list(self._epoch, digest), pending)
        if place.publish != VISIBLE:
            for_each(place.executor, committables, self._publish)
        return ()

    def abort(self, committables: Sequence[StagedFile]) -> None:
        """Discards files that are not published. Others, and files that stay, are orphans.

        Raises:
            ServiceError: a file could not be discarded.
        """
        place = self._place
        if place.publish == VISIBLE and any(place.store.keys(place.layout.pending_lists_of(self._epoch))):
            return  # a manifest may list them, or still arrive: see `OrphanRemoval`
        for_each(place.executor, committables, lambda each: place.store.discard(each.key, each.token))

    def _publish(self, file: StagedFile) -> None:
        if file.token not in self._published:
            self._place.store.publish(file.key, file.token, file.parts)
            self._published.add(file.token)


class ManifestCommitter(GlobalCommitter[StagedFile, Manifest]):
    """Puts the manifest, and then does what readers without manifests need: the `GlobalCommitter`."""

    def __init__(self, place: Place, epoch: Epoch) -> None:
        self._place = place
        self._epoch = EpochKey.of(epoch)
        self._content = epoch.content
        self._partitions: PartitionCommit | None = None
        if place.completion is not None:
            tables = place.layout.relative(place.layout.symlinks) if place.publish == SYMLINK else ""
            self._partitions = PartitionCommit(
                place.completion,
                place.store,
                place.layout,
                place.executor,
                tables,
                is_whole=epoch.batch is None,
            )

    def combine(self, committables: Sequence[StagedFile]) -> Manifest:
        relative = self._place.layout.relative
        files = [ManifestFile(relative(each.key), each.rows, each.size) for each in committables]
        files.sort(key=lambda each: each.path)
        latest = max((each.latest for each in committables if each.latest is not None), default=None)
        is_visible = self._place.publish == VISIBLE
        epoch = self._epoch
        return Manifest(epoch.query, epoch.batch, epoch.run, tuple(files), self._content, latest, is_visible)

    def filter_recovered_committables(self, committables: Sequence[Manifest]) -> list[Manifest]:
        """Those whose batch has no manifest yet. What an earlier driver has begun to show is finished.

        Raises:
            CommitError: a batch has one of other contents.
        """
        if self._place.publish == VISIBLE:  # of an earlier version of `txnAppId`, too
            self._place.finish(self._epoch.query, self._epoch.batch)
        return [each for each in committables if not self._is_recovered(each)]

    def commit(self, committables: Sequence[Manifest]) -> list[Manifest]:
        """Puts the manifest unless the batch has one.

        The existing one is probably this one, put by an attempt whose answer was lost. If it is that of
        another run, the batch consists of the other run's files, and those of this run are orphans.

        Raises:
            CommitError: the existing one is of other contents.
        """
        for manifest in committables:
            found: Manifest | None = manifest
            if not self._place.store.put_if_absent(self._key(manifest), manifest.to_json()):
                found = self._find_existing(manifest)
                if found != manifest:
                    _log.warning(
                        "query %s: another run has committed batch %d; the files of run %s are removed",
                        manifest.query,
                        manifest.batch,
                        manifest.run,
                    )
            self._show(found or manifest)
        return []

    def _is_recovered(self, manifest: Manifest) -> bool:
        found = self._find_existing(manifest)
        if found is not None:
            self._show(found)
        return found is not None

    def _show(self, manifest: Manifest) -> None:
        """For readers without manifests. Another run may have used another way to publish."""
        place = self._place
        if place.publish == VISIBLE or manifest.run != self._epoch.run:
            may_be_aborted = self._partitions is not None and self._partitions.is_whole
            place.finish(manifest.query, manifest.batch, keeps_lists=may_be_aborted)
        if place.publish == SYMLINK:
            add_to_symlinks(place.store, place.layout, self._epoch, manifest, place.executor)
        if self._partitions:
            self._partitions.update(manifest)

    def _find_existing(self, manifest: Manifest) -> Manifest | None:
        found = find_epoch(self._place.store, self._place.layout, manifest.query, manifest.batch)
        if found and found.content and manifest.content and found.content != manifest.content:
            raise CommitError(other_content(f"batch {manifest.batch}", manifest.query))
        return found

    def _key(self, manifest: Manifest) -> str:
        return self._place.layout.manifest(manifest.query, manifest.batch)


class OrphanRemoval:
    """Removes what failed attempts of a query have left behind, up to the current batch.

    Args:
        place: where.
        epoch: the current epoch. Nothing of another query is removed.
        is_committed: the epoch is committed, or had nothing to commit.
        is_aborted_write: the epoch is a batch write that was aborted: it will never be committed.
    """

    def __init__(self, place: Place, epoch: EpochKey, *, is_committed: bool, is_aborted_write: bool) -> None:
        self._place = place
        self._store, self._layout = place.store, place.layout
        self._epoch = epoch
        self._is_decided = is_committed or is_aborted_write
        self._is_aborted_write = is_aborted_write

    def run(self) -> int:
        """Returns how many manifests the query has.

        Raises:
            ServiceError: the store refuses a call; the next run then removes the rest.
        """
        query, batch = self._epoch.query, self._epoch.batch
        pending_lists = self._layout.pending_lists(query)
        if self._is_aborted_write and any(self._store.keys(pending_lists)):
            # An empty manifest replaces one that exists, and stops one that is still to arrive.
            empty = Manifest(query, batch, self._epoch.run, ())
            self._store.put(self._layout.manifest(query, batch), empty.to_json())
            if self._place.publish == SYMLINK:  # the lists may have what is about to go
                make_symlinks(self._store, self._layout, self._place.executor)
        last = batch
        if self._place.publish == VISIBLE:
            self._place.finish(query, batch)
            # Another driver may be about to put a manifest, which would list what is gone.
            last = batch if self._is_decided else batch - 1
        # Staged files first: a driver of an earlier run that is still alive can publish none after this.
        for key, token in list(self._store.staged(self._layout.root)):
            epoch = self._layout.epoch_of_data_file(key)
            if epoch is not None and epoch[0] == query and epoch[1] <= last:
                self._store.discard(key, token)
        keys = list(self._store.keys(self._layout.manifests_of(query)))
        for key in keys:
            epoch = self._layout.epoch_of_pending_list(key)
            if epoch is not None and epoch[1] <= batch:
                self._remove_pending(key, epoch[1])
        return sum(self._layout.epoch_of_manifest(key) is not None for key in keys)

    def _remove_pending(self, key: str, batch: int) -> None:
        """Removes the files on a pending list that no manifest lists, and then the list.

        Another driver may have put the manifest just now; without the list it would publish nothing.
        """
        manifest = read_manifest(self._store, self._layout.manifest(self._epoch.query, batch))
        if manifest is not None:
            committed = {each.path for each in manifest.files}
        else:  # the manifest may be folded, and the put of this list have arrived very late
            checkpoint = newest_checkpoint(self._store, self._layout)
            if batch == self._epoch.batch and not checkpoint.has(self._epoch.query, batch):
                return
            committed = {*checkpoint.paths()}
        for each in read_pending_list(self._store, key):
            if self._layout.relative(each.key) not in committed:
                self._store.discard(each.key, each.token)
                self._store.delete(each.key)
            elif each.parts is not None:
                self._store.publish(each.key, each.token, each.parts)
        self._store.delete(key)
