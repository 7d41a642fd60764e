"""Lists the files of all committed epochs, as the checkpoint and the manifests below a path have them."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.aws.calling.connection import CONNECTION_OPTIONS, connection_from_options
from sluice.destinations.common.object_settings import ACCESS_OPTIONS, ObjectSettings
from sluice.destinations.files.commits import read_commits
from sluice.destinations.files.layout import Layout
from sluice.destinations.files.manifest import Manifest
from sluice.destinations.files.places import ANY_PATH, open_store
from sluice.destinations.files.store import Store
from sluice.options import read_options

__all__ = ["list_committed"]


def list_committed(path: str, scheme: str, connection: Mapping[str, str]) -> list[str]:
    """See `sluice.committed_files`."""
    declared = [ANY_PATH, *ACCESS_OPTIONS, *CONNECTION_OPTIONS]
    values = read_options("committed_files", declared, {"path": path, **connection})
    config = connection_from_options(values)
    access = ObjectSettings.of(values, ACCESS_OPTIONS)
    values.check()
    layout = Layout(values.require(ANY_PATH))
    return committed_urls(open_store(layout, config, access), layout, scheme)


def committed_urls(store: Store, layout: Layout, scheme: str = "s3") -> list[str]:
    """Returns the addresses of all committed files. An unfinished epoch is left out.

    With ``publish=visible``, a manifest may name files that are not published yet. A pending list marks such
    an epoch, which is left out until all its files exist. The list is written before the files are published,
    and deleted afterwards. A listing returns a manifest before its pending
    list.
    """
    commits = read_commits(store, layout)

    def is_whole(manifest: Manifest) -> bool:
        return (manifest.query, manifest.batch) not in commits.begun or all(
            store.exists(layout.root + file.path) for file in manifest.files
        )

    paths = [file.path for file in commits.checkpoint.files]
    paths += [
        file.path for manifest in commits.manifests.values() if is_whole(manifest) for file in manifest.files
    ]
    return [layout.address(path, scheme) for path in paths]
