"""``sluice replay``: sends dead letters again, once their cause is fixed."""

from __future__ import annotations

import argparse
import json
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from sluice.cli.options import (
    add_connection,
    add_options,
    connection_of,
    given_options,
    has_options,
    read_connection,
)
from sluice.cli.report import Report, UsageError
from sluice.cli.storage import S3_SCHEMES, Storage, StorageError, open_storage
from sluice.destinations.registry import read_sink
from sluice.errors import SluiceError
from sluice.sink import AsyncSinkWriter, Origin
from sluice.sink.letters.dead_letters import camel_case
from sluice.sink.setup import AsyncSinkSetup
from sluice.sink.user_code.loading import destination_name

if TYPE_CHECKING:
    import pyarrow as pa

HELP = "send dead letters into a sink again; shows what there is unless --execute is given"
EXAMPLE = "sluice replay s3://bucket/letters --sink-options sink.json --delete --execute"

Row: TypeAlias = Mapping[str, Any]


_ROWS: Final = 1000
"""Rows that are written at a time."""
# By destination; the first column holds the data. DynamoDB is missing: a letter does not have its types.
_COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "kinesis": ("data", "partitionKey", "explicitHashKey"),
    "firehose": ("data",),
    "http": ("body",),
    "sqs": ("body", "messageGroupId", "messageDeduplicationId", "delaySeconds", "attributes"),
}


class _Letter(msgspec.Struct):
    """A line of a file. Decoding is strict, as a line that was cut would be another record."""

    reason: str
    form: str
    data: bytes | None
    attributes: dict[str, Any] = {}


def configure(parser: argparse.ArgumentParser) -> None:
    """See `sluice.cli.app.Command`."""
    parser.description = (
        f"{HELP}. A letter is sent at least once: if the command fails, run it again. A letter that is "
        "refused again goes to the sink's own deadLetterPath; without one the command fails."
    )
    parser.add_argument(
        "path", help="the deadLetterPath, or a directory below it (of a query, or of a batch)"
    )
    add_options(
        parser, "an option of the sink, as the query has it; deadLetterPath another one", name="sink-option"
    )
    parser.add_argument("--delete", action="store_true", help="delete each file when all of it was accepted")
    parser.add_argument("--execute", action="store_true", help="do it")
    add_connection(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Report:
    """Sends dead letters again, or counts them."""
    options = given_options(arguments, name="sink-option")
    given = {key.lower(): value for key, value in options.items()}
    columns = _columns(given)
    connection = connection_of(arguments)
    if not has_options(arguments):
        connection = read_connection(options, only=True)
    storage = open_storage(arguments.path, connection)
    _sink(options)
    own = given.get("deadletterpath")
    if own and _is_one_in_the_other(own, arguments.path):
        raise UsageError(f"the sink's deadLetterPath is {own}, where these letters are: give it another one")
    if not storage.exists():
        raise StorageError(f"{storage.shown} does not exist")
    files = sorted(each.path for each in storage.files(recursive=True) if each.path.endswith(".jsonl"))
    counts: Counter[str] = Counter(sent=0, skipped=0, deadLetters=0)
    reasons: Counter[str] = Counter()
    for path in files:
        letters = list(_letters(storage, path))
        rows = [row for letter in letters if (row := _row(letter, columns)) is not None]
        reasons.update(letter.reason for letter in letters)
        skipped = len(letters) - len(rows)
        counts.update(skipped=skipped, sent=len(rows))
        if arguments.execute:
            counts["deadLetters"] += _send(options, rows, columns)
            if arguments.delete and not skipped:
                storage.delete(path)
    value = {
        "path": storage.shown,
        "executed": arguments.execute,
        "files": len(files),
        **counts,
        "reasons": dict(reasons.most_common()),
    }
    return Report(value, _text(value), has_problem=bool(counts["skipped"] or counts["deadLetters"]))


def _sink(options: Mapping[str, str]) -> AsyncSinkSetup:
    setup = read_sink(options)
    if not isinstance(setup, AsyncSinkSetup):
        raise UsageError("the destination sends no batches, and has no dead letters")
    return setup


def _is_one_in_the_other(first: str, second: str) -> bool:
    """Whether two paths are the same directory, or one is below the other, however they are written."""
    both = sorted((_directories(first), _directories(second)), key=len)
    return both[1][: len(both[0])] == both[0]


def _directories(path: str) -> tuple[str, ...]:
    """The directories of a path, from the root on."""
    scheme, is_url, rest = path.partition("://")
    if is_url and scheme != "file":
        return "s3" if scheme in S3_SCHEMES else scheme, *PurePosixPath(rest).parts
    return Path(path.removeprefix("file:")).resolve().parts


def _columns(given: Mapping[str, str]) -> Sequence[str]:
    destination = given.get("destination", "not given")
    name = destination.lower()
    if name not in _COLUMNS:
        raise UsageError(f"letters go to {', '.join(_COLUMNS)}; --sink-option destination is {destination}")
    if "elementconverter" in given:
        raise UsageError("leave out elementConverter: letters hold what it has made")
    return _COLUMNS[name]


def _text(value: Mapping[str, Any]) -> str:
    verb = "sent" if value["executed"] else "to be sent"
    lines = [f"{value['path']}: {value['files']} files, {value['sent']} letters {verb}"]
    if value["skipped"]:
        lines.append(
            f"{value['skipped']} letters skipped: they hold no data, or a row that had to be converted"
        )
    if value["deadLetters"]:
        lines.append(f"{value['deadLetters']} of them are dead letters again, in the sink's deadLetterPath")
    lines += [f"  {count} x {reason}" for reason, count in value["reasons"].items()]
    if not value["executed"]:
        lines += ["", "Nothing was sent. Give --execute to do it."]
    return "\n".join(lines)


def _letters(storage: Storage, path: str) -> Iterator[_Letter]:
    for number, line in enumerate(storage.read(path).splitlines(), 1):
        try:
            letter = msgspec.json.decode(line, type=_Letter)
        except (msgspec.DecodeError, ValueError, RecursionError):
            raise SluiceError(f"{storage.shown}/{path}, line {number}: not a dead letter") from None
        yield letter


def _row(letter: _Letter, columns: Sequence[str]) -> Row | None:
    """The row that makes the same entry again; None if the letter does not hold it."""
    if letter.data is None or letter.form == "row":
        return None
    if letter.form == "data":
        # Columns are known without regard to case, as by the destinations.
        attributes = {name.lower(): value for name, value in letter.attributes.items()}
        return {**{name: attributes.get(name.lower()) for name in columns}, columns[0]: letter.data}
    fields = _fields(letter.data)
    return {name: fields.get(name) for name in columns} if columns[0] in fields else None


def _fields(data: bytes) -> dict[str, Any]:
    """The fields of an entry, named as columns are."""
    try:
        entry = json.loads(data)
    except ValueError:
        return {}
    return {camel_case(name): value for name, value in entry.items()} if isinstance(entry, dict) else {}


def _send(options: Mapping[str, str], rows: Sequence[Row], columns: Sequence[str]) -> int:
    """Returns how many rows have become dead letters again, once all others are accepted."""
    setup = _sink(options)
    if not rows:
        return 0
    # A new run, so that its letters get new names.
    origin = Origin(destination_name(setup.destination), run=f"replay-{uuid.uuid4()}")
    writer = AsyncSinkWriter(
        setup.destination,
        setup.config,
        setup.create_strategy(),
        dead_letters=None if setup.dead_letters is None else setup.dead_letters(origin),
    )
    try:
        for start in range(0, len(rows), _ROWS):
            writer.write(_batch(rows[start : start + _ROWS], columns))
        writer.flush()
        return writer.figures.dead_letters
    finally:
        writer.close()


def _batch(rows: Sequence[Row], columns: Sequence[str]) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415 - takes a quarter of a second

    types = {
        columns[0]: pa.binary(),
        "delaySeconds": pa.int32(),
        "attributes": pa.map_(pa.string(), pa.string()),
    }
    arrays = {}
    for name in columns:
        values = [row[name] for row in rows]
        if all(value is None for value in values):
            continue
        kind = types.get(name, pa.string())
        try:
            if name == "attributes":
                values = [value and list(value.items()) for value in values]
            arrays[name] = pa.array(values, kind)
        except (pa.ArrowException, AttributeError, TypeError, ValueError) as error:
            raise SluiceError(f"a letter's {name} is not {kind}: {error}") from None
    return pa.record_batch(arrays)
