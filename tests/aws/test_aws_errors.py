"""SDK errors become ServiceErrors: attributes say what they mean, and messages hold no secrets."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import urllib3.exceptions as http
from botocore import exceptions as sdk
from botocore.eventstream import ChecksumMismatch
from botocore.parsers import ResponseParserError
from urllib3.connection import HTTPConnection

from sluice.aws.errors import (
    DamagedAnswerError,
    is_clock_refused,
    is_unanswered,
    redact,
    translate,
)
from sluice.errors import ServiceError

ENDPOINT = "https://kinesis.eu-west-1.amazonaws.com"


def client_error(
    code: str, message: str = "why", status: int = 400, operation: str = "GetRecords"
) -> sdk.ClientError:
    return sdk.ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore[typeddict-item]
        operation,
    )


def meaning(error: Exception) -> ServiceError:
    return translate(error, operation="GetRecords", target="orders/shardId-1", endpoint=ENDPOINT)


def flags(error: ServiceError) -> set[str]:
    names = ("retryable", "throttling", "missing", "expired_iterator", "invalid_argument")
    return {name for name in names if getattr(error, name)}


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("ProvisionedThroughputExceededException", 400, {"retryable", "throttling"}),
        ("LimitExceededException", 400, {"retryable", "throttling"}),
        ("ThrottlingException", 400, {"retryable", "throttling"}),
        ("RequestLimitExceeded", 503, {"retryable", "throttling"}),
        ("KMSThrottlingException", 400, {"retryable", "throttling"}),
        ("SlowDown", 503, {"retryable", "throttling"}),
        ("TooMany", 429, {"retryable", "throttling"}),
        ("ResourceInUseException", 400, {"retryable"}),
        ("ExpiredNextTokenException", 400, set()),
        ("InternalFailure", 500, {"retryable"}),
        ("InternalFailureException", 200, {"retryable"}),
        ("ServiceUnavailable", 503, {"retryable"}),
        ("502", 502, {"retryable"}),
        ("Whatever", 500, {"retryable"}),
        ("ResourceNotFoundException", 400, {"missing"}),
        ("AWS.SimpleQueueService.NonExistentQueue", 400, {"missing"}),
        ("KMSNotFoundException", 400, set()),
        ("ExpiredIteratorException", 400, {"expired_iterator"}),
        ("InvalidArgumentException", 400, {"invalid_argument"}),
        ("com.amazon.coral.validate#ValidationException", 400, {"invalid_argument"}),
        ("AccessDeniedException", 400, set()),
        ("UnrecognizedClientException", 400, set()),
        ("InvalidSignatureException", 400, set()),
        ("ExpiredTokenException", 400, set()),
        ("KMSAccessDeniedException", 400, set()),
    ],
)
def test_what_a_service_error_means(code: str, status: int, expected: set[str]) -> None:
    """Each error code of the service sets exactly the attributes that callers act on."""
    assert flags(meaning(client_error(code, status=status))) == expected


TRANSPORT_ERRORS: list[tuple[Exception, bool, bool]] = [
    # error, retryable, without any answer
    (sdk.EndpointConnectionError(endpoint_url=ENDPOINT, error=OSError("refused")), True, True),
    (sdk.ConnectTimeoutError(endpoint_url=ENDPOINT, error=OSError("late")), True, True),
    (sdk.ReadTimeoutError(endpoint_url=ENDPOINT, error=OSError("late")), True, True),
    (sdk.ConnectionClosedError(endpoint_url=ENDPOINT, error=OSError("reset")), True, True),
    (sdk.ProxyConnectionError(proxy_url="http://p", error=OSError("no")), True, True),
    (sdk.HTTPClientError(error=OSError("odd")), True, True),
    (sdk.SSLError(endpoint_url=ENDPOINT, error=OSError("EOF occurred in violation of protocol")), True, True),
    (
        sdk.SSLError(endpoint_url=ENDPOINT, error=OSError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed")),
        False,
        True,
    ),
    (sdk.SSLError(endpoint_url=ENDPOINT, error=OSError("[SSL: WRONG_VERSION_NUMBER]")), False, True),
    (http.ProtocolError("Connection broken"), True, True),
    (http.ReadTimeoutError(None, "/", "Read timed out."), True, True),  # type: ignore[arg-type]
    (ResponseParserError("not JSON"), True, False),
    (DamagedAnswerError("the answer has 3 of 9 bytes"), True, False),
    (ChecksumMismatch(1, 2), True, False),
    (UnicodeDecodeError("utf-8", b"\xc3", 0, 1, "unexpected end"), True, False),
    (ConnectionResetError(104, "reset"), True, False),
    (sdk.CredentialRetrievalError(provider="iam-role", error_msg="timeout"), True, False),
    (sdk.NoCredentialsError(), False, False),
    (sdk.ParamValidationError(report="Invalid length"), False, False),
    (RuntimeError("a bug"), False, False),
]


def test_an_answer_that_breaks_off_is_an_answer() -> None:
    """Also where the SDK says that the connection was closed, as it does where nothing came at all."""
    broken = http.ProtocolError("Connection broken", http.IncompleteRead(176, 216))
    for error in (sdk.ConnectionClosedError(endpoint_url=ENDPOINT, error=broken), broken):
        found = meaning(error)
        assert found.retryable
        assert not is_unanswered(found)
        assert found.code == "IncompleteRead"


@pytest.mark.parametrize(
    ("error", "retryable", "unanswered"), TRANSPORT_ERRORS, ids=lambda value: repr(value)[:40]
)
def test_what_a_transport_error_means(error: Exception, retryable: bool, unanswered: bool) -> None:
    """Transient errors are retryable; `is_unanswered` tells those that came before any answer."""
    found = meaning(error)
    assert found.retryable is retryable
    assert is_unanswered(found) is unanswered
    assert found.code == type(error).__name__


def test_the_message_names_operation_target_endpoint_and_cause() -> None:
    """One line of a log says what failed, on what, where and why."""
    error = meaning(client_error("AccessDeniedException", "User x may not"))
    assert str(error) == (
        f"GetRecords of orders/shardId-1 at {ENDPOINT} failed: AccessDeniedException: User x may not"
    )
    assert (error.operation, error.target, error.code) == (
        "GetRecords",
        "orders/shardId-1",
        "AccessDeniedException",
    )


def test_a_connection_error_says_why() -> None:
    """The message has the operating system's reason, and no address in memory."""
    connection = HTTPConnection("h", 1)
    inner = http.NewConnectionError(connection, "Failed to establish a new connection: refused")
    error = meaning(sdk.EndpointConnectionError(endpoint_url=ENDPOINT, error=inner))
    assert str(error).endswith("EndpointConnectionError: Failed to establish a new connection: refused")


def test_refused_credentials_name_the_options() -> None:
    """The message says which options to check."""
    for error in (client_error("UnrecognizedClientException"), sdk.NoCredentialsError()):
        assert "'awsAccessKeyId', 'profile', 'roleArn'" in str(meaning(error))


EXPIRED = "Signature expired: 20260101T000000Z is now earlier than 20260101T001000Z (… - 5 min.)"
EARLY = "Signature not yet current: 20260101T010000Z is still later than 20260101T000500Z"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("InvalidSignatureException", EXPIRED),
        ("SignatureDoesNotMatch", EARLY),
        ("RequestTimeTooSkewed", "The difference between the request time and the current time is large."),
        ("RequestExpired", "Request has expired."),
    ],
)
def test_a_clock_that_is_off_is_called_that_and_may_be_set(code: str, message: str) -> None:
    """The credentials are good. A host that has slept sets its clock in a moment."""
    error = meaning(client_error(code, message, 403))
    assert is_clock_refused(error)
    assert "options 'awsAccessKeyId'" not in str(error)
    assert str(error).endswith(f"{message} (the clock of this host differs from the service's)")


def test_a_signature_that_does_not_match_is_not_about_the_clock() -> None:
    """The secret key is wrong."""
    error = meaning(client_error("InvalidSignatureException", "The request signature does not match"))
    assert not is_clock_refused(error)
    assert "options 'awsAccessKeyId'" in str(error)


def test_a_role_that_cannot_be_assumed_is_named() -> None:
    """The SDK assumes the role inside another call: the error says so."""
    error = meaning(client_error("AccessDenied", "not authorized", 403, operation="AssumeRole"))
    assert "AssumeRole (options 'roleArn', 'stsEndpointUrl'): not authorized" in str(error)


TOKEN = "IQoJb3JpZ2luX2VjE" * 12
HASH = "a1" * 32


@pytest.mark.parametrize(
    "text",
    [
        (
            f"The signature does not match.\n\nThe Canonical String for this request should be\n'POST\n"
            f"/\n\nhost:h\nx-amz-security-token:{TOKEN}\n{HASH}'\n\nThe String-to-Sign should be\n'{HASH}'"
        ),
        (
            "'x' not a valid key=value pair in Authorization header: 'AWS4-HMAC-SHA256 Credential="
            f"AKIAABCDEFGHIJKLMNOP/2026/eu/kinesis/aws4_request, SignedHeaders=host, Signature={HASH}'"
        ),
        f"Invalid header value b'short-{TOKEN[:20]}\\n'",
        f"GET https://b.s3.amazonaws.com/?X-Amz-Security-Token={TOKEN[:40]}&X-Amz-Signature={HASH}",
        f"x-amz-security-token: {TOKEN[:20]}",
        f"the token {TOKEN} is expired",
        "key AKIAABCDEFGHIJKLMNOP does not exist",
    ],
)
def test_secrets_that_services_echo_are_redacted(text: str) -> None:
    """No key, token or signature of a service's message gets into ours."""
    shown = str(meaning(client_error("InvalidSignatureException", text)))
    for secret in (TOKEN[:20], HASH, "AKIAABCDEFGHIJKLMNOP"):
        assert secret not in shown
    assert "\n" not in shown


def test_credentials_in_a_url_are_redacted() -> None:
    """A proxy's user and password do not get into a log."""
    assert (
        redact("Failed to connect to http://user:pass@proxy:3128/")
        == "Failed to connect to http://***@proxy:3128/"
    )


def test_the_error_travels_between_processes() -> None:
    """Spark pickles the error of a task: its message and attributes stay."""
    error = meaning(client_error("ExpiredIteratorException"))
    again: Any = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.expired_iterator


def test_a_stream_that_is_missing_may_be_in_another_region() -> None:
    """The most common cause; of an emulator's endpoint it is not said."""
    missing = client_error("ResourceNotFoundException", "Stream orders under account 1 not found.")
    assert str(meaning(missing)).endswith(
        "not found. (this is region eu-west-1: option 'region' names another one)"
    )
    local = translate(missing, operation="GetRecords", target="orders", endpoint="http://127.0.0.1:4566")
    assert "region" not in str(local)
