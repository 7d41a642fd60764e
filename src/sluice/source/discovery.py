"""Lists the splits of all streams, and lists them again when that is due (FLIP-27's split discovery)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.errors import ServiceError
from sluice.instants import MICROS_PER_SECOND
from sluice.source.splits import Lineage, Split, SplitId
from sluice.source.stream_log import StreamInfo, StreamLog

__all__ = ["Listing", "SplitDiscovery"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Listing:
    """The splits and streams that one discovery has found.

    Attributes:
        listed: the splits as the service lists them.
        lineage: the same, and splits that may be read although they are not listed any more.
        infos: by stream.
        at: when it was made (microseconds).
    """

    listed: Sequence[Split]
    lineage: Lineage
    infos: Mapping[str, StreamInfo]
    at: int

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
        log: the service.
        streams: their names.
        interval: how old a listing may become (seconds).
        fail_on_missing: whether a stream that is missing is an error while an older listing is known.
        find_unlisted: given the ids of all listed splits, gives others that may be read nevertheless.
    """

    def __init__(
        self,
        log: StreamLog,
        streams: Sequence[str],
        interval: float,
        *,
        fail_on_missing: bool,
        find_unlisted: Callable[[Collection[SplitId]], Sequence[Split]],
    ) -> None:
        self._log = log
        self._streams = streams
        self._interval = interval
        self._fail_on_missing = fail_on_missing
        self._find_unlisted = find_unlisted
        self._listing: Listing | None = None
        self._is_stale = False

    def list_splits(self) -> Listing:
        """Lists the splits of all streams now.

        Raises:
            ServiceError: a stream does not exist, or the service does not answer.
        """
        infos = {stream: self._log.describe(stream) for stream in self._streams}
        splits = [split for stream in self._streams for split in self._log.list_splits(stream)]
        lineage = Lineage([*splits, *self._unlisted(splits, infos)])
        self._listing = listing = Listing(splits, lineage, infos, self._log.server_time())
        self._is_stale = False
        return listing

    def current(self) -> Listing:
        """The last listing; a new one where that is too old, stale or missing.

        Raises:
            ServiceError: as `list_splits`, if there is no older listing, or the error will not pass.
        """
        listing = self._listing
        if listing is None:
            return self.list_splits()
        is_old = self._log.server_time() - listing.at >= int(self._interval * MICROS_PER_SECOND)
        if not (self._is_stale or is_old):
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
            self._listing = listing = replace(listing, at=self._log.server_time())
            return listing

    def mark_stale(self) -> None:
        """Makes `current` list again: a split is gone, or has ended and its children have to be found."""
        self._is_stale = True

    def _unlisted(self, splits: Sequence[Split], infos: Mapping[str, StreamInfo]) -> list[Split]:
        """Splits that are not listed any more, of streams that are the same as before."""
        if self._listing is None:
            return []
        created = self._listing.created
        unlisted = self._find_unlisted({split.id for split in splits})
        return [split for split in unlisted if created.get(split.id.stream) == infos[split.id.stream].created]
