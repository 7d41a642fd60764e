"""Pending lists: before the driver publishes files of an epoch, it puts a list of them below ``pending/``.

If the driver dies, the list names every file that may have been published, so that orphans are found without
listing all files of the path. With ``publish=visible``, where the manifest comes first, the list also has
what publishing needs, so that anybody can finish it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple, TypeVar

from sluice.destinations.common.bucket import CONCURRENT_REQUESTS
from sluice.destinations.files.layout import Layout
from sluice.destinations.files.manifest import read_manifest
from sluice.destinations.files.store import StagedFile, Store
from sluice.errors import ServiceError, SluiceError

__all__ = ["Pending", "finish", "for_each", "pending_list", "read_pending_list"]

T = TypeVar("T")


class Pending(NamedTuple):
    """A file of a pending list; `parts` is None if it was to be published before the manifest."""

    key: str
    token: str
    parts: Sequence[Mapping[str, Any]] | None = None


def pending_list(files: Iterable[StagedFile], *, is_visible: bool) -> bytes:
    """The content of a list. `is_visible`: the files are published when they have a manifest."""
    entries = [[each.key, each.token, *([each.parts] if is_visible else [])] for each in files]
    return json.dumps(entries).encode()


def read_pending_list(store: Store, key: str) -> list[Pending]:
    """The files of a list; none if it is gone."""
    return [Pending(*entry) for entry in json.loads(store.read(key) or b"[]")]


def finish(  # noqa: PLR0913 - as of `Place`
    store: Store,
    layout: Layout,
    query: str,
    last: int,
    executor: Callable[[int], Executor],
    *,
    keeps_lists: bool = False,
) -> None:
    """Publishes what a query's manifests up to batch `last` list and a killed driver has left staged.

    A pending list that cannot be deleted then is left to `OrphanRemoval`, which says so. With `keeps_lists`
    all are: a batch write may still be aborted, which undoes what lists name.

    Raises:
        ServiceError: the store refuses another call; the next call of `finish` continues.
    """
    for name in list(store.keys(layout.pending_lists(query))):
        epoch = layout.epoch_of_pending_list(name)
        manifest = read_manifest(store, layout.manifest(*epoch)) if epoch and epoch[1] <= last else None
        if manifest is None:
            continue
        committed = {layout.root + each.path for each in manifest.files}
        listed = read_pending_list(store, name)
        left = [
            (each.key, each.token, each.parts)
            for each in listed
            if each.key in committed and each.parts is not None
        ]
        for_each(executor, left, lambda each: store.publish(*each))
        if not keeps_lists and committed.issuperset(each.key for each in listed):
            with contextlib.suppress(ServiceError):  # readers see the epoch: it must not fail any more
                store.delete(name)


def for_each(executor: Callable[[int], Executor], items: Sequence[T], call: Callable[[T], None]) -> None:
    """Calls concurrently. Starts no call after a failure: the store may be down, with thousands to go.

    Raises:
        SluiceError: the first failure.
    """
    errors: list[SluiceError] = []

    def run(item: T) -> None:
        if not errors:
            try:
                call(item)
            except SluiceError as error:
                errors.append(error)

    with executor(CONCURRENT_REQUESTS) as pool:
        list(pool.map(run, items))
    if errors:
        raise errors[0]
