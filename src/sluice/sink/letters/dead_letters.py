"""Dead letters: records that can never be delivered, kept with the reason instead of failing the task.

A task adds dead letters to a queue while it writes, and makes them durable with `DeadLetterQueue.flush`
before it succeeds. They are kept at least once: a task that is repeated writes its dead letters again, to a
file of another name.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal, Protocol

from sluice.errors import OptionError, SluiceError
from sluice.sink.contracts import Origin
from sluice.sink.rows.values import fields_of_row, json_text, unique_names

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "CheckedDeadLetterQueue",
    "DeadLetter",
    "DeadLetterQueue",
    "LocalDeadLetterQueue",
    "camel_case",
    "dead_letter_file_name",
    "dead_letter_line",
    "dead_letter_of_entry",
    "dead_letter_of_row",
]

_log = logging.getLogger(__name__)

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]")
_DATA: Final = "data"


@dataclass(frozen=True)
class DeadLetter:
    """One record that can never be delivered.

    Attributes:
        reason: why, for people; holds none of the data.
        data: what would have been sent; None if the record has no data.
        attributes: the other fields of the record, such as a partition key: JSON values, or bytes.
        form: what `data` is: the data of the record itself, or all of an entry or a row as JSON.
    """

    reason: str
    data: bytes | None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    form: Literal["data", "entry", "row"] = "data"


class DeadLetterQueue(Protocol):
    """Takes the dead letters of one task. Used by one thread at a time."""

    def add(self, dead_letter: DeadLetter) -> None:
        """Takes a dead letter; may keep it in memory, up to the queue's own limits."""

    def flush(self) -> None:
        """Returns when all dead letters so far are on durable storage."""

    def close(self) -> None:
        """Releases files and memory. What was not flushed is dropped: its epoch was not committed."""


class CheckedDeadLetterQueue(DeadLetterQueue, Protocol):
    """A queue that knows, before there is a dead letter, whether letters can be written."""

    def check_writable(self, is_local: Callable[[], bool]) -> None:
        """Checks, when the query starts, that dead letters can be written. Leaves nothing behind.

        Args:
            is_local: whether tasks see the files that this process sees.

        Raises:
            OptionError: they cannot. Where that is not certain, a warning is logged.
        """


def report_unwritable(path: str, error: Exception, *, is_certain: bool) -> None:
    """Says that the driver cannot write dead letters.

    Raises:
        OptionError: that is certain. On a cluster, tasks may have mounts, rights and credentials that the
            driver lacks: a query that would run is not kept from it, and a warning is logged.
    """
    if is_certain:
        raise OptionError(
            f"option 'deadLetterPath' is '{path}': dead letters cannot be written there: {error}"
        ) from None
    _log.warning(
        "option 'deadLetterPath' is '%s': the driver cannot write dead letters there, and tasks may fail to, "
        "too; the query starts all the same: %s",
        path,
        error,
    )


def dead_letter_line(dead_letter: DeadLetter, origin: Origin) -> bytes:
    """A dead letter as one line of JSON, with its line feed."""
    values = {
        "reason": dead_letter.reason,
        "destination": origin.destination,
        "queryId": origin.query,
        "batchId": origin.batch,
        "partition": origin.partition,
        "attempt": origin.attempt,
        "data": None if dead_letter.data is None else base64.b64encode(dead_letter.data).decode(),
        "attributes": dict(dead_letter.attributes),
        "form": dead_letter.form,
    }
    # A lone surrogate, which UTF-8 does not have, becomes an escape of JSON.
    return (
        json_text(values, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace") + b"\n"
    )


def dead_letter_file_name(origin: Origin, number: int) -> str:
    """The name of file `number` of a task, relative to `deadLetterPath`.

    Query, micro-batch and partition come first, so that the dead letters of one epoch are together. The run
    is part of the name, because Spark counts attempts from 0 again when an application restarts.
    """
    batch = "batch" if origin.batch is None else f"batch-{origin.batch:010}"
    owner = origin.query or origin.run or "batch"
    task = f"part-{origin.partition:05}-attempt-{origin.attempt}-{origin.run or 'run'}-{number:04}"
    return "/".join(_UNSAFE.sub("_", part) for part in (owner, batch, f"{task}.jsonl"))


class LocalDeadLetterQueue:
    """Writes dead letters to a directory that all tasks share.

    A file has a hidden name until it is flushed: ``*.jsonl`` matches complete files only.

    Args:
        directory: created when the first file is written.
        origin: the task.
        sync: makes a file or a directory durable, given its descriptor; replaced in tests.
    """

    def __init__(self, directory: Path, origin: Origin, *, sync: Callable[[int], None] = os.fsync) -> None:
        self._directory = directory
        self._origin = origin
        self._sync = sync
        self._files = 0
        self._file: IO[bytes] | None = None
        self._final = directory

    def check_writable(self, is_local: Callable[[], bool]) -> None:
        """See `CheckedDeadLetterQueue.check_writable`. A directory that is not there yet stays away."""
        place = self._directory.absolute()
        try:
            while not place.exists():
                place = place.parent
            with tempfile.TemporaryFile(dir=place):
                return
        except OSError as error:
            report_unwritable(str(self._directory), error, is_certain=not place.is_dir() or is_local())

    def add(self, dead_letter: DeadLetter) -> None:
        """Raises SluiceError if the directory cannot be written to."""
        with self._named_errors():
            if self._file is None:
                self._file = self._open()
            self._file.write(dead_letter_line(dead_letter, self._origin))

    def flush(self) -> None:
        """Raises SluiceError if the file cannot be made durable: then none of it counts as written."""
        with self._named_errors():
            self._flush()

    def _flush(self) -> None:
        file = self._file
        if file is None:
            return
        file.flush()
        self._sync(file.fileno())
        file.close()
        Path(file.name).rename(self._final)
        self._file = None
        # The name of a file or directory is durable once the directory above it is synced.
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

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SluiceError(
                f"option 'deadLetterPath' is '{self._directory}': a dead letter cannot be written: {error}"
            ) from error

    def _open(self) -> IO[bytes]:
        while True:
            self._final = self._directory / dead_letter_file_name(self._origin, self._files)
            self._files += 1
            self._final.parent.mkdir(parents=True, exist_ok=True)
            hidden = self._final.with_name(f".{self._final.name}.writing")
            if not self._final.exists():
                with contextlib.suppress(FileExistsError):
                    return hidden.open("xb")

    def _sync_directory(self, directory: Path) -> None:
        if os.name == "nt":
            return  # Windows opens no directories, and keeps their entries in its journal
        try:
            descriptor = os.open(directory, os.O_RDONLY)
        except PermissionError:
            return  # this user may enter the directory, but not read it, so cannot sync it
        try:
            self._sync(descriptor)
        finally:
            os.close(descriptor)


# --- what a dead letter holds ----------------------------------------------------------------------------


def dead_letter_of_entry(entry: object, reason: str) -> DeadLetter:
    """A dead letter about an entry of any destination.

    Of bytes and text, all is data. Of a mapping, a dataclass or a named tuple with a field ``data``, that
    field is the data and the other fields are attributes; any other entry is the data as JSON.
    """
    if isinstance(entry, bytes | bytearray | memoryview):
        return DeadLetter(reason, bytes(entry))
    if isinstance(entry, str):
        return DeadLetter(reason, entry.encode(errors="surrogatepass"))
    fields = _fields(entry)
    if fields is None:
        return DeadLetter(reason, json_text(entry).encode(), form="entry")
    return _dead_letter_of_fields(fields, _data_key(fields), reason, "entry")


def dead_letter_of_row(row: pa.RecordBatch, reason: str, *, data_is_sent: bool) -> DeadLetter:
    """A dead letter about a row that cannot be converted: its column ``data``, else the whole row as JSON.

    Never fails, for any row: see `python_value`. Columns keep their names.

    Args:
        row: a batch of one row.
        reason: why, for people.
        data_is_sent: whether column ``data`` is the data of the record as it is. Where a converter makes the
            data of other columns, ``data`` may be any column, and the letter holds the whole row.
    """
    fields = fields_of_row(row)
    key = _data_key(fields) if data_is_sent else None
    if key is not None and isinstance(fields[key], str):
        # The bytes as they are, which need not be UTF-8.
        fields[key] = bytes(row.column(row.schema.names.index(key))[0].as_buffer())
    return _dead_letter_of_fields(fields, key, reason, "row")


def _dead_letter_of_fields(
    fields: Mapping[Any, Any], key: str | None, reason: str, whole: Literal["entry", "row"]
) -> DeadLetter:
    data = fields[key] if key is not None else None
    if key is None or not isinstance(data, bytes | str | None):
        return DeadLetter(reason, json_text(fields).encode(), form=whole)
    rest = {name: value for name, value in fields.items() if name != key and value is not None}
    if whole == "entry":
        rest = unique_names((camel_case(name), value) for name, value in rest.items())
    return DeadLetter(reason, data.encode(errors="surrogatepass") if isinstance(data, str) else data, rest)


def _data_key(fields: Mapping[Any, Any]) -> str | None:
    return next((name for name in fields if isinstance(name, str) and name.lower() == _DATA), None)


def _fields(entry: Any) -> Mapping[Any, Any] | None:
    """The fields of an entry; None if it has none, or does not give them."""
    if isinstance(entry, type):
        return None  # a class has the methods of its entries, and no values
    try:
        if isinstance(entry, Mapping):
            return dict(entry)
        if hasattr(entry, "_asdict"):
            return dict(entry._asdict())
        if dataclasses.is_dataclass(entry):
            return {each.name: getattr(entry, each.name) for each in dataclasses.fields(entry)}
    except Exception:  # noqa: BLE001 - a type of the user's own must not lose its record
        return None
    return None


def camel_case(name: Any) -> Any:
    """``partition_key`` as ``partitionKey``, the way options and columns are written."""
    if not isinstance(name, str):
        return name  # a key of the user's own mapping
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)
