"""Sends the entries of a batch in fewer at a time where the service refuses a request as a whole.

A request may be refused for one of its entries, or because it is too large: services document limits that
older endpoints and emulators do not have yet. The code rarely says which, so the request is halved, whatever
the code: until the entry is found that is to blame, or until the parts are small enough. So an entry that the
service never accepts costs no other entry. Of n entries, k of which are refused, there are at most
2 * k * log2(n) requests more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, TypeVar

from sluice.destinations.common.batch_call import BatchCall, Refusal
from sluice.errors import ServiceError
from sluice.sink.options import MAX_BATCH_SIZE_IN_BYTES

__all__ = ["PartedRequests"]

EntryT = TypeVar("EntryT")
ResultT = TypeVar("ResultT")

_log = logging.getLogger(__name__)

_SMALLEST_LIMIT: Final = 256 * 1024
"""Bytes. No service has a smaller limit on a request (SQS before 2025), so a smaller one was refused for
another reason."""

_limits: Final[dict[tuple[str, ...], int]] = {}
"""Bytes that a request to a target may have, where this process has found it to be less than documented."""


class PartedRequests(Generic[EntryT, ResultT]):
    """The requests of one destination.

    Args:
        call: judges errors.
        send: sends one request; returns a result for each entry, in their order.
        refuse: the result for an entry that was refused.
        is_accepted: whether a result is that of an accepted entry.
        size_of: bytes of an entry.

    Attributes:
        has_accepted: whether the target has accepted an entry, so it is the one that is meant.
    """

    def __init__(
        self,
        call: BatchCall,
        *,
        send: Callable[[Sequence[EntryT]], Sequence[ResultT]],
        refuse: Callable[[Refusal], ResultT],
        is_accepted: Callable[[ResultT], bool],
        size_of: Callable[[EntryT], int],
    ) -> None:
        self.call = call
        self.send = send
        self.refuse = refuse
        self.is_accepted = is_accepted
        self.size_of = size_of
        self.has_accepted = False

    def __call__(self, entries: Sequence[EntryT]) -> list[ResultT]:
        """Sends entries; returns a result for each of them, in their order.

        Raises:
            ServiceError: no entry is known to have been accepted, or none will be any more.
            OptionError: no client can be made from the connection options.
        """
        return _Submission(self, entries).run()


class _Submission(Generic[EntryT, ResultT]):
    """One call. `culprits` are entries that were refused alone, by their place."""

    def __init__(self, requests: PartedRequests[EntryT, ResultT], entries: Sequence[EntryT]) -> None:
        self._of = requests
        self._entries = entries
        self._culprits: dict[int, ServiceError] = {}
        self._has_accepted = False

    def run(self) -> list[ResultT]:
        results = [result for start, end in self._within_limit() for result in self._send(start, end)]
        if not self._culprits:
            return results
        first = next(iter(self._culprits.values()))
        call = self._of.call
        if not any(call.is_certainly_of_an_entry(each) for each in self._culprits.values()):
            # If nothing was ever accepted, or if none is for a reason that no single entry has, then it is
            # more likely that the target or the request is wrong.
            is_alone = len(self._culprits) == len(self._entries)
            if is_alone and not (self._of.has_accepted and call.verdict(first.code) == "reject"):
                raise first
            if not self._of.has_accepted:
                for place, error in self._culprits.items():
                    results[place] = self._of.refuse(Refusal(error.code, str(error), "retry"))
        return results

    def _within_limit(self) -> Iterator[tuple[int, int]]:
        """Runs of entries that are not larger than what the target is known to take."""
        limit, start, size = _limits.get(self._of.call.place), 0, 0
        for end, entry in enumerate(self._entries) if limit is not None else ():
            added = self._of.size_of(entry)
            if size + added > (limit or 0) and end > start:
                yield start, end
                start, size = end, 0
            size += added
        yield start, len(self._entries)

    def _send(self, start: int, end: int) -> list[ResultT]:
        requests, entries = self._of, self._entries[start:end]
        try:
            results = list(requests.send(entries))
        except ServiceError as error:
            call = requests.call
            if not call.may_be_for_an_entry(error):
                if not self._has_accepted or call.is_fatal(error):
                    raise
                # Other entries were accepted before: only these are sent again.
                retried = requests.refuse(Refusal(error.code, str(error), "retry"))
                return [retried] * len(entries)
            if len(entries) > 1:
                return self._halve(start, end, error)
            self._culprits[start] = error
            return [requests.refuse(Refusal(error.code, str(error), "reject"))]
        if any(map(requests.is_accepted, results)):
            self._has_accepted = requests.has_accepted = True
        return results

    def _halve(self, start: int, end: int, error: ServiceError) -> list[ResultT]:
        middle, known = (start + end) // 2, len(self._culprits)
        results = [*self._send(start, middle), *self._send(middle, end)]
        if len(self._culprits) == known and all(map(self._of.is_accepted, results)):
            self._learn_limit(start, middle, end, error)
        return results

    def _learn_limit(self, start: int, middle: int, end: int, error: ServiceError) -> None:
        """All entries were accepted in parts, so together they were too large."""
        size_of, place = self._of.size_of, self._of.call.place
        parts = [sum(map(size_of, self._entries[a:b])) for a, b in ((start, middle), (middle, end))]
        if sum(parts) <= _SMALLEST_LIMIT or max(parts) >= _limits.get(place, sum(parts)):
            return
        _limits[place] = max(parts)
        _log.warning(
            "%s; requests of up to %d bytes are accepted, so larger ones are split from now on (option '%s')",
            error,
            max(parts),
            MAX_BATCH_SIZE_IN_BYTES.key,
        )
