"""Envelopes of CloudWatch Logs, and headers of schema registries, as their documents have them."""

from __future__ import annotations

import gzip
import json
import uuid
import zlib
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import OptionError, SluiceError
from sluice.functions import _cloudwatch_logs, _schema_registry_header, cloudwatch_logs
from sluice.functions.columns import BadValueError
from sluice.functions.envelopes import Header, log_events, split_header

# https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/SubscriptionFilters.html
DATA = {
    "owner": "111111111111",
    "logGroup": "CloudTrail/logs",
    "logStream": "111111111111_CloudTrail/logs_us-east-1",
    "subscriptionFilters": ["Destination"],
    "messageType": "DATA_MESSAGE",
    "logEvents": [
        {
            "id": "3195310660696698337880902507980421114328961542429EXAMPLE",
            "timestamp": 1432826855000,
            "message": '{"eventVersion":"1.03","userIdentity":{"type":"Root"}',
        },
        {"id": "2", "timestamp": 1432826855001, "message": "a\nb"},
    ],
}
CONTROL = {
    "messageType": "CONTROL_MESSAGE",
    "owner": "CloudwatchLogs",
    "logGroup": "",
    "logStream": "",
    "subscriptionFilters": [],
    "logEvents": [
        {
            "id": "",
            "timestamp": 1510109208016,
            "message": "CWL CONTROL MESSAGE: Checking health of destination",
        }
    ],
}
AT = datetime(2015, 5, 28, 15, 27, 35, tzinfo=timezone.utc)


def encoded(envelope: dict[str, Any]) -> bytes:
    return json.dumps(envelope).encode()


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress, bytes])
def test_events(pack: Any) -> None:
    """Each with what the envelope says of all, compressed or not. Keys that are new change nothing."""
    envelope = DATA | {"policyLevel": "ACCOUNT_LEVEL_POLICY"}
    first, second = log_events(pack(encoded(envelope)))
    assert first[:4] == (DATA["owner"], DATA["logGroup"], DATA["logStream"], ["Destination"])
    assert (first.timestamp, second.timestamp - first.timestamp) == (AT, timedelta(milliseconds=1))
    assert (second.id, second.message) == ("2", "a\nb")


def test_a_control_message_has_no_events() -> None:
    """CloudWatch sends them to find out whether a destination can be reached."""
    assert log_events(gzip.compress(encoded(CONTROL))) == []
    assert log_events(encoded(DATA | {"logEvents": []})) == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "truncated"),
        (b"hello", "not an envelope"),
        (b"[]", "Expected `object`, got `array`"),
        (b"\xff\xfe", "not an envelope"),
        (b"[" * 100_000, "not an envelope"),
        (encoded(DATA) * 2, "trailing characters"),
        (gzip.compress(encoded(DATA))[:-9], "gzip"),
        (encoded({}), "missing required field `messageType`"),
        (encoded(DATA | {"messageType": "OTHER"}), "neither DATA_MESSAGE nor CONTROL_MESSAGE"),
        (encoded(DATA | {"logEvents": [{"id": "1", "timestamp": "x", "message": ""}]}), "Expected `int`"),
        (encoded(DATA | {"logEvents": [{"id": "1", "timestamp": 10**15, "message": ""}]}), "years 1 to 9999"),
        (encoded(DATA | {"logEvents": [{"id": "1", "timestamp": 10**18, "message": ""}]}), "years 1 to 9999"),
    ],
)
def test_what_is_no_envelope(data: bytes, message: str) -> None:
    """The message says why, and holds none of the data."""
    with pytest.raises(BadValueError, match=message) as failure:
        log_events(data)
    assert "CloudTrail" not in str(failure.value)


def test_halves_of_surrogate_pairs_become_replacements() -> None:
    """As in the source: a message that was cut in the middle of an emoji loses no event."""
    data = encoded(DATA).replace(b"a\\nb", b"cut \\ud83d")
    assert [event.message for event in log_events(data)][1] == "cut \ufffd"


EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.text(max_size=5),
            "timestamp": st.integers(-(10**13), 10**14),
            "message": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        }
    ),
    max_size=4,
)


@given(events=EVENTS, ascii_only=st.booleans())
def test_any_events_come_as_they_were(events: list[dict[str, Any]], *, ascii_only: bool) -> None:
    """As Python's own parser reads them, to the millisecond, through Arrow."""
    text = json.dumps(DATA | {"logEvents": events}, ensure_ascii=ascii_only)
    (made,) = _cloudwatch_logs.of_arrays(pa.array([text])).to_pylist()
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    assert [(each["id"], each["message"]) for each in made] == [(e["id"], e["message"]) for e in events]
    assert [(each["timestamp"] - epoch) // timedelta(milliseconds=1) for each in made] == [
        e["timestamp"] for e in events
    ]


def test_a_column_of_envelopes() -> None:
    """Strings and binary, nulls, and bad values as asked."""
    values = [encoded(CONTROL), None, b"bad", gzip.compress(encoded(DATA))]
    made = _cloudwatch_logs.of_arrays(pa.array(values), errors="null").to_pylist()
    assert [None if each is None else len(each) for each in made] == [0, None, None, 2]
    assert list(made[3][0]) == [
        *("owner", "logGroup", "logStream", "subscriptionFilters", "id", "timestamp", "message")
    ]
    with pytest.raises(
        SluiceError, match=r"^cloudwatch_logs: a value is not an envelope of a subscription: JSON"
    ):
        _cloudwatch_logs.of_arrays(pa.array(["bad"]))
    with pytest.raises(OptionError, match="errors is 'skip'"):
        cloudwatch_logs("data", errors="skip")


SCHEMA = uuid.UUID("b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63")


@pytest.mark.parametrize(
    ("data", "header"),
    [
        # AWSSchemaRegistryConstants: version 3, compression 0 or 5 (zlib), UUID.
        (b"\x03\x00" + SCHEMA.bytes + b"payload", Header("glue", str(SCHEMA), b"payload")),
        (b"\x03\x00" + SCHEMA.bytes, Header("glue", str(SCHEMA), b"")),
        (b"\x03\x05" + SCHEMA.bytes + zlib.compress(b"payload"), Header("glue", str(SCHEMA), b"payload")),
        # Wire format of Confluent: magic 0, id in four bytes.
        (b"\x00\x00\x00\x00\x01payload", Header("confluent", "1", b"payload")),
        (b"\x00\x7f\xff\xff\xff", Header("confluent", "2147483647", b"")),
    ],
)
def test_headers(data: bytes, header: Header) -> None:
    """As the registries' serializers write them."""
    assert split_header(data) == header


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"\x00\x00\x00\x01",
        b"\x00\x80\x00\x00\x01x",  # a negative id
        b"\x03",
        b"\x03\x00" + bytes(15),
        b"\x03\x01" + SCHEMA.bytes,
        b"\x03\x05" + SCHEMA.bytes + b"no zlib",
        b"\x03\x05" + SCHEMA.bytes,
        b"\x03\x05" + SCHEMA.bytes + zlib.compress(b"payload")[:-1],
    ],
)
def test_data_without_a_header_comes_as_it_is(data: bytes) -> None:
    """Too short, of another version, or not compressed as it says: nothing of it is lost."""
    assert split_header(data) == Header(None, None, data)


@given(payload=st.binary(max_size=50), schema=st.uuids(), number=st.integers(0, 2**31 - 1))
def test_every_header_is_split(payload: bytes, schema: uuid.UUID, number: int) -> None:
    """What is put together comes apart."""
    assert split_header(b"\x03\x00" + schema.bytes + payload) == ("glue", str(schema), payload)
    assert split_header(b"\x03\x05" + schema.bytes + zlib.compress(payload)) == ("glue", str(schema), payload)
    assert split_header(b"\x00" + number.to_bytes(4, "big") + payload) == ("confluent", str(number), payload)


def test_a_column_of_headers() -> None:
    """A null is null, and no struct of nulls; strings are no data with a header."""
    values = pa.array([None, b"\x00\x00\x00\x00\x07x", b"x", b"y"]).slice(0, 3)
    assert _schema_registry_header.of_arrays(values).to_pylist() == [
        None,
        {"registry": "confluent", "schemaId": "7", "payload": b"x"},
        {"registry": None, "schemaId": None, "payload": b"x"},
    ]
    with pytest.raises(OptionError, match="schema_registry_header: the column is string"):
        _schema_registry_header.of_arrays(pa.array(["x"]))
