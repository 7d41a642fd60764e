"""A query of more shards than version 1 of its offsets is for, from the service's sockets to the commands."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from integration.support.kinesis import REGION
from integration.support.model_streams import ModelStreams
from integration.support.queries import wait_until
from sluice.cli.app import main
from sluice.kinesis.source import KinesisSource
from sluice.source import Offsets
from sluice.testing import QueryRunner

SHARDS = 256  # as many as version 1 has


def put(service: ModelStreams, stream: str, word: str) -> list[str]:
    """To most shards."""
    records = [f"{word} {number}" for number in range(400)]
    service.put(stream, [(f"key-{each}", each.encode()) for each in records])
    return records


def places(rows: Iterable[dict[str, Any]]) -> list[tuple[str, int]]:
    return sorted((row["shardId"], int(row["sequenceNumber"])) for row in rows)


def test_a_split_takes_a_query_over_the_limit(
    service: ModelStreams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch that begins in version 1 and ends in version 2 is exact, also when it is read again."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    stream = service.create(SHARDS)
    options = {"streamName": stream, "endpointUrl": service.endpoint, "region": REGION}
    options["getRecordsInterval"] = "0"
    with QueryRunner(KinesisSource, {**options, "startingPosition": "TRIM_HORIZON"}) as query:
        expected = put(service, stream, "before")
        query.run_available()
        service.split(stream, service.shards(stream)[0]["ShardId"])
        listed = service.client.get_paginator("list_shards")
        wait_until(
            lambda: len(list(listed.paginate(StreamName=stream).search("Shards"))) == SHARDS + 2,
            "the children to be listed",
        )
        expected += put(service, stream, "after")
        query.run_available()
        expected += put(service, stream, "later")
        query.run_available()

        assert [offsets["version"] for offsets in query.offsets] == [1, 1, 2, 2]
        assert sorted(row["data"].decode() for row in query.rows) == sorted(expected)
        query.restart()
        assert places(query.read(1)) == places(query.batches[1])
        logged = query.offsets[-1]
    assert len(json.dumps(logged)) < 40 * SHARDS
    assert show(tmp_path, logged) == Offsets.from_json(logged).to_json(1)["streams"]


def show(checkpoint: Path, logged: dict[str, Any]) -> dict[str, Any]:
    """The positions that ``sluice offsets show`` shows of a checkpoint."""
    for log in ("offsets", "commits"):
        (checkpoint / log).mkdir()
    (checkpoint / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(logged)}")
    (checkpoint / "commits" / "0").write_text("v1\n{}")
    out = io.StringIO()
    assert main(["offsets", "show", str(checkpoint), "--json"], out=out) == 0
    return {
        stream: {shard: each["position"] for shard, each in found["shards"].items()}
        for stream, found in json.loads(out.getvalue())["sources"][0]["streams"].items()
    }
