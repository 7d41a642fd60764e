"""Option names of other connectors, and misspelt ones.

If a name means the same as one of our options, Sluice uses that option and logs it. For other known names,
the error explains what to do: proposing the most similar option might cost money.
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
    """A name that means the same as one of our options.

    Attributes:
        name: as the other connector spells it.
        origin: the connector.
        key: of our option.
        translate: converts the value to our options, by key; None: both connectors use the same values.
            Raises OptionError for a value without an equivalent, with a message that continues the name.
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
    """A name without an equivalent among our options.

    Attributes:
        name: as the other connector spells it; ``prefix.*`` for all names with this prefix.
        origin: the connector.
        why: what to do instead. It continues the name in an error.
    """

    name: str
    origin: str
    why: str


ForeignName = Taken | Explained


def find_foreign_name(key: str, names: Sequence[ForeignName]) -> ForeignName | None:
    """Returns the entry for a key in any case. An entry with the whole name precedes one with a prefix."""
    key = key.lower()
    exact = (entry for entry in names if entry.name.lower() == key)
    prefixed = (
        entry for entry in names if entry.name.endswith(".*") and key.startswith(entry.name[:-1].lower())
    )
    return next(exact, None) or next(prefixed, None)


def log_taken(what: str, taken: Mapping[str, Sequence[str]]) -> None:
    """Logs which of our keys replaced which names, in one line and once per process.

    Args:
        what: the format (``kinesis-efo``).
        taken: our keys, by foreign name. Values are not logged.
    """
    if taken:
        lines = (f"'{name}' as '" + "' and '".join(keys) + "'" for name, keys in sorted(taken.items()))
        _log_once(what, ", ".join(lines))


@functools.cache
def _log_once(what: str, taken: str) -> None:
    # A process that Spark reuses reads the options for every batch.
    _log.info("%s: options of other connectors are taken: %s", what, taken)


_MISSPELT: Final = 0.85
"""If the similarity (0 to 1) of two names is at least this, one counts as a misspelling of the other."""
_PROPOSALS: Final = 3


def propose_keys(name: str, keys: Mapping[str, bool], foreign: Sequence[ForeignName]) -> str:
    """Proposes up to three keys for an unknown name, in a sentence.

    Args:
        name: as the user gave it.
        keys: our keys, and whether setting the option costs money: see `Option.billed`.
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
