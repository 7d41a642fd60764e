"""The keys of all objects below the path of a sink.

::

    <prefix>/<column=value>/…/part-<partition>_<query>_<batch>_<run>_<attempt>_<number>.parquet
    <prefix>/_sluice/<query>/<batch>.json                          the manifest of a committed epoch
    <prefix>/_sluice/<query>/pending/<batch>_<run>-<digest>.json   the data files that a driver is publishing
    <prefix>/_sluice/staging/<data file>.staged                    a staged file of a directory
    <prefix>/<column=value>/…/compacted-<query>_<number>_<run>.parquet   the rows of several others
    <prefix>/_sluice/_checkpoints/<number>.json.gz                 holds what many manifests held
    <prefix>/_sluice/_checkpoints/pending/<number>_<run>.json      the key of a file that is being compacted
    <prefix>/_symlink_format_manifest/<column=value>/…/manifest    lists the files of a partition
    <prefix>/_sluice/<query>/symlinks                              the run that made all of these anew
    <prefix>/_sluice/<query>/partitions                            watermark and open partitions

``<query>`` is Spark's id of the streaming query, or ``write-<run>`` for a batch write, whose batch is 0. No
two attempts use the same key: each run has its own id, and Spark numbers the attempts of a run.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from sluice.destinations.common.bucket import split_s3_path
from sluice.sink import Epoch, Origin

__all__ = ["STAGING", "EpochKey", "Layout", "hive_escaped"]

_META: Final = "_sluice"
_PENDING: Final = "pending"
_SYMLINKS: Final = "_symlink_format_manifest"
STAGING: Final = f"{_META}/staging"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9-]")
_DATA_FILE: Final = re.compile(
    r"part-(?P<partition>\d+)_(?P<query>[A-Za-z0-9-]+)_(?P<batch>\d{20})_(?P<run>[A-Za-z0-9-]+)"
    r"_(?P<attempt>\d+)_(?P<number>\d+)\.[a-z.]+\Z"
)
_MANIFEST: Final = re.compile(r"(?P<query>[A-Za-z0-9-]+)/(?P<batch>\d{20})\.json\Z")
_CHECKPOINTS: Final = "_checkpoints"  # the id of no query has an underscore
_CHECKPOINT: Final = re.compile(r"(?P<number>\d{20})\.json\.gz")
_COMPACTION: Final = re.compile(r"(?P<number>\d{20})_[A-Za-z0-9-]+\.json")
_COMPACTED: Final = re.compile(r"compacted-(?P<query>[A-Za-z0-9-]+)_\d{20}_[A-Za-z0-9-]+\.[a-z.]+\Z")
_PENDING_LIST: Final = re.compile(r"(?P<query>[A-Za-z0-9-]+)/pending/(?P<batch>\d{20})_[A-Za-z0-9-]+\.json")
# The characters of Spark's ExternalCatalogUtils.escapePathName, and NUL, which S3 does not accept.
_ESCAPED: Final = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{\[\]^]""")


@dataclass(frozen=True)
class EpochKey:
    """An epoch and its run, as keys contain them: letters, digits and dashes only.

    Attributes:
        query: the id of the streaming query, or `txnAppId`; ``write-<run>`` for any other batch write.
        batch: the id of the micro-batch, or `txnVersion`; 0 for any other batch write.
        run: the id of the run of the query, or of the batch write.
    """

    query: str
    batch: int
    run: str

    @classmethod
    def of(cls, epoch: Epoch | Origin) -> EpochKey:
        run = _UNSAFE.sub("-", epoch.run) or "run"
        query = _UNSAFE.sub("-", epoch.query) if epoch.query else f"write-{run}"
        if epoch.query and query != epoch.query:  # as a `txnAppId` may be; Spark's ids are as they are
            query += f"-{hashlib.sha256(epoch.query.encode()).hexdigest()[:8]}"
        return cls(query, epoch.batch or 0, run)


def hive_escaped(name: str) -> str:
    """The name or value of a partition column, as Spark and Hive write it into a path."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", name)


class Layout:
    """The keys below one path.

    Args:
        path: ``s3://bucket/prefix``, or a local directory, whose keys are relative to it.

    Attributes:
        bucket: the name of the bucket; empty for a directory.
        root: the prefix of all keys; ends in a slash unless it is empty.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.bucket, self.root = split_s3_path(path) if path.startswith("s3://") else ("", "")
        self._meta = f"{self.root}{_META}/"

    def data_file(self, origin: Origin, directory: str, number: int, extension: str) -> str:
        """The key of a data file.

        Args:
            origin: the task that writes it.
            directory: of the partition, ending in a slash; empty without partitioning.
            number: counts the files of the task.
            extension: without a leading dot.
        """
        epoch = EpochKey.of(origin)
        return (
            f"{self.root}{directory}part-{origin.partition:05}_{epoch.query}_{epoch.batch:020}_{epoch.run}"
            f"_{origin.attempt}_{number:04}.{extension}"
        )

    def epoch_of_data_file(self, key: str) -> tuple[str, int] | None:
        """The query and the batch that a data file belongs to; None for any other object."""
        match = _DATA_FILE.match(key.rpartition("/")[2])
        return None if match is None or key.startswith(self._meta) else (match["query"], int(match["batch"]))

    def compacted_file(self, directory: str, query: str, number: int, run: str, extension: str) -> str:
        """The key of a file that a compaction makes of several others.

        Args:
            directory: of the partition, ending in a slash; empty without partitioning.
            query: whose files they are.
            number: of the checkpoint that will list it.
            run: of the compaction; another one for each file.
            extension: without a leading dot.
        """
        return f"{self.root}{directory}compacted-{query}_{number:020}_{run}.{extension}"

    def query_of_compacted(self, key: str) -> str | None:
        """The query of a file that a compaction has made; None for any other object."""
        match = _COMPACTED.match(key.rpartition("/")[2])
        return None if match is None or key.startswith(self._meta) else match["query"]

    def relative(self, key: str) -> str:
        """The part of a key below the path of the sink."""
        return key.removeprefix(self.root)

    def address(self, relative: str, scheme: str = "s3") -> str:
        """What readers call a file: a URL, or a path of a directory that was given as one."""
        if self.bucket:
            return f"{scheme}://{self.bucket}/{self.root}{relative}"
        return f"{self.path.rstrip('/')}/{relative}"

    def url(self, relative: str) -> str:
        """The URL of a file, as Hadoop's ``Path`` reads it: nothing is escaped."""
        address = self.address(relative)
        return f"file://{address}" if address.startswith("/") else address

    def manifest(self, query: str, batch: int) -> str:
        return f"{self._meta}{query}/{batch:020}.json"

    @property
    def manifests(self) -> str:
        """The prefix of the manifests of all queries."""
        return self._meta

    def manifests_of(self, query: str) -> str:
        """The prefix of the manifests and pending lists of a query."""
        return f"{self._meta}{query}/"

    def epoch_of_manifest(self, key: str) -> tuple[str, int] | None:
        """The query and the batch of a manifest; None for any other object."""
        match = _MANIFEST.match(key.removeprefix(self._meta)) if key.startswith(self._meta) else None
        return (match["query"], int(match["batch"])) if match else None

    def checkpoint(self, number: int) -> str:
        return f"{self.checkpoints}{number:020}.json.gz"

    @property
    def checkpoints(self) -> str:
        """The prefix of the checkpoints."""
        return f"{self._meta}{_CHECKPOINTS}/"

    def checkpoint_number(self, key: str) -> int:
        """The number of a checkpoint; 0 for any other object."""
        match = _CHECKPOINT.fullmatch(key.removeprefix(self.checkpoints))
        return int(match["number"]) if match else 0

    def compaction(self, number: int, run: str) -> str:
        """The key of what holds the key of a compacted file, see `compacted_file`."""
        return f"{self.compactions}{number:020}_{run}.json"

    @property
    def compactions(self) -> str:
        """The prefix of the keys of `compaction`."""
        return f"{self.checkpoints}{_PENDING}/"

    def compaction_number(self, key: str) -> int:
        """The number in a key of `compaction`; 0 for any other object."""
        match = _COMPACTION.fullmatch(key.removeprefix(self.compactions))
        return int(match["number"]) if match else 0

    def inner_root(self, key: str) -> str | None:
        """The root of another sink's path below this one, if the key is of a manifest or checkpoint of it."""
        inner, found, name = key.removeprefix(self.root).rpartition(f"/{_META}/")
        is_root = _MANIFEST.match(name) or _CHECKPOINT.fullmatch(name.removeprefix(f"{_CHECKPOINTS}/"))
        return f"{self.root}{inner}/" if found and is_root else None

    def pending_list(self, epoch: EpochKey, digest: str) -> str:
        """The key of a pending list. `digest` is of its content: one run may write several lists."""
        return f"{self.pending_lists_of(epoch)}{digest}.json"

    def pending_lists_of(self, epoch: EpochKey) -> str:
        """The prefix of the pending lists of an epoch's run."""
        return f"{self.pending_lists(epoch.query)}{epoch.batch:020}_{epoch.run}-"

    def pending_lists(self, query: str) -> str:
        """The prefix of the pending lists of a query."""
        return f"{self._meta}{query}/{_PENDING}/"

    def epoch_of_pending_list(self, key: str) -> tuple[str, int] | None:
        """The query and the batch that a pending list belongs to; None for any other object."""
        match = _PENDING_LIST.fullmatch(key.removeprefix(self._meta))
        return (match["query"], int(match["batch"])) if match else None

    @property
    def symlinks(self) -> str:
        """The prefix of the symlink manifests."""
        return f"{self.root}{_SYMLINKS}/"

    def symlink(self, directory: str) -> str:
        """The key of the symlink manifest of a partition, whose directory ends in a slash, or is empty."""
        return f"{self.symlinks}{directory}manifest"

    def symlinks_made(self, query: str) -> str:
        """The key of what holds the run of a query that has made all symlink manifests anew."""
        return f"{self._meta}{query}/symlinks"

    def partitions(self, query: str) -> str:
        """The key of a query's watermark and open partitions."""
        return f"{self._meta}{query}/partitions"
