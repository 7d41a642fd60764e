"""Answers that the library decodes: the same as the SDK's, with any content, damage included."""

from __future__ import annotations

import base64
import json
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_answers import parsed_by_the_sdk, parsed_by_us, response_of, shape_of, written

from sluice.aws.errors import DamagedAnswerError
from sluice.aws.wire import hooks, long_records
from sluice.aws.wire.mended_text import REPLACEMENT, mended_json
from sluice.aws.wire.records import WireRecord
from sluice.aws.wire.responses import Outcome, outcomes_of
from sluice.kinesis.log import client
from sluice.source.logs.stream_log import Page

GET_RECORDS = shape_of("kinesis", "GetRecords")
PUTS = [
    (shape_of("kinesis", "PutRecords"), "Records"),
    (shape_of("firehose", "PutRecordBatch"), "RequestResponses"),
]
NAMES = st.text() | st.just("Data")
UNKNOWN: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)
MORE = st.dictionaries(st.sampled_from(["New", "records", "data", "", "Dat\u00e4"]), UNKNOWN, max_size=3)
SEEDS = st.integers(0, 2**32)
ARRIVALS = st.one_of(
    st.floats(-6e10, 2.5e11, allow_nan=False),
    st.integers(-60_000_000_000, 250_000_000_000),
    st.integers(0, 4 * 10**12).map(lambda millis: millis / 1000),
    st.integers(0, 4 * 10**15).map(lambda micros: micros / 1_000_000),
    st.integers(0, 4 * 10**9).map(lambda half: half + 0.000_000_5),
)
DATA = st.one_of(st.binary(max_size=100), st.just(b""), st.just(b"\x00\xff" * 2_000))
LONG = st.sampled_from([long_records._LONG, 0])  # with 0, short records are cut as well


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    made: dict[str, Any] = {
        "SequenceNumber": draw(st.integers(0, 10**57).map(str)),
        "ApproximateArrivalTimestamp": draw(ARRIVALS),
        "Data": base64.b64encode(draw(DATA)).decode(),
        "PartitionKey": draw(st.text(min_size=1, max_size=60)),
    }
    encryption = draw(st.sampled_from(["NONE", "KMS", None, "left out"]))
    if encryption != "left out":
        made["EncryptionType"] = encryption
    return made | draw(MORE)


@st.composite
def pages(draw: st.DrawFn) -> dict[str, Any]:
    made: dict[str, Any] = {
        "Records": draw(st.lists(records(), max_size=4)),
        "MillisBehindLatest": draw(st.integers(0, 2**40)),
    }
    optional = {
        "NextShardIterator": st.one_of(st.text(), st.none()),
        "ChildShards": st.lists(
            st.fixed_dictionaries({"ShardId": st.text(), "ParentShards": st.lists(st.text(), max_size=2)}),
            max_size=2,
        ),
    }
    return made | draw(st.fixed_dictionaries({}, optional=optional)) | draw(MORE)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    return written(Random(draw(SEEDS)), draw(pages())).encode()


def page_of(body: bytes, parse: Any) -> Page:
    """The page that the client returns. Raises the error for which the client would retry."""
    response = response_of(body)
    parsed = parse(response, GET_RECORDS)
    model: Any = type("Model", (), {"has_streaming_output": False, "has_event_stream_output": False})
    model.http, model.metadata, model.output_shape = {}, {"protocol": "json"}, GET_RECORDS
    answered: Any = type("Answer", (), {"status_code": 200, "content": body, "headers": {}})
    hooks.refuse_damaged_answer(http_response=answered, parsed=parsed, model=model)
    return client._page(parsed)


@given(bodies(), LONG)
@settings(max_examples=200)
def test_a_page_is_that_of_the_sdk(body: bytes, long: int) -> None:
    """Every field, to the microsecond, with any other fields and in any form of JSON."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_records, "_LONG", long)
        ours = page_of(body, parsed_by_us)
    theirs = page_of(body, parsed_by_the_sdk)

    assert ours == theirs
    assert all(type(record) is WireRecord for record in ours.records)
    assert [record.arrival for record in ours.records] == [record.arrival for record in theirs.records]


@given(bodies(), st.data(), LONG)
@settings(max_examples=200)
def test_damage_is_found_wherever_the_sdk_finds_it(body: bytes, data: st.DataObject, long: int) -> None:
    """The page is cut, or a byte is changed, added or left out: the same page or the same error."""
    place = data.draw(st.integers(0, len(body) - 1))
    change = data.draw(st.sampled_from(["cut", "change", "add", "leave out"]))
    byte = data.draw(st.integers(0, 255).map(lambda value: bytes([value])))
    damaged = {
        "cut": body[:place],
        "change": body[:place] + byte + body[place + 1 :],
        "add": body[:place] + byte + body[place:],
        "leave out": body[:place] + body[place + 1 :],
    }[change]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_records, "_LONG", long)
        try:
            theirs = page_of(mended_json(damaged), parsed_by_the_sdk)
        except Exception as error:  # noqa: BLE001 - whatever it is
            # One byte may make of it what would be CBOR.
            with pytest.raises((type(error), DamagedAnswerError)):
                page_of(damaged, parsed_by_us)
            return
        if any(REPLACEMENT in record.sequence_number for record in theirs.records):
            with pytest.raises(DamagedAnswerError):
                page_of(damaged, parsed_by_us)
            return
        assert page_of(damaged, parsed_by_us) == theirs


WHOLE = {"SequenceNumber": "1", "ApproximateArrivalTimestamp": 1.5, "Data": "YQ==", "PartitionKey": "k"}


@pytest.mark.parametrize(
    "record",
    [
        WHOLE | {"ApproximateArrivalTimestamp": "2026-11-21T12:00:00.25Z"},
        WHOLE | {"ApproximateArrivalTimestamp": "1767268800.25"},
        WHOLE | {"Data": "YW\nJj"},
        WHOLE | {"SequenceNumber": 5},
    ],
)
def test_the_sdk_reads_fields_of_unexpected_types(record: dict[str, Any]) -> None:
    """Some emulators write fields in other ways, which the SDK understands."""
    body = json.dumps({"Records": [WHOLE, record], "MillisBehindLatest": 0}).encode()
    ours = page_of(body, parsed_by_us)

    assert ours == page_of(body, parsed_by_the_sdk)
    assert not any(isinstance(each, WireRecord) for each in ours.records)


@pytest.mark.parametrize("missing", list(WHOLE))
@pytest.mark.parametrize("by", [dict.pop, lambda record, name: record.update({name: None})])
def test_a_record_without_a_field_is_damage(missing: str, by: Any) -> None:
    """Left out or null: the record is not dropped from the page."""
    record = dict(WHOLE)
    by(record, missing)
    body = json.dumps({"Records": [WHOLE, record], "MillisBehindLatest": 0}).encode()

    with pytest.raises(KeyError):
        page_of(body, parsed_by_us)


@pytest.mark.parametrize("seconds", [-62_135_596_801.0, 253_402_300_800.0, 1e300])
def test_an_arrival_beyond_all_dates_is_damage(seconds: float) -> None:
    """It is found where the call can be retried, not where rows are built."""
    body = json.dumps(
        {"Records": [WHOLE | {"ApproximateArrivalTimestamp": seconds}], "MillisBehindLatest": 0}
    ).encode()

    with pytest.raises(DamagedAnswerError):
        page_of(body, parsed_by_us)


@pytest.mark.parametrize("status", [300, 400, 500])
def test_the_sdk_reads_errors(status: int) -> None:
    """Even an error that looks like a page."""
    response = response_of(b'{"Records": [], "MillisBehindLatest": 0, "__type": "Oops"}', status)

    assert parsed_by_us(response, GET_RECORDS) == parsed_by_the_sdk(response, GET_RECORDS)


def test_an_answer_has_the_sdks_metadata() -> None:
    """Status, request id, and headers in lower case; one of them is the service's time."""
    response = response_of(b'{"Records": [], "MillisBehindLatest": 0}')
    ours = parsed_by_us(response, GET_RECORDS)["ResponseMetadata"]

    assert ours == parsed_by_the_sdk(response, GET_RECORDS)["ResponseMetadata"]


# --- outcomes of entries ------------------------------------------------------------------------------

TEXTS = st.one_of(st.none(), st.text(max_size=30), st.just("ProvisionedThroughputExceededException"))
FIELDS = ("ErrorCode", "ErrorMessage", "SequenceNumber", "ShardId", "RecordId")
OUTCOMES = st.lists(
    st.builds(lambda a, b: a | b, st.dictionaries(st.sampled_from(FIELDS), TEXTS), MORE), max_size=6
)


@pytest.mark.parametrize(("shape", "name"), PUTS)
@given(data=st.data())
def test_outcomes_are_those_of_the_sdk(shape: Any, name: str, data: st.DataObject) -> None:
    """One per entry, in order, with code, message and id."""
    whole = {name: data.draw(OUTCOMES), "FailedRecordCount": 1, "FailedPutCount": 1} | data.draw(MORE)
    response = response_of(written(Random(data.draw(SEEDS)), whole).encode())
    ours, theirs = parsed_by_us(response, shape), parsed_by_the_sdk(response, shape)

    receipt = "SequenceNumber" if name == "Records" else "RecordId"
    assert [(each.error_code, each.error_message, each.id) for each in ours[name]] == [
        (each.get("ErrorCode"), each.get("ErrorMessage"), each.get(receipt)) for each in theirs[name]
    ]
    assert name != "Records" or ours[name] == outcomes_of(theirs, name)
    assert outcomes_of(ours, name) == ours[name]
    assert all(isinstance(each, Outcome) for each in (*ours[name], *outcomes_of(theirs, name)))
    assert ours["ResponseMetadata"] == theirs["ResponseMetadata"]


@pytest.mark.parametrize(("shape", "name"), PUTS)
@pytest.mark.parametrize("body", ["null", "[]", "5", '"x"', "[" * 100_000])
def test_json_of_another_form_is_damage(shape: Any, name: str, body: str) -> None:
    """The SDK stumbles over it with errors that would pass for mistakes in a program."""
    for text in (body, f'{{"{name}": [{body}, {{"ErrorMessage": 5}}]}}'):
        with pytest.raises((DamagedAnswerError, msgspec.ValidationError)):
            outcomes_of(parsed_by_us(response_of(text.encode()), shape), name)
