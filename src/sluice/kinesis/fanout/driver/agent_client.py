"""The planning process' end of its fan-out agent: starts it, tells it what to watch, knows what has come.

Implements `sluice.source.subscriptions.Subscriptions`. All it knows may be lost with the agent; then the
planner probes, and a new agent is asked for what is wanted by then.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sluice.errors import ServiceError
from sluice.kinesis.fanout.channel import Address
from sluice.kinesis.fanout.coverage import Coverage, needed
from sluice.kinesis.fanout.driver.agent_process import AgentProcess, RunningAgent
from sluice.kinesis.fanout.launch import AgentSetup
from sluice.kinesis.fanout.protocol import (
    INTEGRITY_PROBLEM,
    TAKEN_OVER,
    Acknowledge,
    Consumers,
    EventReceived,
    FromAgent,
    Listening,
    Subscribe,
    SubscriptionEnded,
    ToAgent,
    Unsubscribe,
    WorkerHosts,
    decode_from_agent,
    encode,
)
from sluice.kinesis.options import SourceConfig
from sluice.source.cursor import iterator_start
from sluice.source.cut_points import CutPoint
from sluice.source.offsets import After, Position
from sluice.source.splits import SplitId
from sluice.source.subscriptions import SubscriptionProgress

__all__ = ["AgentClient"]

_log = logging.getLogger(__name__)

_RESTART_PAUSE: Final = 2.0
"""Seconds from an agent's start to that of the next one, if it dies."""
_WATCH_PAUSE: Final = 10.0
"""Seconds from a watch that the service ended to the next one of that shard."""
_TAKEOVER_RETRY: Final = 300.0
"""The same where another reader has taken the shard, and taking it back at once would start a fight; and
where records are about to expire, which they are for a while."""
_LAG: Final = 10.0
"""Seconds that a subscription may bring nothing but what batches had from elsewhere."""
_SECRET_BYTES: Final = 32
_MISSING: Final = "ResourceNotFoundException"
_NOT_FOR_GOOD: Final = frozenset(("", _MISSING, INTEGRITY_PROBLEM))


@dataclass(eq=False)
class _WatchedShard:
    """One watch, and what has come of it."""

    generation: int
    coverage: Coverage
    trimmed: int = -1
    cut_points: list[CutPoint] = field(default_factory=list)
    event: EventReceived | None = None
    gone: SubscriptionEnded | None = None
    retry_at: float = 0.0
    # With no news the planner asks a hundred times a second: what it asked last, and was told.
    followed: Position | None = None
    lags_since: float | None = None
    told: SubscriptionProgress | None = None
    told_of: tuple[int, Position] | None = None
    version: int = 0


class AgentClient:
    """One agent, and another when it has died. Calls come from the planning thread.

    Args:
        renew: called, in a thread of its own, with a stream whose consumer seems to be gone; gives the
            ARN of the one to use from now on.
        launch: starts an agent.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        config: SourceConfig,
        arns: Mapping[str, str],
        *,
        renew: Callable[[str], str],
        launch: Callable[[AgentSetup], RunningAgent] = AgentProcess,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert config.fan_out is not None  # noqa: S101 - there is no link without
        self._config = config
        self._fan_out = config.fan_out
        self._secret = os.urandom(_SECRET_BYTES)
        self._renew = renew
        self._launch = launch
        self._clock = clock
        self._arns = dict(arns)
        self._registered: frozenset[str] = frozenset()
        self._renewing: set[str] = set()
        self._lock = threading.RLock()
        self._agent: RunningAgent | None = None
        self._address: Address | None = None
        self._listens = threading.Event()
        self._hosts: frozenset[str] = frozenset()
        self._next_start = 0.0
        self._generation = 0
        self._version = 0
        self._watched: dict[SplitId, _WatchedShard] = {}

    @property
    def hub(self) -> Address | None:
        """Where the agent beside the driver listens, once it does."""
        return self._address

    def agents(self, splits: Sequence[SplitId]) -> dict[SplitId, Address]:
        """Where tasks get what has been pushed of each split, as far as known."""
        with self._lock:
            found = {}
            for split in splits:
                watched = self._watched.get(split)
                if watched is None or watched.gone is not None or self._address is None:
                    continue
                if watched.event is not None:
                    found[split] = Address(*watched.event.server, self._secret)
                elif self._fan_out.agent == "driver":
                    found[split] = self._address
            return found

    @property
    def hosts(self) -> frozenset[str]:
        """Worker hosts that have an agent."""
        return self._hosts

    def use(self, registered: frozenset[str]) -> None:
        """Says which ARNs are of consumers that this query registered: to be deregistered at its stop."""
        with self._lock:
            if registered != self._registered:
                self._registered = registered
                self._send_consumers()

    def start(self) -> None:
        """Starts the agent, unless one runs or has been started a moment ago."""
        with self._lock:
            if self._agent is None and self._clock() >= self._next_start:
                self._next_start = self._clock() + _RESTART_PAUSE
                self._start()

    def wait_for_agent(self, seconds: float) -> None:
        """Returns when an agent listens, or after so long."""
        self.start()
        self._listens.wait(seconds)

    def follow(self, positions: Mapping[SplitId, Position]) -> None:
        """See `Subscriptions.follow`.

        Raises:
            ServiceError: a subscription has failed for good, and polling is forbidden.
        """
        with self._lock:
            self.start()
            if self._agent is None:
                return  # the next one is asked as soon as it runs
            for split in [split for split in self._watched if split not in positions]:
                del self._watched[split]
                self._send(Unsubscribe(split))
            for split, position in positions.items():
                self._follow(split, position)

    def progress(self, split: SplitId, position: Position) -> SubscriptionProgress | None:
        """See `Subscriptions.progress`."""
        with self._lock:
            watched = self._watched.get(split)
            if watched is None or watched.event is None or watched.gone is not None:
                return None
            if watched.told is None or watched.told_of != (watched.version, position):
                watched.told_of = watched.version, position
                watched.told = self._progress_behind(watched, watched.event.progress, position)
            return watched.told

    def _progress_behind(
        self, watched: _WatchedShard, last: SubscriptionProgress, position: Position
    ) -> SubscriptionProgress | None:
        is_next = watched.followed == position and not watched.coverage.has_begun
        if not (is_next or watched.coverage.holds(iterator_start(position), needed(position))):
            return None
        reached = _reached(position)
        cut_points = watched.cut_points
        if cut_points and cut_points[0].sequence <= reached:
            cut_points = [point for point in cut_points if point.sequence > reached]
        return replace(last, cut_points=tuple(cut_points), version=watched.version)

    def close(self) -> None:
        """Lets the agent end as after a crash: consumers stay."""
        with self._lock:
            agent, self._agent = self._agent, None
        if agent is not None:
            agent.close()

    def tell_stop(self) -> None:
        """Lets the agent deregister what the query registered, once this process has ended.

        Called in a signal handler: takes no lock and does next to nothing.
        """
        if self._fan_out.deregister and self._agent is not None:
            self._agent.tell_stop()

    # --- watching -------------------------------------------------------------------------------------

    def _follow(self, split: SplitId, position: Position) -> None:
        watched = self._watched.get(split)
        if watched is not None and watched.gone is None and self._lags(watched, position):
            _log.info("%s: subscribing again, from where batches are by now", split)
            self._watch(split, position)
            return
        if watched is not None and watched.gone is None and watched.followed == position:
            return
        start, need = iterator_start(position), needed(position)
        if watched is not None and watched.gone is not None:
            self._check_forbidden(watched.gone)
            if self._clock() < watched.retry_at:
                return
        elif watched is not None and (
            watched.coverage.holds(start, need) or _is_on(watched.followed, position)
        ):
            self._trim(split, watched, position, need)
            watched.followed = position
            return
        self._watch(split, position)

    def _next_version(self) -> int:
        self._version += 1
        return self._version

    def _watch(self, split: SplitId, position: Position) -> None:
        start = iterator_start(position)
        self._generation += 1
        self._watched[split] = _WatchedShard(
            self._generation, Coverage(start), followed=position, version=self._next_version()
        )
        self._send(Subscribe(split, self._generation, start))

    def _lags(self, watched: _WatchedShard, position: Position) -> bool:
        """Whether batches have long been ahead of the subscription, which then pushes what is done."""
        event = watched.event
        is_behind = event is not None and event.progress.millis_behind > 0 and watched.followed == position
        if not is_behind or any(point.sequence > _reached(position) for point in watched.cut_points[-1:]):
            watched.lags_since = None
            return False
        now = self._clock()
        if watched.lags_since is None:
            watched.lags_since = now
        return now - watched.lags_since >= _LAG

    def _trim(self, split: SplitId, watched: _WatchedShard, position: Position, need: int | None) -> None:
        if need is None or need <= watched.trimmed:
            return
        watched.trimmed = need
        watched.coverage.drop(need)
        reached = _reached(position)
        watched.cut_points = [point for point in watched.cut_points if point.sequence > reached]
        watched.version = self._next_version()
        self._send(Acknowledge(split, str(need)))

    def _check_forbidden(self, gone: SubscriptionEnded) -> None:
        if gone.code not in _NOT_FOR_GOOD and not self._fan_out.may_poll:
            raise ServiceError(
                f"{gone.split} can't be read by fan-out, and option 'subscribeToShardFallback' forbids "
                f"polling: {gone.why}",
                operation="SubscribeToShard",
                target=str(gone.split),
                code=gone.code,
                retryable=True,
            )

    # --- what the agent says --------------------------------------------------------------------------

    def _hear(self, message: FromAgent) -> None:
        with self._lock:
            if isinstance(message, Listening):
                self._address = Address(message.host, message.port, self._secret)
                self._listens.set()
                return
            if isinstance(message, WorkerHosts):
                self._hosts = frozenset(message.hosts)
                return
            watched = self._watched.get(message.split)
            if watched is None or watched.generation != message.generation:
                return
            if isinstance(message, SubscriptionEnded):
                self._note_gone(watched, message)
                return
            if message.first is not None:
                watched.coverage.begin(message.first)
            watched.event = message
            watched.version = self._next_version()
            watched.cut_points.extend(message.progress.cut_points)

    def _note_gone(self, watched: _WatchedShard, gone: SubscriptionEnded) -> None:
        watched.gone = gone
        watched.cut_points = []
        # What did not end by the service's doing may be had again at once.
        pause = (
            _TAKEOVER_RETRY
            if gone.code in (TAKEN_OVER, INTEGRITY_PROBLEM)
            else _WATCH_PAUSE
            if gone.code
            else 0.0
        )
        watched.retry_at = self._clock() + pause
        log = _log.warning if gone.code else _log.info
        log("%s: no fan-out for now, it is read by polling: %s", gone.split, gone.why)
        if gone.code == TAKEN_OVER:
            _log.warning(
                "%s: another reader uses our consumer, which will stay registered", gone.split.stream
            )
        stream = gone.split.stream
        if gone.code == _MISSING and stream not in self._renewing:
            self._renewing.add(stream)
            threading.Thread(target=self._renew_consumer, args=(stream,), daemon=True).start()

    def _renew_consumer(self, stream: str) -> None:
        try:
            arn = self._renew(stream)
        except Exception as error:  # noqa: BLE001 - polling goes on, and the next watch that fails asks again
            _log.warning("the consumer of %s can't be had: %s", stream, error)
            return
        finally:
            with self._lock:
                self._renewing.discard(stream)
        with self._lock:
            if arn != self._arns[stream]:
                self._arns[stream] = arn
                self._send_consumers()
                for split, watched in self._watched.items():
                    if split.stream == stream:
                        watched.retry_at = 0.0

    # --- the process ----------------------------------------------------------------------------------

    def _start(self) -> None:
        setup = AgentSetup(self._config, self._fan_out.agent_address, self._secret)
        self._agent = agent = self._launch(setup)
        _log.info("started a fan-out agent")
        self._send_consumers()
        threading.Thread(target=self._listen, args=(agent,), name="sluice-fan-out-link", daemon=True).start()

    def _listen(self, agent: RunningAgent) -> None:
        try:
            while True:
                self._hear(decode_from_agent(agent.channel.receive()))
        except (EOFError, OSError):
            pass
        with self._lock:
            if agent is not self._agent:
                return  # we have closed it
            self._agent = self._address = None
            self._listens.clear()
            self._watched = {}
            self._hosts = frozenset()
        agent.close()
        _log.warning("the fan-out agent is gone (exit code %s); polling until there is another", agent.wait())

    def _send(self, message: ToAgent) -> None:
        if self._agent is None:
            return
        with contextlib.suppress(OSError):  # it is gone, which `_listen` notices
            self._agent.channel.send(encode(message))

    def _send_consumers(self) -> None:
        self._send(Consumers(dict(self._arns), tuple(sorted(self._registered))))


def _is_on(followed: Position | None, position: Position) -> bool:
    """Whether `position` lies behind one that is covered: batches only ever go on.

    It need not be told from the records: looks may have come there before the subscription gave any.
    """
    need = needed(position)
    if followed is None or need is None:
        return False
    done = needed(followed)
    return done is None or need >= done


def _reached(position: Position) -> int:
    """The highest number that no mark needs to be remembered for."""
    return position.sequence if isinstance(position, After) else -1
