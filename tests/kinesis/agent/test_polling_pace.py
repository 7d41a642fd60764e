"""How often an agent reads a shard: at most four times a second, and less where that is too much."""

from __future__ import annotations

from collections.abc import Callable

from sluice.kinesis.agent.polling_pace import PollingPace


class Reads:
    """Reads at a pace, of a shard that answers at once."""

    def __init__(self, interval: float = 0.2, *, shards: int = 1) -> None:
        self.now = 100.0
        self.pace = PollingPace(interval, lambda: shards, lambda: 0.0)

    def during(
        self,
        seconds: float,
        *,
        is_refused: Callable[[float], bool] = lambda _now: False,
        has_records: bool = True,
        cost: float = 0.0,
    ) -> list[float]:
        """When reads were made."""
        times, end = [], self.now + seconds
        while self.now + self.pace.wait(self.now) < end:
            self.now += self.pace.wait(self.now)
            times.append(self.now)
            if is_refused(self.now):
                self.pace.record_refusal(self.now)
            else:
                self.pace.record_page(self.now, has_records=has_records, cost=cost)
        self.now = end
        return times


def most_in_a_second(times: list[float]) -> int:
    return max(sum(at - 1.0 < other <= at for other in times) for at in times)


def test_one_of_five_reads_a_second_is_left_to_others() -> None:
    times = Reads().during(20)

    assert most_in_a_second(times) == 4
    assert len(times) == 80


def test_a_longer_interval_is_kept() -> None:
    """Option ``getRecordsInterval`` holds for the agent, too."""
    assert len(Reads(0.5).during(10)) == 20


def test_a_page_is_paid_for_before_the_next_read() -> None:
    """A shard gives 2 MiB a second. After more, the service refuses reads, also those of others."""
    assert len(Reads().during(20, cost=5.0)) == 4


def test_a_shard_that_others_use_up_is_read_rarely() -> None:
    """Each refusal halves the rate, down to one read in 2 s; it is back a minute or two later."""
    reads = Reads()
    refused = reads.during(60, is_refused=lambda _now: True)
    first_minute, later = reads.during(60), reads.during(60)

    assert len(refused) < 35
    assert refused[-1] - refused[-2] == 2.0
    assert 60 < len(first_minute) < 120 < len(later)
    assert most_in_a_second(reads.during(10)) == 4


def test_a_shard_that_leaves_two_reads_a_second_is_seldom_asked_for_more() -> None:
    """Where another reader takes three of the five, few reads are refused, and nearly two are made."""
    answered: list[float] = []

    def is_refused(now: float) -> bool:
        if sum(now - 1.0 < at for at in answered) >= 2:
            return True
        answered.append(now)
        return False

    reads = Reads()
    reads.during(30, is_refused=is_refused)
    before = len(answered)
    made = reads.during(120, is_refused=is_refused)

    refused = len(made) - (len(answered) - before)
    assert refused <= 12
    assert len(answered) - before >= 120


def test_an_idle_shard_is_read_once_a_second() -> None:
    """As the planner would. The first record brings the shorter pauses back."""
    reads = Reads()
    reads.during(1)
    reads.during(60, has_records=False)

    assert len(reads.during(10, has_records=False)) == 10
    reads.during(1)
    assert len(reads.during(10)) == 40


def test_many_shards_share_what_one_agent_can_read() -> None:
    """Of 100 shards each is read twice a second."""
    assert len(Reads(shards=100).during(10)) == 20
    assert len(Reads(shards=10).during(10)) == 40
