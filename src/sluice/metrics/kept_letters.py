"""Letters that wait for the progress event of their batch, within bounds.

Letters come of all queries of this user on this host. Those of other applications have no event here, and
neither have those whose events Spark has dropped.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["KeptLetters"]

_log = logging.getLogger(__name__)

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
        self._has_warned = False

    def add(self, letter: Mapping[str, Any]) -> None:
        """A letter has come. If there is no room for it, the oldest are dropped."""
        query_id = str(letter.get("query_id") or "")
        self._count += 1
        if not query_id:
            return
        key: object
        if letter.get("kind") == "sink":
            key = self._count
        elif letter.get("kind") == "source":
            key = (query_id, *letter.get("streams", ()))
        else:
            return
        self._remove(key)
        self._letters[key] = kept = _Kept(letter, query_id, len(json.dumps(letter)))
        self._size += kept.size
        if self._is_full:
            self._make_room()

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

    @property
    def _is_full(self) -> bool:
        return len(self._letters) > _MOST or self._size > _MOST_BYTES

    def _make_room(self) -> None:
        """Drops a quarter of what is kept at once, so that not each letter needs a search."""
        by_worth = sorted(self._letters, key=lambda key: self._is_known(self._letters[key].query_id))
        for key in by_worth:
            if len(self._letters) <= _MOST * 3 // 4 and self._size <= _MOST_BYTES * 3 // 4:
                break
            self._remove(key)
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "the oldest letters about sinks and sources are dropped, because no progress event has come "
                "for them: queries of other applications of this user have none here; this is logged once"
            )

    def _remove(self, key: object) -> Mapping[str, Any]:
        kept = self._letters.pop(key, None)
        if kept is None:
            return {}
        self._size -= kept.size
        return kept.letter
