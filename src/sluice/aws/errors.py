"""Translates errors of the SDK and of the HTTP library below it into ServiceErrors.

Messages hold no secrets. Services echo what they were sent (a refused signature comes back with the canonical
request, session token included), and so do the HTTP libraries. So raise what `translate` returns ``from
None``: the original's message would reach users in the traceback.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import urllib3.exceptions as http
from botocore import exceptions as sdk
from botocore.eventstream import ParserError as EventStreamParserError
from botocore.parsers import ResponseParserError

from sluice.aws.regions import region_of
from sluice.errors import ServiceError, is_throttling, redact_urls

__all__ = [
    "EXPIRED_CREDENTIALS",
    "IN_ROLE",
    "UNKNOWN_CREDENTIALS",
    "DamagedAnswerError",
    "DamagedCborError",
    "endpoint_of",
    "is_clock_refused",
    "is_lasting_tls",
    "is_unanswered",
    "redact",
    "set_failed_operation",
    "translate",
]

EXPIRED_CREDENTIALS: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "InvalidToken"})
"""Codes with which services refuse temporary credentials that have expired, or whose token is of other keys,
as while they are replaced."""

UNKNOWN_CREDENTIALS: Final = frozenset(
    {"InvalidAccessKeyId", "InvalidClientTokenId", "UnrecognizedClientException"}
)
"""Codes with which services refuse keys that were deleted, tokens that expired long ago, and wrong ones."""

# Beyond these, every answer with a status of 500 or more, or 408 (a proxy's timeout).
_TRANSIENT: Final = frozenset(
    {
        "InternalError",
        "InternalFailure",
        "InternalFailureException",
        "InternalServerError",
        "RequestTimeout",
        "RequestTimeoutException",
        "ResourceInUseException",
        "ServiceUnavailable",
        "ServiceUnavailableException",
    }
)
_MISSING: Final = frozenset(
    {"NoSuchBucket", "NonExistentQueue", "QueueDoesNotExist", "ResourceNotFoundException"}
)
_EXPIRED_ITERATOR: Final = "ExpiredIteratorException"
_INVALID: Final = frozenset(
    {
        "InvalidArgument",
        "InvalidArgumentException",
        "InvalidParameterValue",
        "MissingParameter",
        "ParamValidationError",
        "SerializationException",
        "ValidationError",
        "ValidationException",
    }
)
_CREDENTIALS: Final = (
    EXPIRED_CREDENTIALS
    | UNKNOWN_CREDENTIALS
    | {
        "IncompleteSignature",
        "IncompleteSignatureException",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "NoCredentialsError",
        "SignatureDoesNotMatch",
    }
)

# Kinesis has one code for wrong keys and wrong clocks.
_CLOCK_CODES: Final = frozenset({"RequestExpired", "RequestInTheFuture", "RequestTimeTooSkewed"})
_CLOCK_WORDS: Final = re.compile(r"\bSignature (?:expired|not yet current)\b")

# Transport errors after which it is unknown whether anything listens at the endpoint.
_UNANSWERED: Final = frozenset(
    {
        "ConnectTimeoutError",
        "ConnectionClosedError",
        "EndpointConnectionError",
        "HTTPClientError",
        "ProtocolError",
        "ProxyConnectionError",
        "ReadTimeoutError",
        "SSLError",
    }
)

_UNSUPPORTED_MEDIA_TYPE: Final = "415"
_MAX_CAUSE: Final = 600
"""Characters of a cause in a message."""
# Text that looks like a secret, and its replacement.
_REDACTIONS: Final = (
    # A refused signature: the request as the service received it follows.
    (
        re.compile(
            r"\s*(The )?(Canonical String|String-to-Sign|StringToSign|CanonicalRequest)\b.*",
            re.IGNORECASE | re.DOTALL,
        ),
        "",
    ),
    (re.compile(r"(Invalid header (?:value|name)).*", re.IGNORECASE | re.DOTALL), r"\1 ***"),
    (re.compile(r"(x-amz-security-token['\"]?\s*[:=]\s*)\S+", re.IGNORECASE), r"\1***"),
    (
        re.compile(r"((?:Credential|Signature|SecurityToken|X-Amz-[A-Za-z-]+)=)[^\s,&;'\"]+", re.IGNORECASE),
        r"\1***",
    ),
    (re.compile(r"\b(?:AKIA|ASIA|AIDA|AROA)[A-Z0-9]{12,}\b"), "***"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "***"),
    (re.compile(r"[A-Za-z0-9+/=_%-]{100,}"), "***"),
)
IN_ROLE: Final = "AssumeRole (options 'roleArn', 'stsEndpointUrl'): "
"""The cause starts with this text if the SDK could not assume the role, for any call."""
# What a code may be. A code with other characters was damaged in transit, and says nothing about the call.
_CODE = re.compile(r"[ -~]+")
# urllib3 opens its messages with the connection: its address in memory, or host and port.
_CONNECTION_PREFIX = re.compile(r"^(?:<[^>]* object at 0x[0-9a-f]+>|\w+\(host=[^)]*\)): ")
# TLS failures that another attempt will not change: a certificate, or a port that does not speak TLS.
_LASTING_TLS = re.compile(
    r"CERTIFICATE|WRONG_VERSION|UNKNOWN_CA|UNSUPPORTED|HANDSHAKE_FAILURE|hostname", re.IGNORECASE
)


class DamagedAnswerError(Exception):
    """An answer that is complete for HTTP, but cut short or not what the service sends."""


class DamagedCborError(DamagedAnswerError):
    """The same of an answer in CBOR."""


def is_unanswered(error: ServiceError) -> bool:
    """Whether the call failed before any answer came.

    An endpoint that has never answered and fails in this way again is wrong or unreachable.
    """
    return error.code in _UNANSWERED


def is_clock_refused(error: ServiceError) -> bool:
    """Whether the request was signed at a time that the service takes for the past or the future.

    The local clock is off, or the process stood still between signing and sending.
    """
    return error.code in _CLOCK_CODES or _CLOCK_WORDS.search(error.sentence or str(error)) is not None


def is_lasting_tls(text: str) -> bool:
    """Whether a failure of TLS, by its message, will be the same at another attempt."""
    return _LASTING_TLS.search(text) is not None


def endpoint_of(error: Exception, called: str) -> str:
    """The endpoint at which a call of `called` failed; the endpoint of STS if a role was being assumed."""
    url = getattr(error, "kwargs", {}).get("endpoint_url") if isinstance(error, sdk.BotoCoreError) else None
    parts = urlsplit(str(url or called))
    return called if parts.netloc == urlsplit(called).netloc else f"{parts.scheme}://{parts.netloc}"


def set_failed_operation(error: sdk.BotoCoreError, operation: str) -> None:
    """Notes for `translate` which call failed, as the SDK does in errors that a service answers with."""
    vars(error)["operation_name"] = operation


def redact(text: str) -> str:
    """`text` in one line, without what looks like a credential or a signature, cut where it is very long."""
    text = redact_urls(text.encode(errors="replace").decode())  # no half of a surrogate pair
    for pattern, replacement in _REDACTIONS:
        text = pattern.sub(replacement, text)
    text = " ".join(text.split())
    return text if len(text) <= _MAX_CAUSE else text[:_MAX_CAUSE] + "..."


def translate(error: Exception, *, operation: str, target: str, endpoint: str | None) -> ServiceError:
    """The ServiceError for what a call has raised.

    Args:
        error: of the SDK, or of the HTTP library below it.
        operation: the API operation that was called (``GetRecords``).
        target: what the call was about: ``stream``, ``stream/shard``, a table; ``""`` for none of these.
        endpoint: the URL that was called; None if it is not known.
    """
    if isinstance(error, sdk.ClientError):
        return _from_answer(error, operation, target, endpoint)
    code = "IncompleteRead" if _breaks_off(error) else type(error).__name__
    endpoint = endpoint_of(error, endpoint or "") or None
    cause = _in_role(error, operation, _transport_cause(error))
    if isinstance(error, DamagedCborError):
        cause += " (if the endpoint does not write CBOR as it should: option 'wireFormat' json asks in JSON)"
    return ServiceError(
        _message(operation, target, endpoint, code, cause),
        operation=operation,
        target=target,
        code=code,
        retryable=_is_transient(error),
        invalid_argument=code in _INVALID,
    )


def _from_answer(error: sdk.ClientError, operation: str, target: str, endpoint: str | None) -> ServiceError:
    response: Mapping[str, Any] = error.response
    details = response.get("Error", {})
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code = str(details.get("Code") or status or "Unknown")
    # Query-compatible services put a namespace before the code, JSON services before a '#'.
    name = re.split(r"[.#]", code)[-1]
    cause = str(details.get("Message") or "") or f"HTTP status {status}"
    cause = _in_role(error, operation, cause)
    is_damaged = _CODE.fullmatch(name) is None
    throttling = is_throttling(name) or status == 429
    return ServiceError(
        _message(operation, target, endpoint, code, cause),
        operation=operation,
        target=target,
        code=name,
        retryable=throttling or is_damaged or name in _TRANSIENT or status == 408 or status >= 500,
        throttling=throttling,
        missing=name in _MISSING,
        expired_iterator=name == _EXPIRED_ITERATOR,
        invalid_argument=name in _INVALID,
        credentials=name in _CREDENTIALS,
        sentence=redact(str(details.get("Message") or "")),
    )


def _in_role(error: Exception, operation: str, cause: str) -> str:
    """`cause`, with the call that failed: the SDK assumes the role while it signs another operation."""
    if getattr(error, "operation_name", operation) == "AssumeRole" != operation:
        return f"{IN_ROLE}{cause}"
    return cause


def _is_transient(error: Exception) -> bool:
    if isinstance(error, sdk.SSLError | http.SSLError):
        return not is_lasting_tls(str(error))
    return isinstance(
        error,
        sdk.HTTPClientError  # closed connections, read timeouts, and other errors of the HTTP library
        | sdk.ConnectionError  # refused, unknown host, timeout, proxy
        | sdk.ResponseStreamingError
        | sdk.IncompleteReadError
        | sdk.ChecksumError
        | sdk.CredentialRetrievalError
        | sdk.MetadataRetrievalError
        | http.HTTPError  # raised bare while an event stream is read
        | ResponseParserError
        | EventStreamParserError
        | DamagedAnswerError
        | UnicodeDecodeError  # an answer cut inside a character
        | OSError,
    )


def _breaks_off(error: Exception) -> bool:
    """Whether a part of an answer has come. The SDK raises the same error if no byte has come."""
    inner = _of_http_library(error)
    return any(isinstance(each, http.IncompleteRead) for each in (inner, *inner.args))


def _of_http_library(error: Exception) -> Exception:
    """What the SDK's error wraps, or the error itself."""
    inner = getattr(error, "kwargs", {}).get("error") if isinstance(error, sdk.BotoCoreError) else None
    return inner if isinstance(inner, Exception) else error


def _transport_cause(error: Exception) -> str:
    if isinstance(error, sdk.NoCredentialsError | sdk.PartialCredentialsError):
        return f"{error}"
    inner = _of_http_library(error)
    return _CONNECTION_PREFIX.sub("", str(inner) or type(inner).__name__)


def _message(operation: str, target: str, endpoint: str | None, code: str, cause: str) -> str:
    about = f" of {target}" if target else ""
    where = f" at {redact(endpoint)}" if endpoint else ""
    hint = ""
    if code in _CLOCK_CODES or _CLOCK_WORDS.search(cause):
        hint = " (the clock of this host differs from the service's)"
    elif code in _CREDENTIALS:
        hint = (
            " (check the credentials: options 'awsAccessKeyId', 'profile', 'roleArn', or the SDK's own chain)"
        )
    elif code == _UNSUPPORTED_MEDIA_TYPE:
        hint = " (the endpoint does not know the form of the request: 'wireFormat' json asks in JSON)"
    elif re.split(r"[.#]", code)[-1] in _MISSING and (region := region_of(endpoint)):
        hint = f" (this is region {region}: option 'region' names another one)"
    return f"{operation}{about}{where} failed: {code}: {redact(cause)}{hint}"
