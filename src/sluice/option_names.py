"""Names of options that are none of ours: those of other connectors, and misspelt ones.

If a name means the same as an option of ours, Sluice uses that option and logs it. A name that means
something else, or nothing here, gets its own sentence instead of the nearest name: an option that is spelled
alike may cost money, or do something else.
"""

from __future__ import annotations

import difflib
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Explained", "ForeignName", "Taken", "find_foreign_name", "log_taken", "propose_keys"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Taken:
    """A name that means the same as an option of ours.

    Attributes:
        name: as the other connector spells it.
        origin: the connector.
        key: of our option.
        translate: makes our options, by key, of the value. None: the value is written in the same way. Raises
            OptionError, with a message that continues the name, for a value without a counterpart here.
    """

    name: str
    origin: str
    key: str
    translate: Callable[[str], Mapping[str, str]] | None = None

    def options(self, text: str) -> Mapping[str, str]:
        """Our options, by key, for a value of this one."""
        return {self.key: text} if self.translate is None else self.translate(text)


@dataclass(frozen=True)
class Explained:
    """A name that has no counterpart among our options.

    Attributes:
        name: as the other connector spells it; ``prefix.*`` for all that start with ``prefix.``.
        origin: the connector.
        why: what to do instead. It continues the name in an error.
    """

    name: str
    origin: str
    why: str


ForeignName = Taken | Explained


def find_foreign_name(key: str, names: Sequence[ForeignName]) -> ForeignName | None:
    """The entry for a key that a user gave, in any case; one with the whole name before one with a prefix."""
    key = key.lower()
    exact = (entry for entry in names if entry.name.lower() == key)
    prefixed = (
        entry for entry in names if entry.name.endswith(".*") and key.startswith(entry.name[:-1].lower())
    )
    return next(exact, None) or next(prefixed, None)


def log_taken(what: str, taken: Mapping[str, Sequence[str]]) -> None:
    """Logs which names were replaced by which of our keys: one line, and once in a process.

    Args:
        what: whose options they are (``kinesis-efo``).
        taken: the foreign name to our keys. Values are not logged.
    """
    if taken:
        lines = (f"'{name}' as '" + "' and '".join(keys) + "'" for name, keys in sorted(taken.items()))
        _log_once(what, ", ".join(lines))


@functools.cache
def _log_once(what: str, taken: str) -> None:
    # Spark makes processes that it uses again read the options for every batch.
    _log.info("%s: options of other connectors are taken: %s", what, taken)


_MISSPELT: Final = 0.85
"""Two names that are at least this similar (0 to 1) count as one name and a misspelling of it."""
_PROPOSALS: Final = 3


def propose_keys(name: str, keys: Mapping[str, bool], foreign: Sequence[ForeignName]) -> str:
    """The sentence about an unknown name: the keys that may be meant, three at most.

    Args:
        name: as the user gave it.
        keys: the keys of our options, and whether AWS charges for what the option asks for. Such a key is
            proposed only for a clear misspelling of it.
        foreign: names of other connectors. For a misspelling of one, our key is proposed.
    """
    called = {entry.name.lower(): entry.key for entry in foreign if isinstance(entry, Taken)}
    called |= {key.lower(): key for key in keys}
    given = name.lower().removeprefix("kinesis.")
    likeness = {each: difflib.SequenceMatcher(a=each, b=given).ratio() for each in called}
    ranked = sorted(called, key=lambda each: (-likeness[each], each))
    if likeness[ranked[0]] >= _MISSPELT:
        return f"did you mean '{called[ranked[0]]}'?"
    nearest = dict.fromkeys(called[each] for each in ranked if not keys.get(called[each]))
    shown = "', '".join([*nearest][:_PROPOSALS])
    return f"those spelled most like it are '{shown}'"
