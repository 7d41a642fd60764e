"""KinesisLog: its requests, how it reads answers, and what it retries; without network and waiting."""

from __future__ import annotations

import base64
import json
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from email.utils import formatdate
from typing import Any

import pytest
from botocore import exceptions as sdk
from kinesis_transport import OPTIONS, URL, Answer, Transport, answer, forget_process_state, refusal
from urllib3.exceptions import IncompleteRead, ProtocolError

from sluice.aws.calling.clients import client_for
from sluice.errors import ServiceError
from sluice.kinesis.log.client import KinesisLog, kinesis_calls
from sluice.kinesis.options.config import source_config_from_options
from sluice.retry import Backoff, Retrier
from sluice.source.logs.stream_log import IteratorStart, Record, StreamInfo
from sluice.source.model.read_figures import ReadFigures, SplitFigures
from sluice.source.model.splits import Split, SplitId

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
SHARD = SplitId("orders", "shardId-000000000000")
NOW = 1_767_268_800.0
BACKOFFS = {name: Backoff(3, 0.1, 1.0, 2.0) for name in ("GetRecords", "GetShardIterator")}
BACKOFFS["ListShards"] = Backoff(3, 0.1, 1.0, 2.0, throttle_patience=900.0)
CONFIG = replace(source_config_from_options({"streamName": "orders", **OPTIONS}), backoffs=BACKOFFS)
EMPTY_PAGE: dict[str, Any] = {"Records": [], "NextShardIterator": "next", "MillisBehindLatest": 0}


@pytest.fixture(autouse=True)
def _fresh_process() -> Iterator[None]:
    yield
    forget_process_state()


class Service:
    """A log over a fake transport, which gives its answers in order, the last one for ever."""

    def __init__(
        self,
        *answers: Answer | Mapping[str, Any],
        arn: str | None = None,
        is_endpoint_known: bool = False,
        figures: ReadFigures | None = None,
    ) -> None:
        self.left = list(answers)
        self.slept: list[float] = []
        self.now = NOW
        self.transport = Transport(self._next)
        self.transport.install(client_for(CONFIG.connection, "kinesis"))
        retrier = Retrier(sleep=self.slept.append, jitter=lambda: 1.0)
        calls = kinesis_calls(CONFIG, retrier=retrier, is_endpoint_known=is_endpoint_known)
        self.log = KinesisLog(replace(calls, clock=lambda: self.now), {"orders": arn}, figures)

    def _next(self, _operation: str, _params: dict[str, Any]) -> Answer:
        found = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        return answer(found) if isinstance(found, Mapping) else found

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        return self.transport.calls


def refused_connection() -> Exception:
    return sdk.EndpointConnectionError(endpoint_url=URL, error=OSError("Connection refused"))


# --- a stream that does not exist ----------------------------------------------------------------------

GONE = refusal("ResourceNotFoundException", "Stream orders under account 123456789012 not found.")


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        (["clicks", "ordres"], "; the stream that is spelled most like it is 'ordres'"),
        (["clicks"], ""),
        (refusal("AccessDeniedException", "not yours", 400), ""),
    ],
)
def test_the_error_names_the_region_and_the_nearest_stream(names: Any, hint: str) -> None:
    """Though an endpoint is set, which hides the region. The streams are listed once, and only then."""
    service = Service(
        GONE, {"StreamNames": names, "HasMoreStreams": True} if isinstance(names, list) else names
    )
    with pytest.raises(ServiceError) as raised:
        service.log.describe("orders")

    assert str(raised.value).endswith(
        f"not found. (this is region eu-west-1: option 'region' names another one){hint}"
    )
    assert raised.value.missing
    assert [operation for operation, _ in service.calls] == ["DescribeStreamSummary", "ListStreams"]


# --- requests and answers -----------------------------------------------------------------------------


def test_describe_gives_identity_and_retention() -> None:
    """Creation time in microseconds, retention in seconds."""
    summary = {
        "StreamName": "orders",
        "StreamCreationTimestamp": 1_700_000_000.25,
        "RetentionPeriodHours": 48,
    }
    service = Service({"StreamDescriptionSummary": summary})
    assert service.log.describe("orders") == StreamInfo("orders", 1_700_000_000_250_000, 172_800.0)
    assert service.calls == [("DescribeStreamSummary", {"StreamName": "orders"})]


def shard(number: int, **more: Any) -> dict[str, Any]:
    return {
        "ShardId": f"shardId-{number}",
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)},
        "SequenceNumberRange": {
            "StartingSequenceNumber": "49590338271490256608559692538361571095921575989136588898"
        },
        **more,
    }


def test_shards_are_listed_page_by_page() -> None:
    """A token is sent alone: the service refuses it together with the stream."""
    service = Service(
        {"Shards": [shard(0), shard(1)], "NextToken": "more"},
        {"Shards": [shard(2)], "NextToken": "last"},
        {"Shards": [shard(3)]},
    )
    assert [split.id.shard for split in service.log.list_splits("orders")] == [
        f"shardId-{n}" for n in range(4)
    ]
    assert [params for _, params in service.calls] == [
        {"StreamName": "orders"},
        {"NextToken": "more"},
        {"NextToken": "last"},
    ]


def test_a_shard_keeps_its_lineage_and_ranges() -> None:
    """Both parents of a merged shard, the last sequence number of a closed one, and hash keys."""
    listed = shard(
        2,
        ParentShardId="shardId-0",
        AdjacentParentShardId="shardId-1",
        HashKeyRange={"StartingHashKey": "7", "EndingHashKey": "9"},
        SequenceNumberRange={"StartingSequenceNumber": "10", "EndingSequenceNumber": "20"},
    )
    assert Service({"Shards": [listed]}).log.list_splits("orders") == [
        Split(SplitId("orders", "shardId-2"), ("shardId-0", "shardId-1"), "10", "20", (7, 9))
    ]
    assert Service({"Shards": [shard(0, ParentShardId=None)]}).log.list_splits("orders")[0].parents == ()


def test_a_listing_starts_over_when_its_token_expired() -> None:
    """Shards of the first attempt are not listed twice."""
    service = Service(
        {"Shards": [shard(0)], "NextToken": "old"},
        refusal("ExpiredNextTokenException"),
        {"Shards": [shard(0)], "NextToken": "new"},
        {"Shards": [shard(1)]},
    )
    assert [split.id.shard for split in service.log.list_splits("orders")] == ["shardId-0", "shardId-1"]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (IteratorStart("TRIM_HORIZON"), {"ShardIteratorType": "TRIM_HORIZON"}),
        (IteratorStart("LATEST"), {"ShardIteratorType": "LATEST"}),
        (
            IteratorStart("AT_SEQUENCE_NUMBER", "12"),
            {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": "12"},
        ),
        (
            IteratorStart("AFTER_SEQUENCE_NUMBER", "12"),
            {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": "12"},
        ),
        (
            IteratorStart("AT_TIMESTAMP", timestamp=1_767_268_800_123_456),
            {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": 1_767_268_800.123456},
        ),
        (
            IteratorStart("AT_TIMESTAMP", timestamp=1_767_268_800_000_000),
            {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": 1_767_268_800},
        ),
    ],
)
def test_where_an_iterator_starts(start: IteratorStart, expected: dict[str, Any]) -> None:
    """Each kind has its request; times have microseconds with any SDK."""
    service = Service({"ShardIterator": "it"})
    assert service.log.get_iterator(SHARD, start) == "it"
    assert service.calls == [
        ("GetShardIterator", {"StreamName": "orders", "ShardId": SHARD.shard, **expected})
    ]


@pytest.mark.parametrize("body", [{}, {"ShardIterator": None}, {"ShardIterator": ""}])
def test_no_iterator_means_that_the_shard_ends_before(body: dict[str, Any]) -> None:
    """The service sends a whole answer without an iterator where a closed shard has no more records."""
    assert Service(body).log.get_iterator(SHARD, IteratorStart("LATEST")) is None


def test_a_page_of_records() -> None:
    """Records with exact arrival times, the next iterator, and the lag behind the tip."""
    body = {
        "Records": [
            {
                "SequenceNumber": "00000042",
                "ApproximateArrivalTimestamp": 1_767_268_800.123,
                "Data": base64.b64encode(b"\x00payload").decode(),
                "PartitionKey": "k\u00e9y",
                "EncryptionType": "NONE",
            }
        ],
        "NextShardIterator": "next",
        "MillisBehindLatest": 1500,
    }
    service = Service(body)
    page = service.log.get_records(SHARD, "it", 100)
    assert page.records == [Record("00000042", 1_767_268_800_123_000, "k\u00e9y", b"\x00payload")]
    assert (page.next_iterator, page.millis_behind) == ("next", 1500)
    assert service.calls == [("GetRecords", {"ShardIterator": "it", "Limit": 100})]


def test_the_last_page_of_a_closed_shard() -> None:
    """No next iterator: the shard has ended."""
    service = Service({"Records": [], "MillisBehindLatest": 0, "ChildShards": []})
    assert service.log.get_records(SHARD, "it", 1).next_iterator is None


def test_a_stream_with_an_arn_is_addressed_by_it() -> None:
    """Every call names the ARN, which may be one of another account."""
    answers: tuple[Mapping[str, Any], ...] = ({"Shards": []}, {"ShardIterator": "it"}, EMPTY_PAGE)
    service = Service(*answers, arn=ARN)
    service.log.list_splits("orders")
    service.log.get_iterator(SHARD, IteratorStart("LATEST"))
    service.log.get_records(SHARD, "it", 1)
    assert [params.get("StreamARN") for _, params in service.calls] == [ARN] * 3
    assert not any("StreamName" in params for _, params in service.calls)


def test_the_log_of_a_source_config_can_be_pickled() -> None:
    """It is made from options and can be pickled: it holds no SDK client."""
    options = {"streamArn": ARN, "endpointUrl": URL, "awsAccessKeyId": "a", "awsSecretAccessKey": "b"}
    log = KinesisLog.of(source_config_from_options(options))
    log.server_time()
    again = pickle.loads(pickle.dumps(log))
    assert again._stream_arns == {"orders": ARN}
    assert again._calls.connection.region == "eu-west-1"


# --- damaged answers ----------------------------------------------------------------------------------

WHOLE = json.dumps({"Records": [], "NextShardIterator": "next", "MillisBehindLatest": 0}).encode()


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(
            answer(WHOLE[:-20], headers={"content-length": str(len(WHOLE))}), id="shorter than announced"
        ),
        pytest.param(answer(WHOLE[:-20], headers={"content-length": ""}), id="cut, chunked"),
        pytest.param(answer(b"", headers={"content-length": ""}), id="empty"),
        pytest.param(answer(b"<html>"), id="a proxy's page"),
        pytest.param(answer(b'{"Records": []}'), id="lacks MillisBehindLatest"),
        pytest.param(answer(b'{"MillisBehindLatest": 0}'), id="lacks Records"),
        pytest.param(answer(b'{"k": "\xc3'), id="cut inside a character"),
        pytest.param(answer(b'{"Records": [{"Data": "?"}], "MillisBehindLatest": 0}'), id="a bad record"),
    ],
)
def test_a_damaged_page_does_not_end_a_shard(damaged: Answer) -> None:
    """The SDK reads a cut answer as one without fields, which would be the end: the call is retried."""
    service = Service(damaged, EMPTY_PAGE)
    assert service.log.get_records(SHARD, "it", 1).next_iterator == "next"
    assert len(service.calls) == 2


@pytest.mark.parametrize("body", [b'{"ShardIter', b""])
def test_a_damaged_iterator_answer_does_not_end_a_shard(body: bytes) -> None:
    """Only a whole JSON object without an iterator says that there is none."""
    service = Service(answer(body, headers={"content-length": ""}), {"ShardIterator": "it"})
    assert service.log.get_iterator(SHARD, IteratorStart("LATEST")) == "it"


@pytest.mark.parametrize("fields", [{}, {"ShardIterator": None}])
def test_an_error_with_a_good_status_is_no_answer(fields: dict[str, Any]) -> None:
    """As gateways send it. An answer without an iterator would end the shard."""
    refused = answer({"__type": "InternalFailure", "message": "not now"} | fields)
    service = Service(refused, {"ShardIterator": "it"})
    assert service.log.get_iterator(SHARD, IteratorStart("TRIM_HORIZON")) == "it"

    service.left = [refused]
    with pytest.raises(ServiceError, match="good status and an error, InternalFailure: not now"):
        service.log.get_iterator(SHARD, IteratorStart("TRIM_HORIZON"))
    with pytest.raises(ServiceError, match="good status and an error, InternalFailure: not now"):
        service.log.get_records(SHARD, "it", 1)


def test_a_damaged_listing_does_not_lose_shards() -> None:
    """A listing without shards does not mean a stream without shards."""
    service = Service({}, {"Shards": [shard(0)]})
    assert len(service.log.list_splits("orders")) == 1


# --- what is retried ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "failure",
    [
        lambda: refusal("ProvisionedThroughputExceededException"),
        lambda: refusal("LimitExceededException"),
        lambda: refusal("InternalFailure", status=500),
        lambda: refusal("InvalidSignatureException", "Signature expired: 20260101T000000Z is now earlier"),
        lambda: answer(b"<html>", 408),
        lambda: answer(b"<html>", 503),
        lambda: sdk.ReadTimeoutError(endpoint_url=URL, error=OSError("late")),
        lambda: sdk.ConnectionClosedError(endpoint_url=URL, error=OSError("reset")),
    ],
)
def test_transient_errors_are_retried_with_the_backoff(failure: Callable[[], Answer]) -> None:
    """Throttling, 5xx and dropped connections: as the operation's backoff says."""
    service = Service(EMPTY_PAGE)
    service.log.get_records(SHARD, "it", 1)
    service.left = [failure(), failure(), failure(), answer(EMPTY_PAGE)]
    assert service.log.get_records(SHARD, "it", 1).next_iterator == "next"
    assert service.slept == [0.1, 0.2, 0.4]


def test_reads_that_were_refused_and_repeated_are_counted() -> None:
    """Every attempt that the service refused for load; the last one of a failed call was not repeated."""
    slow, figures = refusal("ProvisionedThroughputExceededException"), ReadFigures()
    service = Service(slow, refusal("InternalFailure", status=500), EMPTY_PAGE, figures=figures)
    service.log.get_records(SHARD, "it", 1)
    once = figures.splits()
    service.left = [slow]
    with pytest.raises(ServiceError):
        service.log.get_records(SHARD, "it", 1)

    assert once == {SHARD: SplitFigures(refused=1, retries=2)}
    assert figures.splits() == {SHARD: SplitFigures(refused=1 + 4, retries=2 + 3)}


def test_a_read_that_is_silent_holds_a_plan_once() -> None:
    """For ten seconds, for any read timeout; the planner tries again. What fails at once is repeated."""
    silence = sdk.ReadTimeoutError(endpoint_url=URL)
    service = Service(refusal("InternalFailure", status=500), silence, is_endpoint_known=True)
    now = 0.0

    def clock() -> float:
        return now

    def send(operation: str, params: dict[str, Any]) -> Answer:
        nonlocal now
        now += 1.0 if len(service.left) > 1 else calls.connection.read_timeout
        return service._next(operation, params)

    calls = kinesis_calls(
        CONFIG, retrier=Retrier(service.slept.append, clock=clock), is_endpoint_known=True
    ).for_planning("GetRecords", "GetShardIterator")
    transport = Transport(send)
    transport.install(client_for(calls.connection, "kinesis"))
    log = KinesisLog(calls, {"orders": None})
    for read in (
        lambda: log.get_records(SHARD, "it", 1),
        lambda: log.get_iterator(SHARD, IteratorStart("LATEST")),
    ):
        with pytest.raises(ServiceError, match="ReadTimeoutError") as caught:
            read()
        assert caught.value.retryable

    assert [operation for operation, _ in transport.calls] == ["GetRecords"] * 2 + ["GetShardIterator"]
    assert now == 21.0
    short = replace(calls, connection=replace(CONFIG.connection, read_timeout=3.0))
    assert short.for_planning("GetRecords").connection.read_timeout == 3.0


def test_a_read_that_is_throttled_holds_no_plan() -> None:
    """The planner continues without the shard, and reads it later."""
    refused = refusal("ProvisionedThroughputExceededException")
    service = Service(refused, EMPTY_PAGE, is_endpoint_known=True)
    calls = service.log._calls.for_planning("GetRecords", "GetShardIterator")
    transport = Transport(service._next)
    transport.install(client_for(calls.connection, "kinesis"))
    with pytest.raises(ServiceError) as caught:
        KinesisLog(calls, {"orders": None}).get_records(SHARD, "it", 1)

    assert caught.value.throttling
    assert (service.slept, len(transport.calls)) == ([], 1)


def test_only_calls_that_there_are_can_be_given_up() -> None:
    """A misspelt one would be waited for."""
    with pytest.raises(KeyError):
        kinesis_calls(CONFIG).for_planning("GetRecord")


def test_the_error_after_the_last_retry_is_complete() -> None:
    """Stream, shard, operation, endpoint and cause; without a traceback of the SDK."""
    service = Service(refusal("ProvisionedThroughputExceededException", "Rate exceeded"))
    with pytest.raises(ServiceError) as raised:
        service.log.get_records(SHARD, "it", 1)
    assert str(raised.value) == (
        f"GetRecords of {SHARD} at {URL} failed: ProvisionedThroughputExceededException: Rate exceeded"
    )
    assert len(service.calls) == 4
    shown = "".join(traceback.format_exception(raised.value))
    assert "botocore" not in shown


@pytest.mark.parametrize(
    ("code", "attribute"),
    [
        ("ExpiredIteratorException", "expired_iterator"),
        ("ResourceNotFoundException", "missing"),
        ("InvalidArgumentException", "invalid_argument"),
    ],
)
def test_a_lasting_error_is_raised_at_once(code: str, attribute: str) -> None:
    """Also an expired iterator: the caller knows its position and gets a new one."""
    service = Service(refusal(code))
    with pytest.raises(ServiceError) as raised:
        service.log.get_records(SHARD, "it", 1)
    assert getattr(raised.value, attribute)
    assert len(service.calls) == 1


LISTINGS: list[Callable[[KinesisLog], object]] = [
    lambda log: log.describe("orders"),
    lambda log: log.list_splits("orders"),
]


@pytest.mark.parametrize("ask", LISTINGS)
def test_a_query_that_starts_waits_while_listings_are_throttled(
    caplog: pytest.LogCaptureFixture, ask: Callable[[KinesisLog], object]
) -> None:
    """Other programs of the account use up its calls for a while. The log says so once, as a warning."""
    summary = {"StreamName": "orders", "StreamCreationTimestamp": 1.0, "RetentionPeriodHours": 24}
    good = {"Shards": [shard(0)], "StreamDescriptionSummary": summary}
    service = Service(*[refusal("LimitExceededException") for _ in range(60)], good)
    ask(service.log)
    assert len(service.calls) == 61
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert warnings[0].startswith("throttled; trying for up to 900 s, next in 0.800 s: ")


@pytest.mark.parametrize("ask", LISTINGS)
def test_listings_that_stay_throttled_fail_after_a_quarter_of_an_hour(
    ask: Callable[[KinesisLog], object],
) -> None:
    service = Service(refusal("LimitExceededException", "Rate exceeded"))
    with pytest.raises(ServiceError, match="Rate exceeded"):
        ask(service.log)
    assert 900 <= sum(service.slept) < 902


def test_a_stop_interrupts_the_waiting() -> None:
    """A sleep that raises ends the retries with what it raised."""

    class Stopped(Exception):  # noqa: N818
        pass

    def stop(_seconds: float) -> None:
        raise Stopped

    service = Service(refusal("ThrottlingException"))
    log = KinesisLog.of(CONFIG, retrier=Retrier(sleep=stop))
    with pytest.raises(Stopped):
        log.get_records(SHARD, "it", 1)
    assert len(service.calls) == 1


# --- first contact ------------------------------------------------------------------------------------


def test_an_endpoint_that_was_never_reached_fails_soon() -> None:
    """After one retry, with its URL: a mistyped URL must not cost a minute of backoff."""
    service = Service(refused_connection())
    with pytest.raises(ServiceError, match=f"ListShards of orders at {URL} failed: .*Connection refused"):
        service.log.list_splits("orders")
    assert len(service.calls) == 2


def test_an_endpoint_whose_first_answers_break_off_gets_all_retries() -> None:
    """Something answers there, so it is not mistyped."""
    broken = ProtocolError("Connection broken", IncompleteRead(176, 216))
    service = Service(sdk.ConnectionClosedError(endpoint_url=URL, error=broken))
    with pytest.raises(ServiceError, match="failed: IncompleteRead"):
        service.log.list_splits("orders")
    assert len(service.calls) == 1 + BACKOFFS["ListShards"].max_retries


def test_an_endpoint_that_was_reached_once_gets_all_retries() -> None:
    """Also in another log of the same process."""
    service = Service(refusal("ResourceNotFoundException"))
    with pytest.raises(ServiceError):
        service.log.describe("orders")
    again = Service(refused_connection())
    with pytest.raises(ServiceError):
        again.log.list_splits("orders")
    assert len(again.calls) == 1 + BACKOFFS["ListShards"].max_retries


def test_an_endpoint_of_sts_that_was_never_reached_fails_soon_too() -> None:
    """The error names the endpoint of STS, not that of the service."""
    service = Service(EMPTY_PAGE)
    service.log.get_records(SHARD, "it", 1)
    service.left = [
        sdk.EndpointConnectionError(endpoint_url="http://sts.example:2/", error=OSError("refused"))
    ]
    with pytest.raises(ServiceError, match=r"GetRecords of .* at http://sts\.example:2 failed: .*refused"):
        service.log.get_records(SHARD, "it", 1)
    assert len(service.calls) == 1 + 2


# --- the service's clock ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ahead", "expected"),
    [
        (0.0, 0.0),
        (0.9, 0.0),  # the header has whole seconds
        (-0.5, -1.0),
        (-1.5, -2.0),
        (60.0, 60.0),
        (-60.0, -60.0),
        (5.5, 5.0),
    ],
)
def test_the_clock_is_never_ahead_of_the_service(ahead: float, expected: float) -> None:
    """Of the times that an answer allows the earliest is taken: the service refuses later ones."""
    dated = answer(EMPTY_PAGE, headers={"date": formatdate(NOW + ahead, usegmt=True)})
    service = Service(dated)
    assert service.log.server_time() == round(NOW * 1_000_000)
    service.log.get_records(SHARD, "it", 1)
    assert service.log.server_time() == round((NOW + expected) * 1_000_000)


@pytest.mark.parametrize("ahead", [-1.9, -0.5, -0.05, 0.0, 0.4, 1.7, 300.0])
def test_answers_tell_the_clock_more_and_more_exactly(ahead: float) -> None:
    """Some come right after a second has begun. The time stays below the service's, by little."""
    service = Service(EMPTY_PAGE)

    def dated(_operation: str, _params: dict[str, Any]) -> Answer:
        service.now += 0.02
        return answer(EMPTY_PAGE, headers={"date": formatdate(service.now - ahead, usegmt=True)})

    service.transport._answer = dated
    for _ in range(40):
        service.log.get_records(SHARD, "it", 1)
        service.now += 0.37
        off = service.log.server_time() / 1e6 - (service.now - ahead)
        assert -1.1 <= off <= 0.0
    assert off >= -0.1


def test_a_clock_that_is_set_is_learnt_anew() -> None:
    """Answers that contradict the known time replace it; so does a refusal of a time as in the future."""
    service = Service(EMPTY_PAGE)
    service.transport._answer = lambda _operation, _params: answer(
        EMPTY_PAGE, headers={"date": formatdate(NOW, usegmt=True)}
    )
    service.log.get_records(SHARD, "it", 1)
    service.now += 1800
    service.log.get_records(SHARD, "it", 1)
    assert service.log.server_time() == round(NOW * 1_000_000)


def test_a_time_that_the_service_calls_later_than_now_is_asked_for_again() -> None:
    """Its clock reaches that time soon, and reading must not begin at an earlier one."""
    service = Service(
        answer({"__type": "InvalidArgumentException", "message": "greater than the current"}, 400),
        answer({"ShardIterator": "it"}),
    )
    start = IteratorStart("AT_TIMESTAMP", timestamp=round((NOW + 0.7) * 1_000_000))
    assert service.log.get_iterator(SHARD, start) == "it"
    assert service.log.server_time() <= round((NOW + 0.7) * 1_000_000)


def test_a_slow_answer_does_not_move_the_clock() -> None:
    """An answer that took a minute may have been dated at any time within it."""
    service = Service(EMPTY_PAGE)

    def slow(_operation: str, _params: dict[str, Any]) -> Answer:
        dated = answer(EMPTY_PAGE, headers={"date": formatdate(service.now, usegmt=True)})
        service.now += 60
        return dated

    service.transport._answer = slow
    service.log.get_records(SHARD, "it", 1)
    assert service.log.server_time() == round(service.now * 1_000_000)
