"""Finds what is let through and what fails, where answers are late: see `sluice.sink.untold_pace`."""

from __future__ import annotations

import math
from typing import Final

from sluice.sink.decaying import DecayingSum
from sluice.sink.failing_share import FailingShare
from sluice.sink.pace_cut import Cut
from sluice.sink.paced_answer import Answer

__all__ = ["LoweredPace"]

# While it is not known what fails, this part is sent of what is accepted, so that surely nothing is refused
# for load.
_MARGIN: Final = 0.9
# Requests, and entries in them, that are evidence.
_REQUESTS: Final = 6
_ENTRIES: Final = 20
# So many requests in a row of which nothing is accepted are an outage.
_OUTAGE: Final = 12
# If the pace falls by more than this part, what was sent at it before says nothing any more.
_FALLS: Final = 0.05
# What is sent in this part of the time of an answer may still meet what was sent before the pace fell.
_MEETS_OTHERS: Final = 0.5
# What is sent after that shows what fails, once it is as much as is sent in this part of the time of an
# answer, and in so many seconds.
_SHOWS: Final = 0.5
_SHOWS_AT_LEAST: Final = 0.5
# If the error is more than this part of what does not fail, up to so many times that time is waited for more.
_WELL_ENOUGH: Final = 0.06
_SHOWS_AT_MOST: Final = 2.0


class LoweredPace:
    """A pace at which nothing is refused for load. Instants and durations are seconds of one clock.

    Answers to what was sent before show what is let through, those to what is sent now show what fails.

    Args:
        before: the pace until now (entries a second).
        pace: the one that is sent at first.
        failing: what is known of failures. It does not change here.
        now: the time.
        least: the pace does not fall below this one.

    Attributes:
        before: see above.
        pace: what is to be sent (entries a second).
        refused: the refusals of what was sent before.
        shown: refusals without a reason of what was sent at this pace.
        is_over: enough was shown.
        was_outage: for a while nothing was accepted, so that what was refused before says nothing of load.
    """

    def __init__(
        self, before: float, pace: float, failing: FailingShare, now: float, *, least: float
    ) -> None:
        self.before = before
        self.pace = max(least, pace)
        self.refused = DecayingSum()
        self.shown = DecayingSum()
        self.is_over = False
        self.was_outage = False
        self._least = least
        self._in_a_row = 0  # requests of which nothing was accepted
        self._failing = failing
        self._began = self._fell_at = now
        self._let_through = DecayingSum()  # entries, in the seconds that they stand for

    def add(self, answer: Answer, latency: float) -> None:
        """A request was answered; `latency` is the time that an answer takes."""
        self._in_a_row = self._in_a_row + 1 if answer.lost == answer.entries else 0
        if self._in_a_row >= _OUTAGE:
            self.was_outage = True
        if answer.at < self._began:
            self._follow(answer)
            return
        shown_for = answer.at - self._fell_at - _MEETS_OTHERS * latency
        if shown_for < 0:
            return
        self.shown.add(answer.untold, answer.entries - answer.throttled, answer.now, math.inf)
        self.is_over = self._is_enough(shown_for, latency)
        if self._in_a_row >= _OUTAGE or (self.is_over and self.shown.share == 1.0):
            self.was_outage, self.is_over = True, False
            self.shown, self._fell_at = DecayingSum(), answer.now  # it shows nothing

    def cut(self) -> Cut:
        """What a cut to what is let through has to know."""
        return Cut(self.refused.whole / self._let_through.whole, self.refused)

    def _follow(self, answer: Answer) -> None:
        accepted, seconds = answer.entries - answer.lost, answer.entries / answer.pace
        self._let_through.add(accepted, seconds, answer.now, math.inf)
        self.refused.add(answer.lost, answer.entries, answer.now, math.inf)
        pace = self._let_through.share / (1 - self._failing.share)
        if not self._failing.is_known:
            pace *= _MARGIN
        if self._let_through.values < _REQUESTS:
            return
        pace = max(self._least, pace)
        if pace < (1 - _FALLS) * self.pace:
            self._fell_at, self.shown = answer.now, DecayingSum()
        self.pace = pace

    def _is_enough(self, shown_for: float, latency: float) -> bool:
        shown = self.shown
        if shown.values < _REQUESTS or shown.whole < _ENTRIES:
            return False
        is_known = self._failing.is_known or math.sqrt(shown.variance) < _WELL_ENOUGH * (1 - shown.share)
        longest = _SHOWS_AT_MOST * max(_SHOWS_AT_LEAST, latency)
        return shown_for >= (max(_SHOWS_AT_LEAST, _SHOWS * latency) if is_known else longest)
