"""Lost records are reported, and read ones are not."""

from __future__ import annotations

import logging

import pytest
from integration.streams_model import Laws
from streams_query import TABLE, StreamsQuery, new_model, put_many

from sluice.errors import DataLossError
from sluice.instants import iso_instant

HOUR = 3600.0


def test_a_stop_longer_than_a_day_is_a_loss() -> None:
    """Records that nobody read have expired with their shards."""
    model = new_model(Laws(), 3)
    query = StreamsQuery(model)
    put_many(model, 10)
    query.run_to_end()
    put_many(model, 10, name="unread")
    for _ in range(7):
        model.clock.advance(4.5 * HOUR)
        model.open_shards(TABLE)
    query.restart()

    with pytest.raises(DataLossError, match=r"orders/shardId-\d+-\w+"):
        query.run_to_end()


def test_a_loss_that_is_tolerated_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """With failOnDataLoss false the query resumes at the oldest record."""
    model = new_model(Laws(), 3)
    query = StreamsQuery(model, fail=False)
    read = put_many(model, 10)
    query.run_to_end()
    put_many(model, 10, name="unread")
    for _ in range(7):
        model.clock.advance(4.5 * HOUR)
        model.open_shards(TABLE)
    left = put_many(model, 5, name="left")
    query.restart()
    with caplog.at_level(logging.WARNING):
        query.run_to_end()

    assert query.numbers() == read + left
    assert "data loss" in caplog.text


@pytest.mark.parametrize("quiet", [3.0, 12.0, 40.0])
def test_a_quiet_table_loses_nothing(quiet: float) -> None:
    """A query that runs on meets no record for days, while its shards roll over and expire."""
    model = new_model(Laws(), 4, shards=2)
    query = StreamsQuery(model)
    read = put_many(model, 10)
    query.run_to_end()
    for _ in range(int(quiet)):
        model.clock.advance(HOUR)
        query.run_batch()
    read += put_many(model, 10, name="later")
    query.run_to_end()

    assert query.numbers() == read


def test_a_stream_that_was_enabled_anew_is_another_one() -> None:
    """The error names the labels of both: the stream before can be read by its ARN for a day."""
    model = new_model(Laws(), 4)
    labels = [iso_instant(model.clock.now() // 1000 * 1000)]
    query = StreamsQuery(model)
    read = put_many(model, 10)
    query.run_to_end()
    put_many(model, 10, name="unread")
    model.disable(TABLE)
    model.clock.advance(60)
    labels.append(iso_instant(model.clock.now() // 1000 * 1000))
    model.enable(TABLE)
    new = put_many(model, 5, name="new")
    query.restart()

    with pytest.raises(DataLossError) as error:
        query.run_to_end()
    assert all(label in str(error.value) for label in labels)

    tolerant = StreamsQuery(model, fail=False)
    tolerant.offsets, tolerant.batches = query.offsets, query.batches
    tolerant.run_to_end()
    assert tolerant.numbers() == sorted(read + new)


def test_a_disabled_stream_is_read_to_its_end() -> None:
    """Its shards are closed, and have no children. The query waits without a record, and without an error."""
    model = new_model(Laws(), 4, shards=2)
    query = StreamsQuery(model)
    read = put_many(model, 10)
    query.run_batch()
    read += put_many(model, 10, name="unread")
    model.disable(TABLE)
    query.run_to_end()

    assert query.numbers() == read
