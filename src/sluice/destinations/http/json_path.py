"""Paths into JSON documents, in the notation of Spark's ``get_json_object``: ``$.items[*].index.status``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from sluice.options import Kind

__all__ = ["JSON_PATH", "JsonPath"]

_STEP: Final = re.compile(
    r"\.(?P<name>[^\s.\[\]*'\"]+)|\['(?P<quoted>[^']*)'\]|\[(?P<index>\d{1,9})\]|(?P<every>\.\*|\[\*\])"
)


@dataclass(frozen=True)
class JsonPath:
    """A path into a JSON document.

    Attributes:
        text: the path as it was written.
        steps: from the root inwards: the name of a field, an index in an array, or None for all that is
            inside.
    """

    text: str
    steps: tuple[str | int | None, ...]

    @classmethod
    def parse(cls, text: str) -> JsonPath:
        """Raises ValueError for text that is no path."""
        path = text.strip()
        if not path.startswith("$"):
            raise ValueError(text)
        steps: list[str | int | None] = []
        position = 1
        while position < len(path):
            step = _STEP.match(path, position)
            if step is None:
                raise ValueError(text)
            position = step.end()
            if step["every"]:
                steps.append(None)
            elif step["index"]:
                steps.append(int(step["index"]))
            else:
                steps.append(step["name"] if step["quoted"] is None else step["quoted"])
        return cls(path, tuple(steps))

    @property
    def has_wildcard(self) -> bool:
        """Whether the path may have several matches."""
        return None in self.steps

    def find(self, document: Any) -> list[Any]:
        """All matches, in the order of the document."""
        found = [document]
        for step in self.steps:
            found = [inner for value in found for inner in _inside(value, step)]
        return found

    def first(self, document: Any) -> Any:
        """The first match; None if there is none, or if it is null."""
        return next(iter(self.find(document)), None)


JSON_PATH: Final[Kind[JsonPath]] = Kind("path", "a path into JSON such as $.items[*].status", JsonPath.parse)


def _inside(value: Any, step: str | int | None) -> list[Any]:
    if isinstance(value, dict):
        if step is None:
            return list(value.values())
        return [value[step]] if isinstance(step, str) and step in value else []
    if isinstance(value, list):
        if step is None:
            return value
        return [value[step]] if isinstance(step, int) and step < len(value) else []
    return []
