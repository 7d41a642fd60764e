"""Lists splits, and decides which of them exist (FLIP-27's split discovery).

A split exists if the last listing has it. Because listings are only eventually consistent, a split of an
earlier listing also exists until the service reports it as missing.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass

from sluice.errors import ServiceError
from sluice.instants import MICROS_PER_SECOND
from sluice.source.logs.stream_log import StreamInfo, is_gone
from sluice.source.model.splits import ALL_HASH_KEYS, Split, SplitId
from sluice.source.probing.probe import Probe

__all__ = ["Lister", "Listing"]

_log = logging.getLogger(__name__)

_LISTING_DELAY = 60 * MICROS_PER_SECOND
"""How long a split may exist before listings have it (microseconds)."""
_LONGEST_WAIT = 3.0
"""Maximum seconds that planning waits for a new listing if it has an older one. A listing takes about
50 ms, but its retries may take half a minute."""
_SHORTEST_INTERVAL = 0.5
"""Minimum seconds between two listings. For some seconds the service may return the same stale listing."""
_RELISTING_PAUSE = 2.0
"""Seconds between two listings while planning waits for existing splits that are not listed."""
_LONGEST_START = 30.0
"""Maximum seconds that the start of a query waits for parents. A log may return iterators of expired
splits."""
_WARNING_INTERVAL = 30.0
"""Seconds between two warnings that splits are missing."""


@dataclass(frozen=True)
class Listing:
    """The existing splits, and their streams.

    Attributes:
        splits: by id.
        infos: by stream.
        begun_at: when the listing began (microseconds, by the service's clock).
        is_incomplete: whether the splits show that others are missing.
    """

    splits: Mapping[SplitId, Split]
    infos: Mapping[str, StreamInfo]
    begun_at: int
    is_incomplete: bool

    @property
    def at(self) -> int:
        """An instant (microseconds): every split that existed then is listed, or has expired."""
        return self.begun_at - _LISTING_DELAY

    @property
    def created(self) -> Mapping[str, int]:
        """By stream, when it was created (microseconds)."""
        return {name: info.created for name, info in self.infos.items()}

    @property
    def retention(self) -> Mapping[str, int]:
        """By stream, how long it keeps records (microseconds)."""
        return {name: int(info.retention * MICROS_PER_SECOND) for name, info in self.infos.items()}


class Lister:
    """Lists splits. Used by one thread.

    The first listing blocks. Another thread makes later ones. While the service rejects them or does not
    answer, planning uses the last listing.

    Args:
        probe: has the log and the clock. If losses are tolerated, a missing stream is an error in the
            first listing only.
        streams: their names.
        interval: maximum age of a listing (seconds).
        map_splits: like `map`, maybe in parallel: after scaling, hundreds of parents expire.
        longest_wait: how long `current` waits for a listing if an older one is known (seconds).
    """

    def __init__(
        self,
        probe: Probe,
        streams: Sequence[str],
        interval: float,
        *,
        map_splits: Callable[[Callable[[SplitId], bool], Iterable[SplitId]], Iterable[bool]] = map,
        longest_wait: float = _LONGEST_WAIT,
    ) -> None:
        self._log = probe.log
        self._streams = streams
        self._interval = interval
        self._fail_on_missing = probe.data_loss.fail
        self._settings = probe.settings
        self._clock = probe.settings.clock
        self._map = map_splits
        self._longest_wait = longest_wait
        self._infos: dict[str, StreamInfo] = {}  # the last descriptions
        self._listing: Listing | None = None
        self._pending: Future[Listing] | None = None
        self._answered_at = -math.inf
        self._pause = interval  # until the next listing
        self._is_stale = False  # since the last listing began
        self._failing_since: float | None = None

    def current(self) -> Listing:
        """Returns the last listing, or a new one if the last is too old, stale or missing.

        If a new one takes too long, the last one is returned.

        Raises:
            ServiceError: a stream does not exist, or the service does not answer. If there is an older
                listing, only permanent errors are raised.
        """
        listing = self._listing
        if listing is None:
            self._is_stale = False
            return self._accept(self._ask())
        if self._pending is None:
            if self._clock() < self._answered_at + (_SHORTEST_INTERVAL if self._is_stale else self._pause):
                return listing
            self._pending, self._is_stale = _in_background(self._ask), False
        wait = self._longest_wait if self._failing_since is None else 0.0
        # Not the timeout of `result`: since Python 3.11 a TimeoutError of the log looks the same.
        if not wait_for((self._pending,), wait).done:
            self._go_on(f"no answer in {wait:g} s")
            return listing
        pending, self._pending = self._pending, None
        try:
            return self._accept(pending.result())
        except (ServiceError, TimeoutError) as error:
            # The splits of the last listing can still be read.
            if isinstance(error, ServiceError) and not self._will_pass(error):
                raise
            self._go_on(str(error) or type(error).__name__)
            self._answered_at, self._pause = self._clock(), self._interval
            return listing

    def mark_stale(self) -> None:
        """Makes `current` list again: a split is missing, or has ended and its children are needed."""
        self._is_stale = True

    def complete(
        self, find_missing: Callable[[Listing], Collection[SplitId]], tries: int | None = None
    ) -> Listing:
        """Lists until every existing split is listed.

        Args:
            find_missing: returns the splits that a listing lacks. Splits that no longer exist count as
                found.
            tries: how often the start of a query repeats an incomplete listing. It then waits for
                missing splits for up to `_LONGEST_START`. None: no limit.
        """
        next_warning, end = -math.inf, math.inf if tries is None else self._clock() + _LONGEST_START
        while True:
            listing = self.current()
            missing = sorted(find_missing(listing))
            gone = self._map(self._is_gone, missing)
            left = [split for split, is_gone_now in zip(missing, gone, strict=True) if not is_gone_now]
            if left:
                if self._clock() >= end:
                    return listing
            elif tries and listing.is_incomplete:
                tries -= 1
            else:
                return listing
            if left and self._clock() >= next_warning:
                next_warning = self._clock() + _WARNING_INTERVAL
                _log.warning(
                    "%s: not listed, though not read to the end; nothing is read until all are listed, or "
                    "known to be gone; listing shards again every %g s",
                    ", ".join(map(str, left)),
                    _RELISTING_PAUSE,
                )
            self._settings.pause(_RELISTING_PAUSE if left else _SHORTEST_INTERVAL)
            self.mark_stale()

    def _is_gone(self, split: SplitId) -> bool:
        return is_gone(self._log, split)

    def _will_pass(self, error: ServiceError) -> bool:
        return error.retryable or (error.missing and not self._fail_on_missing)

    # --- calls of the service, maybe in a thread ----------------------------------------------------------

    def _ask(self) -> Listing:
        self._describe_new()
        begun_at = self._log.server_time()  # not earlier: the first answers show the service's time
        splits = {split.id: split for stream in list(self._infos) for split in self._list(stream)}
        known, infos = ({}, {}) if self._listing is None else (self._listing.splits, self._listing.infos)
        splits |= {split: each for split, each in known.items() if split.stream not in self._infos}
        # Only now, because the splits may show that the stream was recreated.
        for stream in _made_anew(known, splits):
            self._infos[stream] = self._log.describe(stream)
        created = {} if self._listing is None else self._listing.created
        unlisted = [
            split
            for split in known.keys() - splits.keys()
            if created[split.stream] == self._infos[split.stream].created and not self._is_gone(split)
        ]
        splits |= {split: known[split] for split in unlisted}
        # An open split that is no longer listed counts as closed, and its children are still unknown.
        is_incomplete = _lacks_some(self._streams, splits.values()) or not all(
            known[split].is_closed for split in unlisted
        )
        return Listing(splits, {**infos, **self._infos}, begun_at, is_incomplete)

    def _describe_new(self) -> None:
        """Describes streams that are unknown, or may have been created again.

        If a missing one is no error, the others are listed without it.
        """
        for stream in self._streams:
            if stream in self._infos:
                continue
            try:
                self._infos[stream] = self._log.describe(stream)
            except ServiceError as error:
                if self._listing is None or not (error.missing and self._will_pass(error) and self._infos):
                    raise

    def _list(self, stream: str) -> Sequence[Split]:
        try:
            return self._log.list_splits(stream)
        except ServiceError as error:
            if error.missing:  # the next stream of that name is a new one
                self._infos.pop(stream)
            raise

    # --- results of a listing ------------------------------------------------------------------------------

    def _accept(self, listing: Listing) -> Listing:
        was_incomplete = self._listing is not None and self._listing.is_incomplete
        if listing.is_incomplete:  # soon, then at increasing intervals
            self._pause = min(self._interval, 2 * self._pause if was_incomplete else _SHORTEST_INTERVAL)
        else:
            self._pause = self._interval
        self._listing = listing
        self._answered_at = self._clock()
        if self._failing_since is not None:
            failed_for = self._clock() - self._failing_since
            _log.info("shards of %s are listed again, after %.0f s", ", ".join(self._infos), failed_for)
            self._failing_since = None
        return listing

    def _go_on(self, why: str) -> None:
        """Keeps the last listing, and logs that once."""
        if self._failing_since is None:
            self._failing_since = self._clock()
            _log.warning(
                "shards of %s could not be listed; reading those known until they can, next listing every "
                "%g s: %s",
                ", ".join(self._streams),
                self._interval,
                why,
            )


def _made_anew(known: Mapping[SplitId, Split], splits: Mapping[SplitId, Split]) -> set[str]:
    """Returns streams that were created again: ids begin elsewhere, or all are new.

    Avoids ``DescribeStreamSummary``, which is limited to 20 calls a second for the whole account.
    """
    both = known.keys() & splits.keys()
    changed = {s.stream for s in both if known[s].starting_sequence != splits[s].starting_sequence}
    return changed | ({split.stream for split in known} - {split.stream for split in both})


def _lacks_some(streams: Iterable[str], splits: Collection[Split]) -> bool:
    """Whether splits show that others are missing, because listings are eventually consistent.

    Children have all hash keys of their parents, so a closed split shows whether children are missing.
    If a parent or all splits are missing, hash keys are missing.
    """
    ranges: dict[str, list[tuple[int, int]]] = {stream: [] for stream in streams}
    children: dict[SplitId, list[tuple[int, int]]] = {}
    for split in splits:
        ranges.setdefault(split.id.stream, []).append(split.hash_range)
        for parent in split.parent_ids:
            children.setdefault(parent, []).append(split.hash_range)
    has_hole = not all(_cover(each, ALL_HASH_KEYS) for each in ranges.values())
    return has_hole or any(
        split.is_closed and not _cover(children.get(split.id, ()), split.hash_range) for split in splits
    )


def _cover(parts: Iterable[tuple[int, int]], whole: tuple[int, int]) -> bool:
    first, last = whole
    for low, high in sorted(parts):
        if low > first:
            return False
        first = max(first, high + 1)
    return first > last


def _in_background(ask: Callable[[], Listing]) -> Future[Listing]:
    """Lists in a daemon thread, so a silent service cannot keep the process alive."""
    answer: Future[Listing] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            answer.set_exception(error)

    threading.Thread(target=run, name="sluice-discovery", daemon=True).start()
    return answer
