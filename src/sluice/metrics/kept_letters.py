"""Letters that wait for the progress event of their batch, within bounds.

Letters come of all queries of this user on this host. Those of other applications have no event here, and
neither have those whose events Spark has dropped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["KeptLetters"]

_MOST: Final = 1_000
"""Letters that are kept, at most."""
_MOST_BYTES: Final = 16 * 1024 * 1024
"""Bytes of their JSON, at most. A letter about 10,000 shards has 1 MiB."""


@dataclass(frozen=True)
class _Kept:
    letter: Mapping[str, Any]
    query_id: str
    size: int


class KeptLetters:
    """Keeps each letter of a sink until it is taken, and the last letter of each source.

    Args:
        is_known: whether a query has had a progress event here. Letters of others are dropped first.
    """

    def __init__(self, is_known: Callable[[str], bool]) -> None:
        self._is_known = is_known
        self._letters: dict[object, _Kept] = {}  # the oldest first
        self._size = 0
        self._count = 0

    def add(self, letter: Mapping[str, Any]) -> None:
        """A letter has come. If there is no room for it, the oldest are dropped."""
        query_id = str(letter.get("query_id") or "")
        self._count += 1
        keys = {"sink": self._count, "source": (query_id, *letter.get("streams", ()))}
        key = keys.get(str(letter.get("kind")))
        if not query_id or key is None:
            return
        self._remove(key)
        self._letters[key] = kept = _Kept(letter, query_id, len(json.dumps(letter)))
        self._size += kept.size
        while len(self._letters) > _MOST or self._size > _MOST_BYTES:
            strangers = (each for each, kept in self._letters.items() if not self._is_known(kept.query_id))
            self._remove(next(strangers, next(iter(self._letters))))

    def take_epochs(self, query_id: str, batch_id: int) -> list[Mapping[str, Any]]:
        """The epochs that ended with this batch: when its event comes, the next may have ended as well."""
        taken = [
            key
            for key, kept in self._letters.items()
            if kept.query_id == query_id
            and kept.letter["kind"] == "sink"
            and (kept.letter.get("batch_id") or 0) <= batch_id
        ]
        return [self._remove(key) for key in taken]

    def sources(self, query_id: str, run_id: str | None) -> list[Mapping[str, Any]]:
        """The last letter of each source of this run of a query."""
        return [
            kept.letter
            for kept in self._letters.values()
            if kept.query_id == query_id
            and kept.letter["kind"] == "source"
            and kept.letter.get("run_id") == run_id
        ]

    def forget(self, query_id: str) -> None:
        """Drops the letters of a query."""
        for key in [key for key, kept in self._letters.items() if kept.query_id == query_id]:
            self._remove(key)

    def _remove(self, key: object) -> Mapping[str, Any]:
        kept = self._letters.pop(key, None)
        if kept is None:
            return {}
        self._size -= kept.size
        return kept.letter
