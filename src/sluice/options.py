"""Options, each declared once: key, kind, default, allowed values, description.

The declarations are used for parsing, for error messages and for the tables in the documentation. Keys are
case-insensitive, as everywhere in Spark. One error reports everything that is wrong with a set of options.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sluice.errors import OptionError, redact_urls
from sluice.option_names import ForeignName, Taken, find_foreign_name, log_taken, propose_keys

__all__ = [
    "BIND_HOST",
    "BOOLEAN",
    "HOST",
    "SPARK_KEYS",
    "TEXT",
    "Kind",
    "Option",
    "OptionValues",
    "choice",
    "duration",
    "integer",
    "is_loopback",
    "is_unspecified",
    "matching",
    "number",
    "read_options",
    "redact_url",
    "size",
]

T = TypeVar("T")

SPARK_KEYS = frozenset({"checkpointlocation", "queryname", "outputmode"})
"""Keys that Spark adds to the options of a source or sink, or that users set for Spark."""
_PATH_KEYS = frozenset({"path", "paths"})
"""What Spark makes of an argument of ``load`` and ``start``."""

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
_LONGEST_DURATION = 9e9  # seconds, some 285 years: longer ones overflow what sockets and locks count in
_LONGEST_SHOWN = 200
_BEFORE_USERINFO = re.compile(r"\s*(?:[A-Za-z][A-Za-z0-9+.-]*:)?//")
_HOST = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*\.?")
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*\Z")


def redact_url(text: str) -> str:
    """A URL that a user gave, maybe a malformed one, without user, password, query and fragment.

    A password that was not escaped may hold any character. So everything up to the last ``@`` is hidden.
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
        allowed: what users may write, for error messages.
        parse: makes the value from the text. Raises ValueError, or OptionError with a message of its own, for
            text that is not allowed.
        redact: makes what messages show of the text.
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


def is_unspecified(host: str) -> bool:
    """Whether it stands for all addresses of a host."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False  # a name


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address by its text. A name may be loopback here and not elsewhere."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


HOST: Kind[str] = Kind("host", "the name or address of a host, without a port", _host)
"""Where tasks connect to a server of ours."""
BIND_HOST: Kind[str] = Kind(
    "host", "the name or address of a host, without a port; 0.0.0.0 or :: for all", _bind_host
)
"""Where a server of ours listens, if that is not where tasks connect to it."""


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
    """Text that `pattern` matches from start to end, without the blanks around it.

    Args:
        name: of the kind.
        allowed: what users may write, for error messages.
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
    if not math.isfinite(value * _NANOS_PER_SECOND):  # nor in any smaller unit that it is counted in
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


@dataclass(frozen=True)
class Option(Generic[T]):
    """The declaration of one option.

    Attributes:
        key: as users write it, in camelCase. ``prefix.*`` declares all keys that start with ``prefix.``.
        kind: the type of the value.
        default: the parsed value if users do not set the option; None for no default.
        description: one sentence for the documentation.
        shown_default: the default as the documentation shows it, if it differs from `default`.
        required: users must set the option.
        secret: the value is never printed.
        billed: AWS charges for what it asks for. It is proposed only for a clear misspelling of it.
    """

    key: str
    kind: Kind[T]
    default: T | None
    description: str
    shown_default: str | None = None
    required: bool = False
    secret: bool = False
    billed: bool = False

    @property
    def is_prefix(self) -> bool:
        """Whether the key ends in ``.*``."""
        return self.key.endswith(".*")

    def shown(self, text: Any) -> str:
        """What messages show of a value of this option."""
        if self.secret:
            return "***"
        if not isinstance(text, str):
            return repr(text)
        shown = self.kind.redact(text)
        return repr(shown if len(shown) <= _LONGEST_SHOWN else shown[:_LONGEST_SHOWN] + "...")

    def takes(self, key: str) -> bool:
        """Whether a key that a user gave, in any case, belongs to this option."""
        if self.is_prefix:
            return key.lower().startswith(self.key[:-1].lower())
        return key.lower() == self.key.lower()

    def as_declared(self, key: str) -> str:
        """A key that it takes as the documentation has it: Spark passes keys in lower case."""
        return self.key[:-1] + key[len(self.key) - 1 :] if self.is_prefix else self.key


class OptionValues:
    """Parsed options. Collects the problems until `check` raises them in one error.

    Args:
        what: whose options they are, for error messages (``kinesis-efo``).
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._keys: set[str] = set()
        self._values: dict[str, Any] = {}
        self._given: dict[str, str] = {}
        self._foreign: dict[str, str] = {}
        self._problems: list[str] = []

    def get(self, option: Option[T]) -> T | None:
        """The value that the user set, else the default; None if there is no default."""
        return self._values.get(option.key, option.default)

    def require(self, option: Option[T]) -> T:
        """The value of an option that has a default or is required.

        Raises:
            OptionError: the option has no value. The error has all other problems noted so far, too.
        """
        value = self.get(option)
        if value is None:
            self.reject(option.key, f"is required: {option.kind.allowed}")
            raise self._error()
        return value

    def given(self, option: Option[Any]) -> bool:
        """Whether the user set the option, to a value that could be parsed."""
        return option.key in self._given

    def mentions(self, option: Option[Any]) -> bool:
        """Whether the user set the option, maybe to a value that could not be parsed."""
        return any(option.takes(key) for key in self._keys)

    def mentions_key(self, key: str) -> bool:
        """Whether the user set exactly this key, in any case; for the keys of ``prefix.*`` options."""
        return key.lower() in self._keys

    def with_prefix(self, option: Option[T]) -> dict[str, T]:
        """The values of a ``prefix.*`` option by the rest of their keys, as the user spelled it."""
        values: dict[str, T] = self._values.get(option.key, {})
        return values

    def foreign_name(self, option: Option[Any]) -> str | None:
        """The name of another connector under which the user gave this option; None for its own key."""
        return self._foreign.get(option.key.lower())

    def reject(self, key: str, why: str) -> None:
        """Notes a problem for `check`. The message is ``option '<key>' <why>``."""
        foreign = self._foreign.get(key.lower())
        name = f"'{key}'" if foreign is None else f"'{foreign}' ('{key}' here)"
        problem = f"option {name} {why}"
        if problem not in self._problems:
            self._problems.append(problem)

    def reject_value(self, option: Option[Any], why: str) -> None:
        """Notes a problem for `check`. The message is ``option '<key>' is <value>: <why>``."""
        shown = option.shown(self._given.get(option.key, option.default))
        self.reject(option.key, f"is {shown}: {why}")

    refuse = reject_value  # its first name, for destinations that use it

    def check(self) -> None:
        """Raises OptionError if any problem was noted. The message has all of them."""
        if self._problems:
            raise self._error()

    def _error(self) -> OptionError:
        return OptionError(f"{self._what}: " + "; ".join(self._problems))

    def read(self, option: Option[Any], key: str, text: str) -> None:
        """Parses `text`, which the user gave for `key`. Notes a problem if it is not allowed."""
        shown = option.shown(text)
        self._keys.add(key.lower())
        try:
            value = option.kind.parse(text)
        except OptionError as error:
            message = str(error)
            for given in (text, text.strip()):  # as the error shows it, which may be too much
                message = message.replace(redact_urls(repr(given)), shown)
            self.reject(option.as_declared(key), message)
            return
        except ValueError:
            self.reject(option.as_declared(key), f"is {shown}: allowed is {option.kind.allowed}")
            return
        self._given[option.key] = text
        if option.is_prefix:
            self._values.setdefault(option.key, {})[key[len(option.key) - 1 :]] = value
        else:
            self._values[option.key] = value

    def take(self, brought: Mapping[Taken, str], declared: Sequence[Option[Any]]) -> None:
        """Reads options that the user gave under names of other connectors; call it after all `read`."""
        by_key = {option.key.lower(): option for option in declared}
        taken: dict[str, list[str]] = {}
        for entry, text in brought.items():
            try:
                options = entry.options(text)
            except OptionError as error:
                self.reject(entry.name, str(error))
                continue
            for key, value in options.items():
                if key.lower() in self._keys:
                    self.reject(entry.name, f"is '{key}' here, which is given as well: give one of them")
                    continue
                self._foreign[key.lower()] = entry.name
                self.read(by_key[key.lower()], key, value)
                taken.setdefault(entry.name, []).append(key)
        log_taken(self._what, taken)


def read_options(
    what: str,
    declared: Iterable[Option[Any]],
    given: Mapping[str, str],
    *,
    also: Iterable[str] = (),
    foreign: Sequence[ForeignName] = (),
) -> OptionValues:
    """Parses the options that a user gave. Notes problems for `OptionValues.check`.

    Args:
        what: whose options they are, for error messages (``kinesis-efo``).
        declared: all options there are.
        given: as Spark passes them: keys in any case, values as text.
        also: other keys to ignore, besides Spark's own.
        foreign: names of other connectors that users may bring. A declared key is never taken for one.
    """
    declared = list(declared)
    values = OptionValues(what)
    ignored = SPARK_KEYS | {key.lower() for key in also}
    brought: dict[Taken, str] = {}
    for key, text in given.items():
        option = next((option for option in declared if option.takes(key)), None)
        if option is not None:
            values.read(option, key, str(text))
        elif key.lower() not in ignored:
            match find_foreign_name(key, foreign):
                case None if key.lower() in _PATH_KEYS:
                    values.reject(
                        key, "does nothing here: give load(), save() and start() no path, but options alone"
                    )
                case None:
                    keys = {option.key: option.billed for option in declared}
                    # Without the value: it may be a secret whose key is misspelt.
                    values.reject(key, f"is not known: {propose_keys(key, keys, foreign)}")
                case Taken() as name:
                    brought[name] = str(text)
                case name:
                    values.reject(name.name if not name.name.endswith(".*") else key, name.why)
    values.take(brought, declared)
    for option in declared:
        if option.required and not values.mentions(option):
            values.reject(option.key, f"is required: {option.kind.allowed}")
    return values
