"""Why entries were not accepted: by the codes of an answer, or by the error of a whole request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from sluice.errors import SluiceError, redact_urls

__all__ = ["IsThrottling", "RefusalCause", "RefusalCounts", "code_of"]

_LONGEST_TEXT: Final = 2000
"""Characters of an error of another library."""

IsThrottling = Callable[[str], bool | None]
"""Whether a code says that an entry was refused for load; None: it may or may not. See `Destination`."""


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


class RefusalCounts(NamedTuple):
    """What a rate limiting strategy is told of entries that were not accepted.

    Attributes:
        throttled: entries that were refused for load.
        failed_otherwise: entries that failed for another reason. Of the rest it is not known.
    """

    throttled: int = 0
    failed_otherwise: int = 0

    @classmethod
    def of_codes(cls, codes: Mapping[str, int], failed: int, is_throttling: IsThrottling) -> RefusalCounts:
        """Of an answer that refuses `failed` entries."""
        throttled = otherwise = 0
        for code, count in codes.items():
            is_load = is_throttling(code)
            throttled += count if is_load else 0
            otherwise += count if is_load is False else 0
        # The codes are for messages: a destination may count the parts of an entry.
        throttled = min(throttled, failed)
        return cls(throttled, min(otherwise, failed - throttled))

    @classmethod
    def of_error(cls, error: BaseException, entries: int, is_throttling: IsThrottling) -> RefusalCounts:
        """Of a request of `entries` entries that failed as a whole."""
        is_load = True if getattr(error, "throttling", False) is True else is_throttling(code_of(error))
        return cls(entries if is_load else 0, entries if is_load is False else 0)


def code_of(error: BaseException) -> str:
    """The code of a service's error; the class of another one."""
    return str(getattr(error, "code", "") or type(error).__name__)


def _text_of(error: BaseException) -> str:
    """The text of an error; with its class where it may say nothing without, as that of KeyError."""
    if isinstance(error, SluiceError):
        return str(error)
    text = redact_urls(str(error))  # before it is cut: of half a URL nothing would be hidden
    if len(text) > _LONGEST_TEXT:
        text = text[:_LONGEST_TEXT] + "..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
