"""Errors leave the library with their message and their cause, and without the way they took in it."""

from __future__ import annotations

import logging
import traceback
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import BinaryType, StructField, StructType

from sluice.errors import OptionError, ServiceError, SluiceError
from sluice.kinesis.options.config import source_config_from_options
from sluice.kinesis.source import KinesisSource
from sluice.spark.border import shorten_traceback
from sluice.spark.sink import AsyncSinkDataSource
from sluice.spark.source import KinesisDataSource
from sluice.spark.source_reader import (
    HAS_ADMISSION_CONTROL,
    BatchReader,
    RangesPartition,
    make_stream_reader,
)

DATA = StructType([StructField("data", BinaryType())])


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def below() -> None:
    try:
        int("x")
    except ValueError as cause:
        raise OptionError("what is wrong, and what to do") from cause


def test_the_message_and_the_cause_stay(caplog: pytest.LogCaptureFixture) -> None:
    """The frames below go to the log, at DEBUG."""
    with pytest.raises(OptionError) as caught, caplog.at_level(logging.DEBUG, "sluice"):
        shorten_traceback(below)()
    assert "ValueError: invalid literal" in shown(caught.value)
    assert "OptionError: what is wrong, and what to do" in shown(caught.value)
    assert 'raise OptionError("what' not in shown(caught.value)
    assert 'raise OptionError("what' in caplog.text


def test_options_are_refused_within_a_few_lines() -> None:
    """On both ends, as Spark shows it."""
    source = KinesisDataSource(CaseInsensitiveDict({"streamName": "a b"}))
    sink = AsyncSinkDataSource(CaseInsensitiveDict({"destination": "kinesis"}))
    for call in (
        source.schema,
        lambda: source.reader(DATA),
        lambda: source.streamReader(DATA),
        lambda: sink.writer(DATA, overwrite=False),
        lambda: sink.streamWriter(DATA, overwrite=False),
    ):
        with pytest.raises(SluiceError) as caught:
            call()
        assert "options.py" not in shown(caught.value)
        assert "registry.py" not in shown(caught.value)


def test_a_read_that_fails_says_why_within_a_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a task."""

    def read_task(*_arguments: object) -> object:
        yield "rows"
        raise ServiceError("GetRecords failed")

    monkeypatch.setattr(KinesisSource, "read_task", read_task)
    source = KinesisSource(source_config_from_options({"streamName": "a"}))
    rows: Any = BatchReader(source).read(RangesPartition(()))
    assert next(rows) == "rows"
    with pytest.raises(ServiceError) as caught:
        next(rows)
    assert 'raise ServiceError("GetRecords failed")' not in shown(caught.value)


@pytest.mark.parametrize(
    "method",
    [
        "initialOffset",
        "latestOffset",
        pytest.param(
            "prepareForTriggerAvailableNow",
            marks=pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="PySpark has it from 4.2 on"),
        ),
    ],
)
def test_a_query_that_cannot_start_says_why_within_a_few_lines(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Whichever method Spark calls first, which depends on the trigger."""

    def create_coordinator(_source: object) -> object:
        raise OptionError("this consumer does not exist")

    monkeypatch.setattr(KinesisSource, "create_coordinator", create_coordinator)
    reader: Any = make_stream_reader(KinesisSource(source_config_from_options({"streamName": "a"})))
    with pytest.raises(OptionError) as caught:
        getattr(reader, method)()
    assert 'raise OptionError("there is no' not in shown(caught.value)
