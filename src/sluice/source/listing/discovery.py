"""Lists the splits of all streams, and lists them again when that is due (FLIP-27's split discovery)."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from typing import NamedTuple

from sluice.errors import ServiceError
from sluice.instants import MICROS_PER_SECOND
from sluice.source.logs.stream_log import StreamInfo, is_gone
from sluice.source.model.splits import ALL_HASH_KEYS, Lineage, Split, SplitId
from sluice.source.probing.probe import Probe

__all__ = ["Listing", "SplitDiscovery", "lacks_some"]

_log = logging.getLogger(__name__)

_LISTING_DELAY = 60 * MICROS_PER_SECOND
"""How long a split may exist before listings have it (microseconds)."""
_LONGEST_WAIT = 3.0
"""Seconds that planning waits for a listing where an older one would do. A listing takes some 50 ms; while
the service refuses it, its retries take half a minute."""

_SHORTEST_INTERVAL = 0.5
"""Seconds between two listings, at least. For some seconds the service may give the same stale listing."""


class _Answers(NamedTuple):
    """What the service says.

    Attributes:
        infos: of the streams.
        splits: those that it lists.
        kept: those that it does not list this time, though they are still there. Listings are only eventually
            consistent: with hundreds of splits, each one may leave out another.
        at, begun_at: as those of `Listing`.
    """

    infos: Mapping[str, StreamInfo]
    splits: Sequence[Split]
    kept: Sequence[Split]
    at: int
    begun_at: int


@dataclass(frozen=True)
class Listing:
    """The splits and streams that one discovery has found.

    Attributes:
        listed: the splits as the service lists them, and those that it listed before and that still exist.
        lineage: the same, and splits that are not listed any more but may be read, because a subscription has
            brought all their records.
        infos: by stream.
        at: an instant (microseconds): every split that existed then is listed, or has expired.
        begun_at: when splits began to be listed (microseconds), by the service's clock. Its answers had told
            the time by then.
        absent_at: an instant (microseconds) at which a split did not exist yet, as an earlier listing shows.
        is_incomplete: whether the splits show that others are missing. An open split that is not listed any
            more is taken for a closed one, whose children are not known yet.
    """

    listed: Sequence[Split]
    lineage: Lineage
    infos: Mapping[str, StreamInfo]
    at: int
    begun_at: int
    absent_at: Mapping[SplitId, int] = field(default_factory=dict)
    is_incomplete: bool = False

    @property
    def splits(self) -> Mapping[SplitId, Split]:
        """All splits that may be read, by id."""
        return self.lineage.splits

    @property
    def created(self) -> Mapping[str, int]:
        """By stream, when it was created (microseconds)."""
        return {name: info.created for name, info in self.infos.items()}

    @property
    def retention(self) -> Mapping[str, int]:
        """By stream, for how long it keeps records (microseconds)."""
        return {name: int(info.retention * MICROS_PER_SECOND) for name, info in self.infos.items()}


class SplitDiscovery:
    """Owns the listing of splits. Used by one thread.

    The first listing is waited for. Later ones are made beside planning, which goes on with the last listing
    while the service refuses to list, or is silent.

    Args:
        probe: its log is asked, by its clock. A stream that is missing is no error while an older listing is
            known, unless the query has to fail on data loss.
        streams: their names.
        interval: how old a listing may become (seconds).
        find_unlisted: given the ids of all listed splits, gives others that may be read nevertheless.
        longest_wait: how long `current` waits for a listing if an older one is known (seconds).
    """

    def __init__(
        self,
        probe: Probe,
        streams: Sequence[str],
        interval: float,
        *,
        find_unlisted: Callable[[Collection[SplitId]], Sequence[Split]],
        longest_wait: float = _LONGEST_WAIT,
    ) -> None:
        self._log = probe.log
        self._streams = streams
        self._interval = interval
        self._fail_on_missing = probe.data_loss.fail
        self._clock = probe.settings.clock
        self._find_unlisted = find_unlisted
        self._longest_wait = longest_wait
        self._listing: Listing | None = None
        self._next_listing = -math.inf
        self._pending: Future[_Answers] | None = None
        self._perhaps_recreated: set[str] = set()
        self._is_stale = False  # since the pending listing was begun
        self._listed_at = -math.inf
        self._pause = _SHORTEST_INTERVAL  # until the next listing while one is incomplete
        self._failing_since: float | None = None

    def list_splits(self) -> Listing:
        """Lists the splits of all streams now.

        Raises:
            ServiceError: a stream does not exist, or the service does not answer.
        """
        return self._accept(self._ask())

    def current(self) -> Listing:
        """The last listing; a new one where that is too old, stale or missing, and a new one can be had soon.

        Raises:
            ServiceError: as `list_splits`, if there is no older listing, or the error will not pass.
        """
        listing = self._listing
        if listing is None:
            return self.list_splits()
        if self._pending is None:
            if self._clock() < self._next_listing:
                return listing
            self._pending = _in_background(self._ask)
            self._is_stale = False
        wait = self._longest_wait if self._failing_since is None else 0.0
        # Not by the timeout of `result`: since Python 3.11 a TimeoutError of the log looks the same.
        if not wait_for((self._pending,), wait).done:
            self._go_on(f"no answer in {wait:g} s")
            return listing
        try:
            return self._accept(self._pending.result())
        except (ServiceError, TimeoutError) as error:
            # The splits of the last listing can be read meanwhile.
            if isinstance(error, ServiceError) and not self._will_pass(error):
                raise
            self._go_on(str(error) or type(error).__name__)
            self._next_listing = self._clock() + self._interval
            return listing
        finally:
            self._pending = None

    def mark_stale(self) -> None:
        """Makes `current` list again: a split is gone, or has ended and its children have to be found."""
        self._next_listing = min(self._next_listing, self._listed_at + _SHORTEST_INTERVAL)
        self._is_stale = True

    def is_gone(self, split: SplitId) -> bool:
        """Whether the service says that there is no such split."""
        return is_gone(self._log, split)

    def _will_pass(self, error: ServiceError) -> bool:
        return error.retryable or (error.missing and not self._fail_on_missing)

    def _ask(self) -> _Answers:
        infos = {} if self._listing is None else dict(self._listing.infos)
        for stream in self._streams:
            if stream not in infos or stream in self._perhaps_recreated:
                infos[stream] = self._log.describe(stream)
        begun_at = self._log.server_time()  # not before: the first answers tell the time of the service
        at = begun_at - _LISTING_DELAY
        splits = [split for stream in self._streams for split in self._list(stream)]
        # Only now: a listing may show that the stream is another one.
        for stream in self._recreated(splits):
            infos[stream] = self._log.describe(stream)
        self._perhaps_recreated.clear()
        return _Answers(infos, splits, self._still_there(splits, infos), at, begun_at)

    def _list(self, stream: str) -> Sequence[Split]:
        try:
            return self._log.list_splits(stream)
        except ServiceError as error:
            if error.missing:  # the next stream of that name is another one
                self._perhaps_recreated.add(stream)
            raise

    def _recreated(self, splits: Sequence[Split]) -> set[str]:
        """Streams whose splits show that they were made anew: the same ids begin elsewhere, or all are new.

        ``DescribeStreamSummary`` is limited to 20 calls a second for the whole account, so a run asks once.
        """
        if self._listing is None:
            return set()
        known = {split.id: split.starting_sequence for split in self._listing.listed}
        streams = {split.stream for split in known}
        same = {split.id.stream for split in splits if known.get(split.id) == split.starting_sequence}
        changed = {
            split.id.stream
            for split in splits
            if known.get(split.id, split.starting_sequence) != split.starting_sequence
        }
        return (streams - same) | changed

    def _still_there(self, splits: Sequence[Split], infos: Mapping[str, StreamInfo]) -> list[Split]:
        if self._listing is None:
            return []
        listed, created = {split.id for split in splits}, self._listing.created
        return [
            split
            for split in self._listing.listed
            if split.id not in listed
            and created[split.id.stream] == infos[split.id.stream].created
            and not self.is_gone(split.id)
        ]

    def _accept(self, answers: _Answers) -> Listing:
        infos, splits, kept, at, begun_at = answers
        splits = [*splits, *kept]
        lineage = Lineage([*splits, *self._unlisted(splits, infos)])
        is_incomplete = lacks_some(self._streams, lineage.splits.values()) or not all(
            split.is_closed for split in kept
        )
        listing = Listing(splits, lineage, infos, at, begun_at, self._absent_at(lineage), is_incomplete)
        self._listing = listing
        is_old = self._pending is not None and self._is_stale
        self._pending = None
        self._listed_at = now = self._clock()
        if listing.is_incomplete:
            self._next_listing = now + min(self._pause, self._interval)
            self._pause *= 2
        else:
            self._next_listing = now + (_SHORTEST_INTERVAL if is_old else self._interval)
            self._pause = _SHORTEST_INTERVAL
        if self._failing_since is not None:
            failed_for = self._clock() - self._failing_since
            _log.info("shards of %s are listed again, after %.0f s", ", ".join(self._streams), failed_for)
            self._failing_since = None
        return listing

    def _go_on(self, why: str) -> None:
        """Goes on with the last listing, and says so once."""
        if self._failing_since is None:
            self._failing_since = self._clock()
            _log.warning(
                "shards of %s could not be listed; reading those known until they can, next listing every "
                "%g s: %s",
                ", ".join(self._streams),
                self._interval,
                why,
            )

    def _absent_at(self, lineage: Lineage) -> Mapping[SplitId, int]:
        earlier = self._listing
        if earlier is None:
            return {}
        return {
            split: earlier.at if split not in earlier.splits else earlier.absent_at[split]
            for split in lineage.splits
            if split not in earlier.splits or split in earlier.absent_at
        }

    def _unlisted(self, splits: Sequence[Split], infos: Mapping[str, StreamInfo]) -> list[Split]:
        """Splits that are not listed any more, of streams that are the same as before."""
        if self._listing is None:
            return []
        created = self._listing.created
        unlisted = self._find_unlisted({split.id for split in splits})
        return [split for split in unlisted if created.get(split.id.stream) == infos[split.id.stream].created]


def lacks_some(streams: Iterable[str], splits: Collection[Split]) -> bool:
    """Whether splits show that others of the streams are missing: listings are eventually consistent.

    Children take over all hash keys of their parents, so a closed split shows that they are missing. A
    parent may be missing, too, or all splits: then hash keys are.
    """
    ranges: dict[str, list[tuple[int, int]]] = {stream: [] for stream in streams}
    children: dict[SplitId, list[tuple[int, int]]] = {}
    for split in splits:
        ranges.setdefault(split.id.stream, []).append(split.hash_range)
        for parent in split.parents:
            children.setdefault(SplitId(split.id.stream, parent), []).append(split.hash_range)
    has_hole = not all(_cover(each, ALL_HASH_KEYS) for each in ranges.values())
    return has_hole or any(
        split.is_closed and not _cover(children.get(split.id, ()), split.hash_range) for split in splits
    )


def _cover(parts: Iterable[tuple[int, int]], whole: tuple[int, int]) -> bool:
    """Whether ranges of hash keys together cover another one."""
    first, last = whole
    for low, high in sorted(parts):
        if low > first:
            return False
        first = max(first, high + 1)
    return first > last


def _in_background(ask: Callable[[], _Answers]) -> Future[_Answers]:
    """Asks in a thread that ends with the process, however long the service is silent."""
    answers: Future[_Answers] = Future()

    def run() -> None:
        try:
            answers.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            answers.set_exception(error)

    threading.Thread(target=run, name="sluice-discovery", daemon=True).start()
    return answers
