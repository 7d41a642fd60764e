"""Congestion control against a destination that admits a fixed rate; all in virtual time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from metered import Metered, Shards

from sluice.sink import (
    AIMDScalingStrategy,
    AsyncSinkConfig,
    CongestionControlRateLimitingStrategy,
    NoRateLimitingStrategy,
    RateLimitingStrategy,
    RequestInfo,
    ResultInfo,
    TokenBucketRateLimitingStrategy,
)
from sluice.sink.pacing import _FIRST_ANSWERS, _FIRST_REFUSALS, _MOST_STEPS, _PATIENCE, _STEP, PacingRate

Make = Callable[[AsyncSinkConfig, Callable[[], float]], RateLimitingStrategy]


def aimd(factor: float, *, paced: bool = True) -> Make:
    def make(config: AsyncSinkConfig, clock: Callable[[], float]) -> RateLimitingStrategy:
        most = config.max_batch_size * config.max_in_flight_requests
        return CongestionControlRateLimitingStrategy(
            max_in_flight_requests=config.max_in_flight_requests,
            initial_max_in_flight_messages=most,
            scaling_strategy=AIMDScalingStrategy(decrease_factor=factor, rate_threshold=most),
            clock=clock if paced else None,
            wall_clock=clock,
            jitter=random.Random(most).random,
        )

    return make


@pytest.mark.parametrize("factor", [0.99, 0.5])
@pytest.mark.parametrize(
    ("shards", "seconds"), [(Shards(1), 30), (Shards(4), 20), (Shards(1, burst=0.3), 20), (Shards(16), 12)]
)
def test_the_rate_becomes_that_of_the_destination(shards: Shards, seconds: int, factor: float) -> None:
    """Within three seconds within 15 % of 1,000 records/s a shard; less than 5 % refused, start included."""
    fresh = Shards(len(shards._tokens), burst=shards._burst)
    metered = Metered(aimd(factor), fresh).run(seconds)

    for second in range(3, seconds - 3):
        assert metered.throughput(second, second + 3) == pytest.approx(1.0, abs=0.15)
    assert metered.refusals(0, seconds) < 0.05
    assert metered.refusals(5, seconds) < 0.05


def test_a_limit_in_flight_alone_is_not_enough() -> None:
    """Flink's strategy: a third of what is sent is refused, for good."""
    metered = Metered(aimd(0.99, paced=False), Shards(1)).run(20)

    assert metered.refusals(5, 20) > 0.3


@pytest.mark.parametrize("latency", [(0.001, 0.002), (0.3, 0.5)])
def test_latency_matters_little(latency: tuple[float, float]) -> None:
    """With quick or slow answers the rate is that of the destination."""
    metered = Metered(aimd(0.99), Shards(1), latency=latency).run(30)

    assert metered.throughput(10, 30) == pytest.approx(1.0, abs=0.1)
    assert metered.refusals(10, 30) < 0.07


@pytest.mark.parametrize(("batch", "rate"), [(25, 1000.0), (10, 100.0)])
def test_small_batches_are_paced_too(batch: int, rate: float) -> None:
    """DynamoDB accepts 25 records in a request, SQS 10."""
    metered = Metered(aimd(0.5), Shards(1, rate), batch=batch).run(20)

    assert metered.throughput(5, 20) == pytest.approx(1.0, abs=0.1)
    assert metered.refusals(5, 20) < 0.05
    assert metered.refusals(0, 20) < 0.12  # three requests that are refused end the start


def test_a_destination_that_refuses_whole_requests_is_paced() -> None:
    """As an HTTP endpoint does that answers 429. How well requests fit depends on their size."""
    runs = [
        Metered(aimd(0.5), Shards(1), batch=batch, all_or_nothing=True).run(20) for batch in range(22, 28)
    ]

    assert min(run.throughput(5, 20) for run in runs) > 0.85
    assert sum(run.refusals(5, 20) for run in runs) / len(runs) < 0.05
    assert sum(run.refusals(0, 20) for run in runs) / len(runs) < 0.1


def test_more_capacity_is_used() -> None:
    """A stream that was resharded from one shard to eight is used within ten seconds."""
    metered = Metered(aimd(0.99), Shards(1)).run(10)
    metered.shards = Shards(8)
    metered.run(30)

    assert metered.throughput(20, 30) == pytest.approx(1.0, abs=0.1)


def test_less_capacity_lowers_the_rate() -> None:
    """Within seconds little is refused again."""
    metered = Metered(aimd(0.99), Shards(8)).run(10)
    metered.shards = Shards(1, burst=0.5)
    metered.run(30)

    assert metered.throughput(20, 30) == pytest.approx(1.0, abs=0.15)
    assert metered.refusals(15, 30) < 0.03


def test_an_outage_is_survived() -> None:
    """During it few requests are sent; afterwards the rate is back within seconds."""
    metered = Metered(aimd(0.5), Shards(4)).run(10)
    dead = Shards(4, burst=0.0)
    metered.shards = dead
    before = metered.requests
    metered.run(30)
    assert metered.requests - before < 100
    metered.shards = Shards(4)
    metered.shards._counted = [30.0] * 4
    metered.run(50)

    assert metered.throughput(42, 50) == pytest.approx(1.0, abs=0.15)


def test_the_rate_is_kept_while_there_is_nothing_to_send() -> None:
    """It neither falls nor grows much."""
    metered = Metered(aimd(0.99), Shards(2)).run(10)
    learnt = metered.strategy.rate
    metered.idle_until = 40.0
    metered.run(41)

    assert metered.strategy.rate == pytest.approx(learnt, rel=0.3)
    metered.run(60)
    assert metered.throughput(45, 60) == pytest.approx(1.0, abs=0.1)
    assert metered.refusals(40, 60) < 0.05


def test_a_destination_without_limits_is_not_slowed_down_for_long() -> None:
    """Slow start: more than 50,000 records are sent in the second second."""
    metered = Metered(aimd(0.99), Shards(1, rate=10**9), latency=(0.01, 0.02)).run(2)

    assert metered.accepted[1] > 50_000
    assert metered.refused.total() == 0


def test_time_is_waited_for_and_not_polled() -> None:
    """The strategy says how long to wait: there are few more steps than requests and answers."""
    metered = Metered(aimd(0.99), Shards(1)).run(20)

    # A request, its arrival and its answer are a step each, and so is each pause after a refusal.
    assert metered.steps < 4.5 * metered.requests


def test_a_token_bucket_limits_the_rate() -> None:
    """To tokenBucketRate, retries included, after one burst; and the writer does not poll."""
    bucket: Make = lambda _, clock: TokenBucketRateLimitingStrategy(rate=800.0, burst=100, clock=clock)  # noqa: E731
    metered = Metered(bucket, Shards(1)).run(20)

    assert metered.accepted.total() + metered.refused.total() == pytest.approx(800 * 20 + 100, rel=0.02)
    assert metered.refused.total() == 0
    assert metered.steps < 5 * metered.requests


def test_none_floods() -> None:
    """rateLimiting=none: only the pauses after refusals slow it down."""
    metered = Metered(lambda _, __: NoRateLimitingStrategy(), Shards(1)).run(2)

    assert metered.refusals(0, 2) > 0.5


# --- details ------------------------------------------------------------------------------------------


def test_asking_changes_nothing() -> None:
    """should_block and delay have no side effects, with a clock as without."""
    now = [0.0]
    strategy: Any = aimd(0.5)(AsyncSinkConfigs.small, lambda: now[0])
    for _ in range(2):
        strategy.register_in_flight_request(RequestInfo(50))
        strategy.register_completed_request(ResultInfo(0, 50))
    before = dict(vars(strategy._pacing))
    delays = {strategy.delay(RequestInfo(10)) for _ in range(5)}

    assert all(strategy.should_block(RequestInfo(10)) for _ in range(5))
    assert len(delays) == 1
    assert vars(strategy._pacing) == before
    now[0] += delays.pop()
    assert not strategy.should_block(RequestInfo(10))


class AsyncSinkConfigs:
    small = AsyncSinkConfig(
        max_batch_size=10,
        max_batch_size_in_bytes=1000,
        max_record_size_in_bytes=100,
        max_in_flight_requests=5,
        max_buffered_requests=100,
        max_time_in_buffer=5.0,
        request_timeout=60.0,
        max_retry_duration=60.0,
    )


class Ticking:
    """A clock that has gone on each time it is read, as any real one has."""

    def __init__(self) -> None:
        self.now = 1.0

    def __call__(self) -> float:
        self.now += 1e-4
        return self.now


def test_an_answer_is_judged_by_the_pace_of_its_own_request() -> None:
    """And not by that of the one before, though the clock goes on between its start and its registration."""
    clock = Ticking()
    strategy: Any = aimd(0.5)(AsyncSinkConfigs.small, clock)
    starts = []
    for rate in (1000.0, 2000.0, 3000.0):
        strategy._pacing.rate = rate
        starts.append(clock())
        strategy.register_in_flight_request(RequestInfo(5, started_at=starts[-1]))

    assert [strategy._pacing._sent.sent_at(at).pace for at in starts] == [1000.0, 2000.0, 3000.0]


def test_the_time_for_which_an_answer_lay_here_is_not_that_of_the_destination() -> None:
    """A slow converter keeps the writer from looking at answers: dips and requests must not get longer."""
    now = [0.0]
    strategy: Any = aimd(0.5)(AsyncSinkConfigs.small, lambda: now[0])
    strategy.register_in_flight_request(RequestInfo(5, started_at=0.0))
    now[0] = 3.0
    strategy.register_completed_request(ResultInfo(0, 5, seconds=0.05, started_at=0.0))

    assert strategy._pacing._latency == 0.05


def test_the_wall_clock_is_asked_whenever_it_matters() -> None:
    """It may be set while a worker lives."""
    wall = [1000.0]
    strategy: Any = CongestionControlRateLimitingStrategy(
        max_in_flight_requests=1,
        initial_max_in_flight_messages=1,
        scaling_strategy=AIMDScalingStrategy(rate_threshold=10),
        clock=lambda: 10.0,
        wall_clock=lambda: wall[0],
    )
    dips = strategy._pacing._untold._dips
    before = dips.began(10.0, -10.0, is_rare=False)
    wall[0] += 0.625

    assert dips.began(10.0, -10.0, is_rare=False) != before


def test_a_failed_epoch_without_an_answer_says_nothing_about_the_next() -> None:
    """The hour until then is no time in which the destination has not answered."""
    pacing, fresh = (PacingRate(1000.0, jitter=lambda: 0.5) for _ in range(2))
    pacing.sent(25, 0.0)
    pacing.forget_in_flight()
    for each in (pacing, fresh):
        each.sent(25, 3600.0)

    assert pacing.max_request(3600.0) == fresh.max_request(3600.0)
    assert pacing.in_flight == fresh.in_flight


def test_a_short_first_epoch_does_not_end_the_start() -> None:
    """Only the time counts in which the rate has limited what is sent, and not the pause between epochs."""
    pacing, fresh = (PacingRate(1000.0, jitter=lambda: 0.5) for _ in range(2))
    paced(pacing, 0.0, 0.5, takes=math.inf, latency=0.4)
    for each in (pacing, fresh):
        paced(each, 60.0, 4.0, takes=math.inf, latency=0.4)

    assert math.log(pacing.rate / 1000) > 0.5 * math.log(fresh.rate / 1000)  # by a quarter, if it had ended


def test_room_in_flight_comes_with_answers() -> None:
    """The delay is infinite when time alone changes nothing: the writer waits for an answer."""
    strategy: Any = aimd(0.5)(AsyncSinkConfigs.small, lambda: 0.0)
    strategy.register_in_flight_request(RequestInfo(50))

    assert strategy.delay(RequestInfo(1)) == float("inf")
    strategy.forget_in_flight()
    assert strategy.delay(RequestInfo(1)) < 1.0


def paced(pacing: PacingRate, start: float, seconds: float, *, takes: float, latency: float = 0.05) -> float:
    """Sends as fast as the rate allows to a destination that takes so many a second; the lowest rate."""
    now, on_their_way, lowest = start, [], math.inf
    while now < start + seconds:
        now += pacing.wait(now)
        count = pacing.max_request(now)
        refused = round(count * max(0.0, 1 - takes / pacing.rate))
        pacing.sent(count, now)
        on_their_way.append((now, count, refused))
        while on_their_way and on_their_way[0][0] + latency <= now:
            at, size, throttled = on_their_way.pop(0)
            pacing.answered(size, throttled, 0, at, now)
        lowest = min(lowest, pacing.rate)
    return lowest


@pytest.mark.parametrize("latency", [0.05, 2.0])
def test_the_rate_never_falls_below_what_is_accepted(latency: float) -> None:
    """However many refusals come, and however late they come, of a rate that was twenty times as high."""
    pacing = PacingRate(10_000.0, jitter=lambda: 0.5)
    pacing._missed = 0.0  # slow start, which ends in a cut, is over
    lowest = paced(pacing, 0.0, 20.0, takes=500.0, latency=latency)

    assert lowest > 0.95 * 500
    assert pacing.rate == pytest.approx(500, rel=0.1)


def test_a_new_task_grows_before_it_is_answered() -> None:
    """With answers after 2 s it finds the limit within seconds; what may be in flight limits it."""
    free, limited = (PacingRate(1000.0, max_entries=most, jitter=lambda: 0.5) for most in (math.inf, 5000.0))
    paced(free, 0.0, 1.8, takes=math.inf, latency=2.0)
    paced(limited, 0.0, 3.8, takes=math.inf, latency=2.0)

    assert 5000.0 < free.rate < 20_000.0
    assert 1500.0 < limited.rate < 3500.0


def test_a_short_silence_lets_the_rate_grow_a_little_until_more_is_answered() -> None:
    """It may be chance. After three steps the rate may be four times the one that was answered."""
    for steps, most in [(1.0, 1.5), (5.0, 1 + _MOST_STEPS)]:
        pacing = PacingRate(1000.0, jitter=lambda: 0.5)
        pacing.sent(50, 0.0)
        for _ in range(500):
            pacing._missed, pacing._delayed = _PATIENCE + steps * _STEP, 50
            pacing.answered(50, 0, 0, 0.0, 2.0)

        assert pacing.rate == pytest.approx(most * 1000, rel=0.05)


def test_a_fast_task_hears_of_the_limit_where_answers_are_late() -> None:
    """Its requests are few then: it puts up with more refusals than where answers are quick."""
    shares = []
    for latency in (0.1, 2.0):
        pacing = PacingRate(4000.0, jitter=lambda: 0.5)
        pacing.sent(100, 0.0)
        pacing.answered(100, 0, 0, 0.0, latency)
        shares.append(pacing._share)

    assert shares[0] < 0.006
    assert 0.008 < shares[1] < 0.02


def test_answers_without_refusals_do_not_lower_the_rate() -> None:
    """They were sent at a lower one, before it grew: that says nothing about the new one."""
    pacing = PacingRate(1000.0, jitter=lambda: 0.5)
    pacing.sent(25, 0.0)
    pacing.rate, pacing._missed = 2000.0, 0.0
    pacing.answered(25, 0, 0, 0.0, 2.0)

    assert pacing.rate == 2000.0


def grown_far(latency: float = 2.0) -> tuple[PacingRate, float]:
    """A new task that has sent for as long as an answer takes, and what the time is then."""
    pacing, now = PacingRate(1000.0, jitter=lambda: 0.5), 0.0
    while now < latency:
        pacing.sent(100, now)
        now += pacing.wait(now)
    return pacing, now


def refuse_at_first(pacing: PacingRate, sent_at: float, now: float) -> None:
    """As many requests of a new task are refused as show that it has found its limit."""
    for _ in range(_FIRST_REFUSALS):
        pacing.answered(100, 100, 0, sent_at, now)


def test_one_refusal_does_not_end_the_start() -> None:
    """A request that is refused by chance: the rate is cut, and grows on when the next answers say so."""
    pacing, now, before = PacingRate(1000.0, jitter=lambda: 0.5), 0.0, 0.0
    for number in range(100):
        now += pacing.wait(now)
        count = pacing.max_request(now)
        pacing.sent(count, now)
        phase = number % 30 - 10
        before = pacing.rate if phase == 0 else before
        pacing.answered(count, count if phase == 0 else 0, 0, now, now + 0.01)
        if 0 <= phase < _FIRST_ANSWERS - 1:
            assert pacing.rate < before, "it may be the limit"
        if phase == _FIRST_ANSWERS - 1:
            assert pacing.rate >= before, "it was chance"

    assert pacing.rate > 5000


def test_what_was_sent_before_a_refused_request_does_not_undo_the_cut() -> None:
    """Where the times of answers differ, it is answered later: when it was sent, the rate was lower."""
    pacing, now = grown_far(0.5)
    before = pacing.rate
    pacing.answered(100, 100, 0, 0.2, now)
    for _ in range(2 * _FIRST_ANSWERS):
        pacing.answered(100, 0, 0, 0.1, now)
    assert pacing.rate < 0.8 * before

    refuse_at_first(pacing, 0.25, now)
    for _ in range(2 * _FIRST_ANSWERS):
        pacing.answered(100, 0, 0, 0.3, now)
    assert pacing.rate < 0.8 * before, "it was the limit"


@pytest.mark.parametrize(("refused", "is_limit"), [(100, False), (5, False), (25, True), (99, True)])
@pytest.mark.parametrize("first", [0, 1])
def test_a_request_that_is_refused_in_part_ends_the_start(refused: int, first: int, is_limit: bool) -> None:
    """The allowance was used up in the middle of it: that is no chance, whatever comes next or before."""
    pacing, now = grown_far(0.5)
    before = pacing.rate
    for _ in range(first):
        pacing.answered(100, 100, 0, 0.1, now)
    pacing.answered(100, refused, 0, 0.1, now)
    for _ in range(2 * _FIRST_ANSWERS):
        pacing.answered(100, 0, 0, 0.2, now)

    assert (pacing.rate < 0.8 * before) == is_limit


def test_refusals_in_a_row_end_the_start() -> None:
    pacing, now = grown_far(0.5)
    before = pacing.rate
    refuse_at_first(pacing, 0.1, now)

    assert pacing.rate <= before / 2


def test_after_the_first_refusals_it_pauses_while_more_is_in_flight_than_is_taken() -> None:
    """What is in flight then is refused in any case; what is sent in addition would be too."""
    pacing, now = grown_far()
    refuse_at_first(pacing, 0.0, now)
    assert pacing.wait(now) == pytest.approx(0.25 * 2.0, abs=0.1)

    later = now + pacing.wait(now)
    pacing.sent(100, later)
    pacing.answered(100, 90, 0, 1.0, later)
    assert pacing.wait(later) < 0.3  # once: the rate is not one that has grown far any more


def test_the_pause_is_short_however_late_answers_are() -> None:
    pacing = PacingRate(1000.0, jitter=lambda: 0.5)
    pacing.sent(500, 0.0)
    pacing.answered(500, 1, 0, 0.0, 30.0)

    assert pacing.wait(30.0) <= 1.0


def test_a_new_task_does_not_grow_where_answers_come_and_all_of_them_fail() -> None:
    """A request that failed was answered, too. The rate went from 1,000 to two million in five seconds."""
    pacing, now = PacingRate(1000.0, jitter=lambda: 0.5), 0.0
    while now < 5.0:
        count = pacing.max_request(now)
        pacing.sent(count, now)
        pacing.answered(count, 0, 0, now, now + 0.05, otherwise=count)
        now += max(0.05, pacing.wait(now))

    assert pacing.rate < 2000


def test_requests_that_met_few_others_do_not_count_as_sent_at_a_high_rate() -> None:
    """The times of answers differ by a second, and nothing was sent after a cut: what was sent just before it
    met half as many others, so that half as much was let through as its own pace says."""
    rates = []
    for differs in (0.0, 1.0):
        pacing, now = grown_far()
        for number in range(40):  # the time of answers is known well
            pacing.answered(1, 0, 0, 0.1, now, took=2.0 + differs * (number % 2 - 0.5))
        refuse_at_first(pacing, 0.1, now)
        for _ in range(40):
            pacing.answered(100, 50, 0, now - 0.05, now + 1.0, took=2.0)
        rates.append(pacing.rate)

    assert rates[1] < 0.8 * rates[0]


def test_what_is_in_flight_does_not_hold_up_what_is_sent_at_the_new_rate() -> None:
    """It was sent at a rate that had grown far; that counts until a request is answered that came later."""
    pacing = PacingRate(1000.0, jitter=lambda: 0.5)
    pacing.rate = 8000.0
    for n in range(4):
        pacing.sent(200, 0.1 * n)
    for _ in range(_FIRST_REFUSALS):
        pacing.answered(200, 100, 0, 0.0, 2.0)
    assert pacing.rate <= 4000.0
    assert pacing.in_flight > 2 * 8000 * 2.0

    pacing.sent(100, 2.2)
    pacing.answered(100, 50, 0, 2.2, 4.2)
    assert pacing.in_flight < 2 * 8000 * 2.0


def accept(pacing: PacingRate, sent_at: float, now: float) -> bool:
    """Requests are accepted that were sent then; whether they raise the rate."""
    before, usual, differs = pacing.rate, pacing._latency or 0.0, pacing._deviation
    for number in range(30):
        pacing.answered(100, 0, 0, sent_at, now, took=usual + differs * (number % 2 * 2 - 1))
    return pacing.rate > 1.2 * before


@pytest.mark.parametrize("differs", [0.0, 0.4])
@pytest.mark.parametrize(
    ("sent_at", "counts"),
    [(0.3, False), (0.7, False), (0.9, None), (1.2, True), (2.2, False), (2.6, False)],
)
def test_what_had_tokens_left_over_does_not_raise_the_rate_again(
    sent_at: float, counts: bool | None, differs: float
) -> None:
    """Those are tokens from before the limit was met, at 0.6, by answers that take more or less time; and
    from the pause after the cut, at 2."""
    pacing, now = grown_far()
    refuse_at_first(pacing, 0.6, now)
    pacing._deviation = differs
    while now < sent_at:
        pacing.sent(100, now + pacing.wait(now))
        now += max(0.01, pacing.wait(now))

    assert accept(pacing, sent_at, now) == (not differs if counts is None else counts)


def test_the_limit_was_met_when_the_first_request_was_refused() -> None:
    """Others are refused later for the same growth, and may cut the rate once more."""
    pacing, now = grown_far()
    refuse_at_first(pacing, 0.6, now)
    pacing._missed = _PATIENCE + _STEP * 2 * _MOST_STEPS
    pacing.answered(100, 90, 0, 1.5, now, took=2.0)
    assert accept(pacing, 1.2, now)

    pacing, now = grown_far()
    pacing._limit_met_at, pacing._cut_at = -20.0, -19.0
    refuse_at_first(pacing, 0.6, now)
    assert not accept(pacing, 0.3, now), "it is another limit"


def test_past_the_limit_requests_that_are_accepted_count_as_those_that_are_refused() -> None:
    """A request that comes a little after the one before finds no tokens, and another one finds enough: were
    only those counted that are refused, the rate would fall far below what is let through."""
    pacing, now = grown_far()
    refuse_at_first(pacing, 0.1, now)
    sent = pacing._sent.sent_at(1.0)
    assert sent is not None
    for number in range(100):
        pacing.answered(100, 0 if number % 2 else 100, 0, 1.0, now, took=now - 0.1)

    assert pacing.rate == pytest.approx(sent.pace / 2, rel=0.2)


def test_only_the_first_refusal_of_a_new_task_halves_its_rate() -> None:
    """So it is if refusals came whatever the rate was, before it began anew."""
    pacing, now = grown_far()
    pacing._noncongestive._in_dips.add(6.0, 100.0, 0.0, 60.0)
    assert pacing._noncongestive.matters
    before = pacing.rate
    for number in range(5):
        pacing.answered(100, 40, 0, 1.8 + 0.01 * number, now, took=2.0)

    assert pacing.rate > before / 4


def test_fast_and_slow_tasks_meet() -> None:
    """Two that see the same refusals, and send 300 and 900 a second, are nearly alike after a minute.

    The fast one has to find out first that its refusals are load.
    """
    pair = [PacingRate(300.0, jitter=lambda: 0.5), PacingRate(900.0, jitter=lambda: 0.5)]
    sent = [0.0, 0.0]
    for pacing in pair:
        pacing._missed = 0.0  # slow start is over
    for step in range(60_000):
        now = step / 1000
        refused = max(0.0, 1 - 1200.0 / sum(pacing.rate * pacing._depth_at(now) for pacing in pair))
        for n, pacing in enumerate(pair):
            if pacing.wait(now) == 0.0:
                count = pacing.max_request(now)
                pacing.sent(count, now)
                sent[n] += refused * count
                throttled = int(sent[n])
                sent[n] -= throttled
                pacing.answered(count, throttled, 0, now, now)

    assert max(p.rate for p in pair) < 1.7 * min(p.rate for p in pair)


def failing(pacing: PacingRate, seconds: float, *, part: float, takes: float = math.inf) -> float:
    """Sends to a service that fails a part of the entries without a reason; the lowest rate."""
    draw = random.Random(5).random
    now, lowest = 0.0, math.inf
    while now < seconds:
        now += pacing.wait(now)
        count = pacing.max_request(now)
        sent = pacing.rate * pacing._untold.depth(now, 0.001, pacing.rate)
        over = max(0.0, 1 - takes / sent)
        pacing.sent(count, now)
        pacing.answered(count, 0, sum(draw() < part or draw() < over for _ in range(count)), now, now + 0.001)
        lowest = min(lowest, pacing.rate)
    return lowest


@pytest.mark.parametrize("part", [0.05, 0.5])
def test_a_share_that_does_not_depend_on_the_pace_is_no_load(part: float) -> None:
    """Learnt in dips, in which the pace stays; then it grows."""
    pacing = PacingRate(1000.0, jitter=lambda: 0.5)
    lowest = failing(pacing, 20.0, part=part, takes=8000.0)

    assert lowest >= 1000
    assert pacing.rate == pytest.approx(8000, rel=0.25)


def test_a_share_that_depends_on_the_pace_is_load() -> None:
    """Refusals without a reason slow the sender down if a dip has fewer."""
    pacing = PacingRate(4000.0, jitter=lambda: 0.5)
    failing(pacing, 20.0, part=0.0, takes=1000.0)

    assert pacing.rate == pytest.approx(1000, rel=0.15)


def test_the_pace_of_every_request_in_flight_is_remembered() -> None:
    """Or refusals in a dip would count as those of another pace."""
    pacing = PacingRate(1000.0, max_requests=400, jitter=lambda: 0.5)
    for n in range(1200):
        pacing.rate = 1000.0 + n
        pacing.sent(1, n / 100)

    sent = pacing._sent.sent_at(0.0)
    assert sent is not None
    assert (sent.at, sent.pace, sent.depth) == (0.0, 1000.0, 1.0)


def test_a_few_answers_that_are_minutes_late_change_little() -> None:
    """Dips and requests would take as long as they did."""
    pacing = PacingRate(1000.0, jitter=lambda: 0.5)
    for n in range(100):
        pacing.sent(25, 0.025 * n)
        pacing.answered(25, 0, 0, 0.025 * n, 0.025 * n + 0.05)
    for _ in range(3):
        pacing.answered(25, 0, 0, 2.0, 300.0)

    assert pacing._expected_latency < 1.0


def test_few_requests_in_flight_are_large_ones() -> None:
    """With eight in flight and answers after half a second, the rate can still be reached."""
    pacing = PacingRate(1000.0, max_requests=8, jitter=lambda: 0.5)
    pacing.sent(25, 0.0)
    pacing.answered(25, 0, 0, 0.0, 0.5)

    assert 8 * pacing.max_request(0.5) / 0.5 > pacing.rate


def test_a_rate_that_does_not_delay_requests_does_not_grow() -> None:
    """There was nothing to send: that all is accepted says nothing."""
    pacing = PacingRate(1000.0, jitter=lambda: 0.5)
    for n in range(20):
        pacing.sent(100, float(n))
        pacing.answered(100, 0, 0, float(n), n + 0.05)

    assert pacing.rate < 2500


def test_the_bucket_fills_no_higher_than_its_burst() -> None:
    """However long nothing is sent."""
    now = [0.0]
    bucket = TokenBucketRateLimitingStrategy(rate=10.0, burst=5, clock=lambda: now[0])
    assert not bucket.should_block(RequestInfo(5))
    bucket.register_in_flight_request(RequestInfo(5))
    assert bucket.delay(RequestInfo(2)) == pytest.approx(0.2)
    now[0] = 0.2
    assert bucket.delay(RequestInfo(2)) == 0.0
    assert bucket.should_block(RequestInfo(3))
    now[0] = 1000.0
    assert not bucket.should_block(RequestInfo(5))
    bucket.register_in_flight_request(RequestInfo(5))
    assert bucket.should_block(RequestInfo(1))
    bucket.register_completed_request(ResultInfo(5, 5))
    bucket.forget_in_flight()
    assert bucket.should_block(RequestInfo(1))


@pytest.mark.parametrize(("rate", "burst"), [(0.0, 1), (-1.0, 1), (float("nan"), 1), (1.0, 0)])
def test_a_bucket_that_would_block_for_good_is_refused(rate: float, burst: int) -> None:
    """Rate and burst are positive."""
    with pytest.raises(ValueError, match="must be positive"):
        TokenBucketRateLimitingStrategy(rate=rate, burst=burst)
