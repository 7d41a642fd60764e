"""What is learnt of refusals for load that come whatever the pace is. In whole runs: `test_congestion`."""

from __future__ import annotations

import random

from sluice.sink.noncongestive import NonCongestiveRefusals

INTERVAL = 0.02  # seconds between two requests


class Sender:
    """Sends requests to a service that refuses whole ones; all are answered at once.

    Args:
        pace: entries a second to begin with.
        takes: entries a second that the service takes; the rest is refused for load.
        chance: the part of requests that is refused whatever the pace is.
    """

    def __init__(self, pace: float, *, takes: float, chance: float, seed: int = 1) -> None:
        self.known = NonCongestiveRefusals()
        self.pace = pace
        self.takes = takes
        self.chance = chance
        self.now = 0.0
        self.lowest_depth = 1.0
        self._draw = random.Random(seed).random

    def run(self, seconds: float, *, lowers: float = 0.0) -> Sender:
        """Each refusal outside of dips lowers the pace by the part `lowers`, not below the floor."""
        end = self.now + seconds
        while self.now < end:
            self.now += INTERVAL
            depth = self.known.depth(self.now, 0.01, self.pace)
            self.lowest_depth = min(self.lowest_depth, depth)
            load = max(0.0, 1 - self.takes / (self.pace * depth))
            refused = 1.0 if self._draw() < load + self.chance * (1 - load) else 0.0
            if depth < 1.0:
                self.known.answered_in_dip(refused, self.now)
                continue
            self.known.answered(refused, self.pace, self.now, self.now)
            self.pace = max(min(self.pace, self.known.floor), self.pace * (1 - lowers * refused))
            self.known.follow(self.pace, INTERVAL, self.now)
        return self


def test_there_are_no_dips_while_the_pace_is_not_held() -> None:
    """Refusals that do not lower the pace need no explanation."""
    sender = Sender(1000.0, takes=2000.0, chance=0.02).run(20.0)

    assert sender.lowest_depth == 1.0
    assert sender.known.share == 0.0


def test_refusals_whatever_the_pace_do_not_lower_it_far() -> None:
    """The pace would halve in 35 seconds otherwise: each refused request takes 2 % of it."""
    sender = Sender(1000.0, takes=2000.0, chance=0.02).run(60.0, lowers=0.02)

    assert sender.pace > 0.8 * 1000
    assert sender.lowest_depth < 1.0
    assert 0.01 < sender.known.share < 0.03


def test_what_refusals_are_is_not_forgotten_while_the_pace_is_not_held() -> None:
    """Without dips nothing is learnt anew. Tasks forgot it, made no more probes, and stayed there."""
    sender = Sender(1000.0, takes=2000.0, chance=0.02).run(60.0, lowers=0.02)
    assert sender.known.is_known

    sender.pace *= 1.2
    for _ in range(60):
        sender.run(1.0)
        sender.known.grew(0.0, 0.01, sender.now)

    assert sender.known.is_known


def test_refusals_that_fall_with_the_pace_are_load() -> None:
    """Then they lower the pace as far as they must."""
    sender = Sender(1000.0, takes=1000.0, chance=0.0).run(5.0)
    sender.takes = 900.0
    sender.run(60.0, lowers=0.02)

    assert sender.pace < 1.02 * 900
    assert sender.known.share < 0.01


def test_a_clear_overload_lowers_the_pace_at_once() -> None:
    """Without waiting for a dip: a tenth of the capacity is left."""
    sender = Sender(1000.0, takes=1000.0, chance=0.0).run(5.0)
    sender.takes = 100.0
    sender.run(3.0, lowers=0.1)

    assert sender.pace < 150


def test_a_dip_during_which_the_capacity_falls_shows_nothing() -> None:
    """What is refused in it is load: it was deep enough for the pace before."""
    sender = Sender(1000.0, takes=2000.0, chance=0.02).run(12.0, lowers=0.02)
    while sender.known.depth(sender.now, 0.01, sender.pace) == 1.0:
        sender.run(INTERVAL, lowers=0.02)
    before = sender.known.share
    sender.takes = 100.0
    sender.run(3.0, lowers=0.1)

    assert sender.known.share <= before + 0.01


def test_what_was_accepted_while_the_pace_grew_counts_as_proof() -> None:
    """No dips are needed: refusals that come now come because the pace is high."""
    sender = Sender(1000.0, takes=2000.0, chance=0.0).run(2.0)
    assert sender.known.floor > 0.9 * 1000
    sender.known.limit_found(sender.now)
    sender.run(2.0)
    for _ in range(100):
        sender.known.grew(0.0, 0.06, sender.now)

    assert sender.known.floor < 0.6 * 1000


def test_an_old_proof_lowers_the_pace_only_a_little() -> None:
    """Other refusals may have begun since then."""
    sender = Sender(1000.0, takes=2000.0, chance=0.0).run(2.0)
    sender.known.limit_found(sender.now)
    sender.run(60.0)
    for _ in range(100):
        sender.known.grew(0.0, 0.06, sender.now)

    assert 0.8 * 1000 < sender.known.floor < 0.9 * 1000
    sender.takes, sender.chance = 2000.0, 0.02
    sender.run(60.0, lowers=0.02)
    assert sender.pace > 0.75 * 1000


def test_more_than_the_known_share_is_load() -> None:
    """Where it is held at a pace that is too high, because the reference was."""
    sender = Sender(1000.0, takes=2000.0, chance=0.02).run(60.0, lowers=0.02)
    assert 0.01 < sender.known.share < 0.03
    sender.takes = 0.88 * sender.pace
    takes = sender.takes
    sender.run(60.0, lowers=0.02)

    assert sender.pace < 1.05 * takes


def test_where_answers_take_seconds_there_are_no_dips() -> None:
    """They would take as long as the answers to them, and half as long again; the pace is only held."""
    known, now = NonCongestiveRefusals(), 0.0
    for number in range(200):
        now += INTERVAL
        assert known.depth(now, 2.0, 1000.0) == 1.0
        known.answered(float(number % 10 == 0), 1000.0, now, now)
        known.follow(known.floor or 1000.0, INTERVAL, now)

    assert known.is_uncertain
    assert 0.8 * 900 * 0.9 < known.floor < 0.9 * 1000


def test_a_limit_that_is_found_anew_ends_the_hold() -> None:
    """Nothing is known of what is let through then, and a dip could not be measured by it."""
    sender = Sender(1000.0, takes=2000.0, chance=0.02).run(20.0, lowers=0.02)
    sender.known.limit_found(sender.now)

    assert sender.known.floor == 0.0
    assert all(sender.known.depth(sender.now + n / 10, 0.01, 100.0) == 1.0 for n in range(30))
