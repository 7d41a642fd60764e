"""Events of a subscription, decoded as heads and as pages."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from random import Random
from typing import Any

import pytest
from botocore.eventstream import EventStream
from botocore.parsers import JSONParser
from botocore.session import Session
from event_streams import event, event_message, record
from hypothesis import given
from hypothesis import strategies as st
from integration.model import cbor
from wire_cbor import ARRIVAL, cbor_pages, in_json, plainly_written, written

from sluice.aws.wire import long_records
from sluice.errors import ServiceError
from sluice.kinesis.subscriptions.events import decode_head, decode_page
from sluice.source.logs.stream_log import Page, Record

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
MODEL: Any = Session().get_service_model("kinesis").operation_model("SubscribeToShard")
SDK_PARSER: Any = JSONParser()


class Body:
    """A body that the SDK reads an event stream from."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def stream(self) -> Any:
        yield self._data


def read_by_the_sdk(payload: bytes) -> Page:
    """The event as the SDK parses it, as a page."""
    shape = MODEL.output_shape.members["EventStream"]
    body: Any = Body(event_message(payload))
    stream: Any = EventStream(body, shape, SDK_PARSER._event_stream_parser, "SubscribeToShard")
    (parsed,) = stream
    found = parsed["SubscribeToShardEvent"]
    records = [
        Record(
            each["SequenceNumber"],
            (each["ApproximateArrivalTimestamp"] - EPOCH) // timedelta(microseconds=1),
            each["PartitionKey"],
            each["Data"],
        )
        for each in found["Records"]
    ]
    continuation = None if found.get("ChildShards") else found.get("ContinuationSequenceNumber")
    return Page(records, continuation, found["MillisBehindLatest"])


NUMBERS = st.integers(0, 10**57).map(str)
ARRIVALS = st.one_of(
    st.floats(0, 4e9, allow_nan=False),
    st.integers(0, 4_000_000_000),
    st.integers(0, 4 * 10**12).map(lambda millis: millis / 1000),
    st.integers(0, 4 * 10**15).map(lambda micros: micros / 1_000_000),
)
UNKNOWN: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.text(), st.integers(), st.lists(st.integers()), st.just({"a": [{}]})
)


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    made = record(
        draw(NUMBERS),
        draw(st.one_of(st.binary(max_size=100), st.just(b""), st.just(b"\xff" * 100_000))),
        draw(st.text(min_size=1, max_size=60)),
        draw(ARRIVALS),
    )
    encryption = draw(st.sampled_from(["NONE", "KMS", None]))
    if encryption is None:
        del made["EncryptionType"]
    else:
        made["EncryptionType"] = encryption
    return made | draw(st.dictionaries(st.sampled_from(["New", "StreamId"]), UNKNOWN))


@st.composite
def events(draw: st.DrawFn) -> bytes:
    made = event(
        draw(st.lists(records(), max_size=5)),
        draw(NUMBERS),
        draw(st.integers(0, 2**40)),
        draw(st.lists(st.just("shardId-000000000001"), max_size=2)),
    )
    for name in ("ContinuationSequenceNumber",) if made["ChildShards"] else ("ChildShards",):
        if draw(st.booleans()):
            del made[name]
    made |= draw(st.dictionaries(st.sampled_from(["New", "Else"]), UNKNOWN))
    return json.dumps(made, ensure_ascii=draw(st.booleans())).encode()


@given(events(), st.booleans())
def test_a_page_is_what_the_sdk_would_have_made_of_the_event(payload: bytes, is_long: bool) -> None:
    """Every field, to the microsecond, with any other fields in the event, and with records that count as
    long.
    """
    with pytest.MonkeyPatch.context() as patch:
        if is_long:
            patch.setattr(long_records, "_LONG", 0)
        assert decode_page(memoryview(payload)) == read_by_the_sdk(payload)


@given(events())
def test_a_head_agrees_with_the_page(payload: bytes) -> None:
    """They are two readings of the same event."""
    page, head = decode_page(payload), decode_head(memoryview(payload))

    assert head.numbers == [each.sequence_number for each in page.records]
    assert head.arrivals == [each.arrival for each in page.records]
    assert head.numbers == [record.sequence_number for record in page.records]
    assert head.millis_behind == page.millis_behind
    assert head.has_ended == (page.next_iterator is None)
    assert head.has_ended or head.continuation == page.next_iterator


@given(cbor_pages(numbers=NUMBERS), st.integers(0, 2**32), st.lists(st.just({"ShardId": "x"}), max_size=2))
def test_an_event_in_cbor_is_that_in_json(
    made: dict[str, Any], seed: int, children: list[dict[str, str]]
) -> None:
    """As a page and as a head, however it is written: an agent and a task may use different forms."""
    made = {**made, "ContinuationSequenceNumber": "7", "ChildShards": children}
    expected = decode_page(in_json(made))
    for payload in (written(Random(seed), made), plainly_written(made), plainly_written(made, counted=True)):
        page, head = decode_page(memoryview(payload)), decode_head(memoryview(payload))

        assert replace(page, records=list(page.records)) == expected
        assert head == decode_head(in_json(made))


@pytest.mark.parametrize("records", [3, 300])
def test_a_head_of_records_that_are_written_alike(records: int) -> None:
    """Few and many records; the record in the middle may be another one."""
    whole = {ARRIVAL: 1_700_000_000_123, "Data": b"d", "PartitionKey": "k"}
    made: dict[str, Any] = {
        "Records": [{**whole, "SequenceNumber": f"{n:056}"} for n in range(records)],
        "ContinuationSequenceNumber": "7",
        "MillisBehindLatest": 0,
    }
    for odd in ({}, {"SequenceNumber": "1"}, {"EncryptionType": "KMS"}, {ARRIVAL: 2**43}):
        made["Records"][1] |= odd
        head = decode_head(plainly_written(made))

        assert head == decode_head(in_json(made))
        assert len(head.numbers) == records


@pytest.mark.parametrize(
    "payload",
    [
        b"\xa0",
        b"\xbf",
        b"\xa1\x67Records\x81\xa0",
        b"\xa1\x67Records\x01",
        b"\xbf\x67Records\x9b" + b"\xff" * 8,
    ],
)
def test_damage_in_cbor_is_a_retryable_error(payload: bytes) -> None:
    """As in JSON."""
    for decode in (decode_head, decode_page):
        with pytest.raises(ServiceError) as caught:
            decode(payload)
        assert caught.value.retryable


def encoded(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    ("payload", "has_ended"),
    [
        (encoded(Records=[], ContinuationSequenceNumber="7", MillisBehindLatest=0), False),
        (encoded(Records=[], ContinuationSequenceNumber="7", ChildShards=[]), False),
        (encoded(Records=[], ContinuationSequenceNumber="7", ChildShards=[{"ShardId": "x"}]), True),
        (encoded(Records=[], ChildShards=[{"ShardId": "x"}]), True),
        (encoded(ChildShards=[{"ShardId": "x"}]), True),
        (encoded(Records=[], ContinuationSequenceNumber=None), True),
        (encoded(Records=[], ContinuationSequenceNumber=""), True),
        (encoded(ContinuationSequenceNumber="7"), False),
        (encoded(ContinuationSequenceNumber="7", Records=None), False),
    ],
)
def test_an_event_with_children_or_without_continuation_is_the_end(payload: bytes, has_ended: bool) -> None:
    """The service sends children and no continuation at the end of a shard; an emulator sends both."""
    head, page = decode_head(payload), decode_page(payload)

    assert head.has_ended is has_ended
    assert (page.next_iterator is None) is has_ended
    assert not page.records
    assert not head.numbers


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"message": "what?"}',
        b'{"Records": 1, "ContinuationSequenceNumber": "7"}',
        b'{"Records": [{}], "ContinuationSequenceNumber": "7"}',
        b'{"Records": [], "ContinuationSequenceNumber": "7", "MillisBehindLatest": "soon"}',
        encoded(Records=[record(1) | {"SequenceNumber": None}], ContinuationSequenceNumber="7"),
        encoded(Records=[record(1) | {"ApproximateArrivalTimestamp": "x"}], ContinuationSequenceNumber="7"),
        b'{"Records": [], "ContinuationSequenceNumber": "7"} x',
    ],
)
def test_what_is_no_event_raises_a_retryable_error(payload: bytes) -> None:
    """It counts neither as an event without records nor as the end of a shard."""
    for decode in (decode_head, decode_page):
        with pytest.raises(ServiceError, match="of s/shard failed: DamagedAnswerError") as caught:
            decode(payload, target="s/shard")
        assert caught.value.retryable
        assert caught.value.operation == "SubscribeToShard"
        assert caught.value.__cause__ is None


def test_data_that_is_not_base64_is_damage_in_a_page_only() -> None:
    """The head does not look at data."""
    payload = encoded(Records=[record(1) | {"Data": "?"}], ContinuationSequenceNumber="1")

    assert len(decode_head(payload).numbers) == 1
    with pytest.raises(ServiceError):
        decode_page(payload)


def test_an_error_does_not_show_data() -> None:
    """Error messages come into logs."""
    with pytest.raises(ServiceError) as caught:
        decode_page(encoded(Records=[record(1, b"secret") | {"PartitionKey": 5}]))
    assert "c2VjcmV0" not in str(caught.value)


@pytest.mark.parametrize("form", [json.dumps, cbor.encode])
@pytest.mark.parametrize(
    ("end", "following"),
    [
        ({"NextShardIterator": "AAA", "MillisBehindLatest": 7}, "AAA"),
        ({"NextShardIterator": "AAA", "MillisBehindLatest": 7, "ChildShards": [{"ShardId": "b"}]}, "AAA"),
        ({"NextShardIterator": None, "MillisBehindLatest": 7}, None),
        ({"MillisBehindLatest": 7, "ChildShards": [{"ShardId": "b"}]}, None),
    ],
)
def test_a_page_of_get_records_is_read_as_an_event(
    form: Any, end: dict[str, Any], following: str | None
) -> None:
    """It names an iterator where an event names a sequence number, and without one it is the shard's last."""
    data = b"data" if form is cbor.encode else "ZGF0YQ=="
    fields = {"SequenceNumber": "12", "ApproximateArrivalTimestamp": 3, "PartitionKey": "k", "Data": data}
    payload = form({"Records": [fields], **end})
    body = payload if isinstance(payload, bytes) else payload.encode()

    head, page = decode_head(body), decode_page(body)

    assert (head.numbers, head.continuation, head.millis_behind) == (["12"], following, 7)
    assert head.has_ended == (following is None)
    assert [(each.sequence_number, each.data) for each in page.records] == [("12", b"data")]
    assert (page.next_iterator, page.millis_behind) == (following, 7)
