"""Text of a service that has no UTF-8: its rows come, with U+FFFD."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.aws.wire import mended_text
from sluice.aws.wire.changes import read_changes
from sluice.aws.wire.mended_text import mended_json
from sluice.aws.wire.responses import read_records
from sluice.dynamodb_streams.images import as_sent, plain
from sluice.kinesis.log.record_batches import _columns_of
from sluice.kinesis.subscriptions.events import decode_head, decode_page

# What JSON and CBOR may hold in the place of a key's last character, and what becomes of it.
JSON_FORMS = {
    b"\\ud83d": "\ufffd",
    b"\\uDE00": "\ufffd",
    b"\xed\xa0\xbd": "\ufffd",
    b"\xff": "\ufffd",
    b"\\ud83d\\ude00": "😀",
}
CBOR_FORMS = {b"\xed\xa0\xbd": "\ufffd", b"\xff": "\ufffd", "😀".encode(): "😀"}


def records(count: int, place: int, key: str) -> list[dict[str, Any]]:
    made = [
        {
            "SequenceNumber": str(10**20 + n),
            "ApproximateArrivalTimestamp": 1.5,
            "PartitionKey": f"k{n:03}-X",
            "Data": "eA==",
        }
        for n in range(count)
    ]
    made[place]["PartitionKey"] = key
    return made


def json_page(count: int, place: int, form: bytes, **more: Any) -> bytes:
    page = {
        "Records": records(count, place, "LONE"),
        "MillisBehindLatest": 0,
        "NextShardIterator": "i",
        **more,
    }
    return json.dumps(page).encode().replace(b"LONE", b"k\\\\" + form)


def cbor(value: Any, key: bytes) -> bytes:
    """As the service writes it: texts with their length, data as bytes."""

    def head(major: int, number: int) -> bytes:
        if number < 24:
            return bytes([major << 5 | number])
        return (
            bytes([major << 5 | 25]) + number.to_bytes(2, "big")
            if number < 2**16
            else bytes([major << 5 | 27]) + number.to_bytes(8, "big")
        )

    if isinstance(value, dict):
        return head(5, len(value)) + b"".join(cbor(k, key) + cbor(v, key) for k, v in value.items())
    if isinstance(value, list):
        return head(4, len(value)) + b"".join(cbor(each, key) for each in value)
    if isinstance(value, bytes):
        return head(2, len(value)) + value
    if isinstance(value, int):
        return head(0, value)
    data = key if value == "LONE" else value.encode()
    return head(3, len(data)) + data


def cbor_page(count: int, place: int, form: bytes, **more: Any) -> bytes:
    made = [
        {**each, "ApproximateArrivalTimestamp": 1500, "Data": b"x"} for each in records(count, place, "LONE")
    ]
    return cbor({"Records": made, "MillisBehindLatest": 0, "NextShardIterator": "i", **more}, b"k\\" + form)


def pages(count: int, place: int) -> list[tuple[bytes, str, bool]]:
    found = [(json_page(count, place, form), text, False) for form, text in JSON_FORMS.items()]
    return found + [(cbor_page(count, place, form), text, True) for form, text in CBOR_FORMS.items()]


@pytest.mark.parametrize(("count", "place"), [(1, 0), (3, 1), (300, 17)])
def test_a_record_whose_key_is_no_unicode_comes_with_all_others(
    count: int, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    """In pages of any size, which are read record by record, or by columns. The log names the first one."""
    for body, text, _ in pages(count, place):
        mended_text._warned.clear()
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            for _again in range(2):
                answer = read_records({"body": body, "headers": {}, "status_code": 200})
                assert answer is not None
                columns = _columns_of(answer["Records"])
        assert (
            columns.partition_keys.to_pylist()[place].replace("\ufffd\ufffd\ufffd", "\ufffd") == f"k\\{text}"
        )
        assert columns.data.to_pylist() == [b"x"] * count
        assert [len(columns), columns.sequence_numbers.to_pylist()[place]] == [count, str(10**20 + place)]
        warned = [each for each in caplog.records if str(10**20 + place) in each.getMessage()]
        assert len(warned) == (text == "\ufffd")


def test_pushed_records_are_read_alike() -> None:
    """By the agent, which reads heads alone, and by tasks."""
    for body, text, is_cbor in pages(3, 1):
        event = body.replace(b"NextShardIterator", b"NextShardIterator") if is_cbor else body
        assert decode_head(event).continuation == "i"
        assert decode_page(event).records[1].partition_key.startswith("k\\" + text[:1])


def test_images_of_dynamodb_are_read() -> None:
    """In both formats, whichever text has the half: names, values, members of sets."""
    change = {
        "SequenceNumber": "1",
        "ApproximateCreationDateTime": 1,
        "SizeBytes": 1,
        "NewImage": {"LONE": {"SS": ["LONE", "b"]}, "n": {"N": "1.50"}},
    }
    body = json.dumps({"Records": [{"eventID": "e", "eventName": "INSERT", "dynamodb": change}]}).encode()
    for form in (b"\\ud83d", b"\xed\xa0\xbd"):
        answer = read_changes({"body": body.replace(b"LONE", form), "headers": {}, "status_code": 200})
        image = answer["Records"][0].dynamodb.new_image
        assert json.loads(plain(image) or "") == {"\ufffd": ["\ufffd", "b"], "n": 1.5}
        assert "1.50" in (plain(image) or "")
        assert json.loads(as_sent(image) or "")["\ufffd"] == {"SS": ["\ufffd", "b"]}


@given(
    st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)), st.booleans()
)
def test_whole_text_is_left_as_it_is(value: Any, ascii_only: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode()

    assert mended_json(body) == body


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_of_json_can_be_read(text: str) -> None:
    """With any halves, backslashes and escapes; other characters stay."""
    found = json.loads(mended_json(json.dumps(text).encode()))

    assert found == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
