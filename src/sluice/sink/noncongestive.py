"""Tells refusals for load from those that come whatever the pace is, where all have the code of load.

A service may refuse a part of all requests as throttled though it has tokens left: a limit of a host that is
in trouble, a partition that is being moved. (In networks this is called non-congestive loss.) A sender that
takes each of them for load slows down without end, as slowing down does not help.

Refusals may lower the pace a little without proof. The *reference* is what was let through when the service
was last clearly overloaded, or more, if more has been let through since. The pace does not fall below most
of it. While it is held there, it dips for half a second in every 1.25 s of the wall clock, in all tasks that
are held: `sluice.sink.dips`. In a dip less is sent than is let through, so load can't be the reason for what
is refused then.

- If about as much is refused in dips as outside of them, it comes whatever the pace is: only what exceeds
  that share counts as load.
- If clearly less is refused, or if nothing was refused while the pace grew, refusals are load, and may lower
  the pace to 85 % of the reference before the next proof; or to half of it, if that was proved while the pace
  was held.

Where the pace is not held and nothing is refused whatever the pace is, this costs nothing: there are no dips.
Where such refusals are known, they would hide that the service takes more by now: see
`sluice.sink.upward_probes`.

Sources: loss that does not depend on the rate, told by experiments with the rate (PCC: Dong and others,
NSDI 2015); all senders at the same time, so that load really falls (BBR: ACM Queue 14(5), 2016).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from sluice.sink.decaying import DecayingSum
from sluice.sink.dips import Dips
from sluice.sink.upward_probes import UpwardProbes

__all__ = ["NonCongestiveRefusals"]

# A share of requests that are refused whatever the pace is does not matter below the first number, and is
# large enough to hide that the service takes more from the second one on.
_SELDOM: Final = 0.003
_OFTEN: Final = 0.005
# The part of the reference at which the pace is held. It is the second one if it is known what refusals are,
# as others may have begun since then; and the third if it was proved that they are load, at a held pace, or
# in the first seconds (the last number) after a clear overload, while tasks find their shares.
_HELD: Final = 0.95
_HELD_IF_KNOWN: Final = 0.85
_HELD_IF_PROVED: Final = 0.5
_FIND_SHARES_FOR: Final = 25.0
# Where answers are late, and dips at least so many times as long as usual, proof takes so long that more has
# to be left to chance: it is the second one, too. Where dips would be longer than that there are none.
_LATE: Final = 4.0
# What is let through is averaged over so many requests, and not known from fewer than the second number. The
# service is clearly overloaded if it is less than the pace by more than this part, and so many times what is
# refused whatever the pace is: chance makes it vary.
_RECENT: Final = 32
_FEWEST: Final = 24
_CLEARLY: Final = 0.15
_BY_CHANCE: Final = 2.0
# If the overload stays though the pace has come down to what was let through, it may be none: the reference
# is not lowered again for this time (seconds), unless less than this part of the pace is let through. Where
# answers are late it is so many times as long at most: nothing else follows a slow fall of the capacity.
_ONCE_IN: Final = 30.0
_MOST_TIMES: Final = 2.0
_EVIDENT: Final = 0.6
_ABOVE: Final = 1.05
# The reference rises to what is let through with this time constant (seconds): a stored burst is soon gone.
_RISES_IN: Final = 5.0
# In a dip the pace is this part of itself at most, at least the second one, and this part of what is let
# through. What is sent in its first quarter may still meet the load from before.
_SHALLOWEST: Final = 0.85
_DEEPEST: Final = 0.4
_MARGIN: Final = 0.9
_FIRST_PART: Final = 0.25
# A dip counts after the answers to so many requests that were sent later: if they show an overload, or if it
# sent more than this many times what is let through, its refusals may have been load.
_AFTER: Final = 16
_TOO_SHALLOW: Final = 1.15
# What dips have shown fades in this time (seconds). Of few requests little is believed: the share is as if so
# many more had been accepted.
_FADES: Final = 60.0
_DOUBT: Final = 30.0
# No more than this part was to be expected in a dip: what remains of an overload does not count as proof of
# what the few refusals after it are. If so many were to be expected in dips, it is known what they are, until
# fewer than the last number are.
_MOST_EXPECTED: Final = 0.05
_DECIDED: Final = 8.0
_FORGOTTEN: Final = 2.0
# Refusals are load if a quarter of what was to be expected is more likely than all of it, by this logarithm.
_LESS: Final = 0.25
_PROVED: Final = 4.0
# If the share is known, more than it is load where so many times as much is more likely, over this time
# (seconds); a share below the last number counts as that.
_TIMES: Final = 3.0
_LATELY: Final = 5.0
_LEAST_SHARE: Final = 0.01


class _Recent(NamedTuple):
    """The pace at which a request was sent, and what was let through of it (entries a second)."""

    pace: float
    let_through: float


class NonCongestiveRefusals:
    """What one task knows of them. Instants and durations are seconds of one monotonic clock.

    Args:
        wall_offset: what has to be added to an instant for the time of the wall clock: see `Dips`.
    """

    def __init__(self, wall_offset: Callable[[], float] = lambda: 0.0) -> None:
        self._dips = Dips(wall_offset)
        self._probes = UpwardProbes(self._dips)
        self._reference = 0.0  # entries a second; 0 until it is known
        self._lowered_at = -math.inf
        self._recent: deque[_Recent] = deque(maxlen=_RECENT)
        self._is_held = False
        self._is_proved_anew = False  # that refusals are load, while it was held
        self._proved_at = -math.inf  # when it was
        self._finds_share = True  # as the last clear overload was a moment ago
        self._overloaded_at = -math.inf  # when there was a clear overload
        self._outside = DecayingSum()  # parts of requests that were refused, since the last dip that counted
        self._lately = DecayingSum()  # the same in the last seconds
        self._in_dips = DecayingSum()  # the same in dips that counted
        self._expected = DecayingSum()  # what would have been refused in those if it were not load
        self._is_learnt = False  # whether so much was to be expected that it is known what refusals are
        self._began, self._depth = -math.inf, 1.0  # the last dip
        self._last: list[float] = []  # parts of its requests that were refused, until they count
        self._last_began = -math.inf
        self._answered_after = 0

    @property
    def share(self) -> float:
        """The part of requests that is refused whatever the pace is."""
        return self._in_dips.part / (self._in_dips.whole + _DOUBT)

    @property
    def matters(self) -> bool:
        """Whether the share is so large that a refusal says little about load."""
        return self.share >= _SELDOM

    @property
    def is_known(self) -> bool:
        """Whether it is known that such refusals come, and often."""
        return self.share >= _OFTEN and self._is_learnt and not self._is_proved

    @property
    def floor(self) -> float:
        """Refusals do not lower the pace below this one (entries a second)."""
        if self._is_proved and (self._is_proved_anew or self._finds_share):
            return _HELD_IF_PROVED * self._reference
        is_known = self._is_decided or self._dips.scale >= _LATE
        return (_HELD_IF_KNOWN if is_known else _HELD) * self._reference

    @property
    def is_uncertain(self) -> bool:
        """Whether the pace is held, and many small requests would tell sooner what refusals are."""
        return self._is_held

    def gain(self, at: float, latency: float) -> float:
        """What the pace is multiplied by: more than 1 in a probe. See `depth` for the arguments."""
        self._dips.follow(latency)
        is_new = at < self._overloaded_at + self._dips.cycle
        if not self.is_known or is_new or self._dips.scale > _LATE:
            return 1.0
        return self._probes.gain(at)

    def depth(self, at: float, latency: float, pace: float) -> float:
        """The part of the pace to send at: less than 1 in a dip.

        Args:
            at: the time.
            latency: how long answers take.
            pace: entries a second.
        """
        self._dips.follow(latency)
        if not self._is_held or self._dips.scale > _LATE:
            return 1.0
        began = self._dips.began(at, self._overloaded_at, is_rare=False)
        if began is None:
            return 1.0
        if began > self._began + self._dips.cycle / 2:
            part = self._let_through / pace / (1 - self.share)
            self._began, self._depth = began, max(_DEEPEST, min(_SHALLOWEST, _MARGIN * part))
        return self._depth

    def limit_found(self, now: float) -> None:
        """The pace had grown, and was too high: what was let through before says nothing any more."""
        self._reference = 0.0
        self._is_held = False
        self._recent.clear()
        self._overload(now)

    def grew(self, refused: float, expected: float, now: float) -> None:
        """A request was answered while the pace grows: `refused` of it, where `expected` might be by load."""
        self._add(refused, now)
        self._expect(expected, now)

    def answered_in_dip(self, refused: float, sent_at: float) -> None:
        """A request that was sent in a dip was answered; `refused` is the part that was refused for load."""
        if sent_at - self._began <= _FIRST_PART * (self._dips.end(self._began) - self._began):
            return
        if self._began > self._last_began:
            self._last_began, self._last, self._answered_after = self._began, [], 0
        self._last.append(refused)

    def answered_in_probe(self, refused: float, sent_at: float) -> None:
        """A request that was sent in a probe was answered: see `answered_in_dip`."""
        self._probes.answered(refused, sent_at)

    def evidence(self, sent_at: float) -> float:
        """What the last probe says: see `UpwardProbes.evidence`."""
        return self._probes.evidence(max(self.share, self._outside.share), sent_at)

    def answered(self, refused: float, pace: float, sent_at: float, now: float) -> None:
        """Another request was answered.

        Args:
            refused: the part of it that was refused for load.
            pace: the one when it was sent (entries a second).
            sent_at: when it was sent.
            now: the time.
        """
        if self._last and sent_at > self._dips.end(self._last_began):
            self._answered_after += 1
            if self._answered_after == _AFTER:
                self._end_dip(now)
        self._recent.append(_Recent(pace, pace * (1 - refused)))
        self._outside.add(refused, 1.0, now, math.inf)
        self._lately.add(refused, 1.0, now, _LATELY * self._dips.scale)

    def follow(self, pace: float, seconds: float, now: float) -> None:
        """Follows the pace with the reference.

        Args:
            pace: the one that an answer has led to (entries a second).
            seconds: the time that its request stands for.
            now: the time.
        """
        self._finds_share = now < self._overloaded_at + _FIND_SHARES_FOR
        if len(self._recent) < _FEWEST:
            return
        let_through = self._let_through
        if not self._reference:
            self._reference = let_through
            self._lowered_at = now
        elif let_through < (1 - _CLEARLY) * (1 - _BY_CHANCE * self.share) * pace:
            self._follow_overload(let_through, pace, now)
            return
        elif let_through > self._reference:
            rises_in = _RISES_IN * self._dips.scale
            self._reference += (let_through - self._reference) * min(1.0, seconds / rises_in)
        if self._is_proved_anew and (pace > _HELD * self._reference or now - self._proved_at > self._fades):
            self._reference, self._is_proved_anew = let_through, False
        if self._is_proved and pace <= self.floor:
            if self._is_proved_anew or self._finds_share:
                self._reference, self._is_proved_anew = pace, False
            self._in_dips, self._expected = DecayingSum(), DecayingSum()
            self._is_learnt = False
        if self._is_held and self._is_proved:
            self._is_proved_anew, self._proved_at = True, now
        self._is_held = pace <= self.floor or (self._is_held and not self._is_decided)

    def _follow_overload(self, let_through: float, pace: float, now: float) -> None:
        once_in = _ONCE_IN * min(_MOST_TIMES, self._dips.scale)
        is_new = now - self._lowered_at > once_in or let_through < _EVIDENT * pace
        if not is_new and all(each.pace <= _ABOVE * self._reference for each in self._recent):
            self._is_held = True  # no more is sent than was let through, and still much is refused
            return
        self._reference = let_through
        self._lowered_at = now
        self._overload(now)

    def _overload(self, now: float) -> None:
        self._overloaded_at = now
        self._outside, self._lately = DecayingSum(), DecayingSum()

    def _end_dip(self, now: float) -> None:
        """Learns from the last dip, if nothing has changed since it began."""
        requests, share = len(self._last), self._outside.share
        usual = max(share, self.share) * requests
        is_usual = sum(self._last) <= usual + 3 * math.sqrt(usual) + 1
        is_deep = self._depth <= _TOO_SHALLOW * (1 - share)
        if is_usual and is_deep and self._overloaded_at < self._last_began:
            for each in self._last:
                self._add(each, now)
            self._expect(min(_MOST_EXPECTED, share) * requests, now)
        self._last = []
        self._outside = DecayingSum()

    def _add(self, refused: float, now: float) -> None:
        self._in_dips.add(refused, 1.0, now, self._fades)

    def _expect(self, refused: float, now: float) -> None:
        self._expected.add(refused, 1.0, now, self._fades)
        # Where the pace is not held there are no dips, and nothing would be learnt anew.
        least = _FORGOTTEN if self._is_learnt else _DECIDED
        self._is_learnt = self._expected.part >= least

    @property
    def _fades(self) -> float:
        return _FADES * self._dips.scale

    @property
    def _let_through(self) -> float:
        """Entries a second that are let through of the pace."""
        return sum(each.let_through for each in self._recent) / len(self._recent)

    @property
    def _is_proved(self) -> bool:
        """Whether refusals fall with the pace: a likelihood ratio of two Poisson counts."""
        likely = self._expected.part * (1 - _LESS) - self._in_dips.part * math.log(1 / _LESS)
        return likely > _PROVED or (self._is_learnt and self._is_exceeded)

    @property
    def _is_exceeded(self) -> bool:
        """Whether clearly more is refused than the share that comes whatever the pace is: the same ratio."""
        usual = max(_LEAST_SHARE, self.share) * self._lately.whole
        return self._lately.part * math.log(_TIMES) - (_TIMES - 1) * usual > _PROVED

    @property
    def _is_decided(self) -> bool:
        return self._is_proved or self._is_learnt
