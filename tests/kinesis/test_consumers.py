"""The registrar: what it does with a consumer in each state, what it retries, and who may deregister."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from botocore import exceptions as sdk
from kinesis_transport import OPTIONS, URL, Answer, Transport, answer, forget_process_state, refusal

from sluice.aws.calling.clients import client_for
from sluice.errors import OptionError, ServiceError
from sluice.kinesis.consumers.registrar import ConsumerRegistrar
from sluice.kinesis.options.config import SourceConfig, source_config_from_options
from sluice.kinesis.planner.fan_out_coordinator import register_for_bounded_read
from sluice.retry import Retrier

STREAM_ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
ARN = f"{STREAM_ARN}/consumer/me:1700000000"
NEWER = f"{STREAM_ARN}/consumer/me:1700000009"
DESCRIBE, REGISTER = "DescribeStreamConsumer", "RegisterStreamConsumer"
DEREGISTER, LIST = "DeregisterStreamConsumer", "ListStreamConsumers"


def stream_is(status: str) -> dict[str, Any]:
    """The answer that describes the stream."""
    about = {"StreamName": "orders", "StreamARN": STREAM_ARN, "StreamStatus": status}
    return {"StreamDescriptionSummary": about}


SUMMARY = "DescribeStreamSummary"


@pytest.fixture(autouse=True)
def _fresh_process() -> Iterator[None]:
    yield
    forget_process_state()


def config_of(**options: str) -> SourceConfig:
    streams = {} if "streamName" in options else {"streamArn": STREAM_ARN}
    consumer = {} if any(key.startswith("consumerArn") for key in options) else {"consumerName": "me"}
    return source_config_from_options(OPTIONS | streams | consumer | options)


def is_(status: str, arn: str = ARN) -> Mapping[str, Any]:
    """The answer that describes a consumer."""
    about = {"ConsumerName": "me", "ConsumerARN": arn, "ConsumerStatus": status}
    return {
        "ConsumerDescription": about | {"ConsumerCreationTimestamp": 1_700_000_000, "StreamARN": STREAM_ARN}
    }


def is_new(arn: str = ARN) -> Mapping[str, Any]:
    """The answer to a registration."""
    return {"Consumer": {"ConsumerName": "me", "ConsumerARN": arn, "ConsumerStatus": "CREATING"}}


def listed(*statuses: str) -> Mapping[str, Any]:
    return {
        "Consumers": [
            {
                "ConsumerName": f"c{n}",
                "ConsumerARN": f"{STREAM_ARN}/consumer/c{n}:1",
                "ConsumerStatus": status,
            }
            for n, status in enumerate(statuses)
        ]
    }


GONE = refusal("ResourceNotFoundException", "no such thing")
IN_USE = refusal("ResourceInUseException", "it exists, or is busy")
LIMIT = refusal("LimitExceededException", "too many")
DENIED = refusal("AccessDeniedException", "you may not")

Script = Answer | Mapping[str, Any]


class Service:
    """A registrar over a fake transport, with a list of answers for each operation, the last one for ever."""

    def __init__(self, answers: Mapping[str, list[Script]], config: SourceConfig | None = None) -> None:
        self.left = {SUMMARY: [stream_is("ACTIVE")]} | {name: list(each) for name, each in answers.items()}
        self.slept: list[float] = []
        self.config = config or config_of()
        self.transport = Transport(self._next)
        self.transport.install(client_for(self.config.connection, "kinesis"))
        # Without jitter, every wait is the longest possible.
        retrier = Retrier(sleep=self.slept.append, jitter=lambda: 1.0)
        self.told: list[tuple[str, str]] = []
        self.registrar = ConsumerRegistrar(
            self.config, retrier=retrier, on_registered=lambda *each: self.told.append(each)
        )

    def _next(self, operation: str, params: dict[str, Any]) -> Answer:
        del params
        left = self.left[operation]
        found = left.pop(0) if len(left) > 1 else left[0]
        return answer(found) if isinstance(found, Mapping) else found

    @property
    def operations(self) -> list[str]:
        return [operation for operation, _ in self.transport.calls]

    def count(self, operation: str) -> int:
        return self.operations.count(operation)

    def ensure(self) -> tuple[str, bool]:
        """The consumer, and whether this query has registered it."""
        arn = self.registrar.ensure("orders")
        return arn, ("orders", arn) in self.told

    def failure(self) -> ServiceError:
        with pytest.raises(ServiceError) as raised:
            self.registrar.ensure("orders")
        return raised.value


# --- a consumer by name -------------------------------------------------------------------------------

BY_NAME = {"StreamARN": STREAM_ARN, "ConsumerName": "me"}
STATES: dict[str, tuple[dict[str, list[Script]], tuple[str, bool], list[str]]] = {
    "active": ({DESCRIBE: [is_("ACTIVE")]}, (ARN, False), [DESCRIBE]),
    "being created": (
        {DESCRIBE: [is_("CREATING"), is_("CREATING"), is_("ACTIVE")]},
        (ARN, False),
        [DESCRIBE] * 3,
    ),
    "not there": (
        {DESCRIBE: [GONE, is_("CREATING"), is_("ACTIVE")], REGISTER: [is_new()]},
        (ARN, True),
        [DESCRIBE, REGISTER, DESCRIBE, DESCRIBE],
    ),
    "being deleted": (
        {DESCRIBE: [is_("DELETING"), is_("DELETING"), GONE, is_("ACTIVE", NEWER)], REGISTER: [is_new(NEWER)]},
        (NEWER, True),
        [DESCRIBE, DESCRIBE, DESCRIBE, REGISTER, DESCRIBE],
    ),
    "registered by another at the same time": (
        {DESCRIBE: [GONE, is_("CREATING"), is_("ACTIVE")], REGISTER: [IN_USE]},
        (ARN, False),
        [DESCRIBE, REGISTER, DESCRIBE, DESCRIBE],
    ),
    "registered and deregistered by another at the same time": (
        {DESCRIBE: [GONE, is_("DELETING"), GONE, is_("ACTIVE")], REGISTER: [IN_USE, is_new()]},
        (ARN, True),
        [DESCRIBE, REGISTER, DESCRIBE, DESCRIBE, REGISTER, DESCRIBE],
    ),
    "registered, the stream being changed": (
        {DESCRIBE: [*[GONE] * 40, is_("ACTIVE")], REGISTER: [*[IN_USE] * 39, is_new()]},
        (ARN, True),
        [*[DESCRIBE, REGISTER] * 40, DESCRIBE],
    ),
    "registered, and deregistered by somebody else before it is active": (
        {
            DESCRIBE: [GONE, is_("CREATING"), is_("DELETING"), is_("DELETING"), GONE, is_("ACTIVE", NEWER)],
            REGISTER: [is_new(), is_new(NEWER)],
        },
        (NEWER, True),
        [DESCRIBE, REGISTER, *[DESCRIBE] * 4, REGISTER, DESCRIBE],
    ),
    "registered, and not known everywhere yet": (
        {DESCRIBE: [GONE, GONE, GONE, is_("CREATING"), is_("ACTIVE")], REGISTER: [is_new()]},
        (ARN, True),
        [DESCRIBE, REGISTER, DESCRIBE, DESCRIBE, DESCRIBE, DESCRIBE],
    ),
    "registered when the limit allowed it": (
        {DESCRIBE: [GONE, is_("ACTIVE")], REGISTER: [LIMIT, LIMIT, is_new()]},
        (ARN, True),
        [DESCRIBE, REGISTER, REGISTER, REGISTER, DESCRIBE],
    ),
}


@pytest.mark.parametrize("case", STATES)
def test_a_consumer_is_used_waited_for_or_registered(case: str) -> None:
    """In any state, it is active in the end; and it is known whether this query has registered it."""
    answers, expected, operations = STATES[case]
    service = Service(answers)
    assert service.ensure() == expected
    assert service.operations == operations


def test_calls_name_the_stream_by_its_arn() -> None:
    """The operations of consumers take no stream's name, so the ARN is looked up, once."""
    answers: dict[str, list[Script]] = {DESCRIBE: [GONE, is_("ACTIVE")], REGISTER: [is_new()]}
    service = Service(answers, config_of(streamName="orders"))
    service.registrar.ensure("orders")
    service.registrar.ensure("orders")
    assert service.transport.calls == [
        ("DescribeStreamSummary", {"StreamName": "orders"}),
        (DESCRIBE, BY_NAME),
        (REGISTER, BY_NAME),
        (DESCRIBE, BY_NAME),
        (DESCRIBE, BY_NAME),
    ]


def test_a_consumer_is_waited_for_as_the_describe_options_say() -> None:
    """By default 50 retries, at most 2 s to 5 s apart; then the error has the last state."""
    service = Service({DESCRIBE: [is_("CREATING")]})
    failure = service.failure()
    assert str(failure) == "DescribeStreamConsumer of orders/consumer/me: the consumer is CREATING"
    assert service.operations == [DESCRIBE] * 51
    assert service.slept == [2.0, 3.0, 4.5] + [5.0] * 47


FEW = {
    "describeStreamConsumerMaxRetries": "2",
    "describeStreamConsumerBackoffBase": "1s",
    "describeStreamConsumerBackoffMax": "10s",
    "describeStreamConsumerBackoffExponent": "3",
    "registerStreamConsumerMaxRetries": "2",
    "registerStreamConsumerBackoffBase": "7ms",
    "registerStreamConsumerBackoffMax": "10ms",
    "registerStreamConsumerBackoffExponent": "1",
    "deregisterStreamConsumerMaxRetries": "1",
    "deregisterStreamConsumerBackoffBase": "11ms",
    "listStreamConsumersMaxRetries": "3",
    "listStreamConsumersBackoffBase": "8ms",
    "listStreamConsumersBackoffExponent": "1",
    "listShardsMaxRetries": "0",
}


@pytest.mark.parametrize("status", ["CREATING", "DELETING"])
@pytest.mark.parametrize("before", [[], [GONE]])
def test_waiting_for_a_state_ends(status: str, before: list[Script]) -> None:
    """Registering uses up one retry of describing, and no more."""
    service = Service({DESCRIBE: [*before, is_(status)], REGISTER: [IN_USE]}, config_of(**FEW))
    assert status in str(service.failure())
    assert service.slept == [1.0, 3.0]
    assert service.count(REGISTER) == len(before)


def test_a_stream_that_is_never_ready_is_named_in_the_error() -> None:
    """Not the consumer that is missing because of that."""
    service = Service({DESCRIBE: [GONE], REGISTER: [IN_USE]}, config_of(**FEW))
    failure = service.failure()
    assert (failure.operation, failure.code) == (REGISTER, "ResourceInUseException")
    assert service.count(REGISTER) == 3


def test_a_registration_is_reported_before_the_consumer_is_ready() -> None:
    """If waiting for it ends early, it is known what to deregister."""
    service = Service({DESCRIBE: [GONE, DENIED], REGISTER: [is_new()]})
    assert "may not" in str(service.failure())
    assert service.told == [("orders", ARN)]


LOST = sdk.ReadTimeoutError(endpoint_url=URL, error=OSError("late"))


@pytest.mark.parametrize("failure", [LOST, refusal("InternalFailure", status=500)])
def test_a_registration_whose_answer_was_lost_is_the_querys(failure: Answer) -> None:
    """The consumer was not there before, and nobody else would deregister it. It is reported once."""
    describe: list[Script] = [GONE, is_("CREATING"), is_("CREATING"), is_("ACTIVE")]
    service = Service({DESCRIBE: describe, REGISTER: [failure, IN_USE]})
    assert service.ensure() == (ARN, True)
    assert service.told == [("orders", ARN)]


@pytest.mark.parametrize(
    ("describe", "register", "registered"),
    [
        # Refused because of load: it was not carried out.
        ([GONE, is_("ACTIVE")], [LIMIT, IN_USE], False),
        # The answer was lost, while the stream was being resharded.
        ([GONE, GONE, GONE, is_("ACTIVE")], [LOST, IN_USE, is_new()], True),
        # Somebody deregisters it already.
        ([GONE, is_("DELETING"), is_("DELETING"), GONE, is_("ACTIVE")], [LOST, IN_USE, is_new()], True),
    ],
)
def test_a_registration_that_was_not_carried_out(
    describe: list[Script], register: list[Script], registered: bool
) -> None:
    """What another query has registered meanwhile is not this one's."""
    service = Service({DESCRIBE: describe, REGISTER: register})
    assert service.ensure() == (ARN, registered)


def test_a_limit_of_another_call_does_not_count_consumers() -> None:
    """The number of consumers has nothing to do with that limit."""
    service = Service({DESCRIBE: [GONE, LIMIT], REGISTER: [IN_USE]}, config_of(**FEW))
    failure = service.failure()
    assert (failure.operation, failure.code) == (DESCRIBE, "LimitExceededException")
    assert "consumers" not in str(failure)
    assert service.operations == [DESCRIBE, REGISTER] + [DESCRIBE] * 2


# --- limits and refusals ------------------------------------------------------------------------------


def test_a_limit_is_named_when_retries_are_used_up() -> None:
    """The error has consumer, stream, the limits, and the stream's consumers."""
    names = listed(*["ACTIVE"] * 17, *["CREATING"] * 3)
    service = Service({DESCRIBE: [GONE], REGISTER: [LIMIT], LIST: [names]}, config_of(**FEW))
    failure = service.failure()
    message = str(failure)
    assert message.startswith(
        f"RegisterStreamConsumer of orders/consumer/me at {URL} failed: LimitExceededException: too many"
    )
    assert "at most 20 consumers (50 in on-demand advantage mode), 5 of them being created at once" in message
    assert "an account registers 5 a second" in message
    assert "this stream has 20, 3 of them being created: c0, c1, c10" in message
    assert (failure.code, failure.operation, failure.throttling) == ("LimitExceededException", REGISTER, True)
    assert service.operations == [DESCRIBE, REGISTER, REGISTER, REGISTER, LIST]
    assert service.slept == [0.007, 0.007]


def test_a_limit_is_named_where_consumers_cannot_be_listed() -> None:
    """The error has the limits then; listing is retried as its options say."""
    throttled = refusal("LimitExceededException", "slower")
    service = Service({DESCRIBE: [GONE], REGISTER: [LIMIT], LIST: [throttled]}, config_of(**FEW))
    message = str(service.failure())
    assert message.endswith("an account registers 5 a second)")
    assert service.slept == [0.007, 0.007, 0.008, 0.008, 0.008]


def test_consumers_are_listed_page_by_page() -> None:
    """The operation takes the stream's ARN in addition to the token."""
    pages: list[Script] = [dict(listed("ACTIVE")) | {"NextToken": "more"}, listed("ACTIVE", "ACTIVE")]
    service = Service({DESCRIBE: [GONE], REGISTER: [LIMIT], LIST: pages}, config_of(**FEW))
    assert "this stream has 3, 0 of them being created: c0, c0, c1" in str(service.failure())
    assert [params for operation, params in service.transport.calls if operation == LIST] == [
        {"StreamARN": STREAM_ARN},
        {"StreamARN": STREAM_ARN, "NextToken": "more"},
    ]


@pytest.mark.parametrize(
    ("answers", "operation", "code"),
    [
        ({"DescribeStreamSummary": [GONE]}, "DescribeStreamSummary", "ResourceNotFoundException"),
        ({"DescribeStreamSummary": [DENIED]}, "DescribeStreamSummary", "AccessDeniedException"),
        ({DESCRIBE: [DENIED]}, DESCRIBE, "AccessDeniedException"),
        ({DESCRIBE: [GONE], REGISTER: [DENIED]}, REGISTER, "AccessDeniedException"),
        # A missing stream that the user named by its ARN is noticed here first.
        ({DESCRIBE: [GONE], REGISTER: [GONE]}, REGISTER, "ResourceNotFoundException"),
        ({DESCRIBE: [GONE, DENIED], REGISTER: [is_new()]}, DESCRIBE, "AccessDeniedException"),
        ({DESCRIBE: [GONE, DENIED], REGISTER: [IN_USE]}, DESCRIBE, "AccessDeniedException"),
    ],
)
def test_a_lasting_error_is_raised_at_once(
    answers: dict[str, list[Script]], operation: str, code: str
) -> None:
    """Its own retries are not used; the error has the operation, its target and the cause."""
    service = Service(answers, config_of(streamName="orders"))
    failure = service.failure()
    assert (failure.operation, failure.code) == (operation, code)
    assert f"{operation} of orders" in str(failure)
    assert (
        len(service.slept) == service.count(DESCRIBE) - 1
        if DESCRIBE in service.operations
        else not service.slept
    )
    assert failure.__suppress_context__ or failure.__context__ is None


@pytest.mark.parametrize("damaged", [{}, {"ConsumerDescription": {"ConsumerName": "me"}}])
def test_a_damaged_description_is_retried(damaged: Mapping[str, Any]) -> None:
    """It does not count as a missing consumer."""
    service = Service({DESCRIBE: [damaged, is_("ACTIVE")]})
    assert service.ensure() == (ARN, False)
    assert service.slept == [2.0]


# --- a consumer by its ARN ----------------------------------------------------------------------------


def test_a_consumer_given_by_its_arn_is_checked() -> None:
    """It is described, waited for, and never registered."""
    service = Service({DESCRIBE: [is_("CREATING"), is_("ACTIVE")]}, config_of(consumerArn=ARN))
    assert service.ensure() == (ARN, False)
    assert service.transport.calls == [(DESCRIBE, {"ConsumerARN": ARN})] * 2


OTHER_ACCOUNT = {
    "StreamDescriptionSummary": {"StreamName": "orders", "StreamARN": STREAM_ARN.replace("9012", "9999")}
}


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (
            {DESCRIBE: [GONE], LIST: [listed("ACTIVE", "ACTIVE")]},
            "this consumer does not exist: the stream has "
            + ", ".join(f"{STREAM_ARN}/consumer/{name}:1" for name in ("c0", "c1")),
        ),
        ({DESCRIBE: [GONE], LIST: [listed()]}, "this consumer does not exist: the stream has none"),
        ({DESCRIBE: [GONE], LIST: [GONE]}, "this consumer does not exist"),
        ({DESCRIBE: [is_("DELETING")]}, "the consumer is DELETING"),
        (
            {DESCRIBE: [is_("ACTIVE")], "DescribeStreamSummary": [OTHER_ACCOUNT]},
            f"that is not a consumer of {STREAM_ARN.replace('9012', '9999')}",
        ),
    ],
)
@pytest.mark.parametrize("streams", ["orders", "orders,other"])
def test_a_wrong_arn_is_an_option_error(answers: dict[str, list[Script]], message: str, streams: str) -> None:
    """It names the option, its value, and the consumers that the stream has."""
    arns = {"consumerArn": ARN}
    if "," in streams:
        arns = {"consumerArn.orders": ARN, "consumerArn.other": ARN.replace("orders", "other")}
    service = Service(answers, config_of(streamName=streams, **arns))
    with pytest.raises(OptionError) as raised:
        service.registrar.ensure("orders")
    assert str(raised.value) == f"option '{next(iter(arns))}' is {ARN!r}: {message}"
    assert REGISTER not in service.operations


def test_a_denied_description_is_an_error_of_the_service() -> None:
    """The consumer may exist."""
    service = Service({DESCRIBE: [DENIED]}, config_of(consumerArn=ARN))
    assert service.failure().code == "AccessDeniedException"


# --- deregistering ------------------------------------------------------------------------------------

THROTTLED = refusal("ThrottlingException")


@pytest.mark.parametrize(
    ("answers", "operations", "slept"),
    [
        ({DEREGISTER: [{}]}, [DEREGISTER], []),
        ({DEREGISTER: [answer(b"")]}, [DEREGISTER], []),
        ({DEREGISTER: [GONE]}, [DEREGISTER], []),
        ({DEREGISTER: [THROTTLED, {}]}, [DEREGISTER, DEREGISTER], [0.5]),
        ({DEREGISTER: [IN_USE], DESCRIBE: [is_("DELETING")]}, [DEREGISTER, DESCRIBE], []),
        ({DEREGISTER: [IN_USE], DESCRIBE: [GONE]}, [DEREGISTER, DESCRIBE], []),
        (
            {DEREGISTER: [IN_USE, {}], DESCRIBE: [*[is_("CREATING")] * 20, is_("ACTIVE")]},
            [DEREGISTER, *[DESCRIBE] * 21, DEREGISTER],
            [2.0, 3.0, 4.5, *[5.0] * 17, 0.5],
        ),
        ({DEREGISTER: [IN_USE, {}], DESCRIBE: [DENIED]}, [DEREGISTER, DESCRIBE, DEREGISTER], [0.5]),
    ],
)
def test_deregistering_is_idempotent(
    answers: dict[str, list[Script]], operations: list[str], slept: list[float]
) -> None:
    """If a consumer is deleted or being deleted, nothing is left to do, and nothing is waited for. A consumer
    that is being created cannot be deregistered yet: this waits for it, for as long as at the start of a
    query.
    """
    service = Service(answers)
    service.registrar.deregister(ARN)
    assert service.operations == operations
    assert service.transport.calls[0] == (DEREGISTER, {"ConsumerARN": ARN})
    assert service.slept == slept


@pytest.mark.parametrize(("refused", "calls"), [(THROTTLED, 2), (DENIED, 1)])
def test_deregistering_may_fail(refused: Answer, calls: int) -> None:
    """After its own retries; the error names the consumer."""
    service = Service({DEREGISTER: [refused]}, config_of(**FEW))
    with pytest.raises(ServiceError, match="DeregisterStreamConsumer of orders/consumer/me at"):
        service.registrar.deregister(ARN)
    assert service.operations == [DEREGISTER] * calls
    assert service.slept == [0.011] * (calls - 1)


@pytest.mark.parametrize(("is_known", "calls"), [(False, 2), (True, 11)])
def test_an_endpoint_that_the_query_has_reached_gets_all_retries(is_known: bool, calls: int) -> None:
    """The process that deregisters may call it for the first time."""
    service = Service({DEREGISTER: [sdk.EndpointConnectionError(endpoint_url=URL, error=OSError("refused"))]})
    retrier = Retrier(sleep=service.slept.append)
    with pytest.raises(ServiceError, match="refused"):
        ConsumerRegistrar(service.config, retrier=retrier, is_endpoint_known=is_known).deregister(ARN)
    assert service.count(DEREGISTER) == calls


# --- all streams ------------------------------------------------------------------------------------


def test_polling_has_no_registrar() -> None:
    with pytest.raises(ValueError, match="polled"):
        ConsumerRegistrar(source_config_from_options({"streamName": "orders"}))


@pytest.mark.parametrize(("options", "count"), [({}, 1), ({"consumerDeregistration": "never"}, 0)])
@pytest.mark.parametrize("refused", [{}, DENIED])
def test_a_batch_read_that_fails_leaves_no_consumer_behind(
    options: dict[str, str], count: int, refused: Script
) -> None:
    """If the second stream gets no consumer, nobody else would deregister that of the first."""
    answers: dict[str, list[Script]] = {
        SUMMARY: [stream_is("ACTIVE"), GONE],
        DESCRIBE: [GONE, is_("ACTIVE")],
        REGISTER: [is_new()],
        DEREGISTER: [refused],
    }
    quick = {"describeStreamConsumerBackoffBase": "1ms", "streamName": "orders,other"}
    service = Service(answers, config_of(**quick, **options))
    with pytest.raises(ServiceError, match="DescribeStreamSummary of other"):
        register_for_bounded_read(service.config)
    assert service.count(DEREGISTER) == count
