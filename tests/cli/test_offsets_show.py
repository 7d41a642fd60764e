"""``sluice offsets show`` on checkpoints that Spark wrote, and on ones that it may write."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from cli_support import RECORDINGS, Outcome, Service, option_arguments, sluice, write_checkpoint

from sluice.cli import offsets_show, same_stream
from sluice.cli.service import kinesis_calls
from sluice.retry import Retrier
from sluice.source import StreamLog

RECORDED = sorted(path.name for path in RECORDINGS.iterdir())


def shards(shown: Outcome, source: int = 0) -> dict[str, dict[str, object]]:
    streams = shown.value["sources"][source]["streams"]
    return {f"{name}/{shard}": each for name in streams for shard, each in streams[name]["shards"].items()}


def logged(checkpoint: Path, batch: int) -> dict[str, object]:
    value: dict[str, object] = json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[2])
    return value


@pytest.mark.parametrize("name", RECORDED)
def test_a_batch_that_was_killed_is_shown_as_the_one_that_runs_again(name: str) -> None:
    """The recorded queries were killed in a batch; the next one is the same, and starts where it started."""
    checkpoint = RECORDINGS / name / "checkpoint"
    batches = {int(file.name) for file in (checkpoint / "offsets").iterdir()}

    shown = sluice("offsets", "show", checkpoint, "--json")

    assert shown.code == 0
    assert shown.value["queryId"] == json.loads((checkpoint / "metadata").read_text())["id"]
    assert shown.value["batch"]["id"] == max(batches)
    assert shown.value["batch"]["state"] == "inFlight"
    end = logged(checkpoint, max(batches))
    start = end["start"] if "start" in end else logged(checkpoint, max(batches) - 1)["streams"]
    assert isinstance(start, dict)
    expected = {f"{stream}/{shard}": at for stream in start for shard, at in start[stream].items()}
    assert {shard: each["position"] for shard, each in shards(shown).items()} == expected


def test_a_committed_batch_ends_where_the_next_one_starts(tmp_path: Path) -> None:
    """With the commit entry of the last batch, the next one is another, and starts at its end."""
    checkpoint = copied(tmp_path)
    shutil.copy(checkpoint / "commits" / "4", checkpoint / "commits" / "5")

    shown = sluice("offsets", "show", checkpoint, "--json")

    assert shown.value["batch"]["state"] == "committed"
    ends = logged(checkpoint, 5)["streams"]
    assert isinstance(ends, dict)
    assert {k.rpartition("/")[2]: v["position"] for k, v in shards(shown).items()} == ends["recorded-polling"]
    assert "the next one is 6" in sluice("offsets", "show", checkpoint).out


def test_people_see_every_shard_with_its_age() -> None:
    """A shard that was read to its end says so; of others the checkpoint tells the age of the last record."""
    out = sluice("offsets", "show", RECORDINGS / "reshard" / "checkpoint").out

    assert "shardId-000000000000  closed" in out
    assert "read to its end" in out
    assert "at most " in out
    assert "not committed: it runs again" in out


def test_several_sources_and_a_source_without_offset(tmp_path: Path) -> None:
    """Each source is shown by its index; other sources' offsets are left as they are, ``-`` is none."""
    checkpoint = copied(tmp_path)
    for file in (checkpoint / "offsets").iterdir():
        version, metadata, ours = file.read_text().split("\n")
        file.write_text(f'{version}\n{metadata}\n{{"topic":{{"0":7}}}}\n{ours}\n-\n42')

    sources = sluice("offsets", "show", checkpoint, "--json").value["sources"]

    assert [each["kind"] for each in sources] == ["other", "kinesis-efo", "other", "other"]
    assert [sources[n]["offset"] for n in (0, 2, 3)] == [{"topic": {"0": 7}}, None, 42]
    assert "source 0 is not Sluice's" in sluice("offsets", "show", checkpoint).out


def test_a_truncated_offset_is_not_mistaken_for_another_sources(tmp_path: Path) -> None:
    """After a full disk, say. Spark's own error is that of a JSON parser, and names no file."""
    checkpoint = copied(tmp_path)
    for file in (checkpoint / "offsets").iterdir():
        file.write_text(file.read_text()[:-40])

    refused = sluice("offsets", "show", checkpoint)

    assert refused.code == 3
    assert "an offset is not JSON: its file was truncated or changed" in refused.errors


def copied(tmp_path: Path) -> Path:
    """A checkpoint of batches 0 to 5, of which the last is not committed."""
    return Path(shutil.copytree(RECORDINGS / "polling" / "checkpoint", tmp_path / "c"))


DAMAGED = [
    b"",
    b"\n",
    b"v1",
    b"v1\n{}\n",
    b'v1\n{}\n{"ver',
    b'v1\n{}\n{"version": 1, "st',
    b"v9\n{}\n-",
    b"\xff",
]


@pytest.mark.parametrize("body", DAMAGED)
@pytest.mark.parametrize("command", [["offsets", "show"], ["offsets", "reset", "--to-latest"]])
def test_a_damaged_offset_says_what_to_do(tmp_path: Path, body: bytes, command: list[str]) -> None:
    """The same for every form of damage. It is right for destinations that commit, too."""
    checkpoint = copied(tmp_path)
    (checkpoint / "offsets" / "5").write_bytes(body)

    refused = sluice(*command, checkpoint)

    assert refused.code == 3
    assert f"{checkpoint}/offsets/5 is damaged" in refused.errors
    for advice in (
        "Restore it from a copy of the checkpoint",
        "delete the files of this batch and of later ones from 'offsets' and 'commits', with their '.crc'",
        "resumes after batch 4",
        "With files, s3 or a custom destination that commits, it fails if one of them was committed",
        "docs/operate.md, 'Restoring a checkpoint'",
    ):
        assert advice in refused.errors


def test_a_missing_offset_and_a_damaged_first_one(tmp_path: Path) -> None:
    checkpoint = copied(tmp_path)
    for batch in range(6):
        (checkpoint / "offsets" / str(batch)).write_bytes(b"")

    (checkpoint / "offsets" / "5").write_bytes((RECORDINGS / "polling/checkpoint/offsets/5").read_bytes())
    (checkpoint / "offsets" / "4").unlink()
    missing = sluice("offsets", "show", checkpoint).errors
    assert "offsets/4 is missing. Restore it from a copy" in missing
    (checkpoint / "offsets" / "5").write_bytes(b"")
    for batch in (1, 2, 3, 5):
        (checkpoint / "offsets" / str(batch)).unlink()
    assert "the query starts at its startingPosition" in sluice("offsets", "show", checkpoint).errors


def test_the_remedy_is_the_one_that_the_pages_have() -> None:
    pages = Path(__file__).parents[2] / "docs"

    assert "## Restoring a checkpoint" in (pages / "operate.md").read_text()
    assert "operate.md#restoring-a-checkpoint" in (pages / "messages.md").read_text()


@pytest.mark.parametrize("body", [b"", b"\n", b"{}", b'v1\n{"nextBatch', b"v1\n[]", b"\xff"])
def test_a_damaged_entry_of_commits_commits_nothing(tmp_path: Path, body: bytes) -> None:
    """Spark does not start with it. Without it the batch runs again."""
    checkpoint = copied(tmp_path)
    (checkpoint / "commits" / "5").write_bytes(body)

    shown, text = sluice("offsets", "show", checkpoint, "--json"), sluice("offsets", "show", checkpoint)

    assert (shown.code, shown.value["batch"]["state"]) == (1, "inFlight")
    (problem,) = shown.value["problems"]
    assert problem.startswith(f"{checkpoint}/commits/5 is empty or damaged. Delete it and its '.crc' file")
    assert "destinations that commit, such as files and s3, skip it" in problem
    assert f"problem      {problem}" in text.out


@pytest.mark.parametrize("body", [b"v1", b"v1\n{}", b"v1\n{}\n", b'v3\n{"nextBatchWatermarkMs":7}'])
def test_an_entry_of_commits_that_spark_reads_commits(tmp_path: Path, body: bytes) -> None:
    checkpoint = copied(tmp_path)
    (checkpoint / "commits" / "5").write_bytes(body)

    shown = sluice("offsets", "show", checkpoint, "--json")

    assert (shown.code, shown.value["batch"]["state"], shown.value["problems"]) == (0, "committed", [])


def test_a_damaged_file_before_the_last_one_keeps_a_query_from_starting(tmp_path: Path) -> None:
    """Spark reads it also where the last batch is committed."""
    checkpoint = copied(tmp_path)
    shutil.copy(checkpoint / "commits" / "4", checkpoint / "commits" / "5")
    (checkpoint / "offsets" / "4").write_bytes(b"")

    shown = sluice("offsets", "show", checkpoint, "--json")

    assert shown.code == 1
    assert shown.value["problems"][0].startswith(f"{checkpoint}/offsets/4 is damaged (it is empty)")


def test_the_source_is_named_by_what_it_has_logged(tmp_path: Path) -> None:
    """Shards of Kinesis, of DynamoDB Streams, of a custom log, and splits that are no shards."""
    offsets = [
        {"version": 1, "streams": {"s": {shard: {"after": "7"}}}}
        for shard in ("shardId-000000000000", "shardId-00000001414576573621-f55eea83", "topic-7")
    ]
    splits = {"version": 1, "splits": {"a.json": {"done": True}}}
    nothing = {"version": 1, "streams": {"s": {}}}
    write_checkpoint(tmp_path, *offsets, splits, nothing, {"topic": {"0": 7}})

    sources = sluice("offsets", "show", tmp_path, "--json").value["sources"]

    kinds = [each["kind"] for each in sources]
    assert kinds == ["kinesis-efo", "dynamodb-streams", "custom", "custom", "unknown", "other"]
    text = sluice("offsets", "show", tmp_path).out
    assert "source 3 reads splits" in text
    assert "source 5 is not Sluice's" in text
    assert re.search(r"stream s \(source 2\), 1 splits\nSPLIT +POSITION .*\ntopic-7 +after 7 ", text)
    named = sluice("offsets", "show", tmp_path, "--log", f"{__name__}:PartitionLog").out
    assert re.search(r"\(source 2\), 1 partitions\nPARTITION .*\ntopic-7 +after offset 7 ", named)
    assert re.search(r"\(source 0\), 1 shards\nSHARD .*\nshardId-000000000000 +after 7 ", named)
    for unknown in ("no.such:Log", f"{__name__}:RECORDINGS"):
        refused = sluice("offsets", "show", tmp_path, "--log", unknown)
        assert refused.code == 2
        assert refused.errors.startswith(f"sluice offsets show: --log {unknown}: ")


class PartitionLog(StreamLog):
    """A log whose splits are partitions, and whose positions are offsets."""

    split_name = "partition"

    @classmethod
    def format_position(cls, number: str) -> str:
        return f"offset {number}"


def test_version_two_has_a_name_before_each_source(tmp_path: Path) -> None:
    """Spark with source evolution writes sources by name, in any order."""
    checkpoint = copied(tmp_path)
    for file in (checkpoint / "offsets").iterdir():
        _, metadata, ours = file.read_text().split("\n")
        lines = [f"clicks:{ours}", "other:-"]
        file.write_text("\n".join(["v2", metadata, *(lines if int(file.name) % 2 else reversed(lines))]))

    sources = sluice("offsets", "show", checkpoint, "--json").value["sources"]

    assert [each["name"] for each in sources] == ["clicks", "other"]
    start = logged(RECORDINGS / "polling" / "checkpoint", 4)["streams"]
    assert isinstance(start, dict)
    found = sources[0]["streams"]["recorded-polling"]["shards"]
    assert {shard: each["position"] for shard, each in found.items()} == start["recorded-polling"]


def test_a_query_that_has_planned_nothing_yet(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"7"}')

    assert "none yet" in sluice("offsets", "show", tmp_path).out
    assert sluice("offsets", "show", tmp_path, "--json").value["batch"] is None


def test_what_is_no_checkpoint_is_a_problem_and_says_so_in_json(tmp_path: Path) -> None:
    """Exit code 3, the sentence on standard error, and the same in the object that programs read."""
    shown = sluice("offsets", "show", tmp_path / "nothing", "--json")

    assert shown.code == 3
    assert shown.value["ok"] is False
    assert "no checkpoint of a streaming query" in shown.value["error"]
    assert shown.value["error"] in shown.errors


def test_offsets_of_a_later_release_are_refused(tmp_path: Path) -> None:
    checkpoint = copied(tmp_path)
    for file in (checkpoint / "offsets").iterdir():
        file.write_text(file.read_text().replace('"version": 1', '"version": 9'))

    shown = sluice("offsets", "show", checkpoint)

    assert (shown.code, shown.out) == (3, "")
    assert "have version 9" in shown.errors


@pytest.mark.parametrize(("refusals", "basis"), [(9, "service"), (1_000, "throttled")])
def test_a_shard_whose_reads_are_used_up_is_asked_again(
    refusals: int, basis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query itself, or a stranger, may read it; what cannot be had is said."""
    service = Service()
    (shard,) = service.create("orders", 1)
    offsets = {"version": 1, "streams": {"orders": {shard: {"after": service.put("orders")[shard]}}}}
    write_checkpoint(tmp_path, offsets)
    service.throttled = refusals
    monkeypatch.setattr(offsets_show, "_THROTTLED_PAUSE", 0.0)
    retrier = Retrier(sleep=lambda _: None)
    monkeypatch.setattr(
        same_stream, "kinesis_calls", lambda connection: kinesis_calls(connection, retrier=retrier)
    )

    shown = sluice("offsets", "show", tmp_path, "--live", "--json", *option_arguments())

    assert shown.code == 0
    assert shards(shown)[f"orders/{shard}"]["basis"] == basis


def test_the_service_is_asked_with_live(tmp_path: Path) -> None:
    """A shard is as far behind as its first unread record is old; at the tip that is 0; one may be gone."""
    service = Service()
    # A new iterator may say at first that it is at the tip, or be in a run of empty pages.
    service.model.laws = replace(service.model.laws, tip_before_records=1.0, empty_pages=2)
    first, second = service.create("orders", 2)
    last = service.put("orders")
    newest = service.put("orders")
    service.clock.advance(60)
    positions = {
        first: {"after": last[first]},
        second: {"after": newest[second]},
        "shardId-9": {"closed": True},
    }
    offsets = {"version": 1, "streams": {"orders": {**positions, "shardId-7": {"after": "1"}}}}
    write_checkpoint(tmp_path, offsets)

    shown = sluice("offsets", "show", tmp_path, "--live", "--json", *option_arguments())

    found = {shard: (each["basis"], each["millisBehind"]) for shard, each in shards(shown).items()}
    assert found["orders/shardId-9"] == ("closed", 0)
    assert found["orders/shardId-7"] == ("gone", None)
    assert found[f"orders/{second}"] == ("service", 0)
    basis, behind = found[f"orders/{first}"]
    assert basis == "service"
    assert isinstance(behind, int)
    assert 57_000 <= behind <= 63_000
