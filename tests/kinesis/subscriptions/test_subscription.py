"""One SubscribeToShard call, through the SDK, to a server that sends what the test says."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from event_streams import INITIAL, event, event_message, exception_message, message, record
from http_server import END, STREAM, Connection, Server, chunk, refusal, serving

from sluice.aws.calling import clients
from sluice.aws.calling.clients import client_for
from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.wire.hooks import ParserFactory
from sluice.errors import ServiceError
from sluice.kinesis.options.config import source_config_from_options
from sluice.kinesis.subscriptions.events import decode_head
from sluice.kinesis.subscriptions.subscriber import open_subscriber
from sluice.kinesis.subscriptions.subscription import CLOSED, Subscribing, Subscription
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.splits import SplitId

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/s/consumer/c:1"
SPLIT = SplitId("s", "shardId-000000000000")
HORIZON = IteratorStart("TRIM_HORIZON")
IDLE = event_message(event(continuation=7))


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    yield
    for client in clients._clients.values():
        client.close()
    clients._clients.clear()
    clients._sessions.clear()


def config_of(server: Server) -> ConnectionConfig:
    return ConnectionConfig(
        region="us-east-1",
        endpoint_url=server.endpoint,
        access_key_id="AKIDEXAMPLE",
        secret_access_key="hush",
    )


def subscribe(
    server: Server, start: IteratorStart = HORIZON, *, silence_limit: float = 300.0
) -> Subscription:
    return Subscribing(config_of(server), ARN, silence_limit)(SPLIT, start)


def numbers_of_next(subscription: Subscription) -> list[str]:
    payload = subscription.next_payload()
    assert payload is not None
    return decode_head(payload).numbers


def numbers_of(subscription: Subscription) -> list[str]:
    """Of all events until the end."""
    found = []
    while (payload := subscription.next_payload()) is not None:
        found += decode_head(payload).numbers
    return found


@pytest.mark.parametrize(
    ("start", "position"),
    [
        (HORIZON, {"Type": "TRIM_HORIZON"}),
        (IteratorStart("LATEST"), {"Type": "LATEST"}),
        (
            IteratorStart("AFTER_SEQUENCE_NUMBER", sequence_number="49" * 28),
            {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": "49" * 28},
        ),
        (
            IteratorStart("AT_TIMESTAMP", timestamp=1_700_000_000_123_456),
            {"Type": "AT_TIMESTAMP", "Timestamp": 1_700_000_000.123456},
        ),
        (
            IteratorStart("AT_TIMESTAMP", timestamp=1_700_000_000_000_000),
            {"Type": "AT_TIMESTAMP", "Timestamp": 1_700_000_000.0},
        ),
    ],
)
def test_the_call_says_where_to_start(start: IteratorStart, position: dict[str, Any]) -> None:
    """Timestamps are sent to the microsecond."""
    with serving(lambda it: it.send(STREAM, chunk(INITIAL), END)) as server:
        assert subscribe(server, start).next_payload() is None

    assert server.bodies == [{"ConsumerARN": ARN, "ShardId": SPLIT.shard, "StartingPosition": position}]


@pytest.mark.parametrize("first", [b"", INITIAL], ids=["bare", "initial-response"])
def test_events_come_as_they_were_sent(first: bytes) -> None:
    """With and without an initial response, which one implementation leaves out."""
    payloads = [json.dumps(event([n])).encode() for n in range(3)]

    def answer(it: Connection) -> None:
        it.send(STREAM, *(chunk(first) for _ in range(1) if first))
        it.send(*(chunk(event_message(payload)) for payload in payloads), END)

    with serving(answer) as server:
        subscription = subscribe(server)
        assert [bytes(subscription.next_payload() or b"") for _ in payloads] == payloads
        assert subscription.next_payload() is None


def test_an_event_arrives_before_the_next_one_is_sent() -> None:
    """Nothing is held back to fill a buffer."""
    seen = threading.Event()

    def answer(it: Connection) -> None:
        it.send(STREAM, chunk(INITIAL), chunk(event_message(event([1]))))
        assert seen.wait(60)
        it.send(chunk(event_message(event([2]))), END)

    with serving(answer) as server:
        subscription = subscribe(server)
        assert decode_head(subscription.next_payload() or b"").numbers == ["1"]
        seen.set()
        assert numbers_of(subscription) == ["2"]


def test_an_event_is_not_received_before_there_is_space_for_it() -> None:
    """The subscriber of an agent has a buffer that makes it. The service sends the rest when it is read."""
    large = event_message(event([record(1, data=b"x" * 6000)], 2))
    asked: list[int] = []
    has_space = threading.Event()

    class Space:
        def make_space(self, size: int) -> None:
            asked.append(size)
            if size == len(large):
                has_space.set()

        def give_back_space(self) -> None:
            pass

    def answer(it: Connection) -> None:
        it.send(STREAM, chunk(INITIAL + large[:12]))
        has_space.wait(60)
        it.send(chunk(large[12:]))
        it.wait_until_left()

    with serving(answer) as server:
        options = {"streamName": "s", "region": "us-east-1", "consumerName": "app"}
        config = source_config_from_options(options, streaming=True)
        config = replace(config, connection=config_of(server))
        subscriber = open_subscriber(config, lambda: ARN, SPLIT, HORIZON, Space())
        assert subscriber.next_event()[1].numbers == ["1"]
        subscriber.close()

    assert asked == [len(INITIAL), len(large)]


def test_events_of_other_kinds_are_ignored() -> None:
    """A later version of the service may send them."""
    other = event_message(b"?", "SomethingElse")
    with serving(lambda it: it.send(STREAM, chunk(other), chunk(IDLE), END)) as server:
        subscription = subscribe(server)
        assert decode_head(subscription.next_payload() or b"").continuation == "7"
        assert subscription.next_payload() is None


@pytest.mark.parametrize(
    ("sent", "code", "retryable"),
    [
        (exception_message("ResourceInUseException"), "ResourceInUseException", True),
        (exception_message("InternalFailureException"), "InternalFailureException", True),
        (exception_message("KMSThrottlingException"), "KMSThrottlingException", True),
        (exception_message("KMSAccessDeniedException"), "KMSAccessDeniedException", False),
        (exception_message("ResourceNotFoundException"), "ResourceNotFoundException", False),
        (message({":message-type": "exception", ":exception-type": "Odd"}, b"no JSON"), "Odd", False),
        (message({":message-type": "exception", ":exception-type": "Odd"}, b"[]"), "Odd", False),
        (message({":message-type": "exception", ":exception-type": "Odd"}, b"\xbf"), "Odd", False),
        (message({":message-type": "error", ":error-code": "Odd", ":error-message": "no"}), "Odd", False),
        (message({":message-type": "error"}), "Unknown", False),
    ],
)
def test_an_error_in_the_stream_is_a_service_error(sent: bytes, code: str, retryable: bool) -> None:
    """It comes after the events that were sent before."""
    with serving(lambda it: it.send(STREAM, chunk(IDLE), chunk(sent), END)) as server:
        subscription = subscribe(server)
        assert subscription.next_payload() is not None
        with pytest.raises(ServiceError, match=f"SubscribeToShard of {SPLIT} at http") as caught:
            subscription.next_payload()

    assert (caught.value.code, caught.value.retryable) == (code, retryable)
    assert caught.value.operation == "SubscribeToShard"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_an_error_in_the_stream_shows_no_secret() -> None:
    """Services repeat parts of the request in their errors."""
    sent = exception_message("Odd", "Credential=AKIAABCDEFGHIJKLMNOP/x, Signature=" + "ab" * 32)
    with (
        serving(lambda it: it.send(STREAM, chunk(sent), END)) as server,
        pytest.raises(ServiceError) as caught,
    ):
        subscribe(server).next_payload()

    assert "AKIA" not in str(caught.value)
    assert "abab" not in str(caught.value)


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param(chunk(IDLE[:40]) + END, id="ended in mid-message"),
        pytest.param(chunk(IDLE)[:40], id="closed in mid-chunk"),
        pytest.param(b"", id="closed between messages without an end"),
        pytest.param(chunk(IDLE[:-1] + b"\0"), id="bad checksum"),
        pytest.param(b"zz\r\n", id="no chunk"),
    ],
)
def test_a_broken_stream_raises_a_retryable_error(rest: bytes) -> None:
    """However it breaks, it does not count as the service's regular end."""
    with serving(lambda it: it.send(STREAM, chunk(IDLE), rest)) as server:
        subscription = subscribe(server)
        assert subscription.next_payload() is not None
        with pytest.raises(ServiceError) as caught:
            subscription.next_payload()

    assert caught.value.retryable
    assert caught.value.code != CLOSED


@pytest.mark.parametrize(
    "body", ['{"__type":"ThrottlingException","message":"slower"}', "<html>slower</html>"]
)
def test_an_answer_that_is_no_event_stream_is_shown(body: str) -> None:
    """A gateway may send an error with a good status."""
    with (
        serving(lambda it: it.send(STREAM, chunk(body.encode()), END)) as server,
        pytest.raises(ServiceError) as caught,
    ):
        subscribe(server).next_payload()

    assert caught.value.retryable
    assert str(caught.value).endswith(f"the answer is not an event stream: it begins with {body}")


def test_data_of_a_damaged_stream_are_not_shown() -> None:
    """Bytes of records may stand where a message should begin."""
    with serving(lambda it: it.send(STREAM, chunk(IDLE), chunk(b'{"Data": "c2VjcmV0"}'), END)) as server:
        subscription = subscribe(server)
        assert subscription.next_payload() is not None
        with pytest.raises(ServiceError, match=r"the checksum of a message's prelude is wrong$"):
            subscription.next_payload()


def test_silence_on_the_connection_ends_it() -> None:
    """The silence limit is the read timeout, independent of that of other calls."""

    def answer(it: Connection) -> None:
        it.send(STREAM, chunk(IDLE))
        it.wait_until_left()

    with serving(answer) as server:
        subscription = subscribe(server, silence_limit=2.0)
        assert subscription.next_payload() is not None
        with pytest.raises(ServiceError) as caught:
            subscription.next_payload()

    assert (caught.value.code, caught.value.retryable) == ("ReadTimeoutError", True)


@pytest.mark.parametrize(
    ("code", "status", "retryable"),
    [
        ("ResourceInUseException", 400, True),
        ("LimitExceededException", 400, True),
        ("AccessDeniedException", 400, False),
        ("RequestTimeTooSkewed", 403, True),
        ("Whatever", 408, True),
        ("Whatever", 500, True),
    ],
)
def test_a_refused_call_is_a_service_error(code: str, status: int, retryable: bool) -> None:
    """The SDK parses the error as that of any call."""
    with serving(lambda it: it.send(refusal(code, status))) as server, pytest.raises(ServiceError) as caught:
        subscribe(server)

    assert (caught.value.code, caught.value.retryable) == (code, retryable)
    assert caught.value.target == str(SPLIT)


@pytest.mark.parametrize("code", ["ExpiredTokenException", "UnrecognizedClientException"])
@pytest.mark.parametrize("fixed", [True, False])
def test_expired_credentials_may_be_renewed_unless_they_are_options(
    monkeypatch: pytest.MonkeyPatch, code: str, *, fixed: bool
) -> None:
    """As in every other call: the SDK's chain has others soon, and the next call loads them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    with serving(lambda it: it.send(refusal(code, 400))) as server:
        config = config_of(server)
        config = config if fixed else replace(config, access_key_id=None, secret_access_key=None)
        with pytest.raises(ServiceError) as caught:
            Subscribing(config, ARN)(SPLIT, HORIZON)

    assert (caught.value.code, caught.value.retryable) == (code, not fixed)


@pytest.mark.parametrize("has_shutdown", [True, False], ids=["urllib3", "urllib3 before 2.3"])
def test_closing_wakes_the_reader_at_once(has_shutdown: bool) -> None:
    """The reader waits for the rest of a message, and the service sends nothing."""
    left = threading.Event()

    def answer(it: Connection) -> None:
        it.send(STREAM, chunk(IDLE), chunk(IDLE[:20]))
        it.wait_until_left()
        left.set()

    with serving(answer) as server:
        subscription = subscribe(server)
        assert subscription.next_payload() is not None
        if not has_shutdown:
            subscription._body.shutdown = None
        timer = threading.Timer(0.1, subscription.close)
        timer.start()
        begun = time.monotonic()
        with pytest.raises(ServiceError) as caught:
            subscription.next_payload()
        assert time.monotonic() - begun < 60
        assert left.wait(60)  # the connection is closed, not kept for later
        timer.join()

    assert (caught.value.code, caught.value.retryable) == (CLOSED, False)


def test_closing_without_a_reader_closes_the_connection() -> None:
    """It may be closed twice. Nothing can be read any more."""
    left = threading.Event()

    def answer(it: Connection) -> None:
        it.send(STREAM, chunk(IDLE), chunk(IDLE))
        it.wait_until_left()
        left.set()

    with serving(answer) as server:
        subscription = subscribe(server)
        assert subscription.next_payload() is not None
        subscription.close()
        assert left.wait(60)
        subscription.close()
        with pytest.raises(ServiceError, match="closed") as caught:
            subscription.next_payload()

    assert caught.value.code == CLOSED


def test_a_connection_is_not_used_for_the_next_call(caplog: pytest.LogCaptureFixture) -> None:
    """One client has many subscriptions open at once, and stays usable when they have ended."""
    many = 80

    def answer(it: Connection) -> None:
        it.send(STREAM, chunk(event_message(event([1]))), chunk(IDLE)[: len(server.bodies) % 2 * 20])
        it.wait_until_left()

    with serving(answer) as server:
        opened = [subscribe(server) for _ in range(many)]
        for each in opened:
            assert numbers_of_next(each) == ["1"]
        for each in opened:
            each.close()
        for _ in range(3):
            last = subscribe(server)
            assert numbers_of_next(last) == ["1"]
            last.close()

    assert caplog.messages == []


def test_the_answer_has_the_metadata_of_all_answers() -> None:
    """Logs and the clock's skew come from it."""
    with serving(lambda it: it.send(STREAM, chunk(IDLE), END)) as server:
        answer = client_for(config_of(server), "kinesis").subscribe_to_shard(
            ConsumerARN=ARN, ShardId=SPLIT.shard, StartingPosition={"Type": "LATEST"}
        )
        answer["EventStream"].close()

    metadata = answer["ResponseMetadata"]
    assert metadata["HTTPStatusCode"] == 200
    assert metadata["RequestId"] == metadata["HTTPHeaders"]["x-amzn-requestid"] == "request-1"


def test_a_role_uses_the_same_parser() -> None:
    """A separate session makes its clients."""
    role = "arn:aws:iam::123456789012:role/reader"
    config = ConnectionConfig(access_key_id="AKIDEXAMPLE", secret_access_key="hush", role_arn=role)

    for each in (config, replace(config, role_arn=None)):
        session = clients._new_session(each)
        assert isinstance(session.get_component("response_parser_factory"), ParserFactory)
