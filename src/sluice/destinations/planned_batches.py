"""What a micro-batch holds, by the checkpoint of its query.

A restart repeats the last batch that Spark planned and has not logged as done, from the same file of
``offsets``. A batch that is planned anew under an id that was used before has another file: at least the time
in it differs.
"""

from __future__ import annotations

import hashlib
import logging
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from sluice.aws.calling.connection import ConnectionConfig
from sluice.destinations.common.bucket import Bucket, split_s3_path
from sluice.errors import SluiceError

__all__ = ["planned_batch"]

_S3: Final = ("s3", "s3a", "s3n")

_log = logging.getLogger(__name__)


def planned_batch(checkpoint: str, batch: int, connection: ConnectionConfig) -> str | None:
    """A digest of the file ``offsets/<batch>`` of a checkpoint.

    Args:
        checkpoint: option ``checkpointLocation``.
        batch: the id of the micro-batch.
        connection: how S3 is reached.

    Returns:
        None if the file cannot be read from Python; that is logged once.
    """
    try:
        content = _read(checkpoint.rstrip("/"), f"offsets/{batch}", connection)
    except (OSError, ValueError, SluiceError) as error:
        _warn(checkpoint, str(error) or type(error).__name__)
        return None
    return hashlib.sha256(content).hexdigest()[:32]


def _read(checkpoint: str, name: str, connection: ConnectionConfig) -> bytes:
    parts = urlsplit(checkpoint)
    if parts.scheme in ("", "file"):
        path = Path(unquote(parts.path) if parts.scheme else checkpoint, name)
        return path.read_bytes()
    if parts.scheme == "dbfs":  # Databricks mounts it there
        return Path("/dbfs", parts.path.lstrip("/"), name).read_bytes()
    if parts.scheme in _S3:
        bucket, prefix = split_s3_path(f"s3://{parts.netloc}{parts.path}")
        content = Bucket(bucket, connection).get(f"{prefix}{name}")
        if content is None:
            raise OSError(f"{name} does not exist")
        return content
    # pyarrow.fs knows others, but ends the whole process at some addresses (abfss) instead of an error.
    raise OSError(f"{parts.scheme}: is not local, dbfs: or S3")


@cache
def _warn(checkpoint: str, why: str) -> None:
    _log.warning(
        "the checkpoint %s cannot be read from Python, so a batch that is committed under an id of an older "
        "checkpoint may go unnoticed: %s",
        checkpoint,
        why,
    )
