"""Batch reads: every pair of a start and an end gives the records between them, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from memory_log import SECOND, MemoryLog, put_to
from memory_subscriptions import MemoryPublisher
from query import new_enumerator, new_reader, read_range

from sluice.errors import OptionError
from sluice.instants import iso_instant
from sluice.kinesis.options.config import source_config_from_options
from sluice.kinesis.options.starting_positions import ending_instant, initial_positions
from sluice.source.logs.stream_log import Page, Record
from sluice.source.model.offsets import Position, SplitRange
from sluice.source.model.splits import Split, SplitId
from sluice.source.reading.publisher import OpenPublisher, RecordPublisher
from sluice.testing import MemorySource, QueryRunner

COUNT = 4
"""Records of each shard that has some, 10 s apart from each other."""

Oracle = Callable[[Sequence[Record]], int]
"""Given all records of a shard, where it is read from, or up to: the number of records before that."""


class Stream:
    """A stream with an open shard, a closed one, its children, of which one is empty, and an empty shard."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.open, self.closed, self.empty = self.log.create("s", 3)
        self.times: list[int] = []
        for _ in range(COUNT):
            self.log.pass_time(10)
            self.times.append(self.log.now)
            put_to(self.log, self.open, 1)
            put_to(self.log, self.closed, 1)
        self.full, self.childless = self.log.split(self.closed)
        self.log.pass_time(10)
        put_to(self.log, self.full, 1)
        self.log.pass_time(60.5)

    @property
    def shards(self) -> list[SplitId]:
        return list(self.log.shards)


def from_time(instant: int) -> Oracle:
    return lambda records: sum(record.arrival < instant for record in records)


def nothing_before(_records: Sequence[Record]) -> int:
    return 0


def everything_before(records: Sequence[Record]) -> int:
    return len(records)


def starts(stream: Stream) -> Mapping[str, tuple[Mapping[SplitId, Any], Oracle]]:
    """By name, what the option has for the shards, and where they start. Shards without an entry are at
    their oldest record.
    """
    found: dict[str, tuple[Mapping[SplitId, Any], Oracle]] = {
        "oldest": ({shard: {"TRIM_HORIZON": True} for shard in stream.shards}, nothing_before),
        "not named": ({stream.open: {"TRIM_HORIZON": True}}, nothing_before),
        "left out": ({shard: {"SHARD_END": True} for shard in stream.shards}, everything_before),
    }
    for name, instant in times(stream).items():
        at = {"AT_TIMESTAMP": iso_instant(instant)}
        found[f"at time {name}"] = (dict.fromkeys(stream.shards, at), from_time(instant))
    for place in (0, 1, COUNT - 1):
        for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "inside"):
            named: dict[SplitId, Any] = {}
            for shard in (stream.open, stream.closed):
                number = stream.log.records(shard)[place].sequence_number
                named[shard] = {kind: number}
                if kind == "inside":
                    named[shard] = {"AFTER_SEQUENCE_NUMBER": number, "SUB_SEQUENCE_NUMBER": 1}

            def begin(
                records: Sequence[Record], place: int = place + (kind == "AFTER_SEQUENCE_NUMBER")
            ) -> int:
                return place if len(records) == COUNT else 0

            found[f"{kind} {place}"] = (named, begin)
    return found


def times(stream: Stream) -> Mapping[str, int]:
    first, second, *_, last = stream.times
    return {
        "before all": first - 5 * SECOND,
        "of the first": first,
        "behind the first": first + 1,
        "of the second": second,
        "of the last": last,
        "behind the last": last + 5 * SECOND,
        "of now": stream.log.now,
        "in the future": stream.log.now + 3600 * SECOND,
    }


STARTS = list(starts(Stream()))
ENDS = ["the tip", *times(Stream())]


def read(
    stream: Stream, options: Mapping[str, str], *, is_pushed: bool = False
) -> dict[SplitId, list[Record]]:
    config = source_config_from_options(
        {"streamName": "s", "region": "eu-central-1", **options}, streaming=False
    )
    enumerator = new_enumerator(stream.log, ["s"], initial=initial_positions(config.start))
    ranges = enumerator.bounded(ending_instant(config.end))

    def open_publisher(split_range: SplitRange, position: Position) -> RecordPublisher:
        return MemoryPublisher(stream.log, split_range.split, position, event_size=3)

    publisher: OpenPublisher | None = open_publisher if is_pushed else None
    reader = new_reader(stream.log, publisher, may_poll=not is_pushed, page_limit=2)
    found: dict[SplitId, list[Record]] = {shard: [] for shard in stream.shards}
    found |= {each.split: read_range(reader, each) for each in ranges}
    enumerator.close()
    return found


def ending(stream: Stream, name: str) -> tuple[dict[str, str], Oracle]:
    if name == "the tip":
        return {}, everything_before
    instant = times(stream)[name]
    return {"endingPosition": "AT_TIMESTAMP", "endingTimestamp": iso_instant(instant)}, from_time(instant)


def starting(stream: Stream, name: str) -> tuple[dict[str, str], Oracle]:
    if name not in times(stream):
        return {"startingPosition": name}, everything_before if name == "LATEST" else nothing_before
    instant = times(stream)[name]
    given = {"startingPosition": "AT_TIMESTAMP", "startingTimestamp": iso_instant(instant)}
    return given, from_time(instant)


def is_refused(stream: Stream, start: str, end: str) -> bool:
    known = times(stream)
    return start in known and end in known and known[end] < known[start]


def between(records: Sequence[Record], begin: Oracle, end: Oracle) -> list[Record]:
    return list(records[begin(records) : end(records)])


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("is_pushed", [False, True], ids=["polled", "pushed"])
def test_each_shard_gives_what_is_between_its_start_and_the_end(start: str, *, is_pushed: bool) -> None:
    """Nothing where the end is before the start, and where the shard is left out."""
    for end in ENDS:
        stream = Stream()
        named, begin = starts(stream)[start]
        options, until = ending(stream, end)
        options["startingPosition"] = json.dumps({shard.shard: at for shard, at in named.items()})

        found = read(stream, options, is_pushed=is_pushed)

        for shard in stream.shards:
            first: Oracle = begin if shard in named else nothing_before
            assert found[shard] == between(stream.log.records(shard), first, until), (shard, end)


@pytest.mark.parametrize("start", ["LATEST", "TRIM_HORIZON", *times(Stream())])
def test_a_stream_gives_what_is_between_its_start_and_the_end(start: str) -> None:
    """A time that is before the other one is refused by the names of both options."""
    for end in ENDS:
        stream = Stream()
        given, begin = starting(stream, start)
        options, until = ending(stream, end)
        if is_refused(stream, start, end):
            with pytest.raises(OptionError, match=r"'endingTimestamp' is .*it is before 'startingTimestamp'"):
                read(stream, options | given)
            continue

        found = read(stream, options | given)

        for shard in stream.shards:
            assert found[shard] == between(stream.log.records(shard), begin, until), (shard, end)


@pytest.mark.parametrize("hidden", ["open", "closed", "full", "childless"])
def test_a_shard_that_the_first_listing_lacks_keeps_its_start_and_end(
    hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others show that it is missing."""
    stream = Stream()
    every = stream.log.list_splits("s")
    shown = [split for split in every if split.id != getattr(stream, hidden)]
    listings: list[Sequence[Split]] = [shown, shown]
    monkeypatch.setattr(stream.log, "list_splits", lambda _stream: listings.pop() if listings else every)
    behind = {"AT_TIMESTAMP": iso_instant(stream.times[2])}
    named: dict[str, Any] = {stream.open.shard: behind, stream.closed.shard: {"SHARD_END": True}}
    options, _ = ending(stream, "of the second")

    found = read(stream, {**options, "startingPosition": json.dumps(named)})

    assert not any(found.values())


@pytest.mark.parametrize("start", ["LATEST", "EARLIEST", *times(Stream())])
def test_a_custom_log_gives_what_is_between_its_start_and_the_end(start: str) -> None:
    """As a stream of Kinesis."""
    for end in ENDS:
        stream = Stream()
        given, begin = starting(stream, start)
        options, until = ending(stream, end)
        options = {key: text for key, text in options.items() if key != "endingPosition"} | given
        if is_refused(stream, start, end):
            with pytest.raises(OptionError, match=r"'endingTimestamp' is .*it is before 'startingTimestamp'"):
                MemorySource.configured(options, streaming=False)
            continue

        with QueryRunner(MemorySource.of(stream.log), options) as query:
            found = sorted(row["number"] for row in query.read_all())

        records = map(stream.log.records, stream.shards)
        expected = [record.sequence_number for each in records for record in between(each, begin, until)]
        assert found == sorted(expected), end


class BusyLog(MemoryLog):
    """A record comes before every answer, a tenth of a second after the last one."""

    is_busy = False

    def get_records(self, split: SplitId, iterator: str, limit: int) -> Page:
        if self.is_busy:
            self.pass_time(0.1)
            put_to(self, split, 1)
        return super().get_records(split, iterator, limit)


@pytest.mark.parametrize("tenths", range(-3, 8))
@pytest.mark.parametrize("count", [0, 1, 5, 3000])
def test_an_end_that_passes_while_the_read_is_planned_is_exact(tenths: int, count: int) -> None:
    """Records that arrive before it may come, those that arrive later may not."""
    log = BusyLog(page_size=1000)
    (shard,) = log.create("s")
    put_to(log, shard, count)
    log.pass_time(1.0)
    known = list(log.records(shard))
    end = log.now + tenths * SECOND // 10
    enumerator = new_enumerator(log, ["s"])
    log.is_busy = True

    ranges = enumerator.bounded(end)

    log.is_busy = False
    found = [record for each in ranges for record in read_range(new_reader(log), each)]
    assert found[: len(known)] == known
    assert all(record.arrival < end for record in found)
    enumerator.close()
