"""Symlink manifests: for each partition, a text file with the URLs of all its committed files.

Tables with Hive's ``SymlinkTextInputFormat`` read them, in Athena, Glue and Trino. A list is replaced in
one step. An epoch adds its files to the lists of its partitions. The first epoch of each run, a removal and a
compaction rebuild all lists from the committed files, which repairs incomplete lists. While a compaction is
in progress, or was killed within the last hour, each epoch rebuilds them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from typing import Final

from sluice.destinations.files.commits import read_commits
from sluice.destinations.files.layout import EpochKey, Layout
from sluice.destinations.files.manifest import Manifest, ManifestFile
from sluice.destinations.files.pending import for_each
from sluice.destinations.files.store import Store

__all__ = ["add_to_symlinks", "make_symlinks", "symlinked_urls"]

_ATTEMPTS: Final = 5
"""Of making all lists while epochs are committed; after the last, the next removal or run makes them."""


def add_to_symlinks(
    store: Store, layout: Layout, epoch: EpochKey, manifest: Manifest, executor: Callable[[int], Executor]
) -> None:
    """Adds the files of a committed epoch; does nothing if they are listed already.

    Args:
        store: has the files.
        layout: the keys below the path.
        epoch: being committed.
        manifest: of that epoch, maybe from another run.
        executor: makes an executor with a number of threads.
    """
    made = layout.symlinks_made(epoch.query)
    if store.read(made) != epoch.run.encode():
        make_symlinks(store, layout, executor)
        store.put(made, epoch.run.encode())
        return
    before = list(store.keys(layout.checkpoints))
    for key, urls in _by_partition(layout, manifest.files).items():
        _put(store, key, dict.fromkeys([*_get(store, key), *urls]))
    after = list(store.keys(layout.checkpoints))
    # The lists were made anew meanwhile, and now are old; or they are about to be made, maybe from what was
    # committed before this epoch, by a process that may die before it finds out.
    if after != before or any(layout.compaction_number(key) for key in after):
        make_symlinks(store, layout, executor)


def make_symlinks(store: Store, layout: Layout, executor: Callable[[int], Executor]) -> None:
    """Makes all lists from what is committed. The list of a partition without files becomes empty.

    Does so again if something was committed meanwhile, whose files may have been added to older lists.
    """
    commits = read_commits(store, layout, executor)
    for _ in range(_ATTEMPTS):
        wanted = _by_partition(layout, commits.files())
        keys = {*wanted, *store.keys(layout.symlinks)}
        for_each(executor, sorted(keys), lambda key: _put(store, key, wanted.get(key, ())))  # noqa: B023
        version, commits = commits.version, read_commits(store, layout, executor)
        if commits.version == version:
            return


def symlinked_urls(store: Store, layout: Layout) -> set[str]:
    """The URLs in all lists."""
    return {url for key in list(store.keys(layout.symlinks)) for url in _get(store, key)}


def _by_partition(layout: Layout, files: Iterable[ManifestFile]) -> Mapping[str, list[str]]:
    """The URLs of the files by the key of their list."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in files:
        directory = file.path[: file.path.rfind("/") + 1]
        found[layout.symlink(directory)].append(layout.url(file.path))
    return found


def _get(store: Store, key: str) -> list[str]:
    """The URLs in a list; a value of a partition column may have other ends of a line than its own."""
    return (store.read(key) or b"").decode().split("\n")[:-1]


def _put(store: Store, key: str, urls: Iterable[str]) -> None:
    store.put(key, "".join(f"{url}\n" for url in urls).encode())
