"""Completes the uploads of an epoch, and removes what failed attempts have left behind.

Before the driver completes uploads, it puts a list of them below ``pending/``. If the driver dies, the list
names every object that may have been made, so that orphans are found without listing all objects of the path.

Orphans are removed after each commit and each abort:

- Uploads of this query, up to the current batch. Spark runs one batch at a time, so uploads of earlier
  batches are left over. Once the current batch is committed or aborted, so are those of its other attempts.
- Objects on a pending list that no manifest will ever list. This is certain if the batch is an earlier one,
  or has its manifest. While the current batch has no manifest, its objects stay, even after an abort: S3 may
  still be executing a request to put the manifest that got no answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from sluice.destinations.common.bucket import CONCURRENT_REQUESTS, Bucket
from sluice.destinations.files.layout import EpochKey, Layout
from sluice.destinations.files.manifest import Manifest, read_manifest
from sluice.destinations.files.upload import Upload
from sluice.errors import SluiceError
from sluice.sink import Committer

__all__ = ["OrphanRemoval", "UploadCommitter"]


class UploadCommitter(Committer[Upload]):
    """Completes uploads: the `Committer` of destination ``s3``.

    Args:
        bucket: where the uploads are.
        layout: the keys below the path.
        epoch: the epoch that is committed.
        executor: makes an executor with a number of threads.
    """

    def __init__(
        self, bucket: Bucket, layout: Layout, epoch: EpochKey, executor: Callable[[int], Executor]
    ) -> None:
        self._bucket = bucket
        self._layout = layout
        self._epoch = epoch
        self._executor = executor
        self._completed: set[str] = set()

    def commit(self, committables: Sequence[Upload]) -> Sequence[Upload]:
        """Makes objects from all uploads.

        Raises:
            ServiceError: an upload could not be completed. If it is retryable, the next call skips the
                uploads that were completed.
        """
        pending = json.dumps([[each.key, each.upload_id] for each in committables]).encode()
        digest = hashlib.sha256(pending).hexdigest()[:16]
        self._bucket.put(self._layout.pending_list(self._epoch, digest), pending)
        self._for_each(committables, self._complete)
        return ()

    def abort(self, committables: Sequence[Upload]) -> None:
        """Aborts uploads that are not completed. Objects, and uploads that stay, are orphans.

        Raises:
            ServiceError: an upload could not be aborted.
        """
        self._for_each(committables, lambda each: self._bucket.abort_upload(each.key, each.upload_id))

    def _complete(self, upload: Upload) -> None:
        if upload.upload_id not in self._completed:
            self._bucket.complete_upload(upload.key, upload.upload_id, upload.parts)
            self._completed.add(upload.upload_id)

    def _for_each(self, uploads: Sequence[Upload], call: Callable[[Upload], None]) -> None:
        """Calls concurrently. Starts no call after a failure: S3 may be down, and there may be thousands."""
        errors: list[SluiceError] = []

        def run(upload: Upload) -> None:
            if not errors:
                try:
                    call(upload)
                except SluiceError as error:
                    errors.append(error)

        with self._executor(CONCURRENT_REQUESTS) as executor:
            list(executor.map(run, uploads))
        if errors:
            raise errors[0]


class OrphanRemoval:
    """Removes what failed attempts of a query have left behind, up to the current batch.

    Args:
        bucket: where the objects are.
        layout: the keys below the path.
        epoch: the current epoch. Nothing of another query is removed.
        is_aborted_write: the epoch is a batch write that was aborted: it will never be committed.
    """

    def __init__(self, bucket: Bucket, layout: Layout, epoch: EpochKey, *, is_aborted_write: bool) -> None:
        self._bucket = bucket
        self._layout = layout
        self._epoch = epoch
        self._is_aborted_write = is_aborted_write

    def run(self) -> None:
        """Raises ServiceError if S3 refuses a call; the next one of the query then removes the rest."""
        # Uploads first: a driver of an earlier run that is still alive can complete none after this.
        for key, upload_id in list(self._bucket.uploads(self._layout.root)):
            epoch = self._layout.epoch_of_data_file(key)
            if epoch is not None and epoch[0] == self._epoch.query and epoch[1] <= self._epoch.batch:
                self._bucket.abort_upload(key, upload_id)
        for key in list(self._bucket.keys(self._layout.pending_lists(self._epoch.query))):
            batch = self._layout.batch_of_pending_list(key)
            if batch is not None and batch <= self._epoch.batch:
                self._remove_pending(key, batch)

    def _remove_pending(self, pending_list: str, batch: int) -> None:
        """Removes the objects on a pending list that no manifest lists, and then the list."""
        manifest_key = self._layout.manifest(self._epoch.query, batch)
        if self._is_aborted_write:
            # An empty manifest replaces one that exists, and stops one that is still to arrive.
            empty = Manifest(self._epoch.query, batch, self._epoch.run, ())
            self._bucket.put(manifest_key, empty.to_json())
        manifest = read_manifest(self._bucket, manifest_key)
        if manifest is None and batch == self._epoch.batch:
            return
        committed = {each.path for each in manifest.files} if manifest else set()
        pending = json.loads(self._bucket.get(pending_list) or b"[]")
        for key, upload_id in pending:
            if self._layout.relative(key) not in committed:
                self._bucket.abort_upload(key, upload_id)
                self._bucket.delete(key)
        self._bucket.delete(pending_list)
