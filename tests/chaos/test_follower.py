"""How far a query is, as its checkpoint says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from integration.chaos.follower import Follower
from integration.model import KinesisModel, Laws, ManualClock

S0, S1 = "shardId-000000000000", "shardId-000000000001"


@pytest.fixture
def model() -> KinesisModel:
    """Two shards with five records each."""
    model = KinesisModel(Laws.kind(), ManualClock())
    model.create("s", 2)
    for number in range(10):
        model.clock.sleep(1.0)
        model.put("s", "k", explicit_hash_key=(number % 2) * 2**127)
    return model


def log(checkpoint: Path, batch: int, positions: dict[str, Any], **more: Any) -> None:
    offsets = checkpoint / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    value = {"version": 1, "streams": {"s": positions}, **more}
    offsets.joinpath(str(batch)).write_text(f"v1\n{{}}\n{json.dumps(value)}\n")


def commit(checkpoint: Path, batch: int) -> None:
    commits = checkpoint / "commits"
    commits.mkdir(parents=True, exist_ok=True)
    commits.joinpath(str(batch)).write_text("v1\n{}")


def test_it_counts_what_no_committed_batch_has(model: KinesisModel, tmp_path: Path) -> None:
    follower = Follower(model, "s", tmp_path)
    follower.poll()
    assert (follower.planned, follower.committed, follower.unread()) == (-1, -1, 10)

    numbers = [record.sequence_number for record in model.oracle.records("s") if record.shard == S0]
    log(tmp_path, 0, {S0: {"after": numbers[1]}, S1: {"at": "TRIM_HORIZON"}})
    follower.poll()
    assert (follower.planned, follower.unread()) == (0, 10)

    commit(tmp_path, 0)
    log(tmp_path, 1, {S0: {"after": numbers[3]}, S1: {"closed": True}}, consumers={"s": "arn"})
    follower.poll()
    assert (follower.planned, follower.committed, follower.unread()) == (1, 0, 8)
    assert follower.consumers == {"arn"}

    commit(tmp_path, 1)
    follower.poll()
    assert (follower.committed, follower.unread()) == (1, 1)


def test_it_knows_the_batch_of_a_record(model: KinesisModel, tmp_path: Path) -> None:
    """Also where a batch ends right before a record."""
    first, second, third, *_ = (r.sequence_number for r in model.oracle.records("s") if r.shard == S0)
    log(tmp_path, 0, {S0: {"after": first}})
    log(tmp_path, 1, {S0: {"after": str(int(third) - 1)}, S1: {"closed": True}})
    follower = Follower(model, "s", tmp_path)
    follower.poll()
    batches = [follower.batch_of(S0, number) for number in (first, second, third)]
    assert batches == [0, 1, None]
    assert follower.batch_of(S1, model.oracle.records("s")[-1].sequence_number) == 1
    assert follower.batch_of("shardId-000000000007", first) is None


def test_a_batch_that_is_half_written_is_not_there_yet(model: KinesisModel, tmp_path: Path) -> None:
    log(tmp_path, 0, {S0: {"after": model.oracle.records("s")[0].sequence_number}})
    whole = (tmp_path / "offsets" / "0").read_text()
    (tmp_path / "offsets" / "0").write_text(whole[: len(whole) // 2])
    follower = Follower(model, "s", tmp_path)
    follower.poll()
    assert follower.planned == -1
    (tmp_path / "offsets" / "0").write_text(whole)
    follower.poll()
    assert follower.planned == 0
