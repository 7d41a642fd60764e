"""HTTP endpoints: rows become JSON documents, and several of them one request."""

from __future__ import annotations

import gzip
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ClassVar

import msgspec

from sluice import __version__
from sluice.aws.calling.connection import (
    CONNECT_TIMEOUT,
    CONNECTION_OPTIONS,
    ENDPOINT_URL,
    READ_TIMEOUT,
    ROLE_ARN,
    ConnectionConfig,
)
from sluice.destinations.http import options as http_options
from sluice.destinations.http.auth_options import (
    AUTH_OPTIONS,
    authorized_transport,
    check_auth,
    is_signed,
)
from sluice.destinations.http.call import HttpCall
from sluice.destinations.http.converter import HttpRowConverter
from sluice.destinations.http.results import UNNAMED, ResultPaths, RowResult
from sluice.destinations.http.statuses import StatusRules
from sluice.destinations.http.transport import Answer, HttpTransport
from sluice.errors import ServiceError
from sluice.options import Option, OptionValues, redact_url
from sluice.sink import Destination, Rejection, SinkLimits, SubmitResult
from sluice.sink.options import DEAD_LETTER_PATH, MAX_IN_FLIGHT_REQUESTS, REQUEST_TIMEOUT
from sluice.sink.rate.causes import Cause, cause_of

__all__ = ["HttpBody", "HttpDestination"]


@dataclass(frozen=True, kw_only=True)
class HttpBody:
    """How documents become the body of a request.

    Attributes:
        lines: one document on each line, instead of one array.
        array_field: the field of an object that the array is; None: the array is all.
        compress: by gzip.
    """

    lines: bool = False
    array_field: str | None = None
    compress: bool = False

    @property
    def headers(self) -> dict[str, str]:
        """What the body says of itself."""
        kind = "application/x-ndjson" if self.lines else "application/json"
        encoding = {"content-encoding": "gzip"} if self.compress else {}
        return {"content-type": kind} | encoding

    def of(self, documents: Sequence[bytes]) -> bytes:
        """The body with these documents."""
        if self.lines:
            body = b"".join([each + b"\n" for each in documents])
        else:
            body = b"[" + b",".join(documents) + b"]"
        if self.array_field is not None:
            body = b"{" + msgspec.json.encode(self.array_field) + b":" + body + b"}"
        return gzip.compress(body, compresslevel=6, mtime=0) if self.compress else body


class HttpDestination(Destination[bytes]):
    """Sends JSON documents to an endpoint.

    Args:
        call: sends requests, and judges their errors.
        rules: what statuses mean.
        results: where answers have the results of single rows; None: an answer is about all rows.
        body: how documents become the body of a request.
        patience: seconds from a request on in which parts of it are sent, if it is rejected.
    """

    OPTIONS: ClassVar[Sequence[Option[Any]]] = (*http_options.HTTP_OPTIONS, *AUTH_OPTIONS)
    LIMITS: ClassVar[SinkLimits] = SinkLimits(
        max_batch_size=100,
        max_batch_size_in_bytes=1_000_000,
        max_record_size_in_bytes=1_000_000,
        max_in_flight_requests=8,
        max_buffered_requests=1000,
        are_maximum=False,
    )

    def __init__(
        self,
        call: HttpCall,
        *,
        rules: StatusRules,
        results: ResultPaths | None = None,
        body: HttpBody | None = None,
        patience: float = math.inf,
    ) -> None:
        self._call = call
        self._body = body or HttpBody()
        self._rules = rules
        self._results = results
        self._patience = patience
        self._closings = 0  # a destination may be closed where the query starts, and then used
        self.name = f"http endpoint '{redact_url(call.transport.url)}'"

    @classmethod
    def from_options(cls, values: OptionValues, connection: ConnectionConfig) -> HttpDestination | None:
        """See `DestinationClass.from_options`."""
        _refuse_options_of_aws(values)
        headers = http_options.headers_from_options(values)
        check_auth(values, headers)
        rules = http_options.rules_from_options(values)
        results = http_options.paths_from_options(values)
        body = HttpBody(
            lines=values.require(http_options.BODY_FORMAT) == "jsonLines",
            array_field=values.get(http_options.ARRAY_FIELD),
            compress=values.require(http_options.COMPRESSION) == "gzip",
        )
        if body.lines and body.array_field is not None:
            values.reject(http_options.ARRAY_FIELD.key, f"needs '{http_options.BODY_FORMAT.key}' jsonArray")
        url = values.get(http_options.URL)
        if url is None:
            return None
        transport = HttpTransport(
            url=url,
            method=values.require(http_options.METHOD).upper(),
            connect_timeout=connection.connect_timeout,
            read_timeout=connection.read_timeout,
            request_timeout=values.require(REQUEST_TIMEOUT),
            connections=values.get(MAX_IN_FLIGHT_REQUESTS) or cls.LIMITS.max_in_flight_requests,
            verify=values.require(http_options.TLS_VERIFICATION),
            ca_bundle=values.get(http_options.CA_BUNDLE),
            client_certificate=values.get(http_options.CLIENT_CERTIFICATE),
        )
        transport, auth = authorized_transport(values, transport, connection)
        ours = {"user-agent": f"pyspark-sluice/{__version__}", "accept": "application/json"}
        headers = ours | body.headers | headers
        return cls(
            HttpCall(transport, headers, auth=auth, secrets=http_options.secrets_from_options(values)),
            rules=rules,
            results=results,
            body=body,
            # If a request takes longer than requestTimeout, the writer does not learn the results.
            patience=values.require(REQUEST_TIMEOUT) / 2,
        )

    def create_converter(self) -> HttpRowConverter:
        return HttpRowConverter(lines=self._body.lines)

    def size_in_bytes(self, entry: bytes) -> int:
        """The bytes of a document with its line break, or with its comma and its share of the brackets."""
        return len(entry) + (1 if self._body.lines else 2)

    def submit(self, entries: Sequence[bytes]) -> SubmitResult[bytes]:
        """Sends one request, and more where one was rejected, to find the rows that are to blame.

        Raises:
            ServiceError: no document is known to have been accepted, or none will be any more.
            OptionError: no connection can be made from the options.
        """
        until, closings = self._call.clock() + self._patience, self._closings
        answer = self._call(self._body.of(entries))
        result = self._judge(entries, answer)
        if result is not None:
            return result
        return self._find_rejected(
            entries,
            str(answer.status),
            gives_up=lambda: self._closings != closings or self._call.clock() >= until,
        )

    def is_fatal(self, error: Exception) -> bool:
        """See `HttpCall.is_fatal`."""
        return self._call.is_fatal(error)

    def is_throttling(self, code: str) -> bool:
        """Whether a status means load, as the options say; for other codes see `cause_of`."""
        if code.isdecimal():
            return self._rules.verdict(int(code)) == "throttled"
        return cause_of(code) is Cause.LOAD

    def figures(self) -> Mapping[str, float]:
        """Answers by the class of their status, and requests without a whole answer.

        There may be more of them than requests of the writer, because a rejected request is sent in parts.
        """
        return self._call.counters.read()

    def close(self) -> None:
        """Ends the requests that are still running. Connections live as long as the process."""
        self._closings += 1
        self._call.transport.end_requests()
        self._call.auth.close()

    def check_connection(self) -> str:
        """See `HttpTransport.connect`."""
        return self._call.transport.connect()

    def check_credentials(self) -> None:
        """Gets the credentials of a request, and sends none.

        Raises:
            ServiceError, OptionError: there are no credentials.
        """
        self._call.auth.authorize(b"", {})

    # --- results of rows ------------------------------------------------------------------------------

    def _judge(self, entries: Sequence[bytes], answer: Answer) -> SubmitResult[bytes] | None:
        """What became of the rows; None if one of several is to blame that the answer does not name."""
        verdict = self._rules.verdict(answer.status)
        if verdict is None and self._call.awaits_credentials(answer):
            verdict = "retried"
        if verdict == "rejected":
            if len(entries) > 1:
                return None
            return SubmitResult(rejected=[Rejection(entries[0], str(self._call.error_of(answer, None)))])
        if verdict != "accepted":
            raise self._call.error_of(answer, verdict)
        return SubmitResult() if self._results is None else self._result(entries, answer, self._results)

    def _find_rejected(
        self, entries: Sequence[bytes], code: str, *, gives_up: Callable[[], bool]
    ) -> SubmitResult[bytes]:
        """Halves a request that was rejected, until the rows are found that are to blame.

        Args:
            entries: of the request.
            code: its status.
            gives_up: whether no more requests are to be sent. What was found until then is kept; of the
                other rows nothing is known, and the writer sends them again.
        """
        found: list[SubmitResult[bytes]] = []
        parts = _halves(entries)
        while parts:
            part = parts.pop()
            # One that asks to be left alone is.
            if gives_up() or any(each.retry_after is not None for each in found):
                found.append(SubmitResult(failed=part, codes={code: len(part)}))
                continue
            try:
                result = self._judge(part, self._call(self._body.of(part)))
            except ServiceError as error:
                if self.is_fatal(error):
                    raise
                # Other parts may have been accepted: only this one is sent again.
                result = SubmitResult(
                    failed=part, codes={error.code: len(part)}, retry_after=error.retry_after
                )
            if result is None:
                parts += _halves(part)
            else:
                found.append(result)
        pauses = [each.retry_after for each in found if each.retry_after is not None]
        return SubmitResult(
            failed=[entry for each in found for entry in each.failed],
            codes=sum((Counter(each.codes) for each in found), Counter[str]()),
            rejected=[rejection for each in found for rejection in each.rejected],
            retry_after=max(pauses, default=None),
        )

    def _result(self, entries: Sequence[bytes], answer: Answer, results: ResultPaths) -> SubmitResult[bytes]:
        if not answer.has_end and not answer.body:
            # Only the end of the connection says that no row is listed: the endpoint may have failed.
            raise self._call.damaged_answer(
                "the answer is empty and has no length: the endpoint must answer with status 204 or "
                "'content-length: 0' if it refuses no row"
            )
        try:
            found = results.read(answer.body, len(entries))
        except ValueError as error:
            raise self._call.damaged_answer(str(error)) from None
        failed: list[bytes] = []
        rejected: list[Rejection[bytes]] = []
        codes: Counter[str] = Counter()
        refused: set[int] = set()
        for row, result in sorted(found, key=itemgetter(0)):
            verdict = self._rules.row_verdict(result.status, result.message)
            if verdict == "accepted" or row in refused:
                continue
            refused.add(row)
            if verdict == "fatal":
                raise self._call.error_of(_answer_about(answer, result), verdict)
            if verdict in ("throttled", "retried"):
                failed.append(entries[row])
                codes[self._code_of(result)] += 1
            else:
                status = "" if result.status is None else f": status {result.status}"
                reason = f"{self.name}{status}: {self._call.redacted(result.message)}"
                rejected.append(Rejection(entries[row], reason.removesuffix(": ")))
        pause = answer.retry_after if failed else None
        return SubmitResult(failed=failed, codes=codes, rejected=rejected, retry_after=pause)

    def _code_of(self, result: RowResult) -> str:
        """The code for figures and messages. One in the endpoint's words may be a secret that it repeats."""
        is_safe = result.status is not None or self._call.redacted(result.code) == result.code
        return result.code if is_safe else UNNAMED


def _halves(entries: Sequence[bytes]) -> list[Sequence[bytes]]:
    """The second half, and then the first one: parts are taken from the end of a list."""
    middle = len(entries) // 2
    return [entries[middle:], entries[:middle]]


def _answer_about(answer: Answer, result: RowResult) -> Answer:
    """The answer as if it had been about this row alone."""
    return Answer(result.status or 0, "for a row", answer.headers, result.message.encode())


def _refuse_options_of_aws(values: OptionValues) -> None:
    """Dead letters in S3 need them, and so do signatures; a custom endpoint does not."""
    if (values.get(DEAD_LETTER_PATH) or "").startswith("s3://"):
        return
    if is_signed(values):
        if values.given(ENDPOINT_URL) and not values.given(ROLE_ARN):
            values.reject(ENDPOINT_URL.key, "does nothing here: requests go to 'url'")
        return
    for option in CONNECTION_OPTIONS:
        if option not in (CONNECT_TIMEOUT, READ_TIMEOUT) and values.given(option):
            why = "is for AWS: destination 'http' has it for 'auth' sigv4 and a deadLetterPath in S3 alone"
            values.reject(option.key, why)
