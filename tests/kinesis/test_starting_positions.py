"""Starting and ending positions as users write them."""

from __future__ import annotations

import json
import pickle
import time
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.errors import OptionError
from sluice.kinesis.options.config import source_config_from_options
from sluice.kinesis.options.starting_positions import (
    LATEST,
    TRIM_HORIZON,
    AtTimestamp,
    EndingPosition,
    PerShard,
    StartingPosition,
)
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.splits import SplitId
from sluice.source.settings import TIMESTAMP

NOON = 1_767_268_800_000_000  # 2026-01-01T12:00:00Z
DIGITS = "49590338271490256608559692538361571095921575989136588898"


def start(position: str, *, streams: str = "orders", **more: str) -> StartingPosition:
    return source_config_from_options({"streamName": streams, "startingPosition": position, **more}).start


def end(position: str, **more: str) -> EndingPosition:
    return source_config_from_options({"streamName": "orders", "endingPosition": position, **more}).end


@pytest.mark.parametrize("text", ["2026-01-01T13:30:00.25+01:30", "1767268800.25"])
def test_a_time_is_iso_or_seconds(text: str) -> None:
    """Both forms; `test_instants` has all ways to write them."""
    assert TIMESTAMP.parse(text) == NOON + 250_000


@pytest.mark.parametrize("text", ["", "noon", "1767268800000", "-5"])
def test_another_time_is_refused(text: str) -> None:
    """One error, under the option's name."""
    with pytest.raises(OptionError, match="option 'startingTimestamp' is") as refused:
        start("AT_TIMESTAMP", startingTimestamp=text)
    assert "required" not in str(refused.value), "it was given"


DAY = 86_400
NUMBERS = st.integers(0, 10**15).map(str) | st.decimals(0, 10**11, places=3).map(str)


@given(
    NUMBERS
    | st.integers(10**9 - 5, 10**9 + 5).map(str)
    | st.integers(-DAY, 3 * DAY).map(lambda n: str(n + int(time.time())))
)
@example("0")
@example("2026")
@example("202601")
@example("20260131")
@example("20260131120000")
@example("1767268800000")
def test_a_number_that_cannot_be_meant_is_refused(text: str) -> None:
    """Seconds from before Kinesis, or from the future, are a date without dashes or another unit."""
    seconds, latest = Decimal(text), int(time.time()) + DAY
    if latest < seconds <= latest + 60:
        return  # allowed by now, maybe
    for key, read in (("startingTimestamp", start), ("endingTimestamp", end)):
        if 10**9 <= seconds <= latest:
            assert read("AT_TIMESTAMP", **{key: text}) == AtTimestamp(int(seconds * 1_000_000))
            continue
        with pytest.raises(OptionError, match=f"option '{key}' is '{text}': ") as refused:
            read("AT_TIMESTAMP", **{key: text})
        assert "seconds since the epoch, from 1000000000 (2001-09-09) to a day from now" in str(refused.value)


def test_words_in_any_case() -> None:
    """LATEST is the default; TRIM_HORIZON and AT_TIMESTAMP are known in any case."""
    assert source_config_from_options({"streamName": "orders"}).start == LATEST
    assert start("latest") == LATEST
    assert start("Trim_Horizon") == TRIM_HORIZON
    assert start("at_timestamp", startingTimestamp="1767268800") == AtTimestamp(NOON)


def test_sequence_numbers_by_shard() -> None:
    """The JSON form becomes an iterator start for each shard of the only stream."""
    text = json.dumps(
        {"shardId-0": {"AT_SEQUENCE_NUMBER": DIGITS}, "shardId-1": {"after_sequence_number": "0"}}
    )
    expected = PerShard(
        {
            SplitId("orders", "shardId-0"): IteratorStart("AT_SEQUENCE_NUMBER", DIGITS),
            SplitId("orders", "shardId-1"): IteratorStart("AFTER_SEQUENCE_NUMBER", "0"),
        }
    )
    assert start(text) == expected
    assert hash(pickle.loads(pickle.dumps(expected))) == hash(expected)


def test_sequence_numbers_keep_leading_zeros() -> None:
    """Emulators write them, and users copy the numbers from rows."""
    assert start(json.dumps({"shardId-0": {"AT_SEQUENCE_NUMBER": "00012"}})) == PerShard(
        {SplitId("orders", "shardId-0"): IteratorStart("AT_SEQUENCE_NUMBER", "00012")}
    )


def test_sequence_numbers_by_stream_and_shard() -> None:
    """With several streams the shards are listed by stream; a single stream may be named, too."""
    text = json.dumps({"b": {"shardId-0": {"AT_SEQUENCE_NUMBER": "7"}}})
    expected = PerShard({SplitId("b", "shardId-0"): IteratorStart("AT_SEQUENCE_NUMBER", "7")})
    assert start(text, streams="a,b") == expected
    assert start(text, streams="b") == expected


@pytest.mark.parametrize("depth", [100, 900, 985, 1000, 100_000])
@pytest.mark.parametrize("form", ['{"a": %s}', '{"a": {"s": %s}}', '{"a": {"AT_SEQUENCE_NUMBER": %s}}'])
def test_a_position_may_be_nested_however_deeply(depth: int, form: str) -> None:
    """It is no position, and not shown in full."""
    with pytest.raises(OptionError, match=r"option 'startingPosition' (is not JSON|has )") as refused:
        start(form % ("[" * depth + "]" * depth))
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize(
    ("position", "streams", "message"),
    [
        ("LATST", "a", "is 'LATST': allowed is LATEST, TRIM_HORIZON, AT_TIMESTAMP, or JSON"),
        ("", "a", "is '': allowed is LATEST"),
        ("[1]", "a", "allowed is LATEST"),
        ('{"shardId-0": ', "a", "is not JSON"),
        ("{}", "a", "lists no shard"),
        (
            '{"s": {"AT_SEQUENCE_NUMBER": 7}}',
            "a",
            "has '7' as sequence number of shard 's': .* string of digits",
        ),
        ('{"s": {"AT_SEQUENCE_NUMBER": "7.0"}}', "a", "has '7.0' as sequence number of shard 's'"),
        ('{"s": {"AT_SEQUENCE_NUMBER": "\u0667"}}', "a", "as sequence number of shard 's'"),
        ('{"s": {"AT_SEQUENCE_NUMBER": "-7"}}', "a", "as sequence number of shard 's'"),
        (
            '{"s": {"AT_SEQUENCE_NUMBER": "7", "AFTER_SEQUENCE_NUMBER": "8"}}',
            "a",
            "for shard 's': expected one of",
        ),
        ('{"s": "7"}', "a", "for 's': expected"),
        ('{"s": {}}', "a", "for 's': expected"),
        ('{"s": {"SEQUENCE": "7"}}', "a", "has 'SEQUENCE' for shard 's': expected AT_SEQUENCE_NUMBER or"),
        ('{"a": {"s": {"FROM": "7"}}}', "a", "has 'FROM' for shard 's'"),
        ('{"s": {"AT_SEQUENCE_NUMBER": "7"}, "a": {"t": {"AT_SEQUENCE_NUMBER": "7"}}}', "a", "the same way"),
        (
            '{"s": {"AT_SEQUENCE_NUMBER": "7"}, "s": {"AT_SEQUENCE_NUMBER": "8"}}',
            "a",
            "has 's' more than once",
        ),
        ('{"s": {"AT_SEQUENCE_NUMBER": "7"}}', "a,b", "lists shards without their stream"),
        ('{"c": {"s": {"AT_SEQUENCE_NUMBER": "7"}}}', "a,b", "names stream 'c', which is not read: .* a, b"),
    ],
)
def test_a_bad_position_is_explained(position: str, streams: str, message: str) -> None:
    """Each error names the option, the place and what belongs there."""
    with pytest.raises(OptionError, match="option 'startingPosition' .*" + message):
        start(position, streams=streams)


def test_a_time_needs_its_position_and_the_reverse() -> None:
    """startingTimestamp and AT_TIMESTAMP come together or not at all."""
    with pytest.raises(
        OptionError, match="'startingTimestamp' is required with 'startingPosition' AT_TIMESTAMP"
    ):
        start("AT_TIMESTAMP")
    with pytest.raises(OptionError, match="'startingTimestamp' needs 'startingPosition' AT_TIMESTAMP"):
        start("LATEST", startingTimestamp="2026-01-01")
    with pytest.raises(OptionError, match="'endingTimestamp' is required with 'endingPosition' AT_TIMESTAMP"):
        end("AT_TIMESTAMP")
    with pytest.raises(OptionError, match="'endingTimestamp' needs 'endingPosition' AT_TIMESTAMP"):
        end("LATEST", endingTimestamp="2026-01-01")


def test_the_end_of_a_batch_read() -> None:
    """LATEST by default, or a time that is not before the start."""
    assert end("latest") == LATEST
    assert end("AT_TIMESTAMP", endingTimestamp="2026-01-01T12:00:00Z") == AtTimestamp(NOON)
    same = {
        "startingPosition": "AT_TIMESTAMP",
        "startingTimestamp": "1000000009",
        "endingTimestamp": "1000000009",
    }
    assert end("AT_TIMESTAMP", **same) == AtTimestamp(1_000_000_009_000_000)
    with pytest.raises(
        OptionError, match="'endingTimestamp' is '1000000008': it is before 'startingTimestamp'"
    ):
        end("AT_TIMESTAMP", **{**same, "endingTimestamp": "1000000008"})
    with pytest.raises(OptionError, match="option 'endingPosition' is 'TRIM_HORIZON'"):
        end("TRIM_HORIZON")


def test_a_stream_has_no_end() -> None:
    """A streaming read refuses the options of the end instead of ignoring them."""
    options = {"streamName": "a", "endingPosition": "AT_TIMESTAMP", "endingTimestamp": "1000000009"}
    with pytest.raises(OptionError, match="'endingPosition' is for batch reads only") as refused:
        source_config_from_options(options, streaming=True)
    assert "'endingTimestamp' is for batch" in str(refused.value)
