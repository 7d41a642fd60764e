"""``sluice offsets import``, on samples that were made from the sources of the other consumers.

They have what recordings (`test_recorded_imports.py`) do not. Those of the KCL follow
``LeaseSerializer.toDynamoRecord`` of each version and the items of a scan as the CLI of AWS prints them,
those of the connectors of awslabs and Qubole ``SourceOffset.json`` and ``HDFSMetadataCommitter.add``.
Databricks publishes no source: its sample is the offset in the documented example of a progress event, which
Spark prints as it is logged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_support import (
    ACCOUNT,
    OTHER_ACCOUNT,
    OTHER_REGION,
    REGION,
    OtherServices,
    Service,
    option_arguments,
    sluice,
    write_checkpoint,
)

from sluice.kinesis.options.config import source_config_from_options

NUMBER = "49652022592149344892294981243290091537542733559041622018"
OTHER = "49652022592171645637493511866434045107454611178897014802"
SHARDS = [f"shardId-{n:012}" for n in range(6)]


def lease(shard: str, checkpoint: str, sub: int | None = 0, **more: Any) -> dict[str, Any]:
    """An item of a lease table, as KCL 1 wrote it; `more` is what later versions added."""
    item = {
        "leaseKey": {"S": shard},
        "leaseCounter": {"N": "1742"},
        "leaseOwner": {"S": "a1b2c3d4-worker"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": checkpoint},
        "parentShardId": {"SS": ["shardId-000000000099"]},
    }
    if sub is not None:
        item["checkpointSubSequenceNumber"] = {"N": str(sub)}
    return {**item, **more}


KCL_2: dict[str, Any] = {
    "childShardIds": {"SS": [SHARDS[4]]},
    "startingHashKey": {"S": "0"},
    "endingHashKey": {"S": "170141183460469231731687303715884105727"},
    "pendingCheckpoint": {"S": OTHER},
    "pendingCheckpointSubSequenceNumber": {"N": "3"},
}
KCL_3 = {**KCL_2, "throughputKBps": {"N": "12.5"}, "checkpointOwner": {"S": "b2"}}
SINGLE_TABLE = {**KCL_3, "entityType": {"S": "LEASE"}}


def multi_stream(stream: str, shard: str, checkpoint: str) -> dict[str, Any]:
    identifier = f"{ACCOUNT}:{stream}:1700000000"
    return lease(
        f"{identifier}:{shard}", checkpoint, streamName={"S": identifier}, shardId={"S": shard}, **KCL_2
    )


def scan(directory: Path, *items: dict[str, Any]) -> str:
    file = directory / "scan.json"
    file.write_text(json.dumps({"Items": items, "Count": len(items), "ConsumedCapacity": None}))
    return f"@{file}"


def imported(*arguments: object) -> Any:
    done = sluice("offsets", "import", *arguments, "--offline", "--json")
    assert done.code == 0, done.errors
    return done.value


# --- KCL -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, KCL_2, KCL_3, SINGLE_TABLE], ids=["1", "2", "3", "single table"])
def test_leases_of_each_version(tmp_path: Path, more: dict[str, Any]) -> None:
    """Records, user records inside aggregated ones, the end of a shard and its start; pending ones are not
    processed.
    """
    file = scan(
        tmp_path,
        lease(SHARDS[0], NUMBER, **more),
        lease(SHARDS[1], OTHER, 7, **more),
        lease(SHARDS[2], "SHARD_END", **more),
        lease(SHARDS[3], "TRIM_HORIZON", **more),
        lease(SHARDS[4], OTHER, None, **more),  # the KCL takes it for 0
    )

    position = imported("kcl", file, "--stream", "clicks")["startingPosition"]

    assert position == {
        SHARDS[0]: {"AFTER_SEQUENCE_NUMBER": NUMBER, "SUB_SEQUENCE_NUMBER": 0},
        SHARDS[1]: {"AFTER_SEQUENCE_NUMBER": OTHER, "SUB_SEQUENCE_NUMBER": 7},
        SHARDS[2]: {"SHARD_END": True},
        SHARDS[3]: {"TRIM_HORIZON": True},
        SHARDS[4]: {"AFTER_SEQUENCE_NUMBER": OTHER, "SUB_SEQUENCE_NUMBER": 0},
    }
    source_config_from_options({"streamName": "clicks", "startingPosition": json.dumps(position)})


@pytest.mark.parametrize("word", ["LATEST", "AT_TIMESTAMP"])
def test_leases_that_were_not_begun(tmp_path: Path, word: str) -> None:
    """From the oldest record on, unless the user says a time; either is noted."""
    file = scan(tmp_path, lease(SHARDS[0], word), lease(SHARDS[1], OTHER))

    oldest = imported("kcl", file, "--stream", "clicks")
    assert oldest["startingPosition"][SHARDS[0]] == {"TRIM_HORIZON": True}
    assert oldest["notes"] == [f"clicks/{SHARDS[0]}: not begun, the consumer says {word}"]

    timed = imported("kcl", file, "--stream", "clicks", "--unread", "2026-01-31T12:00:00Z")
    assert timed["startingPosition"][SHARDS[0]] == {"AT_TIMESTAMP": "2026-01-31T12:00:00Z"}


def test_other_items_of_a_single_table_are_left_out(tmp_path: Path) -> None:
    """Metrics of workers and the state of the coordinator (KCL 3.5)."""
    worker = {"leaseKey": {"S": "w1"}, "entityType": {"S": "WORKER_METRIC_STATS"}, "checkpoint": {"S": "x"}}
    state = {"leaseKey": {"S": "Migration3.0"}, "entityType": {"S": "COORDINATOR_STATE"}, "cs": {"S": "y"}}
    file = scan(tmp_path, worker, state, lease(SHARDS[0], NUMBER, **SINGLE_TABLE))

    assert set(imported("kcl", file, "--stream", "clicks")["startingPosition"]) == {SHARDS[0]}


def test_a_table_is_scanned_page_by_page() -> None:
    service = Service()
    pages: Iterator[Any] = iter(
        [
            {"Items": [lease(SHARDS[0], NUMBER)], "LastEvaluatedKey": {"leaseKey": {"S": SHARDS[0]}}},
            {"Items": [lease(SHARDS[1], "SHARD_END")]},
        ]
    )
    OtherServices(service, {"dynamodb:Scan": lambda _request: next(pages)})

    arguments = ("kcl", "my-application", "--stream", "clicks", *option_arguments())

    assert set(imported(*arguments)["startingPosition"]) == {SHARDS[0], SHARDS[1]}


def test_what_is_no_lease_table(tmp_path: Path) -> None:
    """Each has its sentence."""
    (tmp_path / "list.json").write_text("[]")
    for location, problem, code in (
        (f"@{tmp_path}/none.json", "expected what 'aws dynamodb scan' prints", 2),
        (f"@{tmp_path}/list.json", "expected what 'aws dynamodb scan' prints", 2),
        (scan(tmp_path), "the table has no lease", 3),
    ):
        done = sluice("offsets", "import", "kcl", location, "--offline")
        assert (done.code, problem in done.errors) == (code, True)
    done = sluice("offsets", "import", "kcl", scan(tmp_path, lease(SHARDS[0], NUMBER)), "--offline")
    assert (done.code, "give --stream" in done.errors) == (2, True)
    bad = scan(tmp_path, lease(SHARDS[0], "EARLIEST"))
    done = sluice("offsets", "import", "kcl", bad, "--stream", "clicks", "--offline")
    assert "'EARLIEST' is neither a sequence number nor a word of the KCL" in done.errors


# --- shards that there are -----------------------------------------------------------------------------


def test_shards_are_those_that_the_stream_has(tmp_path: Path) -> None:
    """Expired ones are left out. One without a lease is finished if its children are known, as the KCL
    deletes such leases; a younger one is left to start at its first record.
    """
    service = Service()
    parent, other = service.create("clicks", 2)
    middle = str(2**126)
    service.model.call(
        "SplitShard", {"StreamName": "clicks", "ShardToSplit": parent, "NewStartingHashKey": middle}
    )
    service.clock.advance(60)
    child, young = sorted(set(service.shards("clicks")) - {parent, other})
    number = service.put("clicks")[child]
    file = scan(tmp_path, lease(child, number), lease("shardId-000000000099", "SHARD_END"))

    done = sluice("offsets", "import", "kcl", file, "--stream", "clicks", "--json", *option_arguments()).value

    assert done["startingPosition"] == {
        parent: {"SHARD_END": True},
        child: {"AFTER_SEQUENCE_NUMBER": number, "SUB_SEQUENCE_NUMBER": 0},
    }
    assert "clicks/shardId-000000000099: has expired, left out" in done["notes"]
    assert young not in done["startingPosition"]


def identified(service: Service, shard: str, number: str, epoch: int | None = None) -> dict[str, Any]:
    """A lease of an application with several streams, which names account and time of creation."""
    created = service.model.call("DescribeStreamSummary", {"StreamName": "clicks"})[
        "StreamDescriptionSummary"
    ]["StreamCreationTimestamp"]
    identifier = f"{service.account}:clicks:{int(created) if epoch is None else epoch}"
    return lease(f"{identifier}:{shard}", number, streamName={"S": identifier}, shardId={"S": shard})


@pytest.mark.parametrize("place", ["region", "account"])
def test_a_namesake_elsewhere_is_not_asked_for_its_shards(tmp_path: Path, place: str) -> None:
    """All places would have expired, or be in other shards of the same ids."""
    service = Service()
    (shard,) = service.create("clicks")
    number = service.put("clicks")[shard]
    service.clock.advance(3600)
    elsewhere = service.elsewhere(*([OTHER_REGION] if place == "region" else [REGION, OTHER_ACCOUNT]))
    elsewhere.create("clicks", 2)
    elsewhere.put("clicks")
    output = tmp_path / "position.json"

    for items in ([lease(shard, number)], [lease(SHARDS[5], number)], [identified(service, shard, number)]):
        done = sluice(
            *("offsets", "import", "kcl", scan(tmp_path, *items), "--stream", "clicks", "--output", output),
            *option_arguments(**elsewhere.options),
        )
        assert done.code == 3
        assert f"{elsewhere.arn('clicks')} is not the stream that the consumer has read" in done.errors
        assert "give the ARN of the right stream with --stream" in done.errors
        assert not output.exists()
    arn = service.arn("clicks")
    single = scan(tmp_path, lease(shard, number))
    anywhere = [each for each in option_arguments() if "region" not in each]
    found = sluice("offsets", "import", "kcl", single, "--stream", arn, "--json", *anywhere).value
    assert (list(found["startingPosition"]), found["arns"]) == ([shard], {"clicks": arn})
    wrong = sluice("offsets", "import", "kcl", single, "--stream", elsewhere.arn("clicks"), *anywhere)
    assert wrong.code == 3


def test_leases_name_the_account_and_the_time_of_creation(tmp_path: Path) -> None:
    """Of two accounts the ARN chooses one. An application may have written any time: the ARN overrules it."""
    service = Service()
    (shard,) = service.create("clicks")
    number = service.put("clicks")[shard]
    other = service.elsewhere(account=OTHER_ACCOUNT)
    other.create("clicks")
    both = [identified(service, shard, number), identified(other, shard, "7")]

    def run(*items: dict[str, Any], stream: str) -> Any:
        file = scan(tmp_path, *items)
        return sluice("offsets", "import", "kcl", file, "--stream", stream, "--json", *option_arguments())

    assert "choose one by --stream ARN" in run(*both, stream="clicks").errors
    chosen = run(*both, stream=service.arn("clicks"))
    assert chosen.value["startingPosition"][shard]["AFTER_SEQUENCE_NUMBER"] == number
    at_some_time = identified(service, shard, number, epoch=1)
    assert "clicks:1, and it was created" in run(at_some_time, stream="clicks").errors
    assert run(at_some_time, stream=service.arn("clicks")).code == 0
    assert run(identified(other, shard, number), stream="clicks").code == 3
    assert (
        "the table has no lease" in run(identified(other, shard, number), stream=service.arn("clicks")).errors
    )


def test_the_position_goes_into_a_file(tmp_path: Path) -> None:
    """As the option and ``offsets reset --to-position @FILE`` take it."""
    file, output = scan(tmp_path, lease(SHARDS[0], NUMBER)), tmp_path / "position.json"

    value = imported("kcl", file, "--stream", "clicks", "--output", output)

    assert json.loads(output.read_text()) == value["startingPosition"]


# --- awslabs' connector --------------------------------------------------------------------------------


def position(kind: str, at: str = "", sub: int = -1, *, last: bool = True) -> dict[str, str]:
    """As in an offset: all values are text."""
    return {
        "iteratorType": kind,
        "iteratorPosition": at,
        "subSequenceNumber": str(sub),
        "isLast": str(last).lower(),
    }


def awslabs(directory: Path, *, is_committed: bool = True, ends: bool = True) -> Path:
    """A checkpoint: batch 3 of Spark is batch 2 of the connector, which leaves out empty ones."""
    starts = {SHARDS[n]: position("AFTER_SEQUENCE_NUMBER", "5") for n in range(6)}
    starts |= {SHARDS[4]: position("AT_TIMESTAMP", "1700000000250"), SHARDS[5]: position("LATEST")}
    # With a name, type and value each (json4s): numbers and booleans are ones here.
    found: dict[str, dict[str, Any]] = {
        SHARDS[0]: {**position("AFTER_SEQUENCE_NUMBER", NUMBER), "subSequenceNumber": -1, "isLast": True},
        SHARDS[1]: {**position("AFTER_SEQUENCE_NUMBER", OTHER), "subSequenceNumber": 3, "isLast": False},
        SHARDS[2]: {**position("AFTER_SEQUENCE_NUMBER", OTHER), "subSequenceNumber": 9, "isLast": True},
        SHARDS[3]: {**position("SHARD_END"), "subSequenceNumber": -1, "isLast": True},
    }
    for log in ("offsets", "commits"):
        (directory / log).mkdir(parents=True)
    for batch in (2, 3):
        value = {"metadata": {"streamName": "clicks", "batchId": str(batch - 1)}, **starts}
        (directory / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(value)}")
        if batch < 3 or is_committed:
            (directory / "commits" / str(batch)).write_text("v1\n{}")
    if ends:
        source = directory / "sources" / "0" / "shard-source" / "2"
        source.mkdir(parents=True)
        for shard, value in found.items():
            (source / shard).write_text(json.dumps({"shardId": shard, **value}))
            (source / f".{shard}.crc").write_bytes(b"crc")
    return directory


def test_a_committed_batch_of_awslabs_ends_where_its_tasks_say(tmp_path: Path) -> None:
    """Of a shard that no task has read, the start counts."""
    value = imported("awslabs", awslabs(tmp_path / "c"))

    assert value["startingPosition"] == {
        SHARDS[0]: {"AFTER_SEQUENCE_NUMBER": NUMBER},
        SHARDS[1]: {"AFTER_SEQUENCE_NUMBER": OTHER, "SUB_SEQUENCE_NUMBER": 3},
        SHARDS[2]: {"AFTER_SEQUENCE_NUMBER": OTHER},
        SHARDS[3]: {"SHARD_END": True},
        SHARDS[4]: {"AT_TIMESTAMP": "2023-11-14T22:13:20.250000Z"},
        SHARDS[5]: {"TRIM_HORIZON": True},
    }
    text = json.dumps(value["startingPosition"])
    source_config_from_options({"streamName": "clicks", "startingPosition": text})


def test_without_its_files_a_checkpoint_of_awslabs_does_not_say_where_a_batch_ended(tmp_path: Path) -> None:
    done = sluice("offsets", "import", "awslabs", awslabs(tmp_path / "c", ends=False), "--offline")

    assert done.code == 3
    assert "no files in sources/0/shard-source/2 or sources/0/shard-commit/2" in done.errors


def test_a_checkpoint_of_qubole(tmp_path: Path) -> None:
    """Its directory has another name, and its positions have two fields: they are behind whole records."""
    places = {
        SHARDS[0]: ("AFTER_SEQUENCE_NUMBER", NUMBER),
        SHARDS[1]: ("SHARD_END", ""),
        SHARDS[2]: ("LATEST", ""),
    }
    starts = {
        shard: {"iteratorType": "AFTER_SEQUENCE_NUMBER", "iteratorPosition": "5"}
        for shard in (*places, SHARDS[3])
    }
    starts[SHARDS[2]] = {"iteratorType": "LATEST", "iteratorPosition": ""}
    offset = {"metadata": {"streamName": "clicks", "batchId": "0"}, **starts}
    write_checkpoint(tmp_path, offset)
    ends = tmp_path / "sources" / "0" / "shard-commit" / "0"
    ends.mkdir(parents=True)
    for shard, (kind, position) in places.items():
        value = {"shardId": shard, "iteratorType": kind, "iteratorPosition": position}
        (ends / shard).write_text(json.dumps(value))

    assert imported("awslabs", tmp_path)["startingPosition"] == {
        SHARDS[0]: {"AFTER_SEQUENCE_NUMBER": NUMBER},
        SHARDS[1]: {"SHARD_END": True},
        SHARDS[2]: {"TRIM_HORIZON": True},
        SHARDS[3]: {"AFTER_SEQUENCE_NUMBER": "5"},
    }


# --- Databricks ----------------------------------------------------------------------------------------


def databricks(directory: Path, *, is_committed: bool = True) -> Path:
    """The documented offset, and a shard without a record."""
    for log in ("offsets", "commits"):
        (directory / log).mkdir(parents=True)
    for batch, numbers in ((0, ("7", "8")), (1, (NUMBER, OTHER))):
        value = [
            {
                "shard": {"stream": "clicks", "shardId": shard},
                "firstSeqNum": None if number is None else "1",
                "lastSeqNum": number,
                "closed": False,
                "msBehindLatest": "0",
                "lastRecordSeqNum": number,
            }
            for shard, number in zip(SHARDS, (*numbers, None), strict=False)
        ]
        (directory / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(value)}")
        if batch == 0 or is_committed:
            (directory / "commits" / str(batch)).write_text("v1\n{}")
    return directory


@pytest.mark.parametrize(("is_committed", "numbers"), [(True, (NUMBER, OTHER)), (False, ("7", "8"))])
def test_a_checkpoint_of_databricks(tmp_path: Path, *, is_committed: bool, numbers: tuple[str, str]) -> None:
    value = imported("databricks", databricks(tmp_path / "c", is_committed=is_committed))

    assert value["startingPosition"] == {
        SHARDS[0]: {"AFTER_SEQUENCE_NUMBER": numbers[0]},
        SHARDS[1]: {"AFTER_SEQUENCE_NUMBER": numbers[1]},
        SHARDS[2]: {"TRIM_HORIZON": True},
    }


@pytest.mark.parametrize("kind", ["awslabs", "databricks"])
def test_a_checkpoint_of_something_else_is_not_taken(tmp_path: Path, kind: str) -> None:
    """Also not that of the other one, nor a file whose positions are not known."""
    other = databricks(tmp_path / "d") if kind == "awslabs" else awslabs(tmp_path / "a")

    done = sluice("offsets", "import", kind, other, "--offline")

    assert done.code == 3
    assert "the checkpoint holds no offsets of " in done.errors


@pytest.mark.parametrize("kind", ["awslabs", "databricks"])
def test_one_stream_of_a_checkpoint(tmp_path: Path, kind: str) -> None:
    """A stream that is not in it is wrong use, and nothing is imported."""
    checkpoint = awslabs(tmp_path / "c") if kind == "awslabs" else databricks(tmp_path / "c")

    assert imported(kind, checkpoint, "--stream", "clicks") == imported(kind, checkpoint)
    done = sluice("offsets", "import", kind, checkpoint, "--stream", "click", "--offline")
    assert (done.code, done.out) == (2, "")
    assert "--stream click: the streams are clicks" in done.errors


def test_of_two_streams_of_databricks_one_is_taken(tmp_path: Path) -> None:
    checkpoint = databricks(tmp_path / "c")
    for each in (checkpoint / "offsets").iterdir():
        each.write_text(each.read_text().replace('"clicks"', '"orders"', 1))

    value = imported("databricks", checkpoint, "--stream", "orders")

    assert value["startingPosition"] == {SHARDS[0]: {"AFTER_SEQUENCE_NUMBER": NUMBER}}
    assert value["streams"] == ["orders"]


def test_a_lease_table_has_no_sources(tmp_path: Path) -> None:
    """An option that would do nothing is refused."""
    file = scan(tmp_path, lease(SHARDS[0], NUMBER))

    done = sluice("offsets", "import", "kcl", file, "--stream", "clicks", "--source", "0", "--offline")

    assert done.code == 2
    assert "--source is for checkpoints" in done.errors


@pytest.mark.parametrize(
    ("kind", "log", "text", "replacement", "problem"),
    [
        ("awslabs", "sources", "AFTER_SEQUENCE_NUMBER", "NEAR_SEQUENCE_NUMBER", "is not known"),
        *(("awslabs", "sources", ": -1", f": {sub}", "is not known") for sub in ("null", "[]", '"x"')),
        ("awslabs", "offsets", '"streamName"', '"name"', "the checkpoint holds no offsets of awslabs'"),
        ("databricks", "offsets", NUMBER, "SHARD_END", "lastSeqNum 'SHARD_END' is not known"),
    ],
)
def test_positions_that_are_not_known_are_refused(
    tmp_path: Path, *, kind: str, log: str, text: str, replacement: str, problem: str
) -> None:
    """A place that is guessed would lose rows."""
    checkpoint = {"awslabs": awslabs, "databricks": databricks}[kind](tmp_path / "c")
    for file in (each for each in (checkpoint / log).rglob("*") if each.is_file()):
        file.write_text(file.read_text().replace(text, replacement))

    done = sluice("offsets", "import", kind, checkpoint, "--offline", "--json")

    assert (done.code, problem in done.value["error"]) == (3, True)


def test_leases_of_two_streams_of_one_name_are_refused(tmp_path: Path) -> None:
    """One was deleted and created again, or belongs to another account: nothing shows which one the leases
    belong to.
    """
    old = multi_stream("clicks", SHARDS[0], OTHER)
    new = json.loads(
        json.dumps(multi_stream("clicks", SHARDS[0], NUMBER)).replace("1700000000", "1800000000")
    )
    for items in ((old, new), (new, old)):
        done = sluice("offsets", "import", "kcl", scan(tmp_path, *items), "--offline")

        assert done.code == 3
        assert "two streams named clicks" in done.errors
        assert f"{ACCOUNT}:clicks:1700000000" in done.errors
        assert f"{ACCOUNT}:clicks:1800000000" in done.errors
