"""How records are asked for: in CBOR, and in JSON where the endpoint does not know CBOR."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ConnectionClosedError
from integration.model import cbor
from kinesis_transport import URL, answer, as_bytes, forget_process_state, header, in_cbor, refusal

from sluice.aws.calling.calls import Calls
from sluice.aws.calling.clients import client_for
from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.endpoint_state import endpoint_state
from sluice.errors import ServiceError
from sluice.kinesis.log.client import KinesisLog
from sluice.kinesis.options.config import source_config_from_options
from sluice.retry import Backoff
from sluice.source.model.splits import SplitId

CBOR, JSON = "application/x-amz-cbor-1.1", "application/x-amz-json-1.1"
SPLIT = SplitId("s", "shardId-000000000000")
PAGE = {"Records": [], "MillisBehindLatest": 7, "NextShardIterator": "next"}
CONFIG = ConnectionConfig(
    region="eu-west-1", endpoint_url=URL, access_key_id="id", secret_access_key="key", wire_format="auto"
)
CONSUMER_ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders/consumer/me:1"


class Endpoint:
    """Answers requests by their content type."""

    def __init__(
        self, by_type: Mapping[str, Callable[[], AWSResponse | Exception]], config: Any = CONFIG
    ) -> None:
        self.by_type = by_type
        self.requests: list[AWSPreparedRequest] = []
        self.client = client_for(config, "kinesis")
        self.client.meta.events.unregister("before-send.kinesis", unique_id="test")
        self.client.meta.events.register("before-send.kinesis", self._send, unique_id="test")
        self.log = KinesisLog(Calls(config, "kinesis", {"GetRecords": Backoff(0, 0, 0, 1)}), {})

    @property
    def asked_in(self) -> list[str]:
        return [header(request, "Content-Type") for request in self.requests]

    def get_records(self, limit: int = 10_000) -> int:
        return self.log.get_records(SPLIT, "it", limit).millis_behind

    def subscribe(self, **position: Any) -> None:
        self.client.subscribe_to_shard(
            ConsumerARN=CONSUMER_ARN, ShardId=SPLIT.shard, StartingPosition={"Type": "LATEST", **position}
        )

    def _send(self, request: AWSPreparedRequest, **_: Any) -> AWSResponse:
        self.requests.append(request)
        answered = self.by_type[header(request, "Content-Type")]()
        if isinstance(answered, Exception):
            raise answered
        return answered


@pytest.fixture(autouse=True)
def _fresh_process() -> Iterator[None]:
    yield
    forget_process_state()


def page() -> AWSResponse:
    return answer(PAGE)


REFUSALS: dict[str, Callable[[], AWSResponse | Exception]] = {
    "unsupported media type": lambda: answer(b"", 415),
    "not found, in HTML": lambda: answer(b"<html>no</html>", 404),
    "SerializationException": lambda: refusal("SerializationException"),
    "a closed connection": lambda: ConnectionClosedError(endpoint_url=URL),
    "a server that fell over it": lambda: answer(b"Traceback \xff", 500),
}


def test_records_are_asked_for_in_cbor() -> None:
    """With the operation in the same header, signed as it is sent."""
    endpoint = Endpoint({CBOR: lambda: in_cbor(page())})
    assert [endpoint.get_records(), endpoint.get_records()] == [7, 7]

    first, _ = endpoint.requests
    assert endpoint.asked_in == [CBOR, CBOR]
    assert header(first, "X-Amz-Target") == "Kinesis_20131202.GetRecords"
    assert cbor.decode(as_bytes(first.body)) == {"ShardIterator": "it", "Limit": 10_000}
    assert "content-type" in header(first, "Authorization")


@pytest.mark.parametrize("refused", REFUSALS.values(), ids=REFUSALS)
def test_an_endpoint_that_refuses_cbor_is_asked_in_json(
    refused: Callable[[], AWSResponse | Exception], caplog: pytest.LogCaptureFixture
) -> None:
    """The same call is repeated in JSON, signed anew; from then on all calls of the process use JSON; one log
    line.
    """
    caplog.set_level(logging.INFO, "sluice")
    endpoint = Endpoint({CBOR: refused, JSON: page})
    assert [endpoint.get_records(), endpoint.get_records()] == [7, 7]
    neighbour = Endpoint({JSON: page}, replace(CONFIG, read_timeout=5.0))
    assert neighbour.get_records() == 7

    first, second, _ = endpoint.requests
    assert endpoint.asked_in == [CBOR, JSON, JSON]
    assert json.loads(as_bytes(second.body)) == {"ShardIterator": "it", "Limit": 10_000}
    assert header(first, "Authorization") != header(second, "Authorization")
    assert [record.getMessage() for record in caplog.records if "JSON" in record.getMessage()] == [
        f"{URL} refuses CBOR: records are asked for in JSON from now on"
    ]


def test_an_endpoint_that_answers_in_json_is_asked_in_json(caplog: pytest.LogCaptureFixture) -> None:
    """The answer is read; it is no error."""
    caplog.set_level(logging.INFO, "sluice")
    endpoint = Endpoint({CBOR: page, JSON: page})
    assert [endpoint.get_records(), endpoint.get_records()] == [7, 7]

    assert endpoint.asked_in == [CBOR, JSON]
    assert sum("answers in JSON" in record.getMessage() for record in caplog.records) == 1


def test_an_error_that_json_gets_too_is_no_refusal() -> None:
    """It is the answer to the call, and CBOR is asked for again."""
    endpoint = Endpoint({CBOR: lambda: answer(b"", 503), JSON: lambda: refusal("ResourceNotFoundException")})
    for _ in range(2):
        with pytest.raises(ServiceError) as caught:
            endpoint.get_records()
        assert caught.value.missing

    assert endpoint.asked_in == [CBOR, JSON, CBOR, JSON]


def test_an_endpoint_that_has_answered_in_cbor_keeps_to_it() -> None:
    """Later a proxy may answer in its place."""
    lost = ConnectionClosedError(endpoint_url=URL)
    given: list[AWSResponse | Exception] = [in_cbor(page()), answer(b"<html>", 503), lost, in_cbor(page())]
    answers = iter(given)
    endpoint = Endpoint({CBOR: lambda: next(answers)})
    endpoint.get_records()
    for _ in range(2):
        with pytest.raises(ServiceError) as caught:
            endpoint.get_records()
        assert caught.value.retryable
    endpoint.get_records()

    assert endpoint.asked_in == [CBOR] * 4


@pytest.mark.parametrize("code", ["ProvisionedThroughputExceededException", "ExpiredIteratorException"])
def test_errors_in_cbor_are_those_of_json(code: str) -> None:
    """Code and message; the endpoint knows CBOR."""
    endpoint = Endpoint({CBOR: lambda: in_cbor(refusal(code, "because"))})
    with pytest.raises(ServiceError, match="because") as caught:
        endpoint.get_records()

    assert caught.value.code == code
    assert caught.value.throttling == code.startswith("Provisioned")
    assert endpoint_state(URL).knows_cbor


@pytest.mark.parametrize("body", [b"", b"\xbf", b"\xbf\x67Records", b"\xa0"])
def test_a_damaged_page_is_retryable_and_no_refusal(body: bytes) -> None:
    """A damaged page does not show which formats the endpoint supports."""
    endpoint = Endpoint({CBOR: lambda: answer(body)})
    with pytest.raises(ServiceError) as caught:
        endpoint.get_records()

    assert caught.value.retryable
    assert endpoint.asked_in == [CBOR]
    assert endpoint_state(URL).knows_cbor is None


def test_json_alone() -> None:
    """wireFormat=json."""
    endpoint = Endpoint({JSON: page}, replace(CONFIG, wire_format="json"))
    assert endpoint.get_records() == 7


def test_cbor_alone() -> None:
    """wireFormat=cbor: an endpoint that refuses it is an error, even if other queries use JSON, and the error
    says what to do.
    """
    endpoint_state(URL).knows_cbor = False
    endpoint = Endpoint({CBOR: lambda: answer(b"", 415)}, replace(CONFIG, wire_format="cbor"))
    with pytest.raises(ServiceError, match=r"415: .*'wireFormat' json asks in JSON"):
        endpoint.get_records()

    assert endpoint.asked_in == [CBOR]


def test_subscriptions_are_asked_for_in_cbor() -> None:
    """A time has microseconds in JSON alone, so a subscription from a time on is asked for in JSON."""
    endpoint = Endpoint({CBOR: lambda: in_cbor(page()), JSON: page}, replace(CONFIG, wire_format="cbor"))
    endpoint.subscribe()
    endpoint.subscribe(Type="AT_TIMESTAMP", Timestamp=datetime(2026, 1, 1, 12, 0, 0, 123_456, timezone.utc))

    in_cbor_, in_json = endpoint.requests
    assert endpoint.asked_in == [CBOR, JSON]
    assert cbor.decode(as_bytes(in_cbor_.body))["StartingPosition"] == {"Type": "LATEST"}
    assert json.loads(as_bytes(in_json.body))["StartingPosition"]["Timestamp"] == 1_767_268_800.123456


@pytest.mark.parametrize(("given", "expected"), [({}, "auto"), ({"wireFormat": "JSON"}, "json")])
def test_the_option_of_the_source(given: dict[str, str], expected: str) -> None:
    """Every client of the source has it."""
    config = source_config_from_options({"streamName": "s", "region": "eu-west-1", **given})

    assert config.connection.wire_format == expected
