"""Why entries were not accepted: by the codes of an answer, or by the error of a whole request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from sluice.errors import SluiceError, redact_urls

__all__ = ["IsThrottling", "RefusalCause", "code_of", "throttled_by_codes", "throttled_by_error"]

_LONGEST_TEXT: Final = 2000
"""Characters of an error of another library."""

IsThrottling = Callable[[str], bool]
"""Whether a code says that an entry was refused for load. See `Destination`."""


class RefusalCause(NamedTuple):
    """What messages and figures say of entries that were not accepted.

    Attributes:
        code: the service's error code; of an answer with several, the first.
        text: for people.
        codes: entries by code, as an answer names them. Empty: all entries have `code`.
    """

    code: str
    text: str
    codes: Mapping[str, int] = MappingProxyType({})

    @classmethod
    def of_codes(cls, codes: Mapping[str, int]) -> RefusalCause:
        """Of an answer that refuses some entries."""
        text = ", ".join(f"{code} ({count})" for code, count in sorted(codes.items()))
        return cls(next(iter(codes), ""), text or "refused", codes)

    @classmethod
    def of_error(cls, error: BaseException) -> RefusalCause:
        """Of a request that failed as a whole."""
        code = code_of(error)
        return cls(code, _text_of(error) or code)


def throttled_by_codes(codes: Mapping[str, int], failed: int, is_throttling: IsThrottling) -> int:
    """How many of the `failed` entries of an answer were refused for load."""
    if not failed:
        return 0
    # The codes are for messages: a destination may count the parts of an entry.
    return min(failed, sum(count for code, count in (codes or {"": failed}).items() if is_throttling(code)))


def throttled_by_error(error: BaseException, entries: int, is_throttling: IsThrottling) -> int:
    """The same for a request of `entries` entries that failed as a whole."""
    is_load = getattr(error, "throttling", False) is True or is_throttling(code_of(error))
    return entries if is_load else 0


def code_of(error: BaseException) -> str:
    """The code of a service's error; the class of another one."""
    return str(getattr(error, "code", "") or type(error).__name__)


def _text_of(error: BaseException) -> str:
    """The text of an error, with its class: the text alone may say nothing, as for KeyError."""
    if isinstance(error, SluiceError):
        return str(error)
    text = redact_urls(str(error))  # before it is cut: of half a URL nothing would be hidden
    if len(text) > _LONGEST_TEXT:
        text = text[:_LONGEST_TEXT] + "..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
