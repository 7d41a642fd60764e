"""Which series there are, what they count, and when they end."""

from __future__ import annotations

import pytest
from metrics_support import metrics, shard, sink

from sluice.metrics import board as board_module
from sluice.metrics.board import Board
from sluice.metrics.catalogue import METRICS


def values(board: Board, name: str, **where: str) -> list[float]:
    """The values of a metric's series, or of those with an attribute that ends so."""
    return [
        sample.value
        for sample in board.samples()
        if sample.metric.name == name
        and all(sample.attributes[key.replace("_", ".")] == text for key, text in where.items())
    ]


def test_every_metric_has_a_series_with_its_attributes() -> None:
    """All that the catalogue promises, and nothing else."""
    board = Board()
    timed = sink(send_time_p50=0.1, send_time_p95=0.2, send_time_max=0.3)
    board.record(metrics(sink=timed))

    assert {sample.metric.name for sample in board.samples()} == set(METRICS)
    for sample in board.samples():
        assert set(sample.attributes) == set(sample.metric.attributes), sample


def test_what_is_unknown_has_no_series() -> None:
    """Not even a series with the value 0."""
    board = Board()
    unknown = shard(lag=None, polled=None, reads_refused=None, retries=None)
    board.record(metrics(unknown, sink=None, batch_seconds=None))
    names = {sample.metric.name for sample in board.samples()}

    assert not names & {"sluice.source.lag", "sluice.source.lag.max", "sluice.source.records"}
    assert not names & {"sluice.source.reads.refused", "sluice.source.retries", "sluice.query.batch.duration"}
    assert not [name for name in names if name.startswith("sluice.sink")]
    assert "sluice.source.shards" in names


def test_counters_rise_with_each_batch() -> None:
    """Those of the sink by what a batch wrote, those of the source as the source counts."""
    board = Board()
    board.record(metrics(shard(polled=10)))
    board.record(metrics(shard(polled=25)))

    assert values(board, "sluice.query.batches") == [2]
    assert values(board, "sluice.query.rows") == [40]
    assert values(board, "sluice.source.records", sluice_publisher="polling") == [25]
    assert values(board, "sluice.sink.records") == [10]
    assert values(board, "sluice.sink.refused", error_type="Slow") == [6]


def test_a_new_run_counts_on() -> None:
    """The source counts from 0 again when a query is started again; the series continue."""
    board = Board()
    board.record(metrics(shard(polled=10)))
    board.record(metrics(shard(polled=4), run="r2"))
    board.record(metrics(shard(polled=6), run="r2"))

    assert values(board, "sluice.source.records", sluice_publisher="polling") == [16]


def test_series_of_a_shard_that_is_gone_end() -> None:
    """All of them, at the next batch."""
    board = Board()
    board.record(metrics(shard("old"), shard("kept")))
    board.record(metrics(shard("kept"), shard("new")))
    shards = {sample.attributes.get("sluice.shard.id") for sample in board.samples()}

    assert shards == {None, "kept", "new"}


def test_series_of_a_query_that_has_ended_end() -> None:
    """Those of others stay."""
    board = Board()
    board.record(metrics())
    board.record(metrics(query="q2"))
    board.forget("q1")
    board.forget("never there")

    assert {sample.attributes["sluice.query.id"] for sample in board.samples()} == {"q2"}
    assert [each.query_id for each in board.queries] == ["q2"]


def test_counters_continue_when_an_ended_query_is_restarted() -> None:
    """As `docs/operate.md` says: what has been counted once never goes down."""
    board = Board()
    board.record(metrics(shard(polled=10)))
    board.forget("q1")
    assert board.samples() == []
    board.record(metrics(shard(polled=4), run="r2"))

    assert values(board, "sluice.query.batches") == [2]
    assert values(board, "sluice.sink.records") == [10]
    assert values(board, "sluice.source.records", sluice_publisher="polling") == [14]


def test_an_idle_query_differs_from_one_that_hangs() -> None:
    """Spark keeps reporting it; the time of its last batch stays."""
    board = Board()
    board.record(metrics())
    board.mark_alive("q1", 1500.0)
    board.mark_alive("q2", 1500.0)

    assert values(board, "sluice.query.event.time") == [1500.0]
    assert values(board, "sluice.query.batch.time") == [1002.0]


def test_a_batch_of_which_no_letter_came_keeps_the_gauges_of_the_sink() -> None:
    """The last figures that are known stay, in this run of the query."""
    board = Board()
    board.record(metrics())
    board.record(metrics(sink=None, batch_id=4))
    assert values(board, "sluice.sink.rate") == [10]
    assert board.queries[0].sink is None
    board.record(metrics(sink=None, batch_id=4, run="r2"))
    assert values(board, "sluice.sink.rate") == []


def test_counters_of_shards_that_are_gone_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is resharded every day has new shards every day."""
    monkeypatch.setattr(board_module, "_MOST_GONE", 20)
    board = Board()
    for day in range(90):
        board.record(metrics(*(shard(f"{day}-{n}") for n in range(4)), batch_id=day))

    assert len(board.counters()) < 20 + 60
    assert len(values(board, "sluice.source.io")) == 4
    assert values(board, "sluice.query.batches") == [90]
    (query,) = board._queries.values()
    assert len(query.run) < 20 + 60
