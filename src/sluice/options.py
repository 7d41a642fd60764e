"""Options, each declared once: key, kind, default, allowed values, description.

Parsing, validation, error messages and the tables of the README all come from the declarations.
Keys are case-insensitive, as everywhere in Spark. All that is wrong with a set of options is
reported in one error.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sluice.errors import OptionError

__all__ = [
    "BOOLEAN",
    "TEXT",
    "Kind",
    "Option",
    "OptionValues",
    "choice",
    "duration",
    "integer",
    "number",
    "read_options",
    "size",
]

T = TypeVar("T")

# Keys that Spark itself puts into, or lets users pass with, the options of any source or sink.
_SPARK_KEYS = frozenset({"checkpointlocation", "path", "queryname", "outputmode"})

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
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*\Z")


@dataclass(frozen=True)
class Kind(Generic[T]):
    """How the text of an option becomes a value. ``parse`` raises ValueError for what it refuses."""

    name: str
    allowed: str
    parse: Callable[[str], T]


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


def choice(*values: str) -> Kind[str]:
    """One of `values`, in any case; the value is given back as declared."""
    by_key = {value.lower(): value for value in values}

    def parse(text: str) -> str:
        try:
            return by_key[text.strip().lower()]
        except KeyError:
            raise ValueError(text) from None

    return Kind("choice", "one of " + ", ".join(values), parse)


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
    """A finite number from `minimum` (or only above it) to `maximum`, included."""

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
    return float(match[1]) * units[match[2].lower()]


def duration(minimum: float = 0.0) -> Kind[float]:
    """A span of time, given back in seconds. A bare number is milliseconds."""

    def parse(text: str) -> float:
        value = _quantity(text, _DURATION_UNITS)
        if value < minimum:
            raise ValueError(text)
        return value

    bound = f" of at least {minimum * 1000:g} ms" if minimum else ""
    return Kind("duration", f"a duration{bound}: milliseconds, or 250ms, 5s, 2m, 1h", parse)


def size(minimum: int = 1) -> Kind[int]:
    """A size, given back in bytes. A bare number is bytes."""

    def parse(text: str) -> int:
        value = int(_quantity(text, _SIZE_UNITS))
        if value < minimum:
            raise ValueError(text)
        return value

    return Kind("size", f"a size of at least {minimum}: bytes, or 400KB, 10MB, 1000KiB, 5MiB", parse)


@dataclass(frozen=True)
class Option(Generic[T]):
    """One option.

    Args:
        key: as users write it, in camelCase. One that ends in ``.*`` takes any key with that prefix.
        kind: how its text is read.
        default: the value when it is not given; None where there is none.
        description: one sentence for the README.
        shown_default: the default as the README shows it, where ``default`` does not say it all.
        required: refused when missing.
        secret: its value is never printed.
    """

    key: str
    kind: Kind[T]
    default: T | None
    description: str
    shown_default: str | None = None
    required: bool = False
    secret: bool = False

    @property
    def is_prefix(self) -> bool:
        return self.key.endswith(".*")

    def takes(self, key: str) -> bool:
        if self.is_prefix:
            return key.lower().startswith(self.key[:-1].lower())
        return key.lower() == self.key.lower()


class OptionValues:
    """The parsed options; collects what is wrong until `check` raises it all at once."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._keys: set[str] = set()
        self._values: dict[str, Any] = {}
        self._given: dict[str, str] = {}
        self._problems: list[str] = []

    def get(self, option: Option[T]) -> T | None:
        """The value given, or the default (None where there is none)."""
        return self._values.get(option.key, option.default)

    def require(self, option: Option[T]) -> T:
        """The value of an option that has a default or is required."""
        value = self.get(option)
        if value is None:
            self.reject(option.key, f"is required: {option.kind.allowed}")
            self.check()
        assert value is not None  # noqa: S101 - check() has raised otherwise; this tells the types
        return value

    def given(self, option: Option[Any]) -> bool:
        """Whether the user gave the option, and its value was understood."""
        return option.key in self._given

    def mentions(self, option: Option[Any]) -> bool:
        """Whether the user gave the option, maybe with a value that was refused."""
        return any(option.takes(key) for key in self._keys)

    def mentions_key(self, key: str) -> bool:
        """The same of one key, also one with a prefix."""
        return key.lower() in self._keys

    def with_prefix(self, option: Option[T]) -> dict[str, T]:
        """What follows the prefix, as given by the user, to its value."""
        values: dict[str, T] = self._values.get(option.key, {})
        return values

    def reject(self, key: str, why: str) -> None:
        """Note that `key` cannot stand as it is; `check` reports it with the rest."""
        problem = f"option '{key}' {why}"
        if problem not in self._problems:
            self._problems.append(problem)

    def refuse(self, option: Option[Any], why: str) -> None:
        """Note that the given value of `option` is not acceptable."""
        shown = "***" if option.secret else repr(self._given.get(option.key, option.default))
        self.reject(option.key, f"is {shown}: {why}")

    def check(self) -> None:
        """Raises OptionError with everything noted so far, if anything was."""
        if self._problems:
            raise OptionError(f"{self._what}: " + "; ".join(self._problems))

    def read(self, option: Option[Any], key: str, text: str) -> None:
        shown = "***" if option.secret else repr(text)
        self._keys.add(key.lower())
        try:
            value = option.kind.parse(text)
        except OptionError as error:
            self.reject(key, str(error))
            return
        except ValueError:
            self.reject(option.key, f"is {shown}: allowed is {option.kind.allowed}")
            return
        self._given[option.key] = text
        if option.is_prefix:
            self._values.setdefault(option.key, {})[key[len(option.key) - 1 :]] = value
        else:
            self._values[option.key] = value


def read_options(
    what: str, declared: Iterable[Option[Any]], given: Mapping[str, str], *, also: Iterable[str] = ()
) -> OptionValues:
    """Reads `given` by the declarations. Problems are kept for `OptionValues.check`.

    Args:
        what: whose options they are, to open the error message (``kinesis-efo``).
        declared: all options there are.
        given: keys in any case, values as text, as Spark passes them.
        also: keys of Spark's own to let pass, beyond those it always may pass.
    """
    declared = list(declared)
    values = OptionValues(what)
    passed = _SPARK_KEYS | {key.lower() for key in also}
    for key, text in given.items():
        option = next((option for option in declared if option.takes(key)), None)
        if option is not None:
            values.read(option, key, str(text))
        elif key.lower() not in passed:
            values.reject(key, _unknown(key, declared))
    for option in declared:
        if option.required and not values.mentions(option):
            values.reject(option.key, f"is required: {option.kind.allowed}")
    return values


def _unknown(key: str, declared: list[Option[Any]]) -> str:
    # The value is left out: a misspelt secret is still a secret.
    by_key = {option.key.lower(): option.key for option in declared}
    near = difflib.get_close_matches(key.lower(), by_key, n=1, cutoff=0.6)
    if near:
        return f"is not known: did you mean '{by_key[near[0]]}'?"
    return "is not known: allowed are " + ", ".join(sorted(by_key.values(), key=str.lower))
