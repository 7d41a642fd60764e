"""``sluice replay``: sends dead letters again, once what was wrong is put right."""

from __future__ import annotations

import argparse
import base64
import json
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

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


class Columns(NamedTuple):
    """The columns of a destination: the one with its data, and the others."""

    data: str
    others: Sequence[str]


_ROWS: Final = 1000
"""Rows that are written at a time."""
_TEXT: Final = ("partitionKey", "explicitHashKey", "messageGroupId", "messageDeduplicationId")
# By destination. DynamoDB is missing: a letter does not have its types.
_COLUMNS: Final[Mapping[str, Columns]] = {
    "kinesis": Columns("data", ("partitionKey", "explicitHashKey")),
    "firehose": Columns("data", ()),
    "http": Columns("body", ()),
    "sqs": Columns("body", ("messageGroupId", "messageDeduplicationId", "delaySeconds", "attributes")),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """See `sluice.cli.app.Command`."""
    parser.description = (
        f"{HELP}. A letter is sent at least once: if the command fails in the middle, run it again. What is "
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
        raise StorageError(f"there is no {storage.shown}")
    files = sorted(each.path for each in storage.files(recursive=True) if each.path.endswith(".jsonl"))
    counts: Counter[str] = Counter(sent=0, skipped=0, deadLetters=0)
    reasons: Counter[str] = Counter()
    for path in files:
        letters = list(_letters(storage, path))
        rows = [row for letter in letters if (row := _row(letter, columns)) is not None]
        reasons.update(str(letter["reason"]) for letter in letters)
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


def _columns(given: Mapping[str, str]) -> Columns:
    name = given.get("destination", "").lower()
    if name not in _COLUMNS:
        raise UsageError(
            f"letters go to {', '.join(_COLUMNS)}; --sink-option destination is {name or 'not given'}"
        )
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


def _letters(storage: Storage, path: str) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(storage.read(path).splitlines(), 1):
        letter = _parsed(line)
        if letter is None:
            raise SluiceError(f"{storage.shown}/{path}, line {number}: not a dead letter")
        yield letter


def _parsed(line: bytes) -> Mapping[str, Any] | None:
    """A letter, with its data as bytes; None for a line that is none."""
    try:
        letter = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(letter, dict) or not {"reason", "data", "form"} <= letter.keys():
        return None
    if not isinstance(letter.get("attributes", {}), dict):
        return None
    try:
        # Strictly: of a line that was cut or changed, another record would be sent.
        data = None if letter["data"] is None else base64.b64decode(letter["data"], validate=True)
    except (ValueError, TypeError):
        return None
    return {**letter, "data": data}


def _row(letter: Mapping[str, Any], columns: Columns) -> dict[str, Any] | None:
    """The row that makes the same entry again; None where the letter does not hold it."""
    data_column, others = columns
    data = letter["data"]
    if data is None or letter["form"] == "row":
        return None
    if letter["form"] == "data":
        # Columns are known without regard to case, as by the destinations.
        attributes = {name.lower(): value for name, value in letter.get("attributes", {}).items()}
        return {data_column: data, **{name: attributes.get(name.lower()) for name in others}}
    fields = _fields(data)
    if data_column not in fields:
        return None
    return {name: fields.get(name) for name in (data_column, *others)}


def _fields(data: bytes) -> dict[str, Any]:
    """The fields of an entry, named as columns are."""
    try:
        entry = json.loads(data)
    except ValueError:
        return {}
    return {camel_case(name): value for name, value in entry.items()} if isinstance(entry, dict) else {}


def _send(options: Mapping[str, str], rows: Sequence[Row], columns: Columns) -> int:
    """Returns how many rows have become dead letters again, once all others are accepted."""
    setup = _sink(options)
    if not rows:
        return 0
    # A run of its own, so that its letters get new names.
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


def _batch(rows: Sequence[Row], columns: Columns) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415 - takes a quarter of a second

    types = {
        columns.data: pa.binary(),
        **dict.fromkeys(_TEXT, pa.string()),
        "delaySeconds": pa.int32(),
        "attributes": pa.map_(pa.string(), pa.string()),
    }
    names = [name for name in (columns.data, *columns.others) if any(row[name] is not None for row in rows)]
    return pa.record_batch([_array(name, rows, types[name]) for name in names], names=names)


def _array(name: str, rows: Sequence[Row], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415 - as above

    try:
        return pa.array([_value(name, row[name]) for row in rows], kind)
    except (pa.ArrowException, AttributeError, TypeError, ValueError) as error:
        raise SluiceError(f"a letter's {name} is not {kind}: {error}") from None


def _value(name: str, value: Any) -> Any:
    if name == "attributes" and value is not None:
        return list(value.items())
    return value.encode() if name == "body" and isinstance(value, str) else value
