"""What a micro-batch holds, by the checkpoint of its query."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from fake_s3 import CONNECTION, FakeS3, bucket

from sluice.destinations import planned_batches
from sluice.destinations.planned_batches import planned_batch


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    made = tmp_path / "a checkpoint"
    (made / "offsets").mkdir(parents=True)
    (made / "offsets" / "7").write_text("v1\n{}\n1")
    return made


def test_a_batch_is_known_by_its_file_of_offsets(checkpoint: Path) -> None:
    """The repetition of a batch has the same file. A newly planned batch has another file."""
    first = planned_batch(str(checkpoint), 7, CONNECTION)
    assert first == planned_batch(f"{checkpoint.as_uri()}/", 7, CONNECTION)
    assert first

    (checkpoint / "offsets" / "7").write_text('v1\n{"batchTimestampMs":1}\n1')
    assert planned_batch(str(checkpoint), 7, CONNECTION) not in (first, None)


def test_checkpoints_in_s3_are_read_too(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s3 = FakeS3(objects={"queries/x/offsets/7": (checkpoint / "offsets" / "7").read_bytes()})
    monkeypatch.setattr(planned_batches, "Bucket", lambda _name, _connection: bucket(s3))

    for scheme in ("s3", "s3a", "s3n"):
        found = planned_batch(f"{scheme}://lake/queries/x", 7, CONNECTION)
        assert found == planned_batch(str(checkpoint), 7, CONNECTION)
    assert planned_batch("s3a://lake/queries/x", 8, CONNECTION) is None


@pytest.mark.parametrize("place", ["/nowhere/x", "abfss://x@y.test/z", "what://x", "file:///x"])
def test_a_checkpoint_that_cannot_be_read_is_said_once(place: str, caplog: pytest.LogCaptureFixture) -> None:
    """And stops no query."""
    planned_batches._warn.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert planned_batch(place, 7, CONNECTION) is None
        assert planned_batch(place, 7, CONNECTION) is None

    assert len([r for r in caplog.records if "cannot be read from Python" in r.getMessage()]) == 1
