"""Records that can never be delivered, kept with the reason instead of failing the task (dead letters).

A queue takes letters while a task writes; `DeadLetterQueue.flush` makes them durable before the task
says that it is done. Like delivery itself this is at least once: an attempt that is repeated leaves its
letters again, under a name of its own.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "DeadLetter",
    "DeadLetterQueue",
    "LocalDeadLetterQueue",
    "Origin",
    "as_line",
    "camel_case",
    "dead_letter_of_entry",
    "dead_letter_of_row",
    "name_of",
]

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]")
_DATA: Final = "data"


@dataclass(frozen=True)
class DeadLetter:
    """One record that can never be delivered.

    Attributes:
        reason: why, for people; holds none of the data.
        data: what would have been sent; None where there is none.
        attributes: what else belongs to the record, a partition key say; JSON values, or bytes.
    """

    reason: str
    data: bytes | None
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Origin:
    """Which task's letters these are.

    Attributes:
        destination: by name.
        query: Spark's id of the streaming query; None in a batch query.
        run: the id of one run of the query: of a streaming query's restart, or of one batch write.
        batch: the epoch; None in a batch query.
        partition, attempt: the task's.
    """

    destination: str
    query: str | None = None
    run: str = ""
    batch: int | None = None
    partition: int = 0
    attempt: int = 0


class DeadLetterQueue(Protocol):
    """Where dead letters go. One task's, used by one thread at a time."""

    def add(self, letter: DeadLetter) -> None:
        """Takes a letter; may keep it in memory, within bounds of its own."""

    def flush(self) -> None:
        """Returns when every letter so far would survive the end of this machine (of the service's side)."""

    def close(self) -> None:
        """Lets go. What was not flushed may be lost: its epoch was not committed."""


def as_line(letter: DeadLetter, origin: Origin) -> bytes:
    """The letter as one line of JSON, line feed included."""
    values = {
        "reason": letter.reason,
        "destination": origin.destination,
        "queryId": origin.query,
        "batchId": origin.batch,
        "partition": origin.partition,
        "attempt": origin.attempt,
        "data": None if letter.data is None else base64.b64encode(letter.data).decode(),
        "attributes": dict(letter.attributes),
    }
    return (
        json.dumps(values, default=_as_json, ensure_ascii=False, separators=(",", ":")).encode(
            errors="backslashreplace"
        )
        + b"\n"
    )


def name_of(origin: Origin, number: int) -> str:
    """The name of a task's file number `number`, below the path that the user gave.

    Query, epoch and partition come first, so that the letters of one epoch are found together. Spark
    counts attempts anew when an application starts again: the run tells those apart.
    """
    batch = "batch" if origin.batch is None else f"batch-{origin.batch:010}"
    owner = origin.query or origin.run or "batch"
    task = f"part-{origin.partition:05}-attempt-{origin.attempt}-{origin.run or 'run'}-{number:04}"
    return "/".join(_UNSAFE.sub("_", part) for part in (owner, batch, f"{task}.jsonl"))


class LocalDeadLetterQueue:
    """Dead letters in a directory that all tasks can write to.

    A file is written under a hidden name and gets its own when it is flushed: whoever reads ``*.jsonl``
    sees whole files of attempts that came to their end.

    Args:
        directory: made if it is not there.
        origin: whose letters these are.
        sync: makes a file or a directory durable, by descriptor; replaced in tests.
    """

    def __init__(self, directory: Path, origin: Origin, *, sync: Callable[[int], None] = os.fsync) -> None:
        self._directory = directory
        self._origin = origin
        self._sync = sync
        self._files = 0
        self._file: IO[bytes] | None = None
        self._final = directory

    def add(self, letter: DeadLetter) -> None:
        """Raises OSError when the directory cannot be written to."""
        if self._file is None:
            self._file = self._open()
        self._file.write(as_line(letter, self._origin))

    def flush(self) -> None:
        """Raises OSError: then nothing of the file counts as written."""
        file = self._file
        if file is None:
            return
        file.flush()
        self._sync(file.fileno())
        file.close()
        Path(file.name).rename(self._final)
        self._file = None
        # A name is durable when its directory is, and a new directory when the one above is.
        for directory in (self._final.parent, *self._final.parent.parents):
            self._sync_directory(directory)
            if directory == self._directory.parent:
                break

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
            with contextlib.suppress(OSError):
                Path(file.name).unlink()

    def _open(self) -> IO[bytes]:
        while True:
            self._final = self._directory / name_of(self._origin, self._files)
            self._files += 1
            self._final.parent.mkdir(parents=True, exist_ok=True)
            hidden = self._final.with_name(f".{self._final.name}.writing")
            if not self._final.exists():
                with contextlib.suppress(FileExistsError):
                    return hidden.open("xb")

    def _sync_directory(self, directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            self._sync(descriptor)
        finally:
            os.close(descriptor)


# --- what a letter holds ------------------------------------------------------------------------------


def dead_letter_of_entry(entry: object, reason: str) -> DeadLetter:
    """A letter about an entry of any destination.

    Bytes and text are the data themselves. Of a mapping, a dataclass or a named tuple the field ``data``
    is, where there is one, and the other fields are attributes; without it, all of it is, as JSON.
    """
    if isinstance(entry, bytes | bytearray | memoryview):
        return DeadLetter(reason, bytes(entry))
    if isinstance(entry, str):
        return DeadLetter(reason, entry.encode(errors="surrogatepass"))
    fields = _fields(entry)
    if fields is None:
        return DeadLetter(reason, json.dumps(entry, default=_as_json).encode())
    return _letter(fields, reason)


def dead_letter_of_row(row: pa.RecordBatch, reason: str) -> DeadLetter:
    """A letter about a row that is no entry: its column ``data`` is the data, else all of it as JSON."""
    return _letter(row.to_pylist()[0], reason)


def _letter(fields: Mapping[str, Any], reason: str) -> DeadLetter:
    key = next((name for name in fields if name.lower() == _DATA), None)
    data = fields[key] if key is not None else None
    if key is None or not isinstance(data, bytes | str | None):
        return DeadLetter(reason, json.dumps(dict(fields), default=_as_json).encode())
    rest = {camel_case(name): value for name, value in fields.items() if name != key and value is not None}
    return DeadLetter(reason, data.encode(errors="surrogatepass") if isinstance(data, str) else data, rest)


def _fields(entry: Any) -> Mapping[str, Any] | None:
    if isinstance(entry, Mapping):
        return entry
    if hasattr(entry, "_asdict"):
        fields: Mapping[str, Any] = entry._asdict()
        return fields
    if dataclasses.is_dataclass(entry):
        return {each.name: getattr(entry, each.name) for each in dataclasses.fields(entry)}
    return None


def camel_case(name: str) -> str:
    """Options and columns are in camel case; the fields of entries need not be."""
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)


def _as_json(value: object) -> object:
    """What JSON has no form for: bytes as base64, anything else as its text."""
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode()
    return str(value)
