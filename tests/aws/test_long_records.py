"""When the data of records is cut out of their page. `test_responses` checks that the page is the same."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest

from sluice.aws.wire.long_records import read_page
from sluice.aws.wire.records import WireRecord

LONG = b"\x00\xfe" * 5_000


class Page(msgspec.Struct, rename="pascal"):
    records: list[WireRecord] | None = None


class Reader:
    """The typed decoder; keeps the lengths of what it has decoded."""

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
def test_long_data_does_not_go_through_the_decoder(kind: Any) -> None:
    """The decoder gets the page without data; the records are complete and in order."""
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
    """It would take longer. No record; a short one first; short ones by the mean."""
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
def test_a_page_in_an_unusual_form_is_decoded_whole(body: bytes) -> None:
    """Another field named Data; the name or white space written in another way; escapes in the data."""
    reader = Reader()

    assert read_page(reader, body) == msgspec.json.decode(body, type=Page)
    assert reader.lengths[-1] == len(body)


@pytest.mark.parametrize("data", ["A" * 8_001, "A" * 8_000 + "=", "*" * 8_000, "=" * 8_000])
def test_the_decoder_refuses_data_that_is_not_base64(data: str) -> None:
    """Its error is the one that callers handle."""
    with pytest.raises(msgspec.ValidationError):
        read_page(Reader(), a_page(a_record(LONG, Data=data)))
