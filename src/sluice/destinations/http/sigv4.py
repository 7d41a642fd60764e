"""Signs requests as AWS' services want them, by the SDK's own signer.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes, urlsplit, urlunsplit

from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from urllib3.util import parse_url

from sluice.aws.calling.clients import Credentials, forget_credentials, signing_credentials
from sluice.aws.calling.connection import ConnectionConfig
from sluice.destinations.http.auth import Auth, Authorized
from sluice.errors import OptionError

__all__ = ["SigV4", "canonical_url"]

_SIGNED: Final = frozenset({"content-type", "host"})
"""Headers that are signed in addition to AWS's own. Proxies may change others."""
_DIGEST: Final = "x-amz-content-sha256"
_LATTICE: Final = "vpc-lattice-svcs"
"""Takes signatures with paths as S3 has them, and of no body:
https://docs.aws.amazon.com/vpc-lattice/latest/ug/sigv4-authenticated-requests.html"""
_UNSIGNED_BODY: Final = Config(s3={"payload_signing_enabled": False})


def canonical_url(url: str) -> str:
    """`url` with each character escaped that may be.

    Of such a URL there is one signature. Of others services make several, as they escape paths and queries
    anew. A ``+`` of a query is a blank.
    """
    parts = urlsplit(url)
    path = "/".join(map(_escaped, parts.path.split("/")))
    pairs = [each.replace("+", "%20").split("=", 1) for each in parts.query.split("&") if each]
    query = "&".join("=".join(map(_escaped, pair)) for pair in pairs)
    # As urllib3 sends it: without dot segments.
    return parse_url(urlunsplit((parts.scheme, parts.netloc, path or "/", query, ""))).url


def _escaped(text: str) -> str:
    return quote(unquote_to_bytes(text), safe="-_.~")


class SigV4(Auth):
    """Signature Version 4, with the credentials of the connection options.

    Args:
        method: of the requests.
        url: of the requests; a `canonical_url`.
        service: by the name that AWS signs it with, such as ``es``.
        connection: says region and credentials.
    """

    OPTIONS = "option 'sigv4Service', option 'region', and what the credentials may do"

    def __init__(self, method: str, url: str, service: str, connection: ConnectionConfig) -> None:
        self._method = method
        self._url = url
        self._service = service
        self._connection = connection
        self._lock = threading.Lock()
        self.renews = not connection.has_fixed_credentials

    def authorize(self, body: bytes, headers: Mapping[str, str]) -> Authorized:
        credentials = signing_credentials(self._connection)
        if not credentials.region:
            raise OptionError("option 'region' is required with 'auth' sigv4: a region such as eu-west-1")
        signed = {
            name: each for name, each in headers.items() if name in _SIGNED or name.startswith("x-amz-")
        }
        request = AWSRequest(method=self._method, url=self._url, headers=signed, data=body)
        keys: Any = credentials  # has the attributes that the SDK's signers read
        if self._service == _LATTICE:
            signer: SigV4Auth = S3SigV4Auth(keys, self._service, credentials.region)
            request.context["client_config"] = _UNSIGNED_BODY
        else:
            signer = SigV4Auth(keys, self._service, credentials.region)
            if _DIGEST not in signed:  # OpenSearch Serverless requires it, and others take it
                request.headers[_DIGEST] = signer.payload(request)
        signer.add_auth(request)
        made = {name.lower(): value for name, value in request.headers.items()}
        return Authorized({**headers, **made}, credentials.token, _used(credentials))

    def renew(self, refused: Authorized) -> bool:
        with self._lock:
            if _used(signing_credentials(self._connection)) == refused.used:
                forget_credentials(self._connection)
            return _used(signing_credentials(self._connection)) != refused.used


def _used(credentials: Credentials) -> tuple[str, str | None]:
    return credentials.access_key, credentials.token
