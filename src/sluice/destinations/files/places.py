"""Where files may be: the option `path`, and the store that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from sluice.aws.calling.connection import ConnectionConfig
from sluice.destinations.common.object_settings import ObjectSettings
from sluice.destinations.files.layout import Layout
from sluice.destinations.files.local_store import LocalStore
from sluice.destinations.files.s3_store import S3Store
from sluice.destinations.files.store import Store
from sluice.errors import OptionError
from sluice.options import Kind, Option, matching

__all__ = ["ANY_PATH", "S3_PATH", "open_store"]

_S3_SPELLING: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w!.()=+@,~-]+)*/?", re.ASCII)
_S3: Final = matching(
    "path", "s3://bucket/prefix, of letters, digits, / and any of !_.()=+@,~-", _S3_SPELLING
)
_ALLOWED: Final = "an absolute directory, file:///directory or s3://bucket/prefix"
_LOCAL: Final = re.compile(r"(file:(//)?)?(?P<path>(/(?!/)|[A-Za-z]:[/\\])[^\x00-\x1f]*)")
_OTHER_STORES: Final = re.compile(r"(hdfs|viewfs|gs|gcs|abfss?|az)://.*", re.DOTALL)


def _any_path(text: str) -> str:
    if text.strip().startswith("s3://"):
        return _S3.parse(text)
    if _OTHER_STORES.fullmatch(text.strip()):
        # pyarrow's HadoopFileSystem.move deletes an existing file and renames again; the other file systems
        # have no conditional write, and replace the file, too.
        raise OptionError(
            f"is {text.strip()!r}: a manifest must never replace another one, and pyarrow.fs can only "
            f"replace files there: allowed is {_ALLOWED}"
        )
    found = _LOCAL.fullmatch(text.strip())
    # Driver and executors have different working directories: a relative path would name several places.
    if found is None or not Path(found["path"]).is_absolute():
        raise ValueError(text)
    return text.strip()


S3_PATH: Final = Option(
    "path", _S3, None, "`s3://bucket/prefix`. Files and manifests are below it.", required=True
)
ANY_PATH: Final = Option(
    "path",
    Kind("path", _ALLOWED, _any_path),
    None,
    "`s3://bucket/prefix`, or a directory that driver and executors share: `/data/clicks` or "
    "`file:///data/clicks`.",
    required=True,
)


def open_store(
    layout: Layout,
    connection: ConnectionConfig,
    settings: ObjectSettings = ObjectSettings(),  # noqa: B008 - frozen
    *,
    allows_unsafe_commits: bool = False,
    patience: float | None = None,
) -> Store:
    """The store of a path.

    Args:
        layout: of the path.
        connection: how to reach S3.
        settings: how objects are stored in S3.
        allows_unsafe_commits: see the stores.
        patience: see `Bucket`.
    """
    if layout.bucket:
        return S3Store(
            layout.bucket,
            connection,
            settings,
            allows_unsafe_commits=allows_unsafe_commits,
            patience=patience,
        )
    found = _LOCAL.fullmatch(layout.path)
    root = Path(found["path"] if found else layout.path)
    return LocalStore(root, allows_unsafe_commits=allows_unsafe_commits)
