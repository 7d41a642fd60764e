"""Which files count: what the manifests below a path list."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sluice.aws.connection import CONNECTION_OPTIONS, connection_from_options
from sluice.destinations.s3.bucket import Store
from sluice.destinations.s3.destination import PATH
from sluice.destinations.s3.layout import Layout
from sluice.destinations.s3.manifest import read_manifest
from sluice.options import read_options

__all__ = ["list_committed"]

_AT_A_TIME: Final = 16


def list_committed(path: str, scheme: str, connection: Mapping[str, str]) -> list[str]:
    """See `sluice.committed_files`."""
    values = read_options("committed_files", [PATH, *CONNECTION_OPTIONS], {"path": path, **connection})
    config = connection_from_options(values)
    values.check()
    layout = Layout(values.require(PATH))
    return committed(Store(layout.bucket, config), layout, scheme)


def committed(store: Store, layout: Layout, scheme: str = "s3") -> list[str]:
    """The URLs of all files of all epochs that are committed."""
    keys = [key for key in store.keys(layout.manifests) if layout.is_manifest(key)]
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        found = pool.map(lambda key: read_manifest(store, key), keys)
        return [
            f"{scheme}://{layout.bucket}/{layout.root}{file.path}"
            for manifest in found
            if manifest is not None
            for file in manifest.files
        ]
