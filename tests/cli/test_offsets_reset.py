"""``sluice offsets reset``: what it writes, what it refuses, and that it can be put back."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from cli_support import (
    ACCOUNT,
    OTHER_ACCOUNT,
    OTHER_REGION,
    RECORDINGS,
    REGION,
    Service,
    option_arguments,
    sluice,
    write_checkpoint,
)

from sluice.cli.storage import Storage, StorageError
from sluice.instants import iso_instant, parse_instant

STREAM = "orders"
HOUR = 3600


class Query:
    """A stopped query of a stream with two shards: its checkpoint, and the service.

    Attributes:
        last: by shard, the record that the last batch ended after.
    """

    def __init__(self, directory: Path) -> None:
        self.service = Service()
        self.shards = self.service.create(STREAM, 2)
        self.first = self.service.put(STREAM)
        self.last = self.service.put(STREAM)
        self.unread = self.service.put(STREAM)
        self.checkpoint = directory / "checkpoint"
        self.created = self.service.model.call("DescribeStreamSummary", {"StreamName": STREAM})[
            "StreamDescriptionSummary"
        ]["StreamCreationTimestamp"]
        (self.checkpoint / "offsets").mkdir(parents=True)
        (self.checkpoint / "commits").mkdir()
        (self.checkpoint / "metadata").write_text('{"id":"q"}')
        self.log(0, self.first)
        self.log(1, self.last)
        self.age(3 * HOUR)

    def log(self, batch: int, ends: dict[str, str], *, commit: bool = True, **more: Any) -> None:
        positions = {shard: {"after": number, "arrival": 1_700_000_000_000} for shard, number in ends.items()}
        offset = {"version": 1, "streams": {STREAM: positions}, "created": {STREAM: int(self.created * 1000)}}
        metadata = {"batchWatermarkMs": 0, "batchTimestampMs": 1_700_000_000_000 + 1000 * batch, "conf": {}}
        text = f"v1\n{json.dumps(metadata)}\n{json.dumps({**offset, **more})}"
        (self.checkpoint / "offsets" / str(batch)).write_text(text)
        (self.checkpoint / "offsets" / f".{batch}.crc").write_bytes(b"crc")
        if commit:
            (self.checkpoint / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":7}')

    def age(self, seconds: float) -> None:
        """All files were written so long ago."""
        for file in self.checkpoint.rglob("*"):
            os.utime(file, (time.time() - seconds,) * 2)

    def offset(self, batch: int, line: int = 2) -> Any:
        return json.loads((self.checkpoint / "offsets" / str(batch)).read_text().split("\n")[line])

    def positions(self, batch: int, line: int = 2) -> dict[str, dict[str, Any]]:
        """Without the instant of the reset."""
        found = self.offset(batch, line)["streams"][STREAM]
        return {shard: {k: v for k, v in each.items() if k != "pinned"} for shard, each in found.items()}

    def everywhere(self, position: dict[str, str]) -> dict[str, dict[str, str]]:
        return dict.fromkeys(self.shards, position)

    def files(self) -> dict[str, bytes]:
        """What Spark reads."""
        paths = (each for each in self.checkpoint.rglob("*") if each.is_file())
        return {
            name: path.read_bytes()
            for path in paths
            if not (name := path.relative_to(self.checkpoint).as_posix()).startswith("_sluice_backup")
        }

    def reset(self, *arguments: object, **options: str) -> Any:
        return sluice("offsets", "reset", self.checkpoint, *arguments, *option_arguments(**options))

    def reset_anywhere(self, *arguments: object) -> Any:
        """Without a region in the options."""
        anywhere = [each for each in option_arguments() if "region" not in each]
        return sluice("offsets", "reset", self.checkpoint, *arguments, *anywhere)


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path)


def ago(seconds: float) -> str:
    return iso_instant(int((time.time() - seconds) * 1000) * 1000)


def test_nothing_is_changed_without_execute(query: Query) -> None:
    """The plan is printed, and every file stays as it was."""
    before = query.files()

    done = query.reset("--to-timestamp", ago(HOUR))

    assert done.code == 0
    assert "Nothing was changed" in done.out
    assert all(f"{STREAM}/{shard}" in done.out for shard in query.shards)
    assert query.files() == before


def test_the_next_batch_starts_at_the_time(query: Query) -> None:
    """Only the end of the last batch is replaced; commits, ids and earlier batches stay."""
    before, instant = query.files(), ago(HOUR)

    done = query.reset("--to-timestamp", instant, "--execute", "--json")

    assert (done.code, done.value["executed"], done.value["nextBatch"]) == (0, True, 2)
    assert query.positions(1) == query.everywhere({"at": instant})
    changed = {name for name, body in query.files().items() if before.get(name) != body}
    assert changed == {"offsets/1"}
    assert before.keys() - query.files().keys() == {"offsets/.1.crc"}  # it would not fit any more
    assert query.offset(1, line=1) == json.loads(before["offsets/1"].split(b"\n")[1])


@pytest.mark.parametrize(
    ("arguments", "expected"), [(["--to-trim-horizon"], {"at": "TRIM_HORIZON"}), (["--to-latest"], None)]
)
def test_horizon_and_latest(query: Query, arguments: list[str], expected: dict[str, str] | None) -> None:
    """Latest is a time of now, in whole seconds, since some services cut arrival times."""
    query.reset(*arguments, "--execute")

    for position in query.positions(1).values():
        if expected is not None:
            assert position == expected
        else:
            assert abs(parse_instant(position["at"]) / 1e6 - query.service.clock.now() / 1e6) < 5
    assert all("pinned" in each for each in query.offset(1)["streams"][STREAM].values())


def test_sequence_numbers_of_some_shards(query: Query, tmp_path: Path) -> None:
    """The form of startingPosition, also from a file; the other shards stay."""
    first, second = query.shards
    number = query.first[first]
    table = tmp_path / "position.json"
    table.write_text(json.dumps({first: {"AFTER_SEQUENCE_NUMBER": number}}))

    done = query.reset("--to-position", f"@{table}", "--execute", "--json")

    assert query.positions(1)[first] == {"after": number}
    assert query.positions(1)[second]["after"] == query.last[second]
    assert [each["meaning"] for each in done.value["shards"]] == ["reads the records between again"]


def test_a_source_of_splits_cannot_be_reset(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {"version": 1, "splits": {"a.json": {"done": True}}})
    done = sluice("offsets", "reset", tmp_path, "--to-latest", "--offline")

    assert done.code == 2
    assert "a source of splits has no positions to move: start the query with a new checkpoint" in done.errors


def test_a_shard_that_does_not_exist_is_named(query: Query) -> None:
    done = query.reset("--to-latest", "--shard", "shardId-000000000077")

    assert done.code == 2
    assert "shard orders/shardId-000000000077 does not exist" in done.errors
    assert query.shards[0] in done.errors


def test_shards_that_opened_since_and_ones_that_are_gone(query: Query) -> None:
    """As at a start, every listed shard gets the position. A shard that no longer exists is left out, because
    the query would fail for its loss. A shard that was read to its end stays.
    """
    offset = query.offset(1)
    offset["streams"][STREAM] |= {"shardId-gone": {"after": "5"}, "shardId-done": {"closed": True}}
    del offset["streams"][STREAM][query.shards[1]]
    query.log(1, {}, streams=offset["streams"])
    query.age(HOUR)
    instant = ago(HOUR)

    done = query.reset("--to-timestamp", instant, "--execute", "--json")

    at = {"at": instant}
    dropped = [(each["shard"], each["meaning"]) for each in done.value["shards"] if each["to"] is None]
    assert dropped == [("shardId-gone", "dropped: the shard is gone")]
    assert query.positions(1) == {query.shards[0]: at, query.shards[1]: at, "shardId-done": {"closed": True}}
    assert query.offset(1)["listed"] > 1_700_000_000_000


def test_offline_leaves_what_was_read_to_its_end(query: Query) -> None:
    """No service is called, so nobody knows whether such a shard is still there."""
    offset = query.offset(1)
    offset["streams"][STREAM] |= {"shardId-done": {"closed": True}}
    query.log(1, {}, streams=offset["streams"])
    query.age(HOUR)
    calls = len(query.service.calls)

    query.reset("--to-trim-horizon", "--offline", "--execute")

    at = {"at": "TRIM_HORIZON"}
    assert query.positions(1) == {**query.everywhere(at), "shardId-done": {"closed": True}}
    assert len(query.service.calls) == calls


@pytest.mark.parametrize("shard", ["shardId-00000001414576573621-f55eea83", "topic-7"])
def test_kinesis_is_not_asked_for_the_shards_of_something_else(query: Query, shard: str) -> None:
    """A table of DynamoDB Streams, or a custom source, may have the name of a stream."""
    for batch in (0, 1):
        query.log(batch, {shard: "77"})
    query.age(3 * HOUR)
    before = query.files()

    for to in (["--to-trim-horizon"], ["--to-latest", "--shard", query.shards[0]]):
        done = query.reset(*to, "--execute")
        assert done.code == 2
        assert (
            f"source 0 does not read Kinesis, which cannot be asked for shards such as {STREAM}/{shard}"
            in (done.errors)
        )
    assert query.files() == before

    shown = sluice("offsets", "show", query.checkpoint, "--live", *option_arguments())
    assert shown.code == 2
    assert f"shards such as {STREAM}/{shard}" in shown.errors
    assert sluice("consumers", "list", "--checkpoint", query.checkpoint, *option_arguments()).code == 2

    assert query.reset("--to-trim-horizon", "--offline", "--execute").code == 0
    assert query.positions(1) == {shard: {"at": "TRIM_HORIZON"}}


# --- a stream of the same name -------------------------------------------------------------------------


def other_place(query: Query, place: str) -> Service:
    if place == "region":
        return query.service.elsewhere(OTHER_REGION)
    return query.service.elsewhere(account=OTHER_ACCOUNT)


@pytest.mark.parametrize("place", ["region", "account"])
@pytest.mark.parametrize("age", ["older", "younger"])
@pytest.mark.parametrize("knows_arn", [True, False])
def test_a_namesake_elsewhere_is_not_the_stream_made_anew(
    query: Query, place: str, age: str, *, knows_arn: bool
) -> None:
    """It is refused, also with --force, whichever of the two is older; the error names both and a way out."""
    consumers = {STREAM: f"{query.service.arn(STREAM)}/consumer/q:1"} if knows_arn else {}
    query.log(1, query.last, consumers=consumers)
    query.age(HOUR)
    elsewhere = other_place(query, place)
    elsewhere.create(STREAM, 3, created=1_600_000_000_000 if age == "older" else None)
    before = query.files()

    for arguments in (
        ["--to-latest"],
        ["--to-latest", "--execute"],
        ["--to-trim-horizon", "--execute", "--force"],
        ["--to-latest", "--shard", query.shards[0], "--execute", "--force"],
        ["--to-position", json.dumps({query.shards[0]: {"TRIM_HORIZON": True}}), "--execute"],
    ):
        done = query.reset(*arguments, **elsewhere.options)
        assert done.code == (2 if knows_arn and place == "region" else 3), done.out
        assert "region" in done.errors
        assert f"arn:aws:kinesis:{query.service.region}:{ACCOUNT}:stream/orders" in done.errors or (
            not knows_arn and elsewhere.arn(STREAM) in done.errors and "--stream" in done.errors
        )
    shown = sluice("offsets", "show", query.checkpoint, "--live", *option_arguments(**elsewhere.options))
    assert shown.code == done.code
    assert query.files() == before
    assert query.reset("--to-latest", "--execute").code == 0


def test_the_region_of_the_consumer_that_the_query_registered_is_used(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the SDK's own chain has another one, with a namesake."""
    query.service.elsewhere(OTHER_REGION).create(STREAM, 2)
    monkeypatch.setenv("AWS_DEFAULT_REGION", OTHER_REGION)
    query.log(1, query.last, consumers={STREAM: f"{query.service.arn(STREAM)}/consumer/q:1"})
    query.age(HOUR)

    assert query.reset_anywhere("--to-trim-horizon", "--execute").code == 0
    assert query.positions(1) == query.everywhere({"at": "TRIM_HORIZON"})


@pytest.mark.parametrize("how", ["stream", "shard", "position"])
def test_a_stream_is_named_by_its_arn(query: Query, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Whose region is used; a region that contradicts is wrong use, and so is another stream's ARN."""
    query.service.elsewhere(OTHER_REGION).create(STREAM, 2)
    monkeypatch.setenv("AWS_DEFAULT_REGION", OTHER_REGION)
    first, _ = query.shards
    arn = query.service.arn(STREAM)
    arguments = {
        "stream": ["--to-trim-horizon", "--stream", arn],
        "shard": ["--to-trim-horizon", "--shard", f"{arn}/{first}"],
        "position": ["--to-position", json.dumps({arn: {first: {"TRIM_HORIZON": True}}})],
    }[how]
    wrong = [each.replace("stream/orders", "stream/clicks") for each in arguments]

    refused, unknown = query.reset(*arguments, region=OTHER_REGION), query.reset_anywhere(*wrong)
    done = query.reset_anywhere(*arguments, "--execute")

    assert (refused.code, unknown.code, done.code) == (2, 2, 0), done.errors
    assert f"is in {REGION}" in refused.errors
    assert "the streams are orders" in unknown.errors
    assert query.positions(1)[first] == {"at": "TRIM_HORIZON"}


def test_what_is_no_arn_names_no_stream(query: Query) -> None:
    """A stream that is not there may be elsewhere."""
    missing = query.reset("--to-latest", **query.service.elsewhere(OTHER_REGION).options)
    assert (missing.code, "give the ARN of the right stream with --stream" in missing.errors) == (3, True)
    other = query.service.arn(STREAM).replace(ACCOUNT, OTHER_ACCOUNT)
    query.log(1, query.last, consumers={STREAM: f"{query.service.arn(STREAM)}/consumer/q:1"})

    assert "give the ARN" in query.reset("--to-latest", "--stream", STREAM).errors
    two = query.reset("--to-latest", "--stream", other, "--stream", query.service.arn(STREAM))
    assert (two.code, "two streams of one name" in two.errors) == (2, True)
    contradicts = query.reset("--to-latest", "--stream", other, "--execute")
    assert contradicts.code == 3
    assert f"the checkpoint is of {query.service.arn(STREAM)}" in contradicts.errors


@pytest.mark.parametrize("knows_arn", [True, False])
def test_a_stream_that_was_made_anew(query: Query, *, knows_arn: bool) -> None:
    """What is dropped is listed in full, and needs --force; if the checkpoint has no ARN, also --stream."""
    gone = {
        query.shards[0]: {"after": "5", "arrival": 1_600_000_000_000},
        "shardId-000000000007": {"after": "6", "arrival": 1_600_000_000_000},
        "shardId-000000000003": {"closed": True},
    }
    consumer = f"{query.service.arn(STREAM)}/consumer/q:1600000000"
    consumers = {STREAM: consumer} if knows_arn else {}
    query.log(1, {}, streams={STREAM: gone}, created={STREAM: 5000}, consumers=consumers)
    query.age(HOUR)
    before = query.files()
    named = [] if knows_arn else ["--stream", query.service.arn(STREAM)]

    unnamed = query.reset("--to-trim-horizon", "--execute", "--force") if not knows_arn else None
    part = query.reset("--to-latest", "--shard", query.shards[0], *named)
    shown = sluice("offsets", "show", query.checkpoint, "--live", *named, *option_arguments())
    planned = query.reset("--to-trim-horizon", *named, "--json")
    listed = query.reset("--to-trim-horizon", *named).out
    refused = query.reset("--to-trim-horizon", *named, "--execute")

    assert unnamed is None or (unnamed.code, "say so with --stream arn:" in unnamed.errors) == (3, True)
    assert (part.code, "created again since: reset all shards" in part.errors) == (3, True)
    assert (shown.code, "created again" in shown.errors) == (3, True)
    assert planned.code == 0
    assert {each["shard"]: (each["to"], each["meaning"]) for each in planned.value["shards"]} == {
        query.shards[0]: (ANY, "starts in the new stream: the old one was deleted"),
        query.shards[1]: (ANY, "was not read yet"),
        "shardId-000000000003": (None, "dropped: its stream was deleted"),
        "shardId-000000000007": (None, "dropped: its stream was deleted"),
    }
    assert all(each in listed for each in ("shardId-000000000007", query.service.arn(STREAM), "1970-01-01"))
    assert not knows_arn or consumer in listed
    assert (refused.code, "positions are dropped. --force does it" in refused.out) == (1, True)
    assert query.files() == before

    assert query.reset("--to-trim-horizon", *named, "--execute", "--force").code == 0
    assert query.offset(1)["created"][STREAM] == int(query.created * 1000)
    assert query.positions(1) == query.everywhere({"at": "TRIM_HORIZON"})
    assert "consumers" not in query.offset(1)


def test_a_checkpoint_without_the_time_of_creation(query: Query) -> None:
    """A stream that was created after the query has read its own is another one."""
    query.log(1, query.last, created={})
    query.age(HOUR)
    assert query.reset("--to-latest", "--stream", query.service.arn(STREAM), "--execute").code == 1

    positions = {shard: {"after": number} for shard, number in query.last.items()}
    query.log(1, {}, streams={STREAM: positions}, created={})
    query.age(HOUR)
    assert query.reset("--to-latest", "--execute").code == 0


# --- a batch that was not committed --------------------------------------------------------------------


def test_a_batch_that_was_not_committed_is_given_up(query: Query) -> None:
    """It gets a commit entry, so its id is not used for other rows; the next batch starts at the reset."""
    query.log(2, query.unread, commit=False)
    query.age(HOUR)

    done = query.reset("--to-trim-horizon", "--execute", "--json")

    assert (done.value["givesUpBatch"], done.value["nextBatch"]) == (True, 3)
    assert (query.checkpoint / "commits" / "2").read_text() == 'v1\n{"nextBatchWatermarkMs":7}'
    assert query.positions(2) == query.everywhere({"at": "TRIM_HORIZON"})
    assert query.positions(1) != query.positions(2)


def test_what_a_given_up_batch_was_to_read_elsewhere_is_read_again(query: Query) -> None:
    """Shards and sources that are not reset go back to where that batch started: no row of them is lost."""
    first, second = query.shards
    query.log(2, query.unread, commit=False)
    for batch, other in ((0, '{"t":0}'), (1, '{"t":1}'), (2, '{"t":2}')):
        file = query.checkpoint / "offsets" / str(batch)
        file.write_text(f"{file.read_text()}\n{other}")
    query.age(HOUR)

    query.reset("--to-latest", "--shard", first, "--execute")

    assert query.positions(2)[second]["after"] == query.last[second]
    assert query.offset(2, line=3) == {"t": 1}


def test_the_first_batch_has_its_start_in_its_end(query: Query) -> None:
    """Spark does not log where the first batch starts, the source does; another source has no offset then."""
    first, second = query.shards
    for log in ("offsets", "commits"):
        shutil.rmtree(query.checkpoint / log)
        (query.checkpoint / log).mkdir()
    start = {STREAM: {first: {"at": "TRIM_HORIZON"}, second: {"after": query.first[second]}}}
    query.log(0, query.last, commit=False, start=start)
    file = query.checkpoint / "offsets" / "0"
    file.write_text(f"{file.read_text()}\n42")
    query.age(HOUR)

    done = query.reset("--to-latest", "--shard", first, "--execute")

    assert done.code == 0
    assert query.positions(0)[second] == {"after": query.first[second]}
    assert "start" not in query.offset(0)
    assert file.read_text().split("\n")[3] == "-"
    assert (query.checkpoint / "commits" / "0").exists()


def test_state_cannot_leave_a_batch_out(query: Query) -> None:
    """A stateful query is refused while a batch is in progress; otherwise it is warned of double counts."""
    (query.checkpoint / "state" / "0").mkdir(parents=True)
    assert "The query keeps state, which is not set back" in query.reset("--to-latest").out
    (query.checkpoint / "commits" / "1").write_bytes(b"")
    damaged = query.reset("--to-latest", "--execute", "--force")
    query.log(2, query.unread, commit=False)
    done = query.reset("--to-latest", "--execute", "--force")

    assert (damaged.code, done.code) == (3, 3)
    assert "commits/1 is empty or damaged. Delete it and its '.crc' file" in damaged.errors
    assert "not committed, and the query keeps state" in done.errors


# --- damaged files -------------------------------------------------------------------------------------


def test_an_older_damaged_file_does_not_matter(query: Query) -> None:
    """Of batches before the last two Spark reads nothing. A damaged one of these two is replaced."""
    query.log(2, query.last)
    for batch in (0, 1):
        (query.checkpoint / "offsets" / str(batch)).write_bytes(b"")
    query.age(HOUR)
    before = {name: body for name, body in query.files().items() if not name.endswith(".crc")}

    done = query.reset("--to-trim-horizon", "--execute", "--json")

    assert done.code == 0
    mended = [each for each in done.value["notes"] if "damaged" in each]
    assert mended == ["offsets/1 is damaged, so the query cannot start. The reset repairs it."]
    assert query.positions(1) == query.positions(2) == query.everywhere({"at": "TRIM_HORIZON"})
    assert (query.checkpoint / "offsets" / "0").read_bytes() == b""
    assert sluice("offsets", "show", query.checkpoint).code == 0
    query.age(HOUR)
    assert query.reset("--undo", done.value["backup"], "--execute").code == 0
    assert {name: body for name, body in query.files().items() if not name.endswith(".crc")} == before


def test_a_batch_whose_start_is_damaged_cannot_be_given_up(query: Query) -> None:
    """Where the next batch would start is not known: nothing is written."""
    query.log(2, query.unread, commit=False)
    (query.checkpoint / "offsets" / "1").write_bytes(b"")
    query.age(HOUR)
    before = query.files()

    done = query.reset("--to-trim-horizon", "--execute")

    assert (done.code, query.files()) == (3, before)
    assert "offsets/1 is damaged (it is empty). Restore it from a copy" in done.errors


@pytest.mark.parametrize("batch", [1, 2])
def test_a_damaged_entry_of_commits_is_replaced(query: Query, batch: int) -> None:
    """That of the last batch, which is given up, or of the one before, whose successor was planned."""
    query.log(2, query.unread, commit=batch == 2)
    (query.checkpoint / "commits" / str(batch)).write_bytes(b"")
    query.age(HOUR)

    done = query.reset("--to-trim-horizon", "--execute", "--json")

    assert (done.code, done.value["givesUpBatch"], done.value["nextBatch"]) == (0, True, 3)
    assert any(each.startswith(f"commits/{batch} is damaged") for each in done.value["notes"])
    assert (query.checkpoint / "commits" / "2").read_text() == 'v1\n{"nextBatchWatermarkMs":7}'
    assert sluice("offsets", "show", query.checkpoint).code == 0
    query.age(HOUR)
    assert query.reset("--undo", done.value["backup"], "--execute").code == 0
    assert (query.checkpoint / "commits" / str(batch)).read_bytes() == b""


# --- a query that runs ---------------------------------------------------------------------------------


def test_a_young_checkpoint_is_refused(query: Query) -> None:
    """A query whose batches are a second apart would have to be silent for two minutes."""
    query.age(100)
    before = query.files()

    done = query.reset("--to-latest", "--execute", "--json")

    assert (done.code, done.value["ok"], done.value["executed"]) == (1, False, False)
    assert "has not written for 2 min" in done.value["refused"]
    assert query.files() == before
    assert query.reset("--to-latest", "--execute", "--force").code == 0


def test_batches_that_are_far_apart_are_waited_for(query: Query) -> None:
    """Every ten minutes a batch: half an hour of silence says little."""
    for minutes, code in ((25, 1), (31, 0)):
        for batch in range(6):
            query.log(batch, query.last)
            query.age(60 * minutes)
        for batch in range(6):
            at = time.time() - 60 * (minutes + 10 * (5 - batch))
            os.utime(query.checkpoint / "offsets" / str(batch), (at, at))
        assert query.reset("--to-latest", "--execute").code == code


def test_a_batch_that_comes_meanwhile_stops_the_reset(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint is looked at again before anything is written."""
    call = query.service.model.call
    before: dict[str, bytes] = {}

    def plan_a_batch(*arguments: Any) -> Any:
        if not before:
            query.log(2, query.unread)
            query.age(HOUR)
            before.update(query.files())
        return call(*arguments)

    monkeypatch.setattr(query.service.model, "call", plan_a_batch)

    done = query.reset("--to-latest", "--execute")

    assert done.code == 3
    assert "the query runs" in done.errors
    assert query.files() == before


def test_asynchronous_progress_is_refused(query: Query) -> None:
    query.log(5, query.last, commit=False)
    query.log(4, query.last, commit=False)

    assert "asynchronous progress tracking" in query.reset("--to-latest").errors


# --- the way back --------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_undo_puts_everything_back(query: Query, *, commit: bool) -> None:
    """A file that the reset created is deleted; a file that it replaced is restored."""
    query.log(2, query.unread, commit=commit)
    query.age(HOUR)
    before = {name: body for name, body in query.files().items() if not name.endswith(".crc")}
    backup = query.reset("--to-latest", "--execute", "--json").value["backup"]
    query.age(HOUR)
    assert query.files() != before

    shown = query.reset("--undo", backup)
    assert "Nothing was changed" in shown.out
    assert query.reset("--undo", backup, "--execute").code == 0

    assert {name: body for name, body in query.files().items() if not name.endswith(".crc")} == before


def test_undo_of_something_else(query: Query) -> None:
    """Copies there are are named; one from before later batches is not put back."""
    backup = query.reset("--to-latest", "--execute", "--json").value["backup"]
    assert backup in query.reset("--undo", "yesterday").errors
    query.log(2, query.unread)

    assert "batch 2 was planned since" in query.reset("--undo", backup).errors


# --- how it is called ----------------------------------------------------------------------------------


def test_times_that_make_no_sense(query: Query) -> None:
    for text, problem in (
        ("yesterday", "allowed is ISO-8601"),
        (ago(-HOUR), "in the future"),
        ("20260131", "2026-01-31"),
    ):
        done = query.reset("--to-timestamp", text)
        assert done.code == 2
        assert problem in done.errors


def test_several_sources_need_a_choice(query: Query) -> None:
    """The other source of Sluice stays."""
    for batch in (0, 1):
        file = query.checkpoint / "offsets" / str(batch)
        file.write_text(f"{file.read_text()}\n{json.dumps(query.offset(batch))}")
    query.age(HOUR)
    kept = query.offset(1)

    assert "which source? --source is one of 0, 1" in query.reset("--to-latest").errors
    query.reset("--to-trim-horizon", "--source", 1, "--execute")

    assert query.offset(1) == kept
    assert query.positions(1, line=3) == query.everywhere({"at": "TRIM_HORIZON"})


@pytest.mark.parametrize("name", ["polling", "efo", "reshard", "reshard-efo", "latest", "available-now"])
def test_recorded_checkpoints(tmp_path: Path, name: str) -> None:
    """Of both publishers: all shards that were not read to their end are moved, and the consumer is kept."""
    checkpoint = Path(shutil.copytree(RECORDINGS / name / "checkpoint", tmp_path / "c"))
    last = max(int(file.name) for file in (checkpoint / "offsets").iterdir())
    before = json.loads((checkpoint / "offsets" / str(last)).read_text().split("\n")[2])

    done = sluice(
        "offsets", "reset", checkpoint, "--to-trim-horizon", "--offline", "--force", "--execute", "--json"
    )

    assert done.code == 0
    after = json.loads((checkpoint / "offsets" / str(last)).read_text().split("\n")[2])
    assert after.get("consumers") == before.get("consumers")
    assert after["created"] == before["created"]
    positions = [position for shards in after["streams"].values() for position in shards.values()]
    assert {"TRIM_HORIZON"} <= {each.get("at", "closed") for each in positions} <= {"TRIM_HORIZON", "closed"}
    shown = sluice("offsets", "show", checkpoint, "--json").value
    assert (shown["batch"]["id"], shown["batch"]["state"]) == (last, "committed")


@pytest.mark.parametrize("error", [StorageError("the disk is full"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("is_written", [True, False], ids=["answer lost", "not written"])
@pytest.mark.parametrize("step", ["commits/2", "offsets/2"])
def test_a_reset_that_is_cut_short_changes_nothing(
    query: Query, monkeypatch: pytest.MonkeyPatch, step: str, *, is_written: bool, error: BaseException
) -> None:
    """A batch that is given up, and whose end stays, is one whose rows nobody reads: in shards that are not
    reset as well. The copy exists, and a second try makes the reset.
    """
    first, second = query.shards
    query.log(2, query.unread, commit=False)
    query.age(HOUR)
    before = {name: body for name, body in query.files().items() if not name.endswith(".crc")}
    write, failures = Storage.write, [error]

    def fail(storage: Storage, path: str, body: bytes) -> None:
        if path == step and failures:
            if is_written:
                write(storage, path, body)
            raise failures.pop()
        write(storage, path, body)

    monkeypatch.setattr(Storage, "write", fail)
    done = query.reset("--to-trim-horizon", "--shard", first, "--execute")
    after = {name: body for name, body in query.files().items() if not name.endswith(".crc")}

    assert done.code == (3 if isinstance(error, StorageError) else 130)
    assert ("nothing was changed" in done.errors) == isinstance(error, StorageError)
    assert {name: after[name] for name in after if "_sluice_backup" not in name} == before
    (backup,) = (query.checkpoint / "_sluice_backup").iterdir()
    assert (backup / "offsets" / "2").exists()

    query.age(HOUR)
    assert query.reset("--to-trim-horizon", "--shard", first, "--execute").code == 0
    assert query.positions(2) == {first: {"at": "TRIM_HORIZON"}, second: query.positions(1)[second]}


@pytest.mark.parametrize("batch", [0, 2])
def test_a_reset_that_is_killed_loses_no_row(
    query: Query, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    """Neither does a killed undo. After each write: a batch that is committed has none that is unread."""
    first, _ = query.shards
    starts = {shard: {"after": number} for shard, number in query.last.items()}
    query.log(batch, query.unread, commit=False)
    if batch == 0:
        for name in ("offsets/0", "offsets/1", "commits/0", "commits/1"):
            (query.checkpoint / name).unlink()
        starts = query.everywhere({"at": "TRIM_HORIZON"})
        query.log(0, query.unread, commit=False, start={STREAM: starts})
    query.age(HOUR)
    unread = query.positions(batch)
    write, delete, seen = Storage.write, Storage.delete, []

    def look() -> None:
        is_committed = (query.checkpoint / "commits" / str(batch)).exists()
        positions = query.positions(batch)
        is_empty = all(positions[shard].items() >= starts[shard].items() for shard in starts)
        seen.append((is_committed, is_empty, positions == unread, "start" in query.offset(batch)))

    def written(storage: Storage, path: str, body: bytes) -> None:
        write(storage, path, body)
        look()

    def deleted(storage: Storage, path: str) -> None:
        delete(storage, path)
        look()

    monkeypatch.setattr(Storage, "write", written)
    monkeypatch.setattr(Storage, "delete", deleted)
    assert query.reset("--to-latest", "--shard", first, "--execute").code == 0
    (backup,) = (query.checkpoint / "_sluice_backup").iterdir()
    query.age(HOUR)
    assert query.reset("--undo", backup.name, "--execute").code == 0

    assert {is_committed for is_committed, *_ in seen} == {True, False}
    for is_committed, is_empty, is_unread, has_start in seen:
        assert not (is_committed and is_unread)
        if not is_committed:
            assert is_empty or is_unread  # moved positions are never run as a batch
            assert has_start or batch > 0  # or it would start where the stream ends by now
    assert seen[-1] == seen[0] == (False, False, True, batch == 0)


def test_a_reset_that_cannot_be_put_back_says_how(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example if the storage fails in the middle."""
    query.log(2, query.unread, commit=False)
    query.age(HOUR)
    write, delete = Storage.write, Storage.delete
    is_gone: list[bool] = []

    def fail(storage: Storage, path: str, body: bytes) -> None:
        if is_gone:
            raise StorageError("no route to host")
        write(storage, path, body)
        if path == "commits/2":
            is_gone.append(True)

    def fail_to_delete(storage: Storage, path: str) -> None:
        if is_gone:
            raise StorageError("no route to host")
        delete(storage, path)

    monkeypatch.setattr(Storage, "write", fail)
    monkeypatch.setattr(Storage, "delete", fail_to_delete)
    done = query.reset("--to-trim-horizon", "--execute")
    (backup,) = (query.checkpoint / "_sluice_backup").iterdir()

    assert done.code == 3
    assert "the change is incomplete. Before you start the query" in done.errors
    assert f"--undo {backup.name} --execute" in done.errors

    monkeypatch.undo()
    assert query.reset("--undo", backup.name, "--execute", "--force").code == 0
    assert not (query.checkpoint / "commits" / "2").exists()
