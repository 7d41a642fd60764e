"""Checks signatures of version 4 as the documents have them, without the SDK.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote_to_bytes

__all__ = ["Key", "Verifier", "canonical_request", "signature"]

LATTICE: Final = "vpc-lattice-svcs"
_AUTHORIZATION: Final = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request, "
    r"SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})"
)
_SKEW: Final = dt.timedelta(minutes=5)
_UNSIGNED: Final = "UNSIGNED-PAYLOAD"

Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Key:
    """A secret key, with its session token if it has one."""

    secret: str
    token: str | None = None


def escaped(text: str | bytes, safe: str = "") -> str:
    return quote(text, safe=f"-_.~{safe}")


def canonical_request(
    method: str,
    target: str,
    headers: Headers,
    names: Sequence[str],
    digest: str,
    *,
    escapes_path: bool = True,
) -> str:
    """The request as it is signed.

    Args:
        target: as it is sent: path and query.
        names: of the headers that are signed.
        digest: of the body.
        escapes_path: whether the path is escaped once more than it is sent.
    """
    path, _, query = target.partition("?")
    if escapes_path:
        kept: list[str] = []
        for each in path.split("/"):
            if each == "..":
                kept = kept[:-1]
            elif each not in ("", "."):
                kept.append(each)
        end = "/" if kept and path.endswith("/") else ""
        path = escaped(f"/{'/'.join(kept)}{end}", safe="/")
    pairs = [each.partition("=")[::2] for each in query.split("&") if each]
    coded = sorted((escaped(unquote_to_bytes(key)), escaped(unquote_to_bytes(value))) for key, value in pairs)
    lines = []
    for name in names:
        found = [" ".join(value.split()) for each, value in headers if each.lower() == name]
        lines.append(f"{name}:{','.join(found)}\n")
    query = "&".join(f"{key}={value}" for key, value in coded)
    return "\n".join([method, path, query, "".join(lines), ";".join(names), digest])


def signature(secret: str, date: str, region: str, service: str, request: str) -> str:
    """The signature of a canonical request; `date` as in ``x-amz-date``."""
    scope = f"{date[:8]}/{region}/{service}/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = b"AWS4" + secret.encode()
    for part in (date[:8], region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, text.encode(), "sha256").hex()


@dataclass
class Verifier:
    """A service that takes signed requests only.

    Attributes:
        keys: by access key; those that are removed are not known any more.
        expired: tokens that have expired.
    """

    service: str
    region: str
    keys: dict[str, Key]
    expired: set[str] = field(default_factory=set)

    def problem(self, method: str, target: str, headers: Headers, body: bytes) -> str | None:
        """Why a request is refused; None: it is not."""
        try:
            self._check(method, target, headers, body)
        except AssertionError as error:
            return str(error)
        return None

    def _check(self, method: str, target: str, headers: Headers, body: bytes) -> None:
        given: Mapping[str, str] = {name.lower(): value for name, value in headers}
        match = _AUTHORIZATION.fullmatch(given.get("authorization", ""))
        assert match is not None, "Missing Authentication Token"
        access, day, region, service, signed, found = match.groups()
        names = signed.split(";")
        assert (region, service) == (self.region, self.service), "Credential should be scoped to another one"
        key = self.keys.get(access)
        assert key is not None, "The security token included in the request is invalid"
        assert given.get("x-amz-security-token") == key.token, "The security token is not of this key"
        assert key.token not in self.expired, "The security token included in the request is expired"
        assert len(names) == len(set(names)), "a header is signed twice"
        assert names == sorted(names), "headers are not in order"
        needed = {
            "host",
            *(each for each in given if each.startswith("x-amz-")),
            *({"content-type"} & {*given}),
        }
        assert needed <= set(names), f"not signed: {needed - set(names)}"
        assert "content-length" not in names, "OpenSearch Serverless refuses a signed content-length"
        date = given["x-amz-date"]
        at = dt.datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=dt.timezone.utc)
        assert day == date[:8], "the scope is of another day"
        assert abs(dt.datetime.now(dt.timezone.utc) - at) < _SKEW, "Signature expired"
        digest = hashlib.sha256(body).hexdigest()
        if self.service == LATTICE:
            digest = _UNSIGNED
            assert given.get("x-amz-content-sha256") == _UNSIGNED, "payload signing is not supported"
        else:
            assert given.get("x-amz-content-sha256") == digest, "the body is another one"
        escapes_path = self.service != LATTICE
        if escapes_path:
            # Some services escape what they have unescaped, and others the path as it came.
            path = target.partition("?")[0]
            parts = [escaped(unquote_to_bytes(each)) for each in path.split("/")]
            assert "/".join(parts) == path, "the path has several signatures"
        assert "+" not in target, "the query has several signatures"
        request = canonical_request(method, target, headers, names, digest, escapes_path=escapes_path)
        expected = signature(key.secret, date, region, service, request)
        assert found == expected, "The request signature we calculated does not match: " + request
