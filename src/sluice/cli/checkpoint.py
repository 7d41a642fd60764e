"""Spark's checkpoint of a streaming query, as files: planned and committed batches.

::

    metadata        the id of the query
    offsets/<n>     where batch n ends: a version, one line of metadata, one line for each source
    commits/<n>     batch n is done
    state/          of stateful queries

A batch that is in ``offsets`` and not in ``commits`` runs again when the query starts. Spark keeps the last
hundred. Version 1 of ``offsets`` has the sources in their order, version 2 (where
``spark.sql.streaming.queryEvolution.enableSourceEvolution`` is set) has ``<name>:`` before each; ``-`` stands
for a source that has no offset yet. Read from ``OffsetSeqLog``, ``CommitLog`` and
``MicroBatchExecution.populateStartOffsets`` of Spark 4.0, 4.1 and 4.3.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any, Final, TypeVar

from sluice.cli.report import UsageError
from sluice.cli.storage import Storage, StoredFile
from sluice.errors import SluiceError
from sluice.source.model.offsets import Offsets

__all__ = ["NO_OFFSET", "Checkpoint", "CheckpointError", "LoggedBatch", "SourceOffset", "choose_source"]

T = TypeVar("T")

NO_OFFSET: Final = "-"
"""Stands for a source that has no offset yet."""
_OURS: Final = '{"version": '
"""What offsets of Sluice begin with; Spark logs them as the source has written them."""
_VERSIONS: Final = ("v1", "v2")
_COMMIT_VERSION: Final = re.compile(r"v\d+")
_NAMED: Final = re.compile(r"([^:{\[\"-][^:]*):(.*)", re.DOTALL)


class CheckpointError(SluiceError):
    """A checkpoint is not what Spark writes, or not what a command can work on."""


@dataclass(frozen=True)
class SourceOffset:
    """The offset of one source.

    Attributes:
        name: in version 2, the source's name.
        text: JSON of the source's own, or `NO_OFFSET`.
    """

    text: str
    name: str | None = None

    @property
    def offsets(self) -> Offsets | None:
        """What Sluice's source has logged; None for another source, or before the first offset.

        Raises:
            SluiceError: Sluice wrote it, and this release does not read it.
        """
        value = self.json
        if not isinstance(value, dict) or "version" not in value or "streams" not in value:
            return None
        return Offsets.from_json(value)

    @property
    def is_of_splits(self) -> bool:
        """Whether it belongs to a custom source of finite splits, such as files."""
        value = self.json
        return isinstance(value, dict) and value.keys() == {"version", "splits"}

    def text_of(self, offsets: Offsets) -> str:
        """Other offsets as text, in the version that this one has: the query need not know another."""
        value = self.json
        version = value.get("version") if isinstance(value, dict) else None
        return json.dumps(offsets.to_json(version))

    @property
    def is_cut(self) -> bool:
        """Whether it begins as offsets of Sluice do, and ends too early, maybe before its first character."""
        begins = self.text[: len(_OURS)] == _OURS[: len(self.text)]
        return begins and self.json is None

    @property
    def json(self) -> Any:
        """The offset as a value; None if there is none, or it is not JSON."""
        try:
            return None if self.text == NO_OFFSET else json.loads(self.text)
        except (ValueError, RecursionError):
            return None


@dataclass(frozen=True)
class LoggedBatch:
    """A file of ``offsets``: where a batch ends."""

    version: str
    metadata: str
    sources: tuple[SourceOffset, ...]

    @classmethod
    def parse(cls, text: str) -> LoggedBatch:
        """Raises ValueError for text that is not such a file, or was cut."""
        lines = text.split("\n")
        version = lines[0].strip()
        if not text.strip():
            raise ValueError("it is empty")
        if version not in _VERSIONS or len(lines) < 3:
            raise ValueError(f"expected are Spark's offsets in {' or '.join(_VERSIONS)}")
        sources = []
        for line in lines[2:]:
            named = _NAMED.fullmatch(line) if version == "v2" else None
            sources.append(SourceOffset(named[2], named[1]) if named else SourceOffset(line))
        if any(source.is_cut for source in sources):
            raise ValueError("an offset is not JSON: its file was truncated or changed")
        return cls(version, lines[1], tuple(sources))

    def to_text(self) -> str:
        lines = [each.text if each.name is None else f"{each.name}:{each.text}" for each in self.sources]
        return "\n".join([self.version, self.metadata, *lines])

    def text_like(self, index: int, source: SourceOffset) -> str:
        """The offset of the source that another batch has at `index`. Version 2 finds it by its name."""
        same: Sequence[SourceOffset] = self.sources[index : index + 1]
        if source.name is not None:
            same = [each for each in self.sources if each.name == source.name]
        return same[0].text if same else NO_OFFSET

    def with_texts(self, texts: Sequence[str]) -> LoggedBatch:
        """The same with other offsets of its sources."""
        pairs = zip(self.sources, texts, strict=True)
        return replace(self, sources=tuple(replace(source, text=text) for source, text in pairs))

    @property
    def logged_at(self) -> int | None:
        """When Spark planned the batch (milliseconds since the epoch), by the driver's clock."""
        return self._millis("batchTimestampMs")

    @property
    def watermark(self) -> int | None:
        """The watermark of the batch (milliseconds since the epoch); None without one."""
        return self._millis("batchWatermarkMs") or None

    def _millis(self, key: str) -> int | None:
        try:
            return int(json.loads(self.metadata)[key])
        except (ValueError, KeyError, TypeError):
            return None


class Checkpoint:
    """The checkpoint of one query.

    Args:
        storage: its files.

    Raises:
        CheckpointError: there is no checkpoint.
        StorageError: the storage does not answer.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._offsets = self._batches("offsets")
        self._commits = self._batches("commits")
        if not self._offsets and not storage.exists("metadata"):
            raise CheckpointError(
                f"{storage.shown}: no checkpoint of a streaming query, which has 'metadata' and 'offsets'; "
                "give the query's option 'checkpointLocation'"
            )

    @property
    def query_id(self) -> str | None:
        """Spark's id of the query, which stays through restarts."""
        if not self.storage.exists("metadata"):
            return None
        try:
            return str(json.loads(self.storage.read("metadata"))["id"])
        except (ValueError, KeyError, TypeError):
            return None

    @property
    def last(self) -> int | None:
        """The batch that was planned last; None: none was."""
        return max(self._offsets, default=None)

    @property
    def last_entry(self) -> int | None:
        """The last batch that has an entry in ``commits``, whole or damaged."""
        return max(self._commits, default=None)

    @property
    def last_committed(self) -> int | None:
        """The last batch whose entry in ``commits`` is whole."""
        return max((each for each in self._commits if f"commits/{each}" not in self.damage), default=None)

    @property
    def in_flight(self) -> int | None:
        """The last batch, if it was not committed: it runs again when the query starts."""
        is_committed = self.last in self._commits and f"commits/{self.last}" not in self.damage
        return None if is_committed else self.last

    @functools.cached_property
    def damage(self) -> Mapping[str, str]:
        """The damaged files that keep Spark from starting the query, with what to do.

        What is wrong with the last file of ``offsets`` is not among it: `read` raises that.
        """
        found = {}
        for batch in sorted(self._commits, reverse=True):
            path = f"commits/{batch}"
            if _is_whole_entry(self.storage.read(path)):
                break
            found[path] = f"{self.storage.shown}/{path} is empty or damaged. {self._entry_remedy(batch)}"
        if self.last is not None and self.last - 1 in self._offsets:
            try:  # Spark reads it also if the last batch is committed
                self.read(self.last - 1)
            except CheckpointError as error:
                found[f"offsets/{self.last - 1}"] = str(error)
        return found

    @property
    def is_stateful(self) -> bool:
        return self.storage.exists("state")

    @property
    def written_at(self) -> datetime | None:
        """When the last file of ``offsets`` or ``commits`` was written, by the storage's clock."""
        files = [*self._offsets.values(), *self._commits.values()]
        return max((each.modified for each in files), default=None)

    @property
    def usual_gap(self) -> float:
        """The median of the seconds between two batches, by when their files were written; 0 without two."""
        written = sorted(each.modified.timestamp() for each in self._offsets.values())
        return median([later - earlier for earlier, later in pairwise(written)] or [0.0])

    def read(self, batch: int) -> LoggedBatch:
        """Where a batch ends.

        Raises:
            CheckpointError: the checkpoint does not exist or is damaged; the message says what to do.
        """
        path = f"offsets/{batch}"
        where = f"{self.storage.shown}/{path}"
        if batch not in self._offsets:
            raise CheckpointError(f"{where} is missing. {self._remedy(batch)}")
        try:
            return LoggedBatch.parse(self.storage.read(path).decode())
        except UnicodeDecodeError:
            problem = "it is not text"
        except ValueError as error:
            problem = str(error)
        raise CheckpointError(f"{where} is damaged ({problem}). {self._remedy(batch)}")

    def _remedy(self, batch: int) -> str:
        """What helps if the file of a batch in ``offsets`` is damaged."""
        resumes = f"resumes after batch {batch - 1}" if batch else "starts at its startingPosition"
        return (
            "Restore it from a copy of the checkpoint. Without one, delete the files of this batch and of "
            f"later ones from 'offsets' and 'commits', with their '.crc' files: the query {resumes}, and "
            "writes the rows of these batches again. With files, s3 or a custom destination that commits, it "
            "fails if one of them was committed. If so, start it with a new 'checkpointLocation' and a "
            "starting position after the written rows (docs/operate.md, 'Restoring a checkpoint')"
        )

    def _entry_remedy(self, batch: int) -> str:
        """What helps if the entry of a batch in ``commits`` is damaged."""
        remedy = "Delete it and its '.crc' file, so that the query can start"
        if batch != self.last:
            return remedy
        return (
            f"{remedy}. Batch {batch} then runs again with the same rows: destinations that commit, such "
            "as files and s3, skip it if they have committed it; others write the rows again"
        )

    def starts(self, batch: int, end: LoggedBatch | None = None) -> Sequence[SourceOffset]:
        """Where a batch starts, by source; `end` is its end, if it differs from the logged one.

        Spark does not log the start of the first batch: Sluice's source logs it with the batch's end.
        """
        end = end or self.read(batch)
        before = self.read(batch - 1) if batch else None
        found = []
        for index, source in enumerate(end.sources):
            offsets = source.offsets
            if offsets is not None and offsets.start is not None:
                text = source.text_of(offsets.with_positions(offsets.start))
            else:
                text = NO_OFFSET if before is None else before.text_like(index, source)
            found.append(replace(source, text=text))
        return found

    @property
    def next_starts(self) -> Sequence[SourceOffset]:
        """Where the next batch starts, by source; a batch that is not committed runs again."""
        if self.last is None:
            return ()
        return self.read(self.last).sources if self.in_flight is None else self.starts(self.last)

    def _batches(self, log: str) -> dict[int, StoredFile]:
        files = {file.path.rpartition("/")[2]: file for file in self.storage.files(log)}
        return {int(name): file for name, file in files.items() if name.isascii() and name.isdigit()}


def choose_source(found: Mapping[int, T], wanted: int | None, whose: str) -> tuple[int, T]:
    """The source that ``--source`` names (`wanted`), or the only one.

    Args:
        found: the sources that can be chosen, by their index in the query.
        whose: for messages.

    Raises:
        CheckpointError: there is none.
        UsageError: there is no such source, or there are several.
    """
    if not found:
        raise CheckpointError(f"the checkpoint holds no offsets of {whose}")
    index = next(iter(found)) if wanted is None and len(found) == 1 else wanted
    if index is None or index not in found:
        raise UsageError(f"which source? --source is one of {', '.join(map(str, found))}, those of {whose}")
    return index, found[index]


def _is_whole_entry(body: bytes) -> bool:
    """Whether Spark can read an entry of ``commits``: a version, and maybe one line of JSON."""
    try:
        version, _, rest = body.decode().partition("\n")
        metadata = json.loads(rest.partition("\n")[0] or "{}")
    except (ValueError, RecursionError):
        return False
    return _COMMIT_VERSION.fullmatch(version.strip()) is not None and isinstance(metadata, dict)
