"""Figures from progress reports: those that Spark 4.0, 4.1, 4.2 and 4.3 wrote, and odd ones."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sluice.metrics import SinkMetrics, read_progress
from sluice.source.model.figure_tables import figures_to_json
from sluice.source.model.offsets import After, Offsets
from sluice.source.model.splits import SplitId

RECORDED = sorted((Path(__file__).parent / "progress").glob("*.json"))


def recorded(path: Path) -> tuple[dict[str, Any], list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The report, the sink's letters about its batch, and the last letter of the source."""
    value = json.loads(path.read_text())
    batch = value["progress"]["batchId"]
    letters = [each for each in value["letters"] if each["query_id"] == value["progress"]["id"]]
    sink = [each for each in letters if each["kind"] == "sink" and each["batch_id"] == batch]
    return value["progress"], sink, [each for each in letters if each["kind"] == "source"][-1:]


def newest() -> dict[str, Any]:
    """A report of the newest Spark, to change."""
    return recorded(next(path for path in RECORDED if re.search(r"4\.3.*polling", path.name)))[0]


def test_every_version_is_recorded() -> None:
    """By both publishers."""
    versions = {path.name.split("-")[1][:3] for path in RECORDED}
    assert versions == {"4.0", "4.1", "4.2", "4.3"}
    assert len(RECORDED) == 8


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_the_report_alone(path: Path) -> None:
    """From 4.2 on it has what the planner knows. Before, offsets bound the lag, and the rest is unknown."""
    progress, _, _ = recorded(path)
    metrics = read_progress(progress)
    knows = not path.name.startswith(("spark-4.0", "spark-4.1"))

    (stream,) = metrics.streams
    shards = stream.shards.values()
    assert metrics.name == f"by-{path.stem.rpartition('-')[2]}"
    assert (metrics.rows, metrics.sources[0].rows, len(shards), metrics.sink) == (20, 20, 2, None)
    assert {shard.lag_basis for shard in shards} <= ({"service"} if knows else {"arrival", "caughtUp"})
    assert all(shard.millis_behind_latest is not None for shard in shards)
    assert stream.max_millis_behind_latest is not None
    assert stream.max_millis_behind_latest < 60_000
    assert (stream.total("reads_refused"), stream.total("retries")) == ((0, 0) if knows else (None, None))
    assert (stream.total("records") is None, stream.total("polled") is None) == (not knows, not knows)
    assert (metrics.sources[0].agent is None) == (not (knows and path.stem.endswith("efo")))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_offsets_of_many_shards_give_the_same_figures(path: Path) -> None:
    """A query of more than 256 shards logs version 2, and all versions of Spark pass it on."""
    progress, sink, sources = recorded(path)
    compact = json.loads(json.dumps(progress))
    for source in compact["sources"]:
        for key in ("startOffset", "endOffset", "latestOffset"):
            told = source[key]
            value = json.loads(told) if isinstance(told, str) else told
            if value and "streams" in value:
                value = {**value, **Offsets.from_json(value).to_json(2)}
                source[key] = json.dumps(value) if isinstance(told, str) else value
    assert '"digits"' in json.dumps(compact).replace("\\", "")

    assert read_progress(compact, sink, sources) == read_progress(progress, sink, sources)
    assert read_progress(compact) == read_progress(progress)


def test_figures_of_many_shards_are_read_from_tables() -> None:
    """A report of more than 256 shards has them by columns; that of fewer as it always had."""
    progress, _, _ = recorded(next(path for path in RECORDED if re.search(r"4\.3.*efo", path.name)))
    source = progress["sources"][0]
    stream = next(iter(source["endOffset"]["streams"]))
    shards = {
        SplitId(stream, f"shardId-{n:012d}"): {
            "publisher": "efo" if n % 3 else "polling",
            "polled": n,
            "pushed": 10 * n,
            "bytes": 10**6 + n,
            "refused": n % 2,
            "retries": 0,
            "batchRecords": n + 1,
            "batchBytes": 100 * n,
        }
        for n in range(257)
    }
    found = []
    for version, names in ((1, "streams"), (2, "tables")):
        few = dict(list(shards.items())[:256])
        source["endOffset"] = Offsets(dict.fromkeys(few, After("1")), streams=frozenset({stream})).to_json(
            version
        )
        told = figures_to_json(few if names == "streams" else shards)
        assert set(told) == {names}
        source["latestOffset"]["figures"] = {
            "at": 1,
            "tasks": 1,
            "reportedTasks": 1,
            **json.loads(json.dumps(told)),
        }
        found.append(read_progress(progress).streams)

    assert found[0] == found[1]
    assert found[1][0].shards["shardId-000000000200"].pushed == 2_000
    assert found[1][0].shards["shardId-000000000003"].publisher == "polling"
    assert len(json.dumps(told)) < 257 * 40


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_with_the_events_of_a_listener(path: Path) -> None:
    """The same figures on all versions."""
    progress, sink, sources = recorded(path)
    metrics = read_progress(progress, sink, sources)

    (stream,) = metrics.streams
    is_efo = path.stem.endswith("efo")
    assert {shard.lag_basis for shard in stream.shards.values()} == {"service"}
    assert {shard.publisher for shard in stream.shards.values()} == {"efo" if is_efo else "polling"}
    assert stream.total("records") == 20
    polled, pushed, size = (stream.total(each) or 0 for each in ("polled", "pushed", "bytes"))
    assert polled + pushed in (40, 60)  # the planner tells every two seconds at most
    assert (pushed > 0) == is_efo
    assert 0 < size < 10_000
    assert metrics.sources[0].tasks == metrics.sources[0].tasks_reported
    agent = metrics.sources[0].agent
    assert (agent and (agent.state, agent.subscribed)) == (("listening", 2) if is_efo else None)
    assert metrics.sink is not None
    assert (metrics.sink.records, metrics.sink.requests, metrics.sink.refused) == (20, 1, 0)


def test_lag_of_many_shards() -> None:
    """Maximum, mean and minimum leave out shards whose lag is unknown, and those read to their end."""
    progress = newest()
    source = progress["sources"][0]
    stream = next(iter(source["endOffset"]["streams"]))
    source["endOffset"]["streams"][stream] = {
        "a": {"after": "1", "arrival": 0},
        "b": {"after": "1"},
        "c": {"after": "1"},
        "d": {"closed": True},
    }
    source["latestOffset"]["millisBehindLatest"] = {stream: {"a": 1000, "b": 3000, "d": 0}}
    (found,) = read_progress(progress).streams

    assert list(found.shards) == ["a", "b", "c"]
    assert found.shards["c"].millis_behind_latest is None
    assert found.max_millis_behind_latest == 3000
    assert found.mean_millis_behind_latest == 2000
    assert found.min_millis_behind_latest == 1000


def test_other_sources_and_sinks_are_left_out() -> None:
    """Sources of Spark's own have other offsets, or text, or none."""
    progress = newest()
    ours = progress["sources"][0]
    others = [{"endOffset": each} for each in (None, 17, "17", '{"orders":{"0":3}}', {"streams": 3})]
    progress["sources"] = [*others, ours | {"endOffset": json.dumps(ours["endOffset"])}]
    metrics = read_progress(progress)

    assert [source.source for source in metrics.sources] == [len(others)]
    assert read_progress(progress | {"sources": others}).is_of_sluice is False


def test_several_ends_of_epochs_are_added_up() -> None:
    """With ``foreachBatch`` a batch may write several times. The slowest counts, and the last rate."""
    one = {"destination": "d", "records": 3, "refused": 1, "refused_by_code": {"Slow": 1}, "rate": 5.0}
    two = one | {"records": 4, "refused_by_code": {"Slow": 1, "No": 2}, "rate": 7.5, "send_time_p95": 0.5}
    sink = read_progress(newest(), [one, two]).sink

    assert sink == SinkMetrics(
        destination="d",
        epochs=2,
        records=7,
        refused=2,
        refused_by_code={"Slow": 2, "No": 2},
        rate=7.5,
        send_time_p95=0.5,
    )
