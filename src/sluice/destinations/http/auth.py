"""How requests get their credentials, and new ones once these are refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from sluice.errors import OptionError

__all__ = ["Auth", "Authorized", "TokenFile", "is_token"]

_TOKEN: Final = re.compile(r"[!-~]+")


def is_token(text: object) -> bool:
    """Whether a header can hold `text` as a token."""
    return isinstance(text, str) and _TOKEN.fullmatch(text) is not None


class Authorized(NamedTuple):
    """A request's headers with credentials.

    Attributes:
        secret: the part of them that no message may show; None: they have no part that is not known.
        used: tells these credentials from others.
    """

    headers: Mapping[str, str]
    secret: str | None = None
    used: object = None


class Auth:
    """Credentials of requests. Any thread may call it. The base class adds none.

    Attributes:
        REFUSALS: statuses with which an endpoint refuses credentials. It has processed nothing.
        renews: whether there may be other credentials later.
        OPTIONS: that say the credentials, for messages.
        URL_OPTION: that says the URL, for messages.
    """

    REFUSALS: ClassVar[frozenset[int]] = frozenset({401, 403})
    renews: bool = False
    OPTIONS: ClassVar[str] = "options 'bearerToken', 'basicUser', 'basicPassword' and 'secretHeader.*'"
    URL_OPTION: ClassVar[str] = "url"

    def authorize(self, body: bytes, headers: Mapping[str, str]) -> Authorized:
        """The headers of a request with this body.

        Raises:
            ServiceError: a service did not give the credentials.
            OptionError: there are none.
        """
        del body
        return Authorized(headers)

    def renew(self, refused: Authorized) -> bool:
        """Called when the endpoint has refused credentials; returns whether there are others to try.

        Raises:
            ServiceError, OptionError: as `authorize`.
        """
        del refused
        return False

    def close(self) -> None:
        """Ends requests that are running."""


class TokenFile(Auth):
    """A token in a file that another program writes anew, such as a projected token of Kubernetes.

    Args:
        path: of the file, which is read for every request.
    """

    renews = True
    OPTIONS = "option 'bearerTokenFile'"

    def __init__(self, path: str) -> None:
        self._path = path
        self._last: str | None = None

    def authorize(self, body: bytes, headers: Mapping[str, str]) -> Authorized:
        del body
        token = self._token()
        return Authorized({**headers, "authorization": f"Bearer {token}"}, token, token)

    def renew(self, refused: Authorized) -> bool:
        return self._token() != refused.used

    def _token(self) -> str:
        try:
            token = Path(self._path).read_text(encoding="ascii").strip()
            problem = "" if is_token(token) else "it does not hold a token"
        except (OSError, UnicodeDecodeError) as error:
            problem = getattr(error, "strerror", None) or "it does not hold a token"
        if not problem:
            self._last = token
        elif self._last is None:  # otherwise it is being written
            raise OptionError(f"option 'bearerTokenFile' is {self._path!r}: {problem}")
        return self._last
