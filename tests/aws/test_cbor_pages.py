"""Pages in CBOR: the same records as the SDK reads from the same page in JSON, by columns or item by item."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from botocore.parsers import ResponseParserError
from hypothesis import given
from hypothesis import strategies as st
from integration.model import cbor as model_cbor
from wire_answers import parsed_by_the_sdk, parsed_by_us, response_of, shape_of
from wire_cbor import ARRIVAL, cbor_pages, in_json, plainly_written, written

from sluice.aws.errors import DamagedAnswerError
from sluice.aws.wire import pages as page_reading
from sluice.aws.wire.cbor import Decoder, encode
from sluice.aws.wire.record_bounds import RecordBounds
from sluice.aws.wire.record_columns import RecordColumns
from sluice.aws.wire.records import WireRecord
from sluice.errors import ServiceError
from sluice.kinesis.log import client
from sluice.kinesis.subscriptions.events import decode_page
from sluice.source.logs.stream_log import Page

GET_RECORDS = shape_of("kinesis", "GetRecords")
MANY = 25
USUAL = pa.default_memory_pool()
COUNTED = pa.proxy_memory_pool(USUAL)  # for as long as its arrays exist
FIELDS = ["SequenceNumber", ARRIVAL, "PartitionKey", "Data"]


@st.composite
def plain_pages(draw: st.DrawFn) -> bytes:
    """A page as the service writes it, long enough for columns; fields in any order."""
    page = draw(cbor_pages(more=st.just({}), count=6))
    names = draw(st.permutations([*FIELDS, "EncryptionType"]))
    records = page["Records"] * MANY
    page["Records"] = [{name: record.get(name, "NONE") for name in names} for record in records]
    order = draw(st.permutations(list(page)))
    return plainly_written({name: page[name] for name in order}, counted=draw(st.booleans()))


@pytest.fixture(autouse=True, scope="module", params=[1, 10**9], ids=["columns", "objects"])
def many(request: pytest.FixtureRequest) -> Iterator[int]:
    """From how many records on columns are read: always, or never."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_reading, "_MANY", request.param)
        yield request.param


def page_of(body: bytes, parse: Callable[..., Any]) -> Page:
    """The page that the client returns, its records in a list."""
    page = client._page(parse(response_of(body), GET_RECORDS))
    return Page(list(page.records), page.next_iterator, page.millis_behind)


def item_by_item(body: bytes) -> Page:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordBounds, "of_array", lambda *_: None)
        return page_of(body, parsed_by_us)


@given(cbor_pages(numbers=st.integers(0, 10**57).map(str)), st.integers(0, 2**32))
def test_any_cbor_is_read_as_the_sdk_reads_json(page: dict[str, Any], seed: int) -> None:
    """Any order, any widths of lengths, lengths that are not known, strings in chunks, unknown fields."""
    assert page_of(written(Random(seed), page), parsed_by_us) == page_of(in_json(page), parsed_by_the_sdk)


@given(
    cbor_pages(more=st.just({})),
    st.permutations(["SequenceNumber", ARRIVAL, "PartitionKey", "Data"]),
    st.data(),
)
def test_records_that_are_written_alike_become_columns(
    many: int, page: dict[str, Any], names: list[str], data: st.DataObject
) -> None:
    """Or objects, without being decoded item by item, in any order of fields; and they are the SDK's."""
    records = page["Records"] = [{name: each[name] for name in names} for each in page["Records"]] * MANY
    more: list[dict[str, Any]] = [{}, {"EncryptionType": "KMS"}, {"New": {"a": "\u00e4"}}]
    same = data.draw(st.sampled_from(more))
    records[:] = [each | same for each in records]
    body = plainly_written(page, counted=data.draw(st.booleans()))
    answer = parsed_by_us(response_of(body), GET_RECORDS)

    assert page_of(body, parsed_by_us) == page_of(in_json(page), parsed_by_the_sdk)
    assert isinstance(answer["Records"], RecordColumns) == bool(records and many == 1)
    if records:
        assert RecordBounds.of_array(body, body.index(b"\x67Records") + 8) is not None


@given(plain_pages(), st.data())
def test_damage_never_makes_another_record(body: bytes, data: st.DataObject) -> None:
    """A page that is cut, or has a byte changed, added or left out: by columns as item by item."""
    place = data.draw(st.integers(0, len(body) - 1))
    change = data.draw(st.sampled_from(["cut", "change", "add", "leave out"]))
    byte = bytes([data.draw(st.integers(0, 255))])
    damaged = {
        "cut": body[:place],
        "change": body[:place] + byte + body[place + 1 :],
        "add": body[:place] + byte + body[place:],
        "leave out": body[:place] + body[place + 1 :],
    }[change]
    try:
        expected = item_by_item(damaged)
    except (DamagedAnswerError, KeyError, ValueError, ResponseParserError) as error:
        with pytest.raises(type(error)):
            page_of(damaged, parsed_by_us)
        return
    assert page_of(damaged, parsed_by_us) == expected


def test_long_data_are_copied_once(many: int) -> None:
    """Making columns takes the memory of one page in addition to the page, not that of arrays that grow."""
    if many != 1:
        pytest.skip("makes no columns")
    record = {ARRIVAL: 1, "Data": b"d" * 20_000, "PartitionKey": "k", "SequenceNumber": "4" * 56}
    body = plainly_written({"MillisBehindLatest": 0, "Records": [record] * 200})
    pa.set_memory_pool(COUNTED)
    try:
        assert parsed_by_us(response_of(body), GET_RECORDS)["Records"].data[-1].as_py() == record["Data"]
    finally:
        pa.set_memory_pool(USUAL)

    assert 0.9 * len(body) < COUNTED.max_memory() < 1.2 * len(body)


def test_a_few_large_records_become_columns() -> None:
    """An object for each would copy their data twice: out of the page, and into a record batch."""
    record = {ARRIVAL: 1, "Data": b"d" * 100_000, "PartitionKey": "k", "SequenceNumber": "4" * 56}
    body = plainly_written({"MillisBehindLatest": 0, "Records": [record] * 3})

    records = parsed_by_us(response_of(body), GET_RECORDS)["Records"]

    assert isinstance(records, RecordColumns)
    assert [each.data for each in records] == [record["Data"]] * 3


def odd_records() -> list[tuple[str, dict[str, Any]]]:
    plain = {ARRIVAL: 1_700_000_000_123, "Data": b"data", "PartitionKey": "key", "SequenceNumber": "4" * 56}
    return [
        ("another order", {name: plain[name] for name in reversed(plain)}),
        (
            "keys and numbers in each other's place",
            {**plain, "PartitionKey": "4" * 56, "SequenceNumber": "key"},
        ),
        ("a shorter number", {**plain, "SequenceNumber": "4" * 55}),
        ("another field", {**plain, "EncryptionType": "KMS"}),
        ("no data", {**plain, "Data": b""}),
        ("data as base64", {**plain, "Data": "ZGF0YQ=="}),
        ("a far time", {**plain, ARRIVAL: 2**43}),
        ("a time before 1970", {**plain, ARRIVAL: -1}),
    ]


@pytest.mark.parametrize(
    ("odd", "place"), [(odd, place) for _, odd in odd_records() for place in (0, 3, MANY)]
)
def test_a_record_that_is_written_otherwise(odd: dict[str, Any], place: int) -> None:
    """It and its neighbours are read nevertheless."""
    (_, plain), *_ = odd_records()
    records = [{name: plain[name] for name in reversed(plain)} for _ in range(MANY)]
    records.insert(place, odd)
    page = {"MillisBehindLatest": 0, "Records": records, "NextShardIterator": "A"}
    readable = {**page, "Records": [{**each, "Data": b"data" if each["Data"] else b""} for each in records]}

    assert page_of(plainly_written(page), parsed_by_us) == page_of(in_json(readable), parsed_by_the_sdk)


@pytest.mark.parametrize("missing", FIELDS)
@pytest.mark.parametrize("records", [1, MANY])
def test_a_record_without_a_field_is_damage(missing: str, records: int) -> None:
    """It is not dropped from the page."""
    whole = {ARRIVAL: 1, "Data": b"d", "PartitionKey": "k", "SequenceNumber": "4" * 56}
    part = {name: value for name, value in whole.items() if name != missing}
    body = plainly_written({"MillisBehindLatest": 0, "Records": [*[whole] * records, part]})

    with pytest.raises(DamagedAnswerError):
        page_of(body, parsed_by_us)


@pytest.mark.parametrize("name", [name for name in FIELDS if name != ARRIVAL])
@pytest.mark.parametrize("value", [None, 0, [], {}])
def test_a_value_of_another_type_is_damage(name: str, value: Any) -> None:
    """It does not pass for an empty one."""
    whole = {ARRIVAL: 1, "Data": b"", "PartitionKey": "", "SequenceNumber": "4" * 56}
    for records in ([*[whole] * MANY, {**whole, name: value}], [{**whole, name: value}] * MANY):
        with pytest.raises(DamagedAnswerError):
            page_of(plainly_written({"MillisBehindLatest": 0, "Records": records}), parsed_by_us)


def test_an_array_that_ends_too_soon_has_no_bounds() -> None:
    """Nothing is taken from behind the end of the page, and a count is not ended by a break."""
    record = {
        ARRIVAL: 1,
        "Data": b"d",
        "PartitionKey": "k",
        "SequenceNumber": "4" * 56,
        "EncryptionType": "NONE",
    }
    body = plainly_written({"Records": [record] * MANY}, counted=True)
    start = body.index(b"\x67Records") + 8
    count = body[start + 1]

    assert count == MANY
    assert RecordBounds.of_array(body, start) is not None
    for size in range(1, 100):
        assert RecordBounds.of_array(body[:-size], start) is None
    too_many = body[: start + 1] + bytes([count + 1]) + body[start + 2 :]
    assert RecordBounds.of_array(too_many + b"\xff", start) is None


HOSTILE = {
    "an array that is not there": b"\xa1\x67Records\x9b" + b"\xff" * 8,
    "a map that is not there": b"\xbb" + b"\xff" * 8,
    "data that is not there": b"\xa1\x64Data\x5b\x7f" + b"\xff" * 7,
    "nested arrays": b"\xa1\x63New" + b"\x9f" * 2**20,
    "nested tags": b"\xa1\x63New" + b"\xc0" * 2**20,
    "empty arrays": b"\xa1\x63New\x9f" + b"\x80" * 2**23 + b"\xff",
    "empty maps": b"\xa1\x67Records\x9f" + b"\xa0" * 2**23 + b"\xff",
    "empty chunks": b"\xa1\x63New\x5f" + b"\x40" * 2**20,
    "a break alone": b"\xa1\x63New\xff",
    "no name": b"\xa1\x01\x01",
    "a chunk in a chunk": b"\xa1\x63New\x5f\x5f\xff\xff",
    "a reserved head": b"\xa1\x63New\x1c",
    "more after the end": plainly_written({"MillisBehindLatest": 0, "Records": []}) + b"\xa0",
    "nothing but a head": b"\xbf",
    "a time that is none": plainly_written(
        {
            "MillisBehindLatest": 0,
            "Records": [{"ApproximateArrivalTime": 1, "Data": b"", "PartitionKey": "", "SequenceNumber": ""}],
        }
    ).replace(b"\x76ApproximateArrivalTime\x01", b"\x78\x1bApproximateArrivalTimestamp\xc1\x61x"),
    "a time beyond all dates": plainly_written(
        {
            "MillisBehindLatest": 0,
            "Records": [{ARRIVAL: 2**62, "Data": b"", "PartitionKey": "", "SequenceNumber": ""}],
        }
    ),
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_page_is_an_error_soon(body: bytes) -> None:
    """The client retries the error, even for an event."""
    with pytest.raises(DamagedAnswerError):
        page_of(body, parsed_by_us)
    with pytest.raises(ServiceError) as caught:
        decode_page(body)
    assert caught.value.retryable


@pytest.mark.parametrize("body", [body for body in HOSTILE.values() if len(body) < 1_000])
def test_lengths_that_lie_take_no_memory(body: bytes) -> None:
    """Space is reserved only for bytes that have arrived."""
    tracemalloc.start()
    try:
        with pytest.raises(DamagedAnswerError):
            page_of(body, parsed_by_us)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


def test_what_is_written_is_what_the_sdk_reads() -> None:
    """Requests: text of all lengths, numbers of all widths, nested maps."""
    request = {
        "ShardIterator": "A" * 300,
        "Limit": 10_000,
        "a": {"b": "\u00e4" * 70_000, "n": [2**8, 2**16, 2**32][0], "-": -300},
        **{str(number): number for number in (0, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32)},
    }
    assert model_cbor.decode(encode(request)) == request
    assert Decoder(encode(request)).decode() == request


def test_columns_are_a_sequence_of_records() -> None:
    """Items, slices and loops, as the reader of a range uses them."""
    records = [
        {ARRIVAL: 1000 + n, "Data": bytes([n]), "PartitionKey": f"k{n}", "SequenceNumber": f"{n:056}"}
        for n in range(MANY)
    ]
    answer = parsed_by_us(
        response_of(plainly_written({"MillisBehindLatest": 0, "Records": records})), GET_RECORDS
    )
    columns = answer["Records"]

    assert [record.arrival for record in columns] == [(1000 + n) * 1000 for n in range(MANY)]
    assert columns[-1] == columns[MANY - 1] == list(columns)[-1]
    assert list(columns[3:5]) == list(columns)[3:5]
    assert isinstance(columns[0], WireRecord)
    assert not columns[MANY:]
    assert list(columns[MANY:]) == []
    with pytest.raises(IndexError):
        columns[MANY]
