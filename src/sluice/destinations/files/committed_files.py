"""Lists the files of all committed epochs, as the manifests below a path have them."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.aws.calling.connection import CONNECTION_OPTIONS, connection_from_options
from sluice.destinations.common.bucket import Bucket
from sluice.destinations.common.object_settings import ACCESS_OPTIONS, ObjectSettings
from sluice.destinations.files.destination import PATH
from sluice.destinations.files.layout import Layout
from sluice.destinations.files.manifest import read_manifests
from sluice.options import read_options

__all__ = ["list_committed"]


def list_committed(path: str, scheme: str, connection: Mapping[str, str]) -> list[str]:
    """See `sluice.committed_files`."""
    declared = [PATH, *ACCESS_OPTIONS, *CONNECTION_OPTIONS]
    values = read_options("committed_files", declared, {"path": path, **connection})
    config = connection_from_options(values)
    access = ObjectSettings.of(values, ACCESS_OPTIONS)
    values.check()
    layout = Layout(values.require(PATH))
    return committed_urls(Bucket(layout.bucket, config, access), layout, scheme)


def committed_urls(bucket: Bucket, layout: Layout, scheme: str = "s3") -> list[str]:
    """The URLs of the files of all committed epochs."""
    return [
        f"{scheme}://{layout.bucket}/{layout.root}{file.path}"
        for _, manifest in read_manifests(bucket, layout, bucket.objects(layout.manifests))
        for file in manifest.files
    ]
