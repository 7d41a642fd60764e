"""Symlink manifests: for each partition, a text file with the URLs of all its committed files.

Tables with Hive's ``SymlinkTextInputFormat`` read them, in Athena, Glue and Trino. A list is replaced in
one step. An epoch adds its files to the lists of its partitions. The first epoch of each run makes all lists
anew from the manifests, and so does a removal of files: what the lists lack for any reason is there then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor

from sluice.destinations.files.layout import EpochKey, Layout
from sluice.destinations.files.manifest import Manifest, read_manifests
from sluice.destinations.files.pending import for_each
from sluice.destinations.files.store import Store

__all__ = ["add_to_symlinks", "make_symlinks"]


def add_to_symlinks(
    store: Store, layout: Layout, epoch: EpochKey, manifest: Manifest, executor: Callable[[int], Executor]
) -> None:
    """Adds the files of a committed epoch; does nothing if they are there.

    Args:
        store: has the files.
        layout: the keys below the path.
        epoch: the one that is being committed.
        manifest: of that epoch, maybe from another run.
        executor: makes an executor with a number of threads.
    """
    made = layout.symlinks_made(epoch.query)
    if store.read(made) != epoch.run.encode():
        make_symlinks(store, layout, executor)
        store.put(made, epoch.run.encode())
        return
    for key, urls in _by_partition(layout, [manifest]).items():
        found = (store.read(key) or b"").decode().splitlines()
        _put(store, key, dict.fromkeys([*found, *urls]))


def make_symlinks(store: Store, layout: Layout, executor: Callable[[int], Executor]) -> None:
    """Makes all lists from the manifests. That of a partition without files becomes empty."""
    manifests = read_manifests(store, layout, store.objects(layout.manifests), executor)
    wanted = _by_partition(layout, (manifest for _, manifest in manifests))
    keys = {*wanted, *store.keys(layout.symlinks)}
    for_each(executor, sorted(keys), lambda key: _put(store, key, wanted.get(key, ())))


def _by_partition(layout: Layout, manifests: Iterable[Manifest]) -> Mapping[str, list[str]]:
    """The URLs of the files by the key of their list."""
    found: dict[str, list[str]] = defaultdict(list)
    for manifest in manifests:
        for file in manifest.files:
            directory = file.path[: file.path.rfind("/") + 1]
            found[layout.symlink(directory)].append(layout.url(file.path))
    return found


def _put(store: Store, key: str, urls: Iterable[str]) -> None:
    store.put(key, "".join(f"{url}\n" for url in urls).encode())
