"""Plans batches of finite splits. Its offsets record which splits are done, and how far others were read.

JSON, version 1::

    {"version": 1, "splits": {"a.json": {"done": true}, "b.json": {"at": 4096, "split": "etag-2"}}}

A missing split is unread. ``split`` is its version, if it has one. If the source forgets finished
splits, ``unlisted`` is when the split was first missing from a listing (milliseconds since the epoch).
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Final, NoReturn, Protocol, TypeVar

from sluice.errors import DataLossError, ServiceError, SluiceError, SourceRuleError
from sluice.retry import Retrier, patient
from sluice.source.contracts import SplitEnumerator
from sluice.source.finite.splits import FiniteRange, FiniteSplit, SplitEnd
from sluice.source.settings import NO_LIMITS, Limits, SourceSettings

__all__ = ["FiniteSplitEnumerator"]

_log = logging.getLogger(__name__)

_VERSION: Final = 1
_AT_ONCE: Final = 16
"""Parallel calls of ``ends()``."""

ResultT = TypeVar("ResultT")
Offsets = Mapping[str, Any]
"""In the form that Spark logs."""


class _Source(Protocol):
    """The methods of a `sluice.source.SplitSource` that this module calls."""

    name: ClassVar[str]
    FORGETS_AFTER: ClassVar[float | None]
    settings: SourceSettings

    def list_splits(self) -> Sequence[FiniteSplit]: ...

    def ends(self, split: FiniteSplit) -> Iterable[SplitEnd]: ...


class FiniteSplitEnumerator(SplitEnumerator[FiniteRange, Offsets]):
    """The `SplitEnumerator` of a `SplitSource`. All its state can be rebuilt.

    Args:
        clock: monotonic seconds.
        now: seconds since the epoch.
        retrier: repeats calls of the source.
    """

    def __init__(
        self,
        source: _Source,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        retrier: Retrier | None = None,
    ) -> None:
        self._source = source
        self._settings = source.settings
        self._clock = clock
        self._now = now
        self._retrier = retrier or Retrier()
        self._listing: dict[str, FiniteSplit] | None = None
        self._next_listing = -math.inf
        self._planned_with: Mapping[str, FiniteSplit] | None = None
        self._targets: frozenset[str] | None = None
        self._ends: dict[tuple[str, str], Sequence[SplitEnd]] = {}
        self._nothing_new: tuple[Offsets, Mapping[str, FiniteSplit]] | None = None

    def _list(self) -> None:
        """Raises SourceRuleError if a split is listed twice, or its id or version is not text."""
        listed: dict[str, FiniteSplit] = {}
        for split in self._source.list_splits():
            if self._targets is not None and split.id not in self._targets:
                continue
            if not (isinstance(split.id, str) and isinstance(split.version, str)):
                self._reject(
                    split.id,
                    f"ids and versions of splits are text, as the offset log has to tell them; they are "
                    f"{split.id!r} and {split.version!r}",
                )
            if split.id in listed:
                self._reject(split.id, "list_splits() lists a split once")
            listed[split.id] = split
        self._listing = listed
        self._next_listing = self._clock() + self._settings.discovery_interval
        self._ends = {key: ends for key, ends in self._ends.items() if key[0] in listed}

    def initial(self) -> Offsets:
        return {"version": _VERSION, "splits": {}}

    def stop_at_available(self) -> None:
        """Limits the run to the splits that are listed now."""
        self._targets = None
        self._patiently(self._list)
        self._targets = frozenset(self._listing or ())

    def advance(self, start: Offsets, limits: Limits = NO_LIMITS) -> Offsets:
        """Returns where a batch from `start` ends. It takes splits in the order of the listing.

        Raises:
            DataLossError: a partly read split is missing, or a read split was replaced, and
                ``failOnDataLoss`` is true.
            ServiceError: splits cannot be listed.
            SourceRuleError: the source broke a rule.
        """
        listing = self._current()
        known = self._nothing_new
        if known is not None and known[0] is start and known[1] is listing:
            return start  # Spark calls this 90 times a second, maybe for 100,000 splits
        begun = _splits(start)
        if listing is self._planned_with and any(not entry.get("done") for entry in begun.values()):
            listing = self._current(is_due=True)  # a partly read split may have been replaced
        self._planned_with = listing
        positions = self._without_lost(begun, listing)
        room = _Room(limits)
        unread = [split for split in listing.values() if not positions.get(split.id, {}).get("done")]
        for split in self._with_ends(unread):
            for end in self._ends_after(split, positions.get(split.id)):
                if not room.take(end):
                    break
                positions[split.id] = self._entry(split, end)
            if room.is_full:
                break
        self._note_unlisted(positions, listing)
        if positions != begun:
            return {"version": _VERSION, "splits": positions}
        self._nothing_new = start, listing
        return start

    def ranges(self, start: Offsets, end: Offsets) -> Sequence[FiniteRange]:
        """Returns the parts of splits between two offsets, in the order of the listing.

        Raises:
            DataLossError: a split of the batch is missing or was replaced, and ``failOnDataLoss`` is
                true.
        """
        begun, ended = _splits(start), _splits(end)
        changed = {
            split: entry
            for split, entry in ended.items()
            if not begun.get(split, {}).get("done")
            and begun.get(split, {}).get("at") != entry.get("at", ...)
            and not _is_left_out(begun.get(split), entry)
        }
        if not changed:
            return []
        listing = self._listing or {}
        if not changed.keys() <= listing.keys():
            self._patiently(self._list)
            listing = self._listing or {}
        order = {split: place for place, split in enumerate(listing)}
        found: list[FiniteRange] = []
        there = set(self._with_ends([listing[split_id] for split_id in changed if split_id in listing]))
        for split_id in sorted(changed, key=lambda split: order.get(split, -1)):
            split, entry = listing.get(split_id), changed[split_id]
            if split is None or split.version != entry.get("split", ""):
                self._lose(
                    split_id, "is gone" if split is None else "was replaced", "a batch has to be read again"
                )
                continue
            if split in there:
                found += self._parts(split, begun.get(split_id), entry)
        return found

    # --- inside ---------------------------------------------------------------------------------------

    def _current(self, *, is_due: bool = False) -> dict[str, FiniteSplit]:
        is_due |= self._listing is None or (self._targets is None and self._clock() >= self._next_listing)
        if is_due:
            try:
                if self._listing is None:
                    self._patiently(self._list)
                else:
                    self._list()
            except SluiceError as error:
                if self._listing is None or not error.retryable:
                    raise
                self._next_listing = self._clock() + self._settings.discovery_interval
                _log.warning(
                    "%s: splits could not be listed; reading those known, next listing in %g s: %s",
                    self._source.name,
                    self._settings.discovery_interval,
                    error,
                )
        return self._listing or {}

    def _without_lost(
        self, begun: Mapping[str, Mapping[str, Any]], listing: Mapping[str, FiniteSplit]
    ) -> dict[str, Mapping[str, Any]]:
        kept = dict(begun)
        for split_id, entry in begun.items():
            split, is_done = listing.get(split_id), entry.get("done")
            # A finished split may be missing. Old offsets have no versions.
            if is_done and (split is None or "split" not in entry):
                continue
            if split is None or split.version != entry.get("split", ""):
                what = "is gone" if split is None else "was replaced"
                self._lose(split_id, what, "it was read already" if is_done else "it was read in part")
                kept[split_id] = {"done": True} | (
                    {"split": split.version} if split and split.version else {}
                )
        return kept

    def _note_unlisted(
        self, positions: dict[str, Mapping[str, Any]], listing: Mapping[str, FiniteSplit]
    ) -> None:
        forgets_after = self._source.FORGETS_AFTER
        if forgets_after is None:
            return
        now = int(self._now() * 1000)
        for split_id, entry in list(positions.items()):
            since = entry.get("unlisted")
            if split_id in listing:
                if since is not None:
                    positions[split_id] = {key: value for key, value in entry.items() if key != "unlisted"}
            elif since is None:
                positions[split_id] = {**entry, "unlisted": now}
            elif now - since > forgets_after * 1000:
                del positions[split_id]

    def _with_ends(self, splits: Sequence[FiniteSplit]) -> Iterator[FiniteSplit]:
        """Yields the existing splits. Each call of ``ends()`` may take a request, so `_AT_ONCE` run in
        parallel.
        """
        if sum((split.id, split.version) not in self._ends for split in splits) <= 1:
            yield from filter(self._has_ends, splits)
            return
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="sluice-planner") as pool:
            for start in range(0, len(splits), _AT_ONCE):
                some = splits[start : start + _AT_ONCE]
                yield from itertools.compress(some, list(pool.map(self._has_ends, some)))

    def _has_ends(self, split: FiniteSplit) -> bool:
        try:
            self._all_ends(split)
        except (FileNotFoundError, ServiceError) as error:
            if isinstance(error, ServiceError) and not error.missing:
                raise
            self._lose(split.id, "is gone", f"it was listed ({error})")
            if self._listing is not None:
                self._listing.pop(split.id, None)  # until the next listing
            return False
        return True

    def _all_ends(self, split: FiniteSplit) -> Sequence[SplitEnd]:
        """Returns the checked ends of a split. The last one has no position: it is the end of the split."""
        key = split.id, split.version
        if key not in self._ends:
            ends = self._patiently(lambda: list(self._source.ends(split))) or [SplitEnd(None)]
            texts = [self._text_of(split, end.position) for end in ends[:-1]]
            if len({*texts, "null"}) < len(ends):
                self._reject(
                    split.id, f"ends() gives each position once, and None for the last alone: {texts}"
                )
            for before, after in itertools.pairwise(ends[:-1]):
                if not _rises(before.position, after.position):
                    self._reject(
                        split.id, f"positions rise; ends() gave {after.position!r} behind {before.position!r}"
                    )
            self._ends[key] = [*ends[:-1], SplitEnd(None, ends[-1].size, ends[-1].records)]
        return self._ends[key]

    def _patiently(self, call: Callable[[], ResultT]) -> ResultT:
        """Retries a call that the batch needs."""
        return self._retrier.call(patient(self._settings.read_retry_duration), call)

    def _text_of(self, split: FiniteSplit, position: Any) -> str:
        try:
            return json.dumps(position, sort_keys=True)
        except (TypeError, ValueError) as error:
            self._reject(split.id, f"positions of ends() are JSON; {position!r} is not: {error}")

    def _ends_after(self, split: FiniteSplit, entry: Mapping[str, Any] | None) -> Sequence[SplitEnd]:
        ends = self._all_ends(split)
        if entry is None:
            return ends
        return ends[self._place(split, ends, entry["at"]) + 1 :]

    def _place(self, split: FiniteSplit, ends: Sequence[SplitEnd], position: Any) -> int:
        places = [place for place, end in enumerate(ends) if end.position == position]
        if not places:
            self._reject(
                split.id,
                f"ends() always gives the same positions; {position!r}, where a batch ended, is none of them",
            )
        return places[0]

    def _entry(self, split: FiniteSplit, end: SplitEnd) -> Mapping[str, Any]:
        entry: dict[str, Any] = {"done": True} if end.position is None else {"at": end.position}
        return {**entry, "split": split.version} if split.version else entry

    def _parts(
        self, split: FiniteSplit, begun: Mapping[str, Any] | None, ended: Mapping[str, Any]
    ) -> Iterator[FiniteRange]:
        start = None if begun is None else begun["at"]
        ends = self._ends_after(split, begun)
        if not ended.get("done"):
            ends = ends[: self._place(split, ends, ended["at"]) + 1]
        for end in ends:
            yield FiniteRange(split.id, start, end.position, split.version, end.size)
            start = end.position

    def _lose(self, split: str, what: str, why: str) -> None:
        message = (
            f"source {self._source.name}, split {split}: it {what}, and {why}: "
            "splits stay as they are until they are read to the end"
        )
        if self._settings.fail_on_data_loss:
            raise DataLossError(
                f"{message}. With option 'failOnDataLoss' false this is logged, and it is left out"
            )
        _log.warning("data loss, continuing without it: %s", message)

    def _reject(self, split: str, rule: str) -> NoReturn:
        raise SourceRuleError(f"source {self._source.name}, split {split}: {rule}")


class _Room:
    """The remaining limits of a batch."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._is_begun = False
        self._records = self._bytes = 0
        self.is_full = False

    def take(self, end: SplitEnd) -> bool:
        """Whether the range that ends there is in the batch. The first one always is."""
        limits = self._limits
        # A split of unknown size fills the batch, under any limit.
        unknown = (limits.records is not None and end.records is None) or (
            limits.bytes is not None and not end.size
        )
        records, size = self._records + (end.records or 0), self._bytes + end.size
        over = (limits.records is not None and records > limits.records) or (
            limits.bytes is not None and size > limits.bytes
        )
        if self._is_begun and (unknown or over):
            self.is_full = True
            return False
        self._is_begun = True
        self._records, self._bytes = records, size
        self.is_full = unknown
        return True


def _splits(offsets: Offsets) -> dict[str, Mapping[str, Any]]:
    """Raises SluiceError if the value is not such offsets."""
    try:
        if offsets["version"] != _VERSION:
            raise SluiceError(
                f"the checkpoint's offsets have version {offsets['version']!r}; this release reads version "
                f"{_VERSION}: use the release that wrote them, or a new checkpoint"
            )
        return dict(offsets["splits"])
    except (KeyError, TypeError, ValueError) as error:
        raise SluiceError(f"these are not offsets of finite splits: {offsets!r} ({error!r})") from error


def _is_left_out(begun: Mapping[str, Any] | None, ended: Mapping[str, Any]) -> bool:
    """Whether `advance` has skipped the rest of a split, because it is missing or was replaced."""
    return begun is not None and begun.get("split") != ended.get("split")


def _rises(before: Any, after: Any) -> bool:
    try:
        return bool(before < after)
    except TypeError:  # the source checks positions that do not compare
        return True
