"""Starting positions as users write them, as positions of shards."""

from __future__ import annotations

import pytest

from sluice.errors import OptionError
from sluice.kinesis.options import source_config_from_options
from sluice.kinesis.starting_positions import initial_positions
from sluice.source.offsets import HORIZON, After, AtTime, Position
from sluice.source.splits import Split, SplitId

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


def test_numbers_by_shard() -> None:
    """AT includes the record, AFTER does not, and every record is after 0."""
    text = '{"shardId-0": {"AT_SEQUENCE_NUMBER": "500"}, "shardId-1": {"AFTER_SEQUENCE_NUMBER": "500"}}'
    at, after, unlisted = positions(text)
    assert (at, after, unlisted) == (After("499"), After("500"), HORIZON)
    assert isinstance(at, After)
    assert at.next == "500"
    assert positions('{"shardId-2": {"AFTER_SEQUENCE_NUMBER": "0"}}')[2] == HORIZON


def test_shard_that_does_not_exist() -> None:
    """The error names the shard, and those that exist."""
    with pytest.raises(OptionError, match=r"'shardId-9'.*its shards are shardId-0, shardId-1, shardId-2"):
        positions('{"shardId-9": {"AT_SEQUENCE_NUMBER": "5"}}')
