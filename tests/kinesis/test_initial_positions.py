"""Starting positions as users write them, as positions of shards."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sluice.errors import OptionError
from sluice.kinesis.options.config import source_config_from_options
from sluice.kinesis.options.starting_positions import initial_positions, starting_text
from sluice.source.model.offsets import HORIZON, After, AtHorizon, AtTime, Closed, Position, before
from sluice.source.model.splits import Split, SplitId

NOW = 1_700_000_000_750_000
SPLITS = [Split(SplitId("s", f"shardId-{n}")) for n in range(3)]


def positions(position: str | None = None, timestamp: str | None = None) -> list[Position]:
    options = {"streamName": "s", "region": "eu-west-1"}
    options |= {} if position is None else {"startingPosition": position}
    options |= {} if timestamp is None else {"startingTimestamp": timestamp}
    by_split = initial_positions(source_config_from_options(options).start)(SPLITS, NOW)
    return [by_split[split.id] for split in SPLITS]


def test_latest_is_the_default_and_starts_at_a_whole_second() -> None:
    """LATEST does not miss a record whose arrival time a service has cut to seconds."""
    assert positions() == [AtTime(1_700_000_000_000_000)] * 3


def test_horizon_and_time() -> None:
    """One position for all shards; a time in the future becomes now."""
    assert positions("trim_horizon") == [HORIZON] * 3
    assert positions("AT_TIMESTAMP", "1600000000.25") == [AtTime(1_600_000_000_250_000)] * 3
    assert positions("AT_TIMESTAMP", "2100-01-01T00:00:00Z") == [AtTime(NOW)] * 3


@pytest.mark.parametrize("micros", [1, 500, 999, 1000])
def test_a_time_between_two_milliseconds_is_the_later_one(micros: int) -> None:
    """Arrival times are whole milliseconds, and services cut the start to them."""
    second = 1_600_000_000
    text = f"{second}.{micros:06d}"
    assert positions("AT_TIMESTAMP", text) == [AtTime(second * 1_000_000 + 1000)] * 3
    by_shard = json.dumps({"shardId-0": {"AT_TIMESTAMP": text}})
    assert positions(by_shard)[0] == AtTime(second * 1_000_000 + 1000)


def test_numbers_by_shard() -> None:
    """AT includes the record, AFTER does not, and every record is after 0."""
    text = '{"shardId-0": {"AT_SEQUENCE_NUMBER": "500"}, "shardId-1": {"AFTER_SEQUENCE_NUMBER": "500"}}'
    at, after, unlisted = positions(text)
    assert (at, after, unlisted) == (After("499"), After("500"), HORIZON)
    assert isinstance(at, After)
    assert at.next == "500"
    assert positions('{"shardId-2": {"AFTER_SEQUENCE_NUMBER": "0"}}')[2] == HORIZON


@pytest.mark.parametrize(
    ("kind", "number", "expected"),
    [
        ("AT", "1", HORIZON),
        ("AT", "099", HORIZON),
        ("AT", "100", HORIZON),
        ("AFTER", "100", HORIZON),
        ("AT", "101", After("100")),
        ("AFTER", "101", After("101")),
        ("AT", "199", After("198")),
        ("AFTER", "199", After("199")),
        ("AT", "200", Closed()),
        ("AFTER", "200", Closed()),
        ("AFTER", "9" * 128, Closed()),
    ],
)
def test_numbers_of_the_start_and_the_end_of_a_shard(kind: str, number: str, expected: Position) -> None:
    """As a listing shows them. They belong to no record, so none can be missing."""
    shard = SplitId("s", "shardId-0")
    text = json.dumps({shard.shard: {f"{kind}_SEQUENCE_NUMBER": number}})
    options = {"streamName": "s", "region": "eu-west-1", "startingPosition": text}
    initial = initial_positions(source_config_from_options(options).start)
    closed = Split(shard, starting_sequence="100", ending_sequence="200")
    position = initial([closed], NOW)[shard]
    assert position == expected
    assert not isinstance(position, AtHorizon) or position.pinned == NOW

    is_beyond = expected == Closed()  # the open shard may still get there
    expected = (After(number) if kind == "AFTER" else before(number)) if is_beyond else expected
    assert initial([replace(closed, ending_sequence=None)], NOW)[shard] == expected


def test_shard_that_does_not_exist() -> None:
    """The error names the shard, and those that exist."""
    with pytest.raises(OptionError, match=r"'shardId-9'.*its shards are shardId-0, shardId-1, shardId-2"):
        positions('{"shardId-9": {"AT_SEQUENCE_NUMBER": "5"}}')


def test_other_places_by_shard() -> None:
    """A place inside an aggregated record, the end of a shard, a time, and the horizon by name."""
    text = (
        '{"shardId-0": {"AFTER_SEQUENCE_NUMBER": "500", "SUB_SEQUENCE_NUMBER": 0},'
        ' "shardId-1": {"SHARD_END": true}, "shardId-2": {"AT_TIMESTAMP": "2020-09-13T12:26:40Z"}}'
    )
    assert positions(text) == [After("500", 0), Closed(), AtTime(1_600_000_000_000_000)]
    assert positions('{"shardId-0": {"TRIM_HORIZON": true}}')[0] == HORIZON
    assert positions('{"shardId-0": {"AT_TIMESTAMP": "2023-11-15T12:00:00Z"}}')[0] == AtTime(
        NOW
    )  # not in the future


def test_other_places_tell_starts_apart() -> None:
    """The text in the offset log changes with each of them, and with their stream."""
    starts = [
        '{"AFTER_SEQUENCE_NUMBER": "5"}',
        '{"AFTER_SEQUENCE_NUMBER": "5", "SUB_SEQUENCE_NUMBER": 1}',
        '{"AFTER_SEQUENCE_NUMBER": "5", "SUB_SEQUENCE_NUMBER": 2}',
        '{"SHARD_END": true}',
        '{"TRIM_HORIZON": true}',
        '{"AT_TIMESTAMP": "2020-09-13"}',
    ]
    options = [{"streamName": "s", "startingPosition": f'{{"shardId-0": {each}}}'} for each in starts]
    assert len({starting_text(source_config_from_options(each).start) for each in options}) == len(starts)


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        ('{"SHARD_END": "yes"}', "as SHARD_END of shard 'shardId-0': expected true"),
        ('{"AT_TIMESTAMP": "20200913"}', "as AT_TIMESTAMP of shard 'shardId-0': allowed is"),
        ('{"AT_TIMESTAMP": 1600000000}', "as AT_TIMESTAMP of shard 'shardId-0': allowed is"),
        ('{"AT_SEQUENCE_NUMBER": "5", "SUB_SEQUENCE_NUMBER": 1}', "with AFTER_SEQUENCE_NUMBER"),
        ('{"AFTER_SEQUENCE_NUMBER": "5", "SUB_SEQUENCE_NUMBER": -1}', "expected a whole number from 0"),
        ('{"AFTER_SEQUENCE_NUMBER": "5", "SUB_SEQUENCE_NUMBER": true}', "expected a whole number from 0"),
        ('{"SUB_SEQUENCE_NUMBER": 1}', "expected one of"),
    ],
)
def test_other_places_that_make_no_sense(start: str, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        positions(f'{{"shardId-0": {start}}}')
