"""``sluice offsets import`` of what other consumers have left: see ``imports/README.md``.

Each recording has what the consumer read, and the first record of each shard that it read when it was started
again: the imported position must resume at that record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from cli_support import sluice

from sluice.kinesis.options.config import source_config_from_options

IMPORTS = Path(__file__).with_name("imports")
KCL = sorted(path.name for path in IMPORTS.glob("kcl-*"))
SHARDS = [f"shardId-{number:012}" for number in range(5)]

UserRecord = Sequence[Any]
"""Sequence number, sub-sequence number, data."""


def imported(kind: str, location: object, *arguments: object) -> Any:
    done = sluice("offsets", "import", kind, location, *arguments, "--offline", "--json")
    assert done.code == 0, done.errors
    return done.value


def by_shard(position: Mapping[str, Any], streams: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """``<stream>/<shard>`` to its place, of either form of the option. The option takes it."""
    text = json.dumps(position)
    source_config_from_options({"streamName": ",".join(streams), "startingPosition": text})
    by_stream = position if len(streams) > 1 else {streams[0]: position}
    return {f"{stream}/{shard}": place for stream, it in by_stream.items() for shard, place in it.items()}


def first_unread(records: Sequence[UserRecord], place: Mapping[str, Any]) -> UserRecord | None:
    """The first user record behind a place."""
    if "TRIM_HORIZON" in place:
        return next(iter(records), None)
    if "SHARD_END" in place:
        return None
    number = int(place["AFTER_SEQUENCE_NUMBER"])
    behind = (number, place.get("SUB_SEQUENCE_NUMBER", 10**9))
    return next((each for each in records if (int(each[0]), each[1]) > behind), None)


def check_goes_on(places: Mapping[str, Mapping[str, Any]], read: Mapping[str, Any]) -> None:
    """Each shard resumes at the record at which the consumer itself resumed."""
    for shard, record in read["resumed"].items():
        assert first_unread(read["records"][shard], places[shard]) == record, shard


# --- KCL -----------------------------------------------------------------------------------------------


def test_each_version_of_the_kcl_has_a_recording() -> None:
    assert {name.removeprefix("kcl-").split(".")[0] for name in KCL} == {"2", "3"}


@pytest.mark.parametrize("name", KCL)
def test_the_leases_of_one_stream(name: str) -> None:
    """A plain record, a user record inside an aggregated one, a shard that was split, and its children."""
    recording = IMPORTS / name / "one-stream.json"
    read = json.loads(recording.with_suffix(".read.json").read_text())

    value = imported("kcl", f"@{recording}", "--stream", "clicks")

    places = by_shard(value["startingPosition"], ["clicks"])
    records = read["records"]
    checkpoints = [
        next(each for each in records[f"clicks/{shard}"] if each[2].startswith("checkpoint"))
        for shard in SHARDS[:2]
    ]
    assert places == {
        **{
            f"clicks/{shard}": {"AFTER_SEQUENCE_NUMBER": number, "SUB_SEQUENCE_NUMBER": sub}
            for shard, (number, sub, _) in zip(SHARDS, checkpoints, strict=False)
        },
        f"clicks/{SHARDS[2]}": {"SHARD_END": True},
        f"clicks/{SHARDS[3]}": {"TRIM_HORIZON": True},
        f"clicks/{SHARDS[4]}": {"TRIM_HORIZON": True},
    }
    assert [sub for _, sub, _ in checkpoints] == [0, 1]
    assert {f"clicks/{shard}" for shard in SHARDS[:2]} <= read["resumed"].keys()
    check_goes_on(places, read)


@pytest.mark.parametrize("name", KCL)
def test_the_leases_of_several_streams(name: str) -> None:
    """Both, and one of them alone."""
    recording = IMPORTS / name / "several-streams.json"
    read = json.loads(recording.with_suffix(".read.json").read_text())

    both = imported("kcl", f"@{recording}")
    one = imported("kcl", f"@{recording}", "--stream", "orders")

    assert both["streams"] == ["clicks", "orders"]
    places = by_shard(both["startingPosition"], ["clicks", "orders"])
    assert places.keys() == {f"{stream}/{shard}" for stream in ("clicks", "orders") for shard in SHARDS}
    assert one["startingPosition"] == both["startingPosition"]["orders"]
    assert read["resumed"]
    check_goes_on(places, read)


@pytest.mark.parametrize("name", KCL)
def test_the_leases_of_an_application_that_has_read_nothing(name: str) -> None:
    """It was started at LATEST, so the shard that was split before has no lease."""
    value = imported("kcl", f"@{IMPORTS / name / 'latest.json'}", "--stream", "clicks")

    assert set(by_shard(value["startingPosition"], ["clicks"])) == {
        f"clicks/{shard}" for shard in SHARDS if shard != SHARDS[2]
    }
    assert value["notes"] == [
        f"clicks/{shard}: not begun, the consumer says LATEST" for shard in SHARDS if shard != SHARDS[2]
    ]


# --- awslabs' connector --------------------------------------------------------------------------------

AWSLABS = IMPORTS / "spark-sql-kinesis-connector"


def awslabs(name: str) -> tuple[Any, dict[str, Mapping[str, Any]]]:
    """What is imported of one checkpoint, and its places."""
    value = imported("awslabs", AWSLABS / name)
    return value, by_shard(value["startingPosition"], value["streams"])


@pytest.mark.parametrize("name", ["inside-aggregate", "shard-end"])
def test_a_checkpoint_of_awslabs_resumes_like_the_connector(name: str) -> None:
    """After a batch that was committed, and before one that was not; no record is left out or duplicated."""
    read = json.loads((AWSLABS / "read.json").read_text())

    value, places = awslabs(name)

    assert value["streams"] == ["clicks"]
    assert {f"clicks/{shard}" for shard in SHARDS[:2]} <= read["resumed"][name].keys()
    check_goes_on(places, {"records": read["records"], "resumed": read["resumed"][name]})


def test_a_place_inside_an_aggregated_record_of_awslabs() -> None:
    value, places = awslabs("inside-aggregate")

    assert value["notes"] == ["batch 1 was not committed: it is read again"]
    assert places[f"clicks/{SHARDS[1]}"].keys() == {"AFTER_SEQUENCE_NUMBER", "SUB_SEQUENCE_NUMBER"}
    assert places[f"clicks/{SHARDS[0]}"].keys() == {"AFTER_SEQUENCE_NUMBER"}


def test_a_shard_that_awslabs_has_read_to_its_end() -> None:
    """The batch's own file says so; the next offset has its children in its place."""
    assert awslabs("shard-end")[1][f"clicks/{SHARDS[2]}"] == {"SHARD_END": True}

    places = awslabs("children")[1]
    assert places.keys() == {f"clicks/{shard}" for shard in SHARDS if shard != SHARDS[2]}
    assert all(places[f"clicks/{shard}"] == {"TRIM_HORIZON": True} for shard in SHARDS[3:])
    records = json.loads((AWSLABS / "read.json").read_text())["records"]
    assert all(
        first_unread(records[f"clicks/{shard}"], places[f"clicks/{shard}"]) is None for shard in SHARDS[:2]
    )


def test_a_batch_of_awslabs_in_flight_is_read_again() -> None:
    value, places = awslabs("in-flight")

    assert value["notes"] == ["batch 3 was not committed: it is read again"]
    assert places == awslabs("children")[1]


def test_shards_in_which_awslabs_has_found_nothing_since_it_was_started() -> None:
    """At LATEST: the batch ends at that word, and began at the time of the start."""
    value, places = awslabs("latest")

    assert places == {f"orders/{SHARDS[0]}": {"AT_TIMESTAMP": "2026-11-22T22:06:17.669000Z"}}
    assert value["notes"] == []
