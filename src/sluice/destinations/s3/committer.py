"""Completing the uploads of an epoch, and removing what attempts that died have left behind.

Before objects are made they are noted, in one object under ``pending/``: a driver that dies then leaves
a note of all that might be there, and the sweep need not look at any other object, however many there are.

What is removed, and why it is safe:

- Uploads of this query up to the batch in hand. Spark runs one batch at a time: those of earlier batches
  were left behind, and when a batch has been committed or aborted, so were those of its other attempts.
- Objects that a note names, once it is settled that no manifest will ever list them: the batch is an earlier
  one, or has its manifest. The batch in hand without a manifest is left alone even by abort: a request to
  put the manifest may have been given up here and yet be on its way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Final

from sluice.destinations.s3.bucket import Store
from sluice.destinations.s3.layout import Layout, Owner, parse_part
from sluice.destinations.s3.manifest import Manifest, read_manifest
from sluice.destinations.s3.upload import Upload
from sluice.errors import SluiceError

__all__ = ["Sweep", "UploadCommitter"]

# Requests of the driver that are under way at a time.
_AT_A_TIME: Final = 16


class UploadCommitter:
    """Completes uploads side by side: `Committer` of destination ``s3``."""

    def __init__(
        self, store: Store, layout: Layout, owner: Owner, executor: Callable[[int], Executor]
    ) -> None:
        self._store = store
        self._layout = layout
        self._owner = owner
        self._executor = executor
        self._done: set[str] = set()

    def commit(self, committables: Sequence[Upload]) -> Sequence[Upload]:
        """Makes objects of all uploads.

        Raises:
            ServiceError: of an upload that could not be completed. Where it is retryable, those that were
                completed are passed over the next time.
        """
        named = json.dumps([[each.key, each.upload] for each in committables]).encode()
        mark = hashlib.sha256(named).hexdigest()[:16]
        self._store.put(self._layout.pending_key(self._owner, mark), named)
        self._each(committables, self._complete)
        return ()

    def abort(self, committables: Sequence[Upload]) -> None:
        """Forgets uploads that are not completed. Objects are the sweep's business, and so is what is left.

        Raises:
            ServiceError: of an upload that could not be aborted.
        """
        self._each(committables, lambda each: self._store.abort_upload(each.key, each.upload))

    def _complete(self, upload: Upload) -> None:
        if upload.upload not in self._done:
            self._store.complete_upload(upload.key, upload.upload, upload.parts)
            self._done.add(upload.upload)

    def _each(self, uploads: Sequence[Upload], do: Callable[[Upload], None]) -> None:
        """Side by side. After a failure no more is begun: S3 may be out, and there may be thousands."""
        errors: list[SluiceError] = []

        def run(upload: Upload) -> None:
            if not errors:
                try:
                    do(upload)
                except SluiceError as error:
                    errors.append(error)

        with self._executor(_AT_A_TIME) as executor:
            list(executor.map(run, uploads))
        if errors:
            raise errors[0]


class Sweep:
    """Removes what is left over of the batch in hand, and of those before it.

    Args:
        store: the bucket.
        layout: keys below the path.
        owner: the epoch in hand; nothing of another query is touched.
        is_last_word: the epoch is a batch write that is aborted: nobody will ever commit it.
    """

    def __init__(self, store: Store, layout: Layout, owner: Owner, *, is_last_word: bool) -> None:
        self._store = store
        self._layout = layout
        self._owner = owner
        self._is_last_word = is_last_word

    def run(self) -> None:
        """Raises ServiceError where S3 refuses; then the next run of the query sweeps."""
        # Uploads first: a driver of an earlier run that is still there can complete none from here on.
        for key, upload in list(self._store.uploads(self._layout.root)):
            part = parse_part(key)
            if part and part.owner == self._owner.name and part.batch <= self._owner.batch:
                self._store.abort_upload(key, upload)
        for key in list(self._store.keys(self._layout.pending(self._owner.name))):
            batch = self._layout.pending_batch(key)
            if batch is not None and batch <= self._owner.batch:
                self._settle(key, batch)

    def _settle(self, pending: str, batch: int) -> None:
        where = self._layout.manifest(self._owner.name, batch)
        if self._is_last_word:
            # In the place of a manifest that is there, or that is still on its way.
            self._store.put(where, Manifest(self._owner.name, batch, self._owner.run, ()).to_json())
        manifest = read_manifest(self._store, where)
        if manifest is None and batch == self._owner.batch:
            return
        listed = {each.path for each in manifest.files} if manifest else set()
        named = json.loads(self._store.get(pending) or b"[]")
        for key, upload in named:
            if self._layout.relative(key) not in listed:
                self._store.abort_upload(key, upload)
                self._store.delete(key)
        self._store.delete(pending)
