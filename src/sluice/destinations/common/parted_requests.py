"""Sends the entries of a batch in fewer at a time where the service refuses a request as a whole.

A request may be refused for one of its entries, or because it is too large: services document limits that
older endpoints and emulators do not have yet. The code rarely says which, so for any code the request is
halved, until the faulty entry is found, or until the parts are small enough. So an entry that the service
never accepts costs no other entry. Of n entries, k of which are refused, there are at most 2 * k * log2(n)
requests more.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

from sluice.destinations.common.batch_call import BatchCall, Refusal
from sluice.errors import ServiceError
from sluice.sink import Destination, SubmitResult
from sluice.sink.options import MAX_BATCH_SIZE_IN_BYTES

__all__ = ["AwsDestination"]

EntryT = TypeVar("EntryT")

_log = logging.getLogger(__name__)

_SMALLEST_LIMIT: Final = 256 * 1024
"""Bytes. No service has a smaller limit on a request (SQS before 2025), so a smaller one was refused for
another reason."""

_limits: Final[dict[tuple[str, ...], int]] = {}
"""Bytes that a request to a target may have, where this process has found it to be less than documented."""


class AwsDestination(Destination[EntryT]):
    """A destination whose entries are sent by one `BatchCall`.

    Attributes:
        has_accepted: whether the target has accepted an entry, so it is the right one.
    """

    def __init__(self, call: BatchCall) -> None:
        self.call = call
        self.has_accepted = False

    @abstractmethod
    def send_part(self, entries: Sequence[EntryT]) -> Sequence[Any]:
        """Sends one request.

        Returns:
            For each entry, in their order, a `Refusal`, or something else if it was accepted.

        Raises:
            ServiceError: the service refused the request as a whole, or has not answered.
            OptionError: no client can be made from the connection options.
        """

    def send_in_parts(self, entries: Sequence[EntryT]) -> list[Any]:
        """As `send_part`, in more than one request where the service refuses one as a whole.

        Raises:
            ServiceError: no entry is known to have been accepted, or none will be any more.
            OptionError: no client can be made from the connection options.
        """
        return _Submission(self, entries).run()

    def submit(self, entries: Sequence[EntryT]) -> SubmitResult[EntryT]:
        """Calls the batch operation. Raises as `send_in_parts`."""
        return self.call.result(entries, self.send_in_parts(entries))

    def is_fatal(self, error: Exception) -> bool:
        """See `BatchCall.is_fatal`."""
        return self.call.is_fatal(error)

    def is_throttling(self, code: str) -> bool:
        """See `BatchCall.is_throttling`."""
        return self.call.is_throttling(code)


class _Submission(Generic[EntryT]):
    """One call of `send_in_parts`. `culprits` are entries that were refused alone, by their place."""

    def __init__(self, destination: AwsDestination[EntryT], entries: Sequence[EntryT]) -> None:
        self._of = destination
        self._entries = entries
        self._culprits: dict[int, ServiceError] = {}
        self._has_accepted = False

    def run(self) -> list[Any]:
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
                    results[place] = Refusal(error.code, str(error), "retry")
        return results

    def _within_limit(self) -> Iterator[tuple[int, int]]:
        """Runs of entries that are not larger than what the target is known to take."""
        limit, start, size = _limits.get(self._of.call.place), 0, 0
        for end, entry in enumerate(self._entries) if limit is not None else ():
            added = self._of.size_in_bytes(entry)
            if size + added > (limit or 0) and end > start:
                yield start, end
                start, size = end, 0
            size += added
        yield start, len(self._entries)

    def _send(self, start: int, end: int) -> list[Any]:
        entries, call = self._entries[start:end], self._of.call
        try:
            results = list(self._of.send_part(entries))
        except ServiceError as error:
            if not call.may_be_for_an_entry(error):
                if not self._has_accepted or call.is_fatal(error):
                    raise
                # Other entries were accepted before: only these are sent again.
                return [Refusal(error.code, str(error), "retry")] * len(entries)
            if len(entries) > 1:
                return self._halve(start, end, error)
            self._culprits[start] = error
            return [Refusal(error.code, str(error), "reject")]
        if not all(isinstance(each, Refusal) for each in results):
            self._has_accepted = self._of.has_accepted = True
        return results

    def _halve(self, start: int, end: int, error: ServiceError) -> list[Any]:
        middle, known = (start + end) // 2, len(self._culprits)
        results = [*self._send(start, middle), *self._send(middle, end)]
        if len(self._culprits) == known and not any(isinstance(each, Refusal) for each in results):
            self._learn_limit(start, middle, end, error)
        return results

    def _learn_limit(self, start: int, middle: int, end: int, error: ServiceError) -> None:
        """All entries were accepted in parts, so together they were too large."""
        size_of, place = self._of.size_in_bytes, self._of.call.place
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
