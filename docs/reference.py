"""Writes the tables of options and causes in the documents. With --check, fails if one is not up to date."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sluice.aws.calling.connection import CONNECTION_OPTIONS
from sluice.aws.names.foreign_names import CONNECTION_NAMES
from sluice.destinations.dynamodb import DynamoDbDestination
from sluice.destinations.files import FilesDestination
from sluice.destinations.firehose import FirehoseDestination
from sluice.destinations.http import HttpDestination
from sluice.destinations.kinesis import KinesisStreamsDestination
from sluice.destinations.registry import DestinationClass
from sluice.destinations.sqs import SqsDestination
from sluice.dynamodb_streams.options import SOURCE_OPTIONS as STREAMS_OPTIONS
from sluice.kinesis.options.config import SOURCE_OPTIONS
from sluice.kinesis.options.foreign_names import SOURCE_NAMES
from sluice.option_names import ForeignName, Taken
from sluice.options import Option
from sluice.sink.options import SINK_OPTIONS
from sluice.sink.rate import causes

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = (
    "docs/options.md",
    "docs/write.md",
    "docs/destinations.md",
    "docs/read.md",
    "docs/migrate.md",
)
DESTINATIONS: dict[str, type[DestinationClass]] = {
    "kinesis": KinesisStreamsDestination,
    "firehose": FirehoseDestination,
    "dynamodb": DynamoDbDestination,
    "sqs": SqsDestination,
    "http": HttpDestination,
}
COMMITTING = {"files": FilesDestination}  # s3 has the same options
BACKOFF = re.compile(r"(?P<operation>\w+)(?P<part>MaxRetries|BackoffBase|BackoffMax|BackoffExponent)\Z")
BLOCK = re.compile(r"(<!-- begin (?P<name>\w+) -->\n).*?(<!-- end (?P=name) -->)", re.DOTALL)


def options_table(options: Iterable[Option[Any]]) -> str:
    """One row for each option."""
    shown = [option for option in options if not BACKOFF.fullmatch(option.key)]
    return rows(
        ("option", "default", "meaning"),
        [(f"`{each.key}`", default(each), each.description) for each in shown],
    )


def backoff_table(options: Sequence[Option[Any]]) -> str:
    """One row for each operation, with one column for each of its four options."""
    parts = ("MaxRetries", "BackoffBase", "BackoffMax", "BackoffExponent")
    by_operation: dict[str, dict[str, Option[Any]]] = {}
    for option in options:
        if match := BACKOFF.fullmatch(option.key):
            by_operation.setdefault(match["operation"], {})[match["part"]] = option
    return rows(
        ("operation", *(f"`<operation>{part}`" for part in parts)),
        [
            (f"`{operation}`", *(default(found[part]) for part in parts))
            for operation, found in by_operation.items()
        ],
    )


def names_table(names: Iterable[ForeignName]) -> str:
    """One row for each option, with the names of one connector for it. An error explains all other names."""
    by_option: dict[tuple[str, str], list[str]] = {}
    for each in names:
        if isinstance(each, Taken):
            by_option.setdefault((each.origin, each.key), []).append(f"`{each.name}`")
    return rows(
        ("connector", "name there", "name here"),
        [(origin, ", ".join(by_option[origin, key]), f"`{key}`") for origin, key in sorted(by_option)],
    )


def destinations_table() -> str:
    """The defaults that depend on the destination."""
    titles = ("destination", "`maxBatchSize`", "`maxBatchSizeInBytes`", "`maxRecordSizeInBytes`")
    return rows(
        (*titles, "`maxInFlightRequests`", "`maxBufferedRequests`", "`aimdDecreaseFactor`"),
        [
            (
                f"`{name}`",
                str(limits.max_batch_size),
                size(limits.max_batch_size_in_bytes),
                size(limits.max_record_size_in_bytes),
                str(limits.max_in_flight_requests),
                str(limits.max_buffered_requests),
                f"{limits.aimd_decrease_factor:g}",
            )
            for name, limits in ((name, each.LIMITS) for name, each in DESTINATIONS.items())
        ],
    )


def causes_table() -> str:
    """What counts as load, and what as a failure; one row for rules that people see as one."""
    counted = {each.applies_to: each.cause.value for each in causes.TABLE}
    return rows(("what is refused", "counts as"), counted.items())


def size(count: int) -> str:
    """A size in bytes, in the largest unit without a remainder."""
    units = {"MiB": 1024**2, "MB": 1000**2, "KiB": 1024, "KB": 1000}
    return next((f"{count // unit} {name}" for name, unit in units.items() if count % unit == 0), str(count))


def default(option: Option[Any]) -> str:
    if option.shown_default is not None:
        return option.shown_default
    if option.required:
        return "required"
    if option.default is None:
        return "none"
    if isinstance(option.default, bool):
        return str(option.default).lower()
    if option.kind.name == "choice":
        return f"`{option.default}`"
    return str(option.default)


def rows(titles: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *body]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


TABLES: dict[str, Callable[[], str]] = {
    "connection": lambda: options_table(CONNECTION_OPTIONS),
    "source": lambda: options_table(SOURCE_OPTIONS),
    "backoff": lambda: backoff_table(SOURCE_OPTIONS),
    "dynamodb_streams": lambda: options_table(STREAMS_OPTIONS),
    "dynamodb_streams_backoff": lambda: backoff_table(STREAMS_OPTIONS),
    "sink": lambda: options_table(SINK_OPTIONS),
    "limits": destinations_table,
    "causes": causes_table,
    "source_names": lambda: names_table(SOURCE_NAMES),
    "sink_names": lambda: names_table(
        each for each in KinesisStreamsDestination.FOREIGN_NAMES if each not in CONNECTION_NAMES
    ),
    **{name: partial(options_table, each.OPTIONS) for name, each in DESTINATIONS.items()},
    **{name: partial(options_table, each.OPTIONS) for name, each in COMMITTING.items()},
}


def render(text: str) -> str:
    """`text` with new tables between the markers."""
    return BLOCK.sub(lambda block: f"{block[1]}{TABLES[block['name']]()}{block[3]}", text)


def main() -> int:
    found = {path: path.read_text() for path in (ROOT / name for name in DOCUMENTS)}
    wanted = {path: render(text) for path, text in found.items()}
    missing = [
        name for name in TABLES if not any(f"<!-- begin {name} -->" in text for text in found.values())
    ]
    if missing:
        print(f"{' and '.join(DOCUMENTS)} have no place for: {', '.join(missing)}")
        return 1
    stale = [path for path, text in found.items() if text != wanted[path]]
    for path in stale:
        if "--check" in sys.argv[1:]:
            print(f"the tables of {path.relative_to(ROOT)} are stale: run `make docs`")
        else:
            path.write_text(wanted[path])
    return int(bool(stale) and "--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
