"""The options of the destination ``http``, and the headers and rules that they make."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from sluice.destinations.http.json_path import JSON_PATH, JsonPath
from sluice.destinations.http.results import ResultPaths
from sluice.destinations.http.statuses import ERRORS, STATUSES, Rule, StatusRules, Verdict, statuses
from sluice.options import BOOLEAN, TEXT, Kind, Option, OptionValues, choice, matching, redact_url

__all__ = [
    "BASIC_PASSWORD",
    "BASIC_USER",
    "BEARER_TOKEN",
    "HTTP_OPTIONS",
    "SECRET_HEADER",
    "URL_KIND",
    "headers_from_options",
    "paths_from_options",
    "rules_from_options",
    "secrets_from_options",
]


def _parse_url(text: str) -> str:
    url = text.strip()
    parts = urlsplit(url)
    port = parts.port  # raises ValueError when it is not a port
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(text)
    if "@" in parts.netloc or parts.fragment or not re.fullmatch(r"[!-~]+", url):
        raise ValueError(text)
    return url


URL_KIND: Final = Kind(
    "url",
    "a URL such as https://host/path; user and password are separate options",
    _parse_url,
    redact_url,
)
# Answers to HEAD have no body; the other two are for proxies.
_METHOD: Final = matching(
    "method", "an HTTP method such as POST", r"(?i:(?!connect$|head$|trace$)[a-z]+(-[a-z]+)*)"
)
_HEADER: Final = matching("header", "printable characters of ASCII", r"[ -~]+")
_SECRET: Final = matching("secret", "printable characters of ASCII without spaces", r"[!-~]+")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
# urllib3 sets these from the request itself.
_FRAMING: Final = frozenset({"connection", "content-length", "content-encoding", "transfer-encoding"})
# A word of a secret header counts as a secret from this length on; "Basic" and "ApiKey" are shorter.
_SECRET_WORD: Final = 8
_SENSITIVE: Final = frozenset({"authorization", "cookie", "proxy-authorization"})

URL = Option("url", URL_KIND, None, "URL of the endpoint. It may have a query.", required=True)
METHOD = Option("method", _METHOD, "POST", "HTTP method, such as `POST`, `PUT` or `PATCH`.")
BODY_FORMAT = Option(
    "bodyFormat",
    choice("jsonArray", "jsonLines"),
    "jsonArray",
    "Body of a request: `jsonArray` (one array of documents) or `jsonLines` (one document per line).",
)
ARRAY_FIELD = Option(
    "arrayField",
    TEXT,
    None,
    'With `jsonArray`: field of an object that holds the array, as in `{"records": [...]}`.',
)
COMPRESSION = Option(
    "compression", choice("none", "gzip"), "none", "Compression of requests: `none` or `gzip`."
)
HEADER = Option(
    "header.*",
    _HEADER,
    None,
    "A header of every request: `header.<name>`. Spark shows its value in plans.",
)
SECRET_HEADER = Option(
    "secretHeader.*",
    _HEADER,
    None,
    "A header whose value is secret: `secretHeader.<name>`, such as `secretHeader.X-Api-Key`.",
    secret=True,
)
BEARER_TOKEN = Option(
    "bearerToken", _SECRET, None, "Token of the header `Authorization: Bearer`.", secret=True
)
BASIC_USER = Option(
    "basicUser",
    matching("user", "printable characters of ASCII without a colon", r"[ -9;-~]+"),
    None,
    "User of the header `Authorization: Basic`; needs `basicPassword`.",
)
BASIC_PASSWORD = Option("basicPassword", TEXT, None, "Password of `basicUser`.", secret=True)
ACCEPTED = Option(
    "acceptedStatuses",
    STATUSES,
    statuses("2xx"),
    "Statuses of accepted requests and rows. In this and the next options, a status such as `503` takes "
    "precedence over a class such as `5xx`.",
    shown_default="`2xx`",
)
THROTTLING = Option(
    "throttlingStatuses",
    STATUSES,
    statuses("429, 503"),
    "Statuses that mean too much load: requests and rows are sent again, more slowly.",
    shown_default="`429, 503`",
)
RETRYABLE = Option(
    "retryableStatuses",
    STATUSES,
    statuses("408, 425, 5xx"),
    "Statuses of other failures: requests and rows are sent again.",
    shown_default="`408, 425, 5xx`",
)
FATAL = Option(
    "fatalStatuses",
    STATUSES,
    statuses("501, 505"),
    "Statuses that fail the task. So does a request's status that is in no list.",
    shown_default="`501, 505`",
)
REJECTED = Option(
    "rejectedStatuses",
    STATUSES,
    (),
    "Statuses of requests with a row that will never be accepted: the request is halved and sent again "
    "until such rows are found. A row's status that is in no list means the same.",
    shown_default="none",
)
RESULTS_PATH: Option[JsonPath] = Option(
    "resultsPath",
    JSON_PATH,
    None,
    "Path to the results of single rows in an accepted answer, in their order: `$.items`, "
    "`$.items[*].index`. Without it, an answer applies to all rows of its request.",
)
RESULT_STATUS_PATH: Option[JsonPath] = Option(
    "resultStatusPath",
    JSON_PATH,
    None,
    "In a result: the row's HTTP status, or true if it was accepted and false if not.",
    shown_default="`$.status`, unless `resultErrorPath` is given",
)
RESULT_ERROR_PATH: Option[JsonPath] = Option(
    "resultErrorPath",
    JSON_PATH,
    None,
    "In a result: the row's error, for messages. Without a status, a row with an error is sent again.",
)
ACCEPTED_ERRORS: Option[frozenset[str]] = Option(
    "acceptedErrors",
    ERRORS,
    None,
    "Errors at `resultErrorPath` that count as accepted, whatever the status, such as `conflict` for a "
    "repeated row. Case is ignored.",
)
FATAL_ERRORS: Option[frozenset[str]] = Option(
    "fatalErrors",
    ERRORS,
    None,
    "Errors at `resultErrorPath` of rows that will never be accepted: such a row becomes a dead letter, "
    "or fails the task.",
)
RESULT_INDEX_PATH: Option[JsonPath] = Option(
    "resultIndexPath",
    JSON_PATH,
    None,
    "In a result: the row's number in its request, from 0, if the answer lists only rejected rows.",
)
CA_BUNDLE = Option(
    "caBundle", TEXT, None, "File of trusted certificates, on every host, instead of the system's."
)
CLIENT_CERTIFICATE = Option(
    "clientCertificate",
    TEXT,
    None,
    "File with a client certificate and its key, on every host.",
)
TLS_VERIFICATION = Option(
    "tlsVerification",
    BOOLEAN,
    True,
    "Whether to verify the endpoint's certificate. Without verification, others can read and forge the "
    "traffic.",
)

HTTP_OPTIONS: Final[tuple[Option[Any], ...]] = (
    *(URL, METHOD, BODY_FORMAT, ARRAY_FIELD, COMPRESSION, HEADER, SECRET_HEADER),
    *(BEARER_TOKEN, BASIC_USER, BASIC_PASSWORD),
    *(ACCEPTED, THROTTLING, RETRYABLE, FATAL, REJECTED),
    *(RESULTS_PATH, RESULT_STATUS_PATH, RESULT_ERROR_PATH, RESULT_INDEX_PATH, ACCEPTED_ERRORS, FATAL_ERRORS),
    *(CA_BUNDLE, CLIENT_CERTIFICATE, TLS_VERIFICATION),
)
_RULES: Final[tuple[tuple[Verdict, Option[Any]], ...]] = (
    ("accepted", ACCEPTED),
    ("throttled", THROTTLING),
    ("retried", RETRYABLE),
    ("fatal", FATAL),
    ("rejected", REJECTED),
)


def headers_from_options(values: OptionValues) -> dict[str, str]:
    """The headers that the user gives, credentials included. Notes problems for `values.check()`."""
    shown, secret = values.with_prefix(HEADER), values.with_prefix(SECRET_HEADER)
    headers: dict[str, str] = {}
    for option, given in ((HEADER, shown), (SECRET_HEADER, secret)):
        for name, value in given.items():
            key = option.key[:-1] + name
            problem = _header_problem(name.lower(), headers, is_secret=option.secret)
            if problem:
                values.reject(key, problem)
            headers[name.lower()] = value.strip()
    authorization = _authorization(values)
    if authorization is not None:
        if "authorization" in headers:
            values.reject(f"{SECRET_HEADER.key[:-1]}authorization", "excludes bearerToken and basicUser")
        headers["authorization"] = authorization
    return headers


def secrets_from_options(values: OptionValues) -> frozenset[str]:
    """What no message may show, as it is and as it is sent."""
    secrets = {*values.with_prefix(SECRET_HEADER).values()}
    secrets |= {word for value in secrets for word in value.split() if len(word) >= _SECRET_WORD}
    secrets |= {each for each in (values.get(BEARER_TOKEN), values.get(BASIC_PASSWORD)) if each}
    if (authorization := _authorization(values)) is not None:
        secrets.add(authorization.partition(" ")[2])
    return frozenset(secrets)


def _header_problem(name: str, known: Mapping[str, str], *, is_secret: bool) -> str | None:
    if _HEADER_NAME.fullmatch(name) is None:
        return "is not the name of a header"
    if name in known:
        return "is given twice"
    if name in _FRAMING:
        return "is set by the sink"
    if name in _SENSITIVE and not is_secret:
        return f"would show a secret in Spark's plans: use '{SECRET_HEADER.key[:-1]}{name}'"
    return None


def _authorization(values: OptionValues) -> str | None:
    token, user, password = (values.get(each) for each in (BEARER_TOKEN, BASIC_USER, BASIC_PASSWORD))
    for one, other in ((BASIC_USER, BASIC_PASSWORD), (BASIC_PASSWORD, BASIC_USER)):
        if values.mentions(one) and not values.mentions(other):
            values.reject(other.key, f"is required with '{one.key}'")
    if token is not None:
        if user is not None:
            values.reject(BASIC_USER.key, f"and '{BEARER_TOKEN.key}' exclude one another: give one of them")
        return f"Bearer {token}"
    if user is None or password is None:
        return None
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def rules_from_options(values: OptionValues) -> StatusRules:
    """What statuses and errors mean. Notes problems for `values.check()`."""
    owners: dict[range, Option[Any]] = {}
    rules = []
    for verdict, option in _RULES:
        given = values.given(option)
        rules.append(Rule(verdict, values.get(option) or (), given))
        for each in rules[-1].statuses if given else ():
            other = owners.setdefault(each, option)
            if other is not option:
                shown = str(each.start) if len(each) == 1 else f"{each.start // 100}xx"
                values.reject(option.key, f"and '{other.key}' both have {shown}")
    accepted, fatal = (values.get(each) or frozenset() for each in (ACCEPTED_ERRORS, FATAL_ERRORS))
    for option in (ACCEPTED_ERRORS, FATAL_ERRORS):
        if values.given(option) and not values.mentions(RESULT_ERROR_PATH):
            values.reject(option.key, f"needs '{RESULT_ERROR_PATH.key}'")
    for word in sorted(accepted & fatal):
        values.reject(FATAL_ERRORS.key, f"and '{ACCEPTED_ERRORS.key}' both have {word}")
    errors: dict[str, Verdict] = dict.fromkeys(accepted, "accepted")
    return StatusRules(rules, errors | dict.fromkeys(fatal, "rejected"))


def paths_from_options(values: OptionValues) -> ResultPaths | None:
    """Where answers have the results of rows; None if they have none. Notes problems for `values.check()`."""
    results, error = values.get(RESULTS_PATH), values.get(RESULT_ERROR_PATH)
    status, index = values.get(RESULT_STATUS_PATH), values.get(RESULT_INDEX_PATH)
    if results is None:
        for option in (RESULT_STATUS_PATH, RESULT_ERROR_PATH, RESULT_INDEX_PATH):
            if values.given(option):
                values.reject(option.key, f"needs '{RESULTS_PATH.key}'")
        return None
    if status is None and (error is None or index is not None):
        status = JsonPath.parse("$.status")
    return ResultPaths(results=results, status=status, error=error, index=index)
