"""Writes the tables of README.md from the options' declarations; with --check, fails when they are stale."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from sluice.destinations.kinesis import KinesisStreamsDestination
from sluice.kinesis.connection import CONNECTION_OPTIONS
from sluice.kinesis.options import SOURCE_OPTIONS
from sluice.options import Option
from sluice.sink.options import SINK_OPTIONS

README = Path(__file__).resolve().parent.parent / "README.md"
BACKOFF = re.compile(r"(?P<operation>\w+)(?P<part>MaxRetries|BackoffBase|BackoffMax|BackoffExponent)\Z")
BLOCK = re.compile(r"(<!-- begin (?P<name>\w+) -->\n).*?(<!-- end (?P=name) -->)", re.DOTALL)
MIB = 1024 * 1024


def options_table(options: Iterable[Option[Any]]) -> str:
    """One row an option that works, and a sentence for those that are declared and refused."""
    options = [option for option in options if not BACKOFF.fullmatch(option.key)]
    table = rows(
        ("option", "default", "meaning"),
        [(f"`{each.key}`", default(each), each.description) for each in options if each.supported],
    )
    return table + refused(options)


def refused(options: Iterable[Option[Any]]) -> str:
    names = [f"`{each.key}`" for each in options if not each.supported]
    return f"\nRefused as not supported yet: {', '.join(names)}.\n" if names else ""


def backoff_table(options: Sequence[Option[Any]]) -> str:
    """One row an operation that is called, one column for each of its four options."""
    parts = ("MaxRetries", "BackoffBase", "BackoffMax", "BackoffExponent")
    by_operation: dict[str, dict[str, Option[Any]]] = {}
    for option in options:
        if match := BACKOFF.fullmatch(option.key):
            by_operation.setdefault(match["operation"], {})[match["part"]] = option
    table = rows(
        ("operation", *(f"`<operation>{part}`" for part in parts)),
        [
            (f"`{operation}`", *(default(found[part]) for part in parts))
            for operation, found in by_operation.items()
            if found["MaxRetries"].supported
        ],
    )
    later = [f"`{name}`" for name, found in by_operation.items() if not found["MaxRetries"].supported]
    return table + (f"\nRefused as not supported yet: those of {', '.join(later)}.\n" if later else "")


def destinations_table() -> str:
    """What a destination's own limits make the defaults."""
    limits = KinesisStreamsDestination.LIMITS
    titles = ("destination", "`maxBatchSize`", "`maxBatchSizeInBytes`", "`maxRecordSizeInBytes`")
    return rows(
        (*titles, "`maxInFlightRequests`", "`maxBufferedRequests`", "`aimdDecreaseFactor`"),
        [
            (
                "`kinesis`",
                str(limits.max_batch_size),
                mebibytes(limits.max_batch_size_in_bytes),
                mebibytes(limits.max_record_size_in_bytes),
                str(limits.max_in_flight_requests),
                str(limits.max_buffered_requests),
                f"{limits.aimd_decrease_factor:g}",
            )
        ],
    )


def mebibytes(size: int) -> str:
    return f"{size // MIB} MiB" if size % MIB == 0 else f"{size} bytes"


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
    "sink": lambda: options_table(SINK_OPTIONS),
    "kinesis": lambda: options_table(KinesisStreamsDestination.OPTIONS),
    "limits": destinations_table,
}


def render(text: str) -> str:
    """`text` with every block between markers made new."""
    return BLOCK.sub(lambda block: f"{block[1]}{TABLES[block['name']]()}{block[3]}", text)


def main() -> int:
    found = README.read_text()
    wanted = render(found)
    missing = [name for name in TABLES if f"<!-- begin {name} -->" not in found]
    if missing:
        print(f"README.md has no place for: {', '.join(missing)}")
        return 1
    if "--check" in sys.argv[1:]:
        if found != wanted:
            print("the tables of README.md are stale: run `make docs`")
        return int(found != wanted)
    README.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
