"""Checkpoints that Spark 4.0 and 4.1 have written: both publishers, several streams and sources.

``integration/fixtures/record_versions.py`` made them. Those of 4.3 are the recordings of other tests.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_support import sluice

from sluice.source.model.offsets import AtHorizon, Offsets

CHECKPOINTS = Path(__file__).with_name("checkpoints")
RECORDED = sorted(path.name for path in CHECKPOINTS.iterdir())


def ours(checkpoint: Path, batch: int) -> dict[str, Any]:
    """The offset of Sluice's source in Spark's own file."""
    lines = (checkpoint / "offsets" / str(batch)).read_text().split("\n")[2:]
    found: dict[str, Any] = next(
        value for value in map(json.loads, lines) if isinstance(value, dict) and "streams" in value
    )
    return found


def compacted(checkpoint: Path) -> Path:
    """The same checkpoint with the source's offsets in version 2, as a query of many shards logs them."""
    for file in (checkpoint / "offsets").iterdir():
        lines = file.read_text().split("\n")
        for index, value in enumerate(map(json.loads, lines[2:]), start=2):
            if isinstance(value, dict) and "streams" in value:
                lines[index] = json.dumps(Offsets.from_json(value).to_json(2))
        written_at = file.stat().st_mtime_ns
        file.write_text("\n".join(lines))
        os.utime(file, ns=(written_at, written_at))
    return checkpoint


def test_each_spark_and_publisher_has_a_recording() -> None:
    versions = {tuple(name.split("-")[1].split(".")[:2]) for name in RECORDED}
    assert versions >= {("4", "0"), ("4", "1")}
    assert {name.rpartition("-")[2] for name in RECORDED} == {"polling", "efo"}


@pytest.mark.parametrize("name", RECORDED)
def test_what_spark_wrote_is_shown(name: str) -> None:
    """Streams with their shards, the consumer, and the other source as what it is."""
    checkpoint, publisher = CHECKPOINTS / name, name.rpartition("-")[2]

    shown = sluice("offsets", "show", checkpoint, "--json").value

    last = max(int(file.name) for file in (checkpoint / "offsets").iterdir())
    is_committed = (checkpoint / "commits" / str(last)).exists()
    assert shown["batch"]["state"] == ("committed" if is_committed else "inFlight")
    assert shown["batch"]["plannedAt"] is not None
    assert sorted(each["kind"] for each in shown["sources"]) == ["kinesis-efo", "other"]
    (source,) = (each for each in shown["sources"] if each["kind"] == "kinesis-efo")
    expected = ours(checkpoint, last if is_committed else last - 1)
    assert {
        stream: {shard: each["position"] for shard, each in value["shards"].items()}
        for stream, value in source["streams"].items()
    } == expected["streams"]
    assert [len(value["shards"]) for value in source["streams"].values()] == [1, 2]
    assert all(bool(value["consumer"]) == (publisher == "efo") for value in source["streams"].values())


@pytest.mark.parametrize("name", RECORDED)
def test_one_stream_is_reset_and_put_back(tmp_path: Path, name: str) -> None:
    """Its shard alone moves, others at most to the start of a given-up batch; undo leaves no trace."""
    checkpoint, publisher = Path(shutil.copytree(CHECKPOINTS / name, tmp_path / "c")), name.rpartition("-")[2]
    before = {file: file.read_bytes() for file in checkpoint.rglob("*") if file.is_file()}
    arguments = ("--to-trim-horizon", "--offline", "--shard", f"{publisher}-1/shardId-000000000000")

    done = sluice("offsets", "reset", checkpoint, *arguments, "--execute", "--force", "--json")

    assert done.code == 0, done.errors
    streams = ours(checkpoint, done.value["lastBatch"])["streams"]
    assert streams[f"{publisher}-1"]["shardId-000000000000"]["at"] == "TRIM_HORIZON"
    assert all("after" in each for each in streams[f"{publisher}-2"].values())
    undo = ("--undo", done.value["backup"], "--execute", "--force")
    assert sluice("offsets", "reset", checkpoint, *undo).code == 0
    after = {file: file.read_bytes() for file in checkpoint.rglob("*") if file.is_file()}
    assert {file: body for file, body in after.items() if "_sluice_backup" not in str(file)} == before


@pytest.mark.parametrize("name", RECORDED)
def test_a_position_that_names_no_stream_is_refused_by_name(name: str) -> None:
    """Of several streams a shard's id tells nothing."""
    position = '{"shardId-000000000000": {"TRIM_HORIZON": true}}'

    done = sluice("offsets", "reset", CHECKPOINTS / name, "--to-position", position, "--offline", "--json")

    assert done.code == 2
    assert done.value["error"].startswith("--to-position lists shards without their stream")


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize(
    "command",
    [
        ("offsets", "show"),
        ("offsets", "reset", "--to-timestamp", "2020-01-01T00:00:00Z", "--offline"),
    ],
    ids=" ".join,
)
def test_offsets_of_many_shards_are_shown_the_same(
    tmp_path: Path, name: str, command: tuple[str, ...]
) -> None:
    """In full, with every sequence number; only the log itself is written in another way."""
    found = []
    for version, change in ((1, lambda path: path), (2, compacted)):
        (tmp_path / str(version)).mkdir()
        checkpoint = change(Path(shutil.copytree(CHECKPOINTS / name, tmp_path / str(version) / "c")))
        assert ours(checkpoint, 0)["version"] == version
        text = sluice(*command, checkpoint, "--json")
        assert text.code == 0, text.errors
        found.append(without_times(json.loads(text.out.replace(str(checkpoint), "c"))))

    assert found[0] == found[1]
    assert "shardId-000000000000" in json.dumps(found[1])


def without_times(value: Any) -> Any:
    """Lag and the like are those of the moment of the call."""
    if isinstance(value, dict):
        of_now = {"millisBehind", "behind", "lastWrite", "meaning", "pinned"}
        return {key: without_times(each) for key, each in value.items() if key not in of_now}
    return [without_times(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", RECORDED)
def test_a_reset_keeps_the_version_of_the_log(tmp_path: Path, name: str) -> None:
    """The release that runs the query need not know another; undo leaves no trace."""
    checkpoint = compacted(Path(shutil.copytree(CHECKPOINTS / name, tmp_path / "c")))
    before = {file: file.read_bytes() for file in checkpoint.rglob("*") if file.is_file()}

    done = sluice(
        "offsets", "reset", checkpoint, "--to-trim-horizon", "--offline", "--execute", "--force", "--json"
    )

    assert done.code == 0, done.errors
    written = ours(checkpoint, done.value["lastBatch"])
    assert written["version"] == 2
    assert all("after" not in tables for tables in written["streams"].values())
    assert all(isinstance(p, AtHorizon) for p in Offsets.from_json(written).positions.values())
    undo = ("--undo", done.value["backup"], "--execute", "--force")
    assert sluice("offsets", "reset", checkpoint, *undo).code == 0
    after = {file: file.read_bytes() for file in checkpoint.rglob("*") if file.is_file()}
    assert {file: body for file, body in after.items() if "_sluice_backup" not in str(file)} == before
