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


@pytest.mark.parametrize("data", ["A" * 8_001, "A" * 8_000 + "=", "*" * 8_000, "=" * 8_000])
def test_the_decoder_refuses_data_that_is_not_base64(data: str) -> None:
    """It raises the error that callers handle."""
    with pytest.raises(msgspec.ValidationError):
        read_page(Reader(), a_page(a_record(LONG, Data=data)))
