"""Kinds of option values: the allowed text, its meaning, and how messages show it."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from sluice.errors import OptionError
from sluice.hosts import is_unspecified

__all__ = [
    "BIND_HOST",
    "BOOLEAN",
    "HOST",
    "TEXT",
    "Kind",
    "choice",
    "duration",
    "integer",
    "matching",
    "number",
    "redact_url",
    "size",
]

T = TypeVar("T")

_DURATION_UNITS = {"": 0.001, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
}
_NANOS_PER_SECOND = 1e9
_LONGEST_DURATION = 9e9  # seconds, 285 years: longer ones overflow the counters of sockets and locks
_BEFORE_USERINFO = re.compile(r"\s*(?:[A-Za-z][A-Za-z0-9+.-]*:)?//")
_HOST = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*\.?")
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*\Z")


def redact_url(text: str) -> str:
    """Removes user, password, query and fragment from a URL, even a malformed one.

    A password that was not escaped may contain any character, so everything up to the last ``@`` is hidden.
    """
    hidden, at, host = text.rpartition("@")
    if at:
        begin = _BEFORE_USERINFO.match(hidden)
        text = f"{begin[0] if begin else ''}***@{host}"
    return re.sub(r"[?#].*", "?***", text, flags=re.DOTALL)


def _redact_if_url(text: str) -> str:
    return redact_url(text) if "//" in text else text


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A type of option value.

    Attributes:
        name: a short name of the type.
        allowed: the allowed text, for error messages.
        parse: converts the text. Raises ValueError if it is not allowed, or OptionError with its own message.
        redact: the text as messages show it.
    """

    name: str
    allowed: str
    parse: Callable[[str], T]
    redact: Callable[[str], str] = _redact_if_url


def _boolean(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.strip().lower()]
    except KeyError:
        raise ValueError(text) from None


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    return text.strip()


BOOLEAN: Kind[bool] = Kind("boolean", "true or false", _boolean)
TEXT: Kind[str] = Kind("string", "a non-empty string", _text)


def _bind_host(text: str) -> str:
    host = text.strip()
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if _HOST.fullmatch(host) is None or host.replace(".", "").isdigit():
            raise
    return host


def _host(text: str) -> str:
    host = _bind_host(text)
    if is_unspecified(host):
        raise OptionError(f"is {text!r}: tasks connect to it, so it has to be an address of one host")
    return host


HOST: Kind[str] = Kind("host", "the name or address of a host, without a port", _host)
"""An address that tasks connect to."""
BIND_HOST: Kind[str] = Kind(
    "host", "the name or address of a host, without a port; 0.0.0.0 or :: for all", _bind_host
)
"""An address that our servers listen on, if tasks connect to another one."""


def choice(*values: str) -> Kind[str]:
    """One of `values`, in any case. The parsed value is spelled as in `values`."""
    by_key = {value.lower(): value for value in values}

    def parse(text: str) -> str:
        try:
            return by_key[text.strip().lower()]
        except KeyError:
            raise ValueError(text) from None

    return Kind("choice", "one of " + ", ".join(values), parse)


def matching(name: str, allowed: str, pattern: str | re.Pattern[str]) -> Kind[str]:
    """Text that `pattern` matches as a whole, after surrounding blanks are removed.

    Args:
        name: of the kind.
        allowed: the allowed text, for error messages.
        pattern: a regular expression.
    """
    compiled = re.compile(pattern)

    def parse(text: str) -> str:
        if compiled.fullmatch(text.strip()) is None:
            raise ValueError(text)
        return text.strip()

    return Kind(name, allowed, parse)


def integer(minimum: int, maximum: int | None = None) -> Kind[int]:
    """A whole number from `minimum` to `maximum`, both included."""

    def parse(text: str) -> int:
        value = int(text.strip())
        if value < minimum or (maximum is not None and value > maximum):
            raise ValueError(text)
        return value

    bound = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
    return Kind("integer", f"a whole number {bound}", parse)


def number(minimum: float, maximum: float | None = None, *, above: bool = False) -> Kind[float]:
    """A finite number from `minimum` to `maximum`, both included; with `above`, `minimum` is excluded."""

    def parse(text: str) -> float:
        value = float(text.strip())
        if not math.isfinite(value) or value < minimum or (above and value == minimum):
            raise ValueError(text)
        if maximum is not None and value > maximum:
            raise ValueError(text)
        return value

    low = f"above {minimum:g}" if above else f"of at least {minimum:g}"
    high = "" if maximum is None else f" and at most {maximum:g}"
    return Kind("number", f"a number {low}{high}", parse)


def _quantity(text: str, units: Mapping[str, float]) -> float:
    match = _QUANTITY.match(text)
    if match is None or match[2].lower() not in units:
        raise ValueError(text)
    value = float(match[1]) * units[match[2].lower()]
    if not math.isfinite(value * _NANOS_PER_SECOND):  # nor does it in nanoseconds
        raise ValueError(text)
    return value


def duration(minimum: float = 0.0) -> Kind[float]:
    """A span of time. The parsed value is in seconds; text without a unit is in milliseconds.

    Args:
        minimum: the shortest allowed, in seconds.
    """

    def parse(text: str) -> float:
        value = _quantity(text, _DURATION_UNITS)
        if value < minimum:
            raise ValueError(text)
        return min(value, _LONGEST_DURATION)

    bound = f" of at least {minimum * 1000:g} ms" if minimum else ""
    return Kind("duration", f"a duration{bound}: milliseconds, or 250ms, 5s, 2m, 1h", parse)


def size(minimum: int = 1) -> Kind[int]:
    """A size. The parsed value is in bytes, as is text without a unit.

    Args:
        minimum: the smallest allowed, in bytes.
    """

    def parse(text: str) -> int:
        value = int(_quantity(text, _SIZE_UNITS))
        if value < minimum:
            raise ValueError(text)
        return value

    return Kind("size", f"a size of at least {minimum}: bytes, or 400KB, 10MB, 1000KiB, 5MiB", parse)
