"""Offsets that an earlier release has logged: read, and written again, they are the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.source import After, AtHorizon, AtTime, Closed, Offsets, Position

CHECKPOINTS = Path(__file__).parents[2] / "integration" / "fixtures" / "checkpoints"
FILES = sorted(CHECKPOINTS.glob("*/checkpoint/offsets/*"))
WITH_ROWS = [file for file in FILES if (file.parents[2] / "rows.jsonl").exists()]


def name_of(file: Path) -> str:
    return f"{file.parents[2].name}-{file.name}"


def logged(file: Path) -> str:
    """The offset, below Spark's own two lines."""
    return file.read_text().splitlines()[2]


def offsets_of(file: Path) -> Offsets:
    return Offsets.from_json(json.loads(logged(file)))


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_an_offset_is_written_as_it_was_read(file: Path) -> None:
    """To the byte: no key is lost, added or put elsewhere."""
    assert json.dumps(offsets_of(file).to_json()) == logged(file)


def test_the_recordings_hold_every_key() -> None:
    """What an offset may hold is in one of them, but for ``sub``, which no release has logged."""
    top: set[str] = set()
    inside: set[str] = set()
    for file in FILES:
        offset = json.loads(logged(file))
        top |= offset.keys()
        for position in positions_in(offset):
            inside |= position.keys()
    assert top == {"version", "streams", "created", "consumers", "start"}
    assert inside == {"after", "next", "arrival", "idle", "quiet", "at", "pinned", "closed"}


def positions_in(offset: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for streams in (offset["streams"], offset.get("start", {})):
        for shards in streams.values():
            yield from shards.values()


@pytest.mark.parametrize("file", WITH_ROWS, ids=name_of)
def test_two_offsets_span_the_rows_of_their_batch(file: Path) -> None:
    """What lies between two offsets that were logged one after the other is what the batch had given."""
    directory, batch = file.parents[2], int(file.name)
    end = offsets_of(file)
    start = offsets_of(file.with_name(str(batch - 1))) if batch else Offsets({})
    ranges = {each.split.shard: each for each in start.ranges_to(end)}

    spanned = set()
    for line in (directory / "records.jsonl").read_text().splitlines():
        shard, number, arrival, _, _ = json.loads(line)
        if shard in ranges:
            begin, last = ranges[shard].start, ranges[shard].end
            if is_behind(begin, int(number), arrival) and not is_behind(last, int(number), arrival):
                spanned.add((shard, number))
    rows = [json.loads(line) for line in (directory / "rows.jsonl").read_text().splitlines()]
    assert spanned == {(row[1], row[2]) for row in rows if row[0] == batch}


def is_behind(position: Position, number: int, arrival: float) -> bool:
    """Whether a record is still to come for who stands at `position`."""
    match position:
        case After():
            return number > position.sequence
        case AtTime():
            return round(arrival * 1_000_000) >= position.instant
        case AtHorizon():
            return True
        case Closed():
            return False
