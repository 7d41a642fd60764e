"""Folds manifests into a checkpoint, merges small files, and deletes what was replaced long enough ago.

Readers see the change at once, when the next checkpoint is put. Merged files are published before that, and
replaced objects are deleted after it. Before a process makes a merged file, it puts the file's key below
``pending/``, with the number of the checkpoint that will list it. If a checkpoint with this number exists, no
other process can put one. If that checkpoint neither lists nor replaces the file, a killed process left it,
and it is deleted.
"""

from __future__ import annotations

import itertools
import json
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from sluice.destinations.files.checkpoint import Checkpoint, FoldedFile
from sluice.destinations.files.commits import CHECKPOINT_ATTEMPTS, Commits, put_checkpoint, read_commits
from sluice.destinations.files.compaction import Merge, OtherColumnsError, find_merges, is_write, merge
from sluice.destinations.files.layout import Layout
from sluice.destinations.files.pending import for_each
from sluice.destinations.files.store import Store
from sluice.destinations.files.symlinks import make_symlinks, symlinked_urls
from sluice.errors import CommitError, SluiceError

__all__ = ["FOLD_AFTER", "VISIBLE_REASON", "Maintenance", "Upkeep"]

FOLD_AFTER: Final = 10
"""Manifests of a query that the next commit folds; as many commits make a checkpoint in Delta Lake."""
_CONCURRENT_MERGES: Final = 4
_SLOWEST_MERGE: Final = 3600.0
"""Seconds after which a process is no longer making a file for a checkpoint that another one has put."""
VISIBLE_REASON: Final = "those who list the path would see rows twice, or not at all, while files are merged"


@dataclass(frozen=True)
class Upkeep:
    """What was done.

    Attributes:
        folded: manifests.
        merged: files that larger ones have replaced.
        made: these larger files.
        deleted: files that were replaced before.
        failures: why files were not merged.
    """

    folded: int = 0
    merged: int = 0
    made: int = 0
    deleted: int = 0
    failures: tuple[str, ...] = ()


class Maintenance:
    """Maintains what is committed below a path. Several may run at the same time.

    Args:
        store: has the files.
        layout: the keys below the path.
        target: bytes of a merged file; None: nothing is merged.
        retention: seconds for which replaced files stay, for those who are reading them.
        executor: makes an executor with a number of threads; replaced in tests.
        now: seconds since the epoch; replaced in tests.
    """

    def __init__(  # noqa: PLR0913 - two are for tests
        self,
        store: Store,
        layout: Layout,
        *,
        target: int | None,
        retention: float,
        executor: Callable[[int], Executor] = ThreadPoolExecutor,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._layout, self._executor = store, layout, executor
        self._target = target
        self._retention = retention
        self._now = now
        self._run = uuid.uuid4().hex
        self._merges = itertools.count()  # names of files

    def run(self) -> Upkeep:
        """Does what there is to do. Files that cannot be merged stay as they are.

        Raises:
            CommitError: a manifest or checkpoint is damaged, or other processes put one checkpoint after the
                other.
            ServiceError: the store refuses a call; the next run does the rest.
        """
        for _ in range(CHECKPOINT_ATTEMPTS):
            done = self._attempt()
            if done is not None:
                return done
        raise CommitError(
            f"{self._layout.path}: another process was faster {CHECKPOINT_ATTEMPTS} times", retryable=True
        )

    def _attempt(self) -> Upkeep | None:
        """None if another process was faster."""
        commits = read_commits(self._store, self._layout, self._executor)
        before = commits.checkpoint
        self._remove_unfinished(before)
        self._delete(commits.superseded)
        folded = self._foldable(commits)
        after = before.with_epochs(
            (commits.manifests[each], commits.objects[each].modified) for each in folded
        )
        made, failures = self._merge_all(commits, after)
        after = after.with_merged(made, int(self._now() * 1e6))
        expired = self._delete_replaced(before)
        after = after.without_replaced(expired)
        if after != before:
            after = replace(after, number=before.number + 1)
            if not put_checkpoint(self._store, self._layout, after):
                return None  # the next attempt removes the merged files, unless the checkpoint was this one
            self._delete(commits.objects[each].key for each in folded)
            self._remove_unfinished(after)
        merged = sum(len(files) for files, _ in made)
        return Upkeep(len(folded), merged, len(made), len(expired), tuple(failures))

    def _foldable(self, commits: Commits) -> list[tuple[str, int]]:
        """Epochs whose commit has ended. The newest of each streaming query stays, see `find_epoch`."""
        newest = dict(commits.manifests.keys())
        return [
            (query, batch)
            for query, batch in commits.manifests
            if (query, batch) not in commits.begun and (is_write(query) or batch < newest[query])
        ]

    # --- merging --------------------------------------------------------------------------------------

    def _merge_all(
        self, commits: Commits, folded: Checkpoint
    ) -> tuple[list[tuple[Sequence[FoldedFile], FoldedFile]], list[str]]:
        """Files and the larger ones that replace them; and why others are not merged."""
        if self._target is None:
            return [], []
        if folded.is_visible or any(each.is_visible for each in commits.manifests.values()):
            return [], [f"some files were written with 'publish' visible: {VISIBLE_REASON}"]
        made: list[tuple[Sequence[FoldedFile], FoldedFile]] = []
        failures: list[str] = []

        def run(found: Merge) -> None:
            try:
                made.append((found.files, self._merge(found, folded.number + 1)))
            except OtherColumnsError as error:
                for files in (found.files[: error.index], found.files[error.index :]):
                    if len(files) > 1:
                        run(found._replace(files=files))
            except SluiceError as error:
                failures.append(f"{len(found.files)} files of {found.directory or 'the path'}: {error}")

        merges = list(find_merges(self._layout, folded.files, self._target))
        with self._executor(_CONCURRENT_MERGES) as pool:
            list(pool.map(run, merges))
        return made, failures

    def _merge(self, found: Merge, number: int) -> FoldedFile:
        run = f"{self._run}-{next(self._merges)}"
        key = self._layout.compacted_file(found.directory, found.query, number, run, found.extension)
        self._store.put(self._layout.compaction(number, run), json.dumps(key).encode())
        staged = merge(self._store, self._layout, found, key, self._executor)
        self._store.publish(key, staged.token, staged.parts)
        committed = max(each.committed for each in found.files)
        return FoldedFile(self._layout.relative(key), staged.rows, staged.size, committed)

    def _remove_unfinished(self, checkpoint: Checkpoint) -> None:
        """Makes symlink manifests anew, and removes merged files that no checkpoint will ever list."""
        known = checkpoint.paths()
        lists = [
            each
            for each in self._store.objects(self._layout.compactions)
            if 0 < self._layout.compaction_number(each.key) <= checkpoint.number
        ]
        if not lists:
            return
        merged: list[str] = [json.loads(body) for each in lists if (body := self._store.read(each.key))]
        names = {key.rpartition("/")[2] for key in merged}
        for key, token in list(self._store.staged(self._layout.root)):
            if key.rpartition("/")[2] in names:  # also of those that it lists: the answer to one was lost
                self._store.discard(key, token)
        unknown = [key for key in merged if self._layout.relative(key) not in known]
        since = (self._now() - _SLOWEST_MERGE) * 1e6
        over = [each.key for each in lists if each.modified < since or self._run in each.key]
        if over and any(self._store.keys(self._layout.symlinks)):
            make_symlinks(self._store, self._layout, self._executor)  # before: see `add_to_symlinks`
        self._delete([*unknown, *over])

    # --- deleting -------------------------------------------------------------------------------------

    def _delete_replaced(self, checkpoint: Checkpoint) -> frozenset[str]:
        """Deletes files that were replaced long enough ago; returns their paths.

        A driver may have written a symlink manifest from an older one, just when it was made anew. If one
        has such a file, it is made anew again, and the file stays until the next time.
        """
        since = (self._now() - self._retention) * 1e6
        due = frozenset(each.path for each in checkpoint.replaced if each.since < since)
        if due:
            named = symlinked_urls(self._store, self._layout)
            if any(self._layout.url(path) in named for path in due):
                make_symlinks(self._store, self._layout, self._executor)
                return frozenset()
        self._delete(self._layout.root + path for path in due)
        return due

    def _delete(self, keys: Iterable[str]) -> None:
        for_each(self._executor, list(keys), self._store.delete)
