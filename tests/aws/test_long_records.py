"""When the data of records is cut out of their page. That the page is the same: see test_answers."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest

from sluice.aws.long_records import read_page
from sluice.aws.records import WireRecord

LONG = b"\x00\xfe" * 5_000


class Page(msgspec.Struct, rename="pascal"):
    records: list[WireRecord] | None = None


class Reader:
    """The typed decoder; knows the lengths of what it was given."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self._decoder = msgspec.json.Decoder(Page)

    def __call__(self, body: bytes | memoryview) -> Page:
        self.lengths.append(len(body))
        return self._decoder.decode(body)


def a_record(data: bytes, **more: Any) -> dict[str, Any]:
    return {
        "SequenceNumber": "1",
        "ApproximateArrivalTimestamp": 1.5,
        "Data": base64.b64encode(data).decode(),
        "PartitionKey": 'a "Data":" key',
        **more,
    }


def a_page(*records: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({**more, "Records": list(records)}).encode()


@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_long_data_never_meets_the_decoder(kind: Any) -> None:
    """What is decoded is the page without data; records come out whole and in order."""
    data = [bytes([n]) + LONG for n in range(20)]
    reader = Reader()
    page = read_page(reader, kind(a_page(*map(a_record, data))))

    assert [record.data for record in page.records or ()] == data
    assert {record.partition_key for record in page.records or ()} == {'a "Data":" key'}
    assert max(reader.lengths) < 20 * 300


@pytest.mark.parametrize(
    "body",
    [
        a_page(),
        a_page(a_record(b"short"), a_record(LONG)),
        a_page(a_record(LONG), *[a_record(b"short")] * 10),
    ],
)
def test_short_records_are_not_cut(body: bytes) -> None:
    """There it would take longer: nothing, a short one first, short ones by the mean."""
    reader = Reader()

    assert read_page(reader, body) == msgspec.json.decode(body, type=Page)
    assert reader.lengths == [len(body)]


@pytest.mark.parametrize(
    "body",
    [
        a_page(a_record(LONG, New={"Data": "A" * 8_000})),
        a_page(a_record(LONG), New={"Data": "A" * 8_000}),
        a_page(a_record(LONG), a_record(LONG)).replace(b'"Data"', b'"\\u0044ata"', 1),
        a_page(a_record(LONG), a_record(LONG)).replace(b'"Data": ', b'"Data":', 1),
        a_page(a_record(LONG, Data=json.loads(f'"{"AAAA" * 2_000}"'))).replace(b"AAAA", b"AA\\u0041A", 1),
    ],
)
def test_what_is_written_otherwise_is_read_whole(body: bytes) -> None:
    """Another field of that name, a name or white space written in another way, escapes within the data."""
    reader = Reader()

    assert read_page(reader, body) == msgspec.json.decode(body, type=Page)
    assert reader.lengths[-1] == len(body)


@pytest.mark.parametrize("data", ["A" * 8_001, "A" * 8_000 + "=", "*" * 8_000, "=" * 8_000])
def test_data_that_is_not_base64_is_for_the_decoder_to_refuse(data: str) -> None:
    """Its error is the one that callers know."""
    with pytest.raises(msgspec.ValidationError):
        read_page(Reader(), a_page(a_record(LONG, Data=data)))
