"""Options, each declared once: key, kind, default, allowed values, description.

The declarations are used for parsing, for error messages and for the tables in the documentation. Keys are
case-insensitive, as in Spark. One error reports all problems of a set of options.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sluice.errors import OptionError, redact_urls
from sluice.option_kinds import (
    BIND_HOST,
    BOOLEAN,
    HOST,
    TEXT,
    Kind,
    choice,
    duration,
    integer,
    matching,
    number,
    redact_url,
    size,
)
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
"""Keys that Spark sets from an argument of ``load`` and ``start``."""

_LONGEST_SHOWN = 200  # characters of a value in a message


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
        billed: setting it costs money, so it is proposed only for a clear misspelling of it.
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
        """The value as messages show it."""
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
        """The spelling of the documentation for a key of this option: Spark passes keys in lower case."""
        return self.key[:-1] + key[len(self.key) - 1 :] if self.is_prefix else self.key


class OptionValues:
    """Parsed options. Collects problems until `check` raises them in one error.

    Args:
        what: the format, for error messages (``kinesis-efo``).
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._keys: set[str] = set()
        self._values: dict[str, Any] = {}
        self._given: dict[str, str] = {}
        self._foreign: dict[str, str] = {}
        self._problems: list[str] = []

    def get(self, option: Option[T]) -> T | None:
        """The value that the user set, or the default."""
        return self._values.get(option.key, option.default)

    def require(self, option: Option[T]) -> T:
        """The value of an option that has a default or is required.

        Raises:
            OptionError: the option has no value. The error includes all problems noted so far.
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
        """The values of a ``prefix.*`` option, by their keys without the prefix, as the user spelled them."""
        values: dict[str, T] = self._values.get(option.key, {})
        return values

    def foreign_name(self, option: Option[Any]) -> str | None:
        """The other connector's name under which the user gave this option; None for its own key."""
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

    def reject_each(self, options: Iterable[Option[Any]], why: str) -> None:
        """Calls `reject_value` for each of `options` that the user gave."""
        for option in options:
            for key in [option.as_declared(key) for key in self._keys if option.takes(key)]:
                if key in self._given:
                    self.reject(key, f"is {option.shown(self._given[key])}: {why}")

    def check(self) -> None:
        """Raises OptionError with all problems, if any was noted."""
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
            for given in (text, text.strip()):  # the error may show a secret
                message = message.replace(redact_urls(repr(given)), shown)
            self.reject(option.as_declared(key), message)
            return
        except ValueError:
            self.reject(option.as_declared(key), f"is {shown}: allowed is {option.kind.allowed}")
            return
        self._given[option.key] = self._given[option.as_declared(key)] = text
        if option.is_prefix:
            self._values.setdefault(option.key, {})[key[len(option.key) - 1 :]] = value
        else:
            self._values[option.key] = value

    def take(self, brought: Mapping[Taken, str], declared: Sequence[Option[Any]]) -> None:
        """Reads options with names of other connectors. Call it after all calls of `read`."""
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
        what: the format, for error messages (``kinesis-efo``).
        declared: all options of the format.
        given: the options from Spark, with keys in any case.
        also: keys to ignore in addition to Spark's own.
        foreign: option names of other connectors. They never replace a declared key.
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
