"""Option `compression`: each row is compressed, limits count the compressed bytes, and letters hold the
original row.
"""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fake_kinesis import FakeStream, aggregating, as_batch, even_shards, row_lists, rows
from fake_service import OPTIONS, FakeService, answer, read_async_sink, write_all
from hypothesis import given
from hypothesis import strategies as st

from sluice.destinations import read_sink
from sluice.destinations.common.compression import compressed
from sluice.destinations.kinesis import KinesisEntry
from sluice.destinations.sqs import SqsMessage
from sluice.errors import InvalidRecordError, OptionError
from sluice.functions.decompression import decompressed
from sluice.kinesis.log.kpl.deaggregator import unpack
from sluice.sink import AsyncSinkWriter, NoRateLimitingStrategy, Origin
from sluice.sink.converters import DataConverter

KINESIS = {"destination": "kinesis", "streamName": "orders"}
FIREHOSE = {"destination": "firehose", "deliveryStream": "orders"}
SQS = {"destination": "sqs", "queueUrl": "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"}
SINKS = pytest.mark.parametrize("sink", [KINESIS, FIREHOSE, SQS], ids=["kinesis", "firehose", "sqs"])
CODECS = pytest.mark.parametrize("codec", ["gzip", "zstd"])


def batch(sink: dict[str, str], *values: bytes | str | None) -> pa.RecordBatch:
    column = "body" if sink is SQS else "data"
    return pa.record_batch({column: pa.array(values)})


def entries(sink: dict[str, str], *values: bytes | str | None, **options: str) -> list[Any]:
    destination = read_async_sink({**OPTIONS, **sink, **options}).destination
    return list(destination.create_converter().convert(batch(sink, *values)))


def written(entry: Any) -> bytes:
    """What the service stores."""
    match entry:
        case KinesisEntry():
            return entry.data
        case SqsMessage():
            return base64.b64decode(entry.body, validate=True)
    return bytes(entry)


@SINKS
@CODECS
@given(values=st.lists(st.binary(max_size=200), max_size=5))
def test_decompress_reads_what_is_written(sink: dict[str, str], codec: str, values: list[bytes]) -> None:
    """By magic bytes. An empty row is compressed, too, and equal rows stay equal."""
    made = [written(entry) for entry in entries(sink, *values, compression=codec)]
    assert [decompressed(each) for each in made] == values
    assert made == [written(entry) for entry in entries(sink, *values, compression=codec)]
    assert all(each.startswith(b"\x1f\x8b" if codec == "gzip" else b"\x28\xb5\x2f\xfd") for each in made)


@SINKS
def test_text_is_compressed_as_utf_8(sink: dict[str, str]) -> None:
    """Strings, and for queues what no message may hold as it is."""
    (made,) = entries(sink, "grün\0", compression="zstd")
    assert decompressed(written(made)) == "grün\0".encode()


@SINKS
@pytest.mark.parametrize("options", [{}, {"compression": "none"}])
def test_nothing_is_compressed_by_default(sink: dict[str, str], options: dict[str, str]) -> None:
    """The data is written as it is."""
    (made,) = entries(sink, "text", **options)
    assert (made.body.encode() if sink is SQS else written(made)) == b"text"


@SINKS
def test_null_is_refused(sink: dict[str, str]) -> None:
    """As without compression."""
    with pytest.raises(InvalidRecordError, match=r"row 1 .* is null"):
        entries(sink, b"a", None, compression="gzip")


@SINKS
def test_other_compressions_are_refused(sink: dict[str, str]) -> None:
    """In one error that names what is allowed."""
    with pytest.raises(
        OptionError, match="option 'compression' is 'lz4': allowed is one of none, gzip, zstd"
    ):
        read_sink({**OPTIONS, **sink, "compression": "lz4"})


@SINKS
@CODECS
def test_limits_count_what_is_left(sink: dict[str, str], codec: str, tmp_path: Path) -> None:
    """A row that is too large before compression is written; one that is too large after it becomes a letter
    with the original row.
    """
    accepted: list[Any] = []

    def respond(_operation: str, request: dict[str, Any]) -> Any:
        sent = request["Entries"] if sink is SQS else request["Records"]
        accepted.extend(sent)
        record = {"SequenceNumber": "1", "ShardId": "shardId-000000000000", "RecordId": "1"}
        return answer(
            {
                "Records": [record] * len(sent),
                "RequestResponses": [record] * len(sent),
                "Successful": [{"Id": each.get("Id"), "MessageId": "m"} for each in sent],
            }
        )

    FakeService(sink["destination"], respond)
    fits, noise = bytes(100_000), random.Random(1).randbytes(2000)
    options = {
        "compression": codec,
        "maxRecordSizeInBytes": "1500",
        "oversizedRecords": "deadLetter",
        "deadLetterPath": str(tmp_path),
    }
    setup = read_async_sink({**OPTIONS, **sink, **options})
    assert setup.dead_letters is not None
    writer = AsyncSinkWriter(
        setup.destination,
        setup.config,
        NoRateLimitingStrategy(),
        dead_letters=setup.dead_letters(Origin(sink["destination"], run="r")),
    )
    writer.write(batch(sink, fits, noise))
    writer.flush()
    writer.close()

    (sent,) = accepted
    data = base64.b64decode(sent["MessageBody"] if sink is SQS else sent["Data"])
    assert decompressed(data) == fits
    (file,) = tmp_path.rglob("*.jsonl")
    letter = json.loads(file.read_text())
    assert base64.b64decode(letter["data"]) == noise
    assert letter["form"] == "data"
    (entry,) = entries(sink, noise, compression=codec)
    assert f"a record of {setup.destination.size_in_bytes(entry)} bytes is larger" in letter["reason"]


@CODECS
@given(given=row_lists())
def test_rows_are_compressed_before_they_are_aggregated(codec: str, given: list[Any]) -> None:
    """Readers unpack the aggregate, and decompress each of its rows; dead letters have them as they were."""
    destination = aggregating(FakeStream(even_shards(2)), compression=codec)
    made = list(destination.create_converter().convert(as_batch(given)))
    records = [each for entry in made for each in _records(entry)]
    wanted = sorted(data for data, _, _ in given)
    assert sorted(decompressed(each) for each in records) == wanted
    assert wanted == sorted(record.data for entry in made for record in destination.unpacked(entry))


def _records(entry: Any) -> list[bytes]:
    return [entry.data] if isinstance(entry, KinesisEntry) else unpack(entry.record.data)[1]


def test_an_aggregate_has_room_for_more_compressed_rows() -> None:
    """Its limit is one of bytes, after compression."""
    given, stream = rows(1000, keys=1, size=500), FakeStream(even_shards(1))
    plain, packed = (
        list(aggregating(stream, compression=each).create_converter().convert(as_batch(given)))
        for each in ("none", "gzip")
    )
    assert 4 * len(packed) < len(plain)


def test_the_option_reaches_aggregates() -> None:
    """Of the same sink."""
    options = {**OPTIONS, **KINESIS, "aggregate": "true", "compression": "gzip"}
    destination = read_async_sink(options).destination
    record = KinesisEntry(compressed([b"a"], "gzip")[0], "k")
    assert [each.data for each in destination.unpacked(record)] == [b"a"]  # type: ignore[attr-defined]


def test_gzip_holds_no_time() -> None:
    """A queue that drops duplicates by their content sees the same body when a task is repeated."""
    assert compressed([b"a"], "gzip")[0][4:8] == bytes(4)


class AsBytes(DataConverter):
    """Serializes rows to bytes that are not text."""

    def serialize(self, batch: pa.RecordBatch) -> list[bytes]:
        return [b"\xff"] * batch.num_rows


def test_a_queue_takes_any_bytes_once_they_are_compressed() -> None:
    """Without compression, a converter that makes bytes is refused for `sqs`."""
    converter = f"{__name__}:AsBytes"
    options = {**OPTIONS, **SQS, "elementConverter": converter}
    with pytest.raises(OptionError, match="takes text"):
        read_sink(options)
    create = read_async_sink({**options, "compression": "gzip"}).create_converter
    assert create is not None
    (made,) = create().convert(pa.record_batch({"id": [1]}))
    assert decompressed(written(made)) == b"\xff"


@SINKS
def test_entries_of_a_converter_of_ones_own_are_not_compressed(sink: dict[str, str]) -> None:
    """Their letters hold them as they are; those of a `DataConverter` are."""
    setup = read_async_sink({**OPTIONS, **sink, "compression": "gzip"})
    own: Any = {"kinesis": KinesisEntry(b"a", "k"), "firehose": b"a"}.get(
        sink["destination"], SqsMessage("a!")
    )
    assert list(setup.destination.unpacked(own)) == [own]
    by_json = {
        **OPTIONS,
        **sink,
        "compression": "gzip",
        "elementConverter": "sluice.sink.converters:JsonConverter",
    }
    create = read_async_sink(by_json).create_converter
    assert create is not None
    (made,) = create().convert(pa.record_batch({"id": [1]}))
    assert decompressed(written(made)) == b'{"id":1}'


def test_figures_count_rows() -> None:
    """And nothing else changes: one request, one row each."""
    FakeService("firehose", lambda *_: answer({"RequestResponses": [{"RecordId": "1"}] * 2}))
    assert write_all({**FIREHOSE, "compression": "gzip"}, batch(FIREHOSE, b"a", b"b")).records == 2


def test_letters_of_a_queue_keep_the_other_fields() -> None:
    """So a replay makes the same message of them."""
    destination = read_async_sink({**OPTIONS, **SQS, "compression": "zstd"}).destination
    rows_ = pa.record_batch(
        {"body": [b"\xff"], "messageGroupId": ["g"], "delaySeconds": pa.array([7], pa.int32())}
    )
    (entry,) = destination.create_converter().convert(rows_)
    (fields,) = destination.unpacked(entry)
    assert fields == {
        "data": b"\xff",
        "message_group_id": "g",
        "message_deduplication_id": None,
        "delay_seconds": 7,
        "attributes": None,
    }
