"""The planning process' end of its link to the agent.

It starts the agent, tells it which shards to read, and keeps its reports. If the agent is lost or silent, the
planner probes. The next agent gets the shards that the query reads by then. Only `wait_for_agent` waits for
an agent.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sluice.channels.channel import Address
from sluice.kinesis.consumers.ownership import QueryConsumers
from sluice.kinesis.options.agent import AGENT_ADDRESS, AGENT_PORTS
from sluice.kinesis.planner.agent_process import AgentProcess
from sluice.kinesis.planner.agent_supervisor import AgentSupervisor, SupervisedAgent
from sluice.kinesis.planner.shard_subscription import ShardSubscription
from sluice.kinesis.planner.shard_subscriptions import CONSUMER_MISSING, ShardSubscriptions, described
from sluice.kinesis.shared.launch import AgentSetup
from sluice.kinesis.shared.protocol import (
    FAR_BEHIND,
    TAKEN_OVER,
    BufferHeld,
    CallsCounted,
    ConsumersChanged,
    EventReceived,
    FromAgent,
    Listening,
    RangesAsked,
    StartFailed,
    SubscriptionEnded,
    ToAgent,
    WorkerHosts,
    decode_from_agent,
    encode,
)
from sluice.source.model.offsets import Position
from sluice.source.model.read_figures import ReadFigures
from sluice.source.model.splits import SplitId
from sluice.source.state.subscriptions import SubscriptionProgress

__all__ = ["AgentClient"]

_log = logging.getLogger(__name__)

_UNREACHED_FOR: Final = 60.0
"""If no task asks an agent for anything for this many seconds, agents are no longer used."""
_START_INTERVAL: Final = 0.5
"""Seconds between attempts to start an agent while the planner waits for one."""


class AgentClient:
    """The `Subscriptions` of a streaming query: those that its agent keeps open.

    Calls come from the planning thread; a second thread handles messages of the agent, and a third one
    notices when no messages come. No thread waits for the agent while it holds the lock.

    Args:
        setup: the agents' first message. consumers: the consumers to subscribe with, and to deregister when
            the query is stopped; None if the agent polls.
        figures: count the agent's reads that were throttled or repeated.
        launch: starts an agent. Raises OSError.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        setup: AgentSetup,
        consumers: QueryConsumers | None = None,
        *,
        figures: ReadFigures | None = None,
        launch: Callable[[AgentSetup], AgentProcess] = AgentProcess,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        fan_out = setup.config.fan_out
        self._on_workers = setup.agent.on_workers
        self._may_poll = fan_out is None or fan_out.may_poll
        self._streams = ", ".join(stream.name for stream in setup.config.streams)
        self._figures = ReadFigures() if figures is None else figures
        self._secret = setup.secret
        self._clock = clock
        self._lock = threading.RLock()
        self._setup = setup
        self._is_closed = False
        self._launch = launch
        self._supervisor = AgentSupervisor(self._streams, lambda: launch(setup), clock)
        self._consumers = consumers
        if consumers is not None:
            consumers.on_change = self._tell_consumers
        self._told: ConsumersChanged | None = None
        self._is_unreached = False
        self._has_assigned = False  # the last batch could ask for a range, and has not yet
        self._unasked_since: float | None = None
        self._address: Address | None = None
        self._listens = threading.Event()
        self._hosts: frozenset[str] = frozenset()
        self._silent_hosts = 0
        self._worker_recoveries = 0
        self._buffers: dict[str, BufferHeld] = {}
        self._subscriptions = ShardSubscriptions(self._send, clock, may_poll=self._may_poll)
        self._version = 0

    @property
    def version(self) -> int:
        """See `Subscriptions.version`."""
        return self._version

    @property
    def hub(self) -> Address | None:
        """Where the agent on the driver host listens; None if it does not, is silent, or is not used."""
        with self._lock:
            return None if self._supervisor.is_silent or self._is_unreached else self._address

    @property
    def hosts(self) -> frozenset[str]:
        """Worker hosts that have an agent."""
        return self._hosts

    def figures(self) -> dict[str, Any]:
        """The agent's state and its buffer, for progress reports.

        ``state`` is ``none`` (no agent runs), ``starting``, ``listening`` or ``silent``. With agents on
        worker hosts, the bytes are those of all of them. A subscription is silent if it has brought nothing
        for 10 s, or if its agent has sent nothing for 5 s; its shard is polled.
        """
        with self._lock:
            if not self._supervisor.is_running:
                state = "none"
            elif self._address is None:
                state = "starting"
            else:
                state = "silent" if self._supervisor.is_silent else "listening"
            subscribed = self._subscriptions.open
            found: dict[str, Any] = {
                "state": state,
                "subscribed": len(subscribed),
                "silentSubscriptions": sum(state == "silent" or shard.is_silent for shard in subscribed),
                "workers": len(self._hosts),
                "silentWorkers": self._silent_hosts,
            }
            if self._buffers and state == "listening":
                found["bufferedBytes"] = sum(each.held for each in self._buffers.values())
                found["bufferSize"] = sum(each.limit for each in self._buffers.values())
            return found

    @property
    def recoveries(self) -> int:
        """How often an agent answered again after a silence, on the driver host or on a worker host."""
        return self._supervisor.recoveries + self._worker_recoveries

    def agents(self, splits: Sequence[SplitId]) -> dict[SplitId, Address]:
        """The agents from which tasks get the records of each subscribed shard. Silent agents and silent
        subscriptions are left out, because a task would wait for them. Called for each batch.
        """
        with self._lock:
            self._check_reached()
            if self._is_unreached:
                return {}
            found = self._agents(splits)
            # Tasks start the agents on worker hosts, but these may fail to reach the hub.
            is_awaited = self._on_workers and not self._hosts and self._address is not None and bool(splits)
            self._has_assigned = bool(found) or is_awaited
            return found

    def _agents(self, splits: Sequence[SplitId]) -> dict[SplitId, Address]:
        if self._address is None or self._supervisor.is_silent:
            return {}
        found = {}
        for split in splits:
            shard = self._subscriptions.shards.get(split)
            if shard is None or shard.ended is not None or (shard.is_silent and not shard.has_new_records):
                continue
            if shard.server is not None:
                found[split] = shard.server.address(self._secret)
            elif not self._on_workers:
                found[split] = self._address
        return found

    def start(self) -> None:
        """Starts the agent, unless one runs or was started a moment ago. A closed client starts none."""
        with self._lock:
            if self._is_closed:
                return
            self.check()
            agent = self._supervisor.start()
            if agent is None:
                return
            self._told = None
            self._tell_consumers()
            threading.Thread(
                target=self._receive, args=(agent,), name="sluice-fan-out-link", daemon=True
            ).start()
            agent.link.start(self.check)

    def check(self) -> None:
        """Notices that the agent has fallen silent, or answers again. Called once a second by its link."""
        with self._lock:
            self._supervisor.check()
            if self._supervisor.is_silent:
                self._listens.clear()
            elif self._address is not None:
                self._listens.set()

    def wait_for_agent(self, seconds: float) -> None:
        """Blocks until an agent listens and is not silent, for at most `seconds`.

        Returns sooner if this is closed.
        """
        end = self._clock() + seconds
        while not self._is_closed:
            self.start()
            if self._listens.is_set() or self._clock() >= end:
                return
            self._listens.wait(_START_INTERVAL)

    def follow(self, positions: Mapping[SplitId, Position]) -> None:
        """See `Subscriptions.follow`.

        Raises:
            ServiceError: the service refuses a subscription for good, and polling is forbidden.
        """
        with self._lock:
            self.start()
            if self._is_unreached or not self._supervisor.is_running or self._supervisor.is_silent:
                return  # the next call tells the next agent, or this one when it answers again
            self._subscriptions.follow(positions)

    def progress(self, split: SplitId, position: Position) -> SubscriptionProgress | None:
        """See `Subscriptions.progress`. There is none while the agent is silent."""
        with self._lock:
            shard = self._subscriptions.shards.get(split)
            return None if shard is None or self._supervisor.is_silent else shard.progress(position)

    def tell_stop(self) -> None:
        """Tells the agent to deregister what the query registered, once this process has ended.

        Called in a signal handler: takes no lock. If the agent has died, and no trigger has started another
        one yet, this starts one only to deregister. A second signal may start a second one, which does no
        harm.
        """
        if self._consumers is None or not self._consumers.going:
            return
        if not (self._is_closed or self._supervisor.tell_stop()):
            with contextlib.suppress(OSError):
                agent = self._launch(self._setup)
                agent.channel.send(encode(_message_of(self._consumers)))
                agent.tell_stop()

    def close(self) -> None:
        """Closes the link, which ends the agent. Consumers stay, unless `tell_stop` was called before."""
        with self._lock:
            self._is_closed = True
            self._supervisor.close()

    # --- agents that no task reaches ------------------------------------------------------------------

    def _check_reached(self) -> None:
        """Ends subscriptions, which cost money, if no task asks for a range. Called for each batch.

        If tasks cannot connect to an agent, they poll, and the planner does not learn of it. So the agent
        reports the requests of tasks. Batches without an agent do not count.
        """
        if not self._has_assigned:
            self._unasked_since = None
            return
        if self._is_unreached or not self._may_poll:
            return
        now = self._clock()
        if self._unasked_since is None:
            self._unasked_since = now  # the first batch that could ask has ended
        if now - self._unasked_since < _UNREACHED_FOR:
            return
        self._is_unreached = True
        self._version += 1
        _log.warning(
            "%s: no task has reached the agent at %s, or asked it for anything, for a minute: everything is "
            "polled until the query is started again. Let workers connect to the driver host at the ports of "
            "option '%s', or name an address that they reach: option '%s'",
            self._streams,
            self._address,
            AGENT_PORTS.key,
            AGENT_ADDRESS.key,
        )
        # Before the consumers are deregistered, which would fail each subscription.
        self._subscriptions.follow({})
        if self._consumers is not None:
            threading.Thread(target=self._consumers.release, daemon=True).start()

    # --- messages of the agent ------------------------------------------------------------------------

    def _receive(self, agent: SupervisedAgent) -> None:
        """The thread of an agent."""
        try:
            while True:
                self._handle_message(decode_from_agent(agent.link.receive()))
        except (EOFError, OSError):
            pass
        except Exception:  # noqa: BLE001 - this thread alone receives from the agent
            _log.exception("the agent is ended: a message of it can't be handled")
        agent.link.close()  # otherwise its thread would ask a dead agent once a second
        with self._lock:
            if not self._supervisor.forget(agent):
                return
            self._address = None
            self._listens.clear()
            self._subscriptions.forget()
            self._version += 1
            self._hosts, self._silent_hosts = frozenset(), 0
            self._buffers = {}
        code = agent.end()
        with self._lock:
            self._supervisor.record_end(agent, code)

    def _handle_message(self, message: FromAgent) -> None:
        with self._lock:
            match message:
                case Listening():
                    self._address = message.server.address(self._secret)
                    self._supervisor.mark_listening()
                    self._listens.set()
                case StartFailed():
                    self._supervisor.mark_failed(message.reason)
                case WorkerHosts():
                    self._worker_recoveries += len(message.silent) < self._silent_hosts
                    self._hosts, self._silent_hosts = frozenset(message.hosts), len(message.silent)
                    self._buffers = {host: self._buffers[host] for host in self._hosts & self._buffers.keys()}
                case BufferHeld():
                    self._buffers[message.host] = message
                case RangesAsked():
                    self._has_assigned = False
                case CallsCounted(split, refused, retries):
                    self._figures.count_call(split, refused=refused, retries=retries)
                case EventReceived() | SubscriptionEnded():
                    shard = self._subscriptions.find(message.split, message.generation)
                    if shard is None:
                        pass  # about an earlier subscription
                    elif isinstance(message, EventReceived):
                        self._version += shard.record_event(message)
                    else:
                        self._handle_end(shard, message)
                        self._version += 1

    def _handle_end(self, shard: ShardSubscription, ended: SubscriptionEnded) -> None:
        consumers, stream, takes_back = self._consumers, ended.split.stream, False
        if consumers is not None and ended.code == TAKEN_OVER:
            takes_back = consumers.contest(stream, ended.consumer)
        retry_after = self._subscriptions.record_end(shard, ended, takes_back=takes_back)
        _log.log(
            logging.INFO if ended.code in ("", FAR_BEHIND) else logging.WARNING,
            "%s: not subscribed; polling from %s on, next attempt to subscribe in %g s: %s"
            if self._consumers
            else "%s: the agent does not read it; planner and tasks do from %s on, next attempt in %g s: %s",
            ended.split,
            described(shard.position),
            retry_after,
            ended.reason,
        )
        if self._is_unreached:
            return  # the consumer is not wanted
        # A consumer is in use until its deletion ends. An existing one stays as it is.
        may_be_missing = ended.code in (CONSUMER_MISSING, TAKEN_OVER)
        if may_be_missing and consumers is not None and consumers.begin_renewal(stream):
            threading.Thread(target=self._renew_consumer, args=(consumers, stream), daemon=True).start()

    # --- consumers ------------------------------------------------------------------------------------

    def _renew_consumer(self, consumers: QueryConsumers, stream: str) -> None:
        if consumers.renew(stream):
            with self._lock:
                self._subscriptions.retry_now(stream)

    def _tell_consumers(self) -> None:
        """Reports a change to the agent. Starts an agent as soon as there is a consumer to deregister."""
        with self._lock:
            if self._consumers is None:
                return
            if self._consumers.going:
                self.start()
            message = _message_of(self._consumers)
            if message != self._told and self._supervisor.is_running:
                self._told = message
                self._send(message)

    def _send(self, message: ToAgent) -> None:
        self._supervisor.send(message)


def _message_of(consumers: QueryConsumers) -> ConsumersChanged:
    going = consumers.going
    return ConsumersChanged(
        dict(consumers.arns), tuple(sorted(going)), tuple(sorted(going & consumers.logged))
    )
