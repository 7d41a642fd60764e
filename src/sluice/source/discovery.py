"""Lists the splits of all streams, and lists them again when that is due (FLIP-27's split discovery)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from sluice.errors import ServiceError
from sluice.instants import MICROS_PER_SECOND
from sluice.source.probe import Probe
from sluice.source.splits import Lineage, Split, SplitId
from sluice.source.stream_log import StreamInfo

__all__ = ["Listing", "SplitDiscovery"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Listing:
    """The splits and streams that one discovery has found.

    Attributes:
        listed: the splits as the service lists them.
        lineage: the same, and splits that are not listed any more but may be read, because a subscription has
            brought all their records.
        infos: by stream.
    """

    listed: Sequence[Split]
    lineage: Lineage
    infos: Mapping[str, StreamInfo]

    @property
    def splits(self) -> Mapping[SplitId, Split]:
        """All splits that may be read, by id."""
        return self.lineage.splits

    @property
    def created(self) -> Mapping[str, int]:
        """By stream, when it was created (microseconds)."""
        return {name: info.created for name, info in self.infos.items()}

    def retention(self, split: SplitId) -> int:
        """For how long the records of a split are kept (microseconds)."""
        return int(self.infos[split.stream].retention * MICROS_PER_SECOND)


class SplitDiscovery:
    """Owns the listing of splits. Used by one thread.

    Args:
        probe: its log is asked, by its clock. A stream that is missing is no error while an older listing is
            known, unless the query has to fail on data loss.
        streams: their names.
        interval: how old a listing may become (seconds).
        find_unlisted: given the ids of all listed splits, gives others that may be read nevertheless.
    """

    def __init__(
        self,
        probe: Probe,
        streams: Sequence[str],
        interval: float,
        *,
        find_unlisted: Callable[[Collection[SplitId]], Sequence[Split]],
    ) -> None:
        self._log = probe.log
        self._streams = streams
        self._interval = interval
        self._fail_on_missing = probe.data_loss.fail
        self._clock = probe.settings.clock
        self._find_unlisted = find_unlisted
        self._listing: Listing | None = None
        self._next_listing = -math.inf

    def list_splits(self) -> Listing:
        """Lists the splits of all streams now.

        Raises:
            ServiceError: a stream does not exist, or the service does not answer.
        """
        infos = {stream: self._log.describe(stream) for stream in self._streams}
        splits = [split for stream in self._streams for split in self._log.list_splits(stream)]
        lineage = Lineage([*splits, *self._unlisted(splits, infos)])
        self._listing = listing = Listing(splits, lineage, infos)
        self._next_listing = self._clock() + self._interval
        return listing

    def current(self) -> Listing:
        """The last listing; a new one where that is too old, stale or missing.

        Raises:
            ServiceError: as `list_splits`, if there is no older listing, or the error will not pass.
        """
        listing = self._listing
        if listing is None:
            return self.list_splits()
        if self._clock() < self._next_listing:
            return listing
        try:
            return self.list_splits()
        except ServiceError as error:
            # The splits of the last listing can be read meanwhile.
            if not (error.retryable or (error.missing and not self._fail_on_missing)):
                raise
            _log.warning(
                "shards of %s could not be listed; reading those known, next listing in %g s: %s",
                ", ".join(self._streams),
                self._interval,
                error,
            )
            self._next_listing = self._clock() + self._interval
            return listing

    def mark_stale(self) -> None:
        """Makes `current` list again: a split is gone, or has ended and its children have to be found."""
        self._next_listing = -math.inf

    def _unlisted(self, splits: Sequence[Split], infos: Mapping[str, StreamInfo]) -> list[Split]:
        """Splits that are not listed any more, of streams that are the same as before."""
        if self._listing is None:
            return []
        created = self._listing.created
        unlisted = self._find_unlisted({split.id for split in splits})
        return [split for split in unlisted if created.get(split.id.stream) == infos[split.id.stream].created]
