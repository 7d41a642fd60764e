"""Where things lie below the path of the sink, and what their names say.

::

    <prefix>/<column=value>/…/part-<partition>_<owner>_<batch>_<run>_<attempt>_<number>.parquet
    <prefix>/_sluice/<owner>/<batch>.json                     manifest: the epoch is committed
    <prefix>/_sluice/<owner>/pending/<batch>_<run>-<mark>.json   objects that are about to be completed

The owner is the streaming query, by Spark's id, or ``write-<id>``, one batch write, whose batch is 0. No two
attempts ever share a name: a run has an id of its own, and within a run Spark numbers attempts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from sluice.sink.contracts import Epoch
from sluice.sink.dead_letters import Origin

__all__ = ["Layout", "Owner", "Part", "hive_escaped", "parse_part"]

_META: Final = "_sluice"
_PENDING: Final = "pending"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9-]")
_PART: Final = re.compile(
    r"part-(?P<partition>\d+)_(?P<owner>[A-Za-z0-9-]+)_(?P<batch>\d{20})_(?P<run>[A-Za-z0-9-]+)"
    r"_(?P<attempt>\d+)_(?P<number>\d+)\.[a-z.]+\Z"
)
_MANIFEST: Final = re.compile(r"(?P<owner>[A-Za-z0-9-]+)/(?P<batch>\d{20})\.json\Z")
_PENDING_FILE: Final = re.compile(r"(?P<batch>\d{20})_[A-Za-z0-9-]+\.json\Z")
# What Spark's ExternalCatalogUtils.escapePathName escapes, and NUL, which S3 does not take.
_ESCAPED: Final = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{\[\]^]""")


@dataclass(frozen=True)
class Owner:
    """Whose files they are: those of one epoch of one sink, from one of its runs.

    Attributes:
        name: of the query or batch write; nothing in it but letters, digits and dashes.
        batch: 0 for a batch write.
        run: likewise safe in a key.
    """

    name: str
    batch: int
    run: str

    @classmethod
    def of(cls, epoch: Epoch | Origin) -> Owner:
        run = _UNSAFE.sub("-", epoch.run) or "run"
        name = _UNSAFE.sub("-", epoch.query) if epoch.query else f"write-{run}"
        return cls(name, epoch.batch or 0, run)


@dataclass(frozen=True)
class Part:
    """What the name of a data file says."""

    owner: str
    batch: int


def parse_part(key: str) -> Part | None:
    """What the name of an object says; None where it is no data file of this library's."""
    match = _PART.match(key.rpartition("/")[2])
    return Part(match["owner"], int(match["batch"])) if match else None


def hive_escaped(name: str) -> str:
    """The name of a partition column, or its value, as Spark and Hive write it into a path."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", name)


class Layout:
    """Keys below one path.

    Args:
        path: ``s3://bucket/prefix``, checked.
    """

    def __init__(self, path: str) -> None:
        self.bucket, _, prefix = path.removeprefix("s3://").partition("/")
        prefix = prefix.strip("/")
        self.root = f"{prefix}/" if prefix else ""
        self._meta = f"{self.root}{_META}/"

    def data_key(self, origin: Origin, directory: str, number: int, extension: str) -> str:
        """The key of a task's file number `number`; `directory` is empty or ends in a slash."""
        owner = Owner.of(origin)
        return (
            f"{self.root}{directory}part-{origin.partition:05}_{owner.name}_{owner.batch:020}_{owner.run}"
            f"_{origin.attempt}_{number:04}.{extension}"
        )

    @property
    def manifests(self) -> str:
        """The prefix of all manifests of all queries."""
        return self._meta

    def manifest(self, owner: str, batch: int) -> str:
        return f"{self._meta}{owner}/{batch:020}.json"

    def is_manifest(self, key: str) -> bool:
        return _MANIFEST.match(key.removeprefix(self._meta)) is not None

    def pending(self, owner: str) -> str:
        """The prefix of what is pending of one query."""
        return f"{self._meta}{owner}/{_PENDING}/"

    def pending_key(self, owner: Owner, mark: str) -> str:
        """`mark` tells apart what one run completes, should it be asked to complete twice."""
        return f"{self.pending(owner.name)}{owner.batch:020}_{owner.run}-{mark}.json"

    def pending_batch(self, key: str) -> int | None:
        match = _PENDING_FILE.match(key.rpartition("/")[2])
        return int(match["batch"]) if match else None

    def relative(self, key: str) -> str:
        return key.removeprefix(self.root)
