"""The agent: the process that keeps subscriptions open between batches, or polls instead.

An agent ends when its link closes. On the driver host the link is a socket pair with the planning process;
on a worker host it is a connection to the agent on the driver host.

When a query is stopped, the planning process is killed too fast to deregister consumers. So it writes a byte
into a pipe, and the agent deregisters the query's consumers. If the link closes without that byte, the
planning process has crashed: the query will restart, and needs its consumers. Then the agent only deregisters
those that the offset log does not name yet, because the next run could not recognise them as its own.
`termination` describes the effect of signals.

Over its link an agent also notices that the other end is silent (`sluice.kinesis.shared.link`). If the
silence lasts half a minute, an agent on a worker host ends. The agent on the driver host does not, because
the planning process may freeze, and stop the query after that.

Run as ``python -m sluice.kinesis.agent <link> <stop> <planner>`` with two open file descriptors and a
process id, which reads its set-up from the link, or without arguments, which reads its set-up from standard
input.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from sluice.aws.names.arns import consumer_path
from sluice.channels.channel import Channel, connect
from sluice.channels.tls import Certificate, load_certificate, make_certificate
from sluice.errors import SluiceError
from sluice.kinesis.agent.poller import Poller, PollerSettings, page_log
from sluice.kinesis.agent.range_server import RangeServer
from sluice.kinesis.agent.shard_buffer import RangeUnavailable, ShardBuffer
from sluice.kinesis.agent.subscription_manager import (
    EventSource,
    ManagerSettings,
    OpenSource,
    SubscriptionManager,
)
from sluice.kinesis.agent.termination import Termination
from sluice.kinesis.agent.worker_agents import WorkerAgents
from sluice.kinesis.consumers.registrar import ConsumerRegistrar
from sluice.kinesis.log.client import KinesisLog
from sluice.kinesis.options.agent import AGENT_ADDRESS, AGENT_BIND_ADDRESS, AGENT_PORTS
from sluice.kinesis.shared.launch import AgentSetup, WorkerAgentSetup
from sluice.kinesis.shared.link import GIVEN_UP_AFTER, Link
from sluice.kinesis.shared.protocol import (
    TAKEN_OVER,
    Acknowledge,
    BufferHeld,
    CallsCounted,
    ConsumersChanged,
    FromAgent,
    JoinHub,
    Listening,
    RangesAsked,
    ReadRange,
    Server,
    StartFailed,
    Subscribe,
    SubscriptionEnded,
    ToAgent,
    Unsubscribe,
    decode_to_agent,
    encode,
)
from sluice.kinesis.subscriptions.subscriber import Subscriber, open_subscriber
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.read_figures import ReadFigures
from sluice.source.model.splits import SplitId

__all__ = ["Agent", "main"]

_log = logging.getLogger(__name__)

_CUT_POINTS_WITH_LIMITS: Final = 1_000
"""The most cut points of one event if a query has limits, so that a batch may end inside the event."""
_CONNECT_TIMEOUT: Final = 10.0
"""Seconds."""
_MOST_DESCRIPTORS: Final = 65_536
"""The most file descriptors that an agent requests from the system."""


class Agent:
    """Handles the messages on its link until the link closes.

    Args:
        assigns_to_workers: it has no subscriptions itself, but assigns shards to agents on worker hosts.

    Attributes:
        place: where tasks connect to it.
    """

    def __init__(self, setup: AgentSetup, link: Link, *, assigns_to_workers: bool) -> None:
        self._config = setup.config
        self._link = link
        self._consumers = ConsumersChanged({}, ())
        self._contested: set[str] = set()
        self._figures = ReadFigures()
        workers = WorkerAgents(self.report) if assigns_to_workers else None
        join = None if workers is None else workers.join
        self.server = RangeServer(
            setup.place,
            setup.secret,
            self._read,
            join,
            ports=setup.agent.ports,
            certificate=_certificate_of(setup),
        )
        address = self.server.address
        self.place = Server(address.host, address.port, address.start, address.fingerprint)
        self._shards = workers or self._subscription_manager(setup)
        self._buffer_bytes = setup.agent.buffer_bytes
        self._held_reported: int | None = None
        self._asked = 0
        self._asked_lock = threading.Lock()

    def _subscription_manager(self, setup: AgentSetup) -> SubscriptionManager:
        log = KinesisLog.of(setup.config)
        settings = ManagerSettings(
            buffer_bytes=setup.agent.buffer_bytes,
            cut_points=1 if setup.config.settings.limits.is_none else _CUT_POINTS_WITH_LIMITS,
            server=self.place,
        )
        manager = SubscriptionManager(
            self._open_source if setup.config.fan_out else self._opener_of_pollers(lambda: manager.count),
            self.report,
            settings,
            now=log.server_time,
            retention=lambda stream: log.describe(stream).retention,
        )
        return manager

    def report(self, message: FromAgent | JoinHub) -> None:
        """Sends a message to the other end of the link. May be called from any thread, and never blocks."""
        if isinstance(message, SubscriptionEnded) and message.code == TAKEN_OVER:
            self._contested |= {message.consumer}
        self._link.send(encode(message))

    def report_figures(self) -> None:
        """Reports what has changed. Called once a second."""
        with self._asked_lock:
            count, self._asked = self._asked, 0
        if count:
            self.report(RangesAsked(count))
        for split, counted in self._figures.take().items():
            self.report(CallsCounted(split, counted.refused, counted.retries))
        if isinstance(self._shards, SubscriptionManager) and self._shards.held != self._held_reported:
            self._held_reported = held = self._shards.held
            self.report(BufferHeld(self.place.host, held, self._buffer_bytes))

    def serve(self) -> None:
        """Handles messages until the link closes. Then ends all subscriptions, and returns."""
        try:
            while True:
                self._handle_message(decode_to_agent(self._link.receive()))
        except (EOFError, OSError):
            pass
        finally:
            self.server.close()
            self._shards.close()

    @property
    def registered(self) -> Sequence[str]:
        """ARNs of the consumers to deregister when the query is stopped."""
        return self._consumers.registered

    @property
    def unlogged(self) -> Sequence[str]:
        """The consumers in `registered` that the next run would mistake for another reader's."""
        return [arn for arn in self._consumers.registered if arn not in self._consumers.logged]

    def deregister(self, arns: Iterable[str]) -> None:
        """Deregisters consumers, except those that other readers use."""
        registrar = ConsumerRegistrar(self._config, is_endpoint_known=True)
        for arn in arns:
            stream = consumer_path(arn).partition("/")[0]
            if arn in self._contested:
                _log.warning("%s: consumer %s stays registered: another reader uses it", stream, arn)
                continue
            try:
                registrar.deregister(arn)
                _log.info("%s: deregistered consumer %s, since the query has ended", stream, arn)
            except SluiceError as error:
                _log.warning("%s: consumer %s stays registered: %s", stream, arn, error)

    def _handle_message(self, message: ToAgent) -> None:
        match message:
            case Subscribe():
                self._shards.subscribe(message)
            case Acknowledge():
                self._shards.acknowledge(message.split, int(message.number))
            case Unsubscribe():
                self._shards.unsubscribe(message.split)
            case ConsumersChanged():
                self._consumers = message
                if isinstance(self._shards, WorkerAgents):
                    self._shards.use_consumers(message)

    def _read(self, request: ReadRange) -> Iterator[bytes | memoryview]:
        with self._asked_lock:
            self._asked += 1
        if isinstance(self._shards, WorkerAgents):
            raise RangeUnavailable("the agent on the driver host has no subscriptions; those on workers have")
        return self._shards.read(request)

    def _open_source(self, split: SplitId, start: IteratorStart, buffer: ShardBuffer) -> Subscriber:
        return open_subscriber(self._config, lambda: self._consumers.arns[split.stream], split, start, buffer)

    def _opener_of_pollers(self, shards: Callable[[], int]) -> OpenSource:
        log, settings = page_log(self._config), PollerSettings.of(self._config)

        def open_poller(split: SplitId, start: IteratorStart, buffer: ShardBuffer) -> EventSource:
            return Poller(log, split, start, buffer, settings, shards=shards, figures=self._figures)

        return open_poller


def _certificate_of(setup: AgentSetup) -> Certificate | None:
    """The agent's certificate; None: its connections are not encrypted.

    Raises:
        SluiceError: it cannot be made or read.
    """
    if not setup.is_encrypted:
        return None
    file = setup.agent.certificate
    try:
        return make_certificate() if file is None else load_certificate(file)
    except (ImportError, OSError) as error:
        source = "" if file is None else f"{file}: "
        raise SluiceError(f"the agent has no certificate: {source}{error}") from error


def main(arguments: list[str]) -> None:
    """Runs an agent until its link closes.

    Args:
        arguments: two file descriptors, of the link and of the stop pipe, and the process id of the planning
            process, for an agent on the driver host; none for an agent on a worker host.
    """
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("sluice").setLevel(logging.INFO)
    _allow_many_descriptors()
    if arguments:
        _run_beside_driver(*map(int, arguments))
    else:
        _run_on_worker()


def _allow_many_descriptors() -> None:
    """Raises the usual limit of 1,024: each subscription takes one, and each connection of a task."""
    import resource  # noqa: PLC0415 - Windows has none

    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, _MOST_DESCRIPTORS)
    if limit != resource.RLIM_INFINITY and limit < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _run_beside_driver(link_descriptor: int, stop_descriptor: int, planner: int) -> None:
    termination = Termination(stop_descriptor, is_planner_alive=lambda: os.getppid() == planner)
    termination.handle_signals()
    channel = Channel(socket.socket(fileno=link_descriptor))
    setup: AgentSetup = pickle.loads(channel.receive())  # noqa: S301 - over a socket pair with our own parent
    link = Link(channel)
    agent = _start(setup, link)

    def check() -> None:
        agent.report_figures()
        if termination.is_due:
            link.close()

    link.start(check)
    agent.report(Listening(agent.place))
    agent.serve()
    if termination.wait_for_reason():
        agent.deregister(agent.registered)
    elif agent.unlogged and termination.wait_for_crash():
        agent.deregister(agent.unlogged)


def _start(setup: AgentSetup, link: Link) -> Agent:
    """Makes the agent on the driver host.

    Raises:
        SystemExit: it can't start. The planner has received the reason: a traceback here would be far from
            its log line.
    """
    try:
        return Agent(setup, link, assigns_to_workers=setup.agent.on_workers)
    except (OSError, SluiceError) as error:
        link.send(encode(StartFailed(_why_not_started(setup, error))))
        sys.exit(1)


def _why_not_started(setup: AgentSetup, error: OSError | SluiceError) -> str:
    if isinstance(error, SluiceError):
        return str(error)
    return (
        f"it can't listen at {setup.place.bind or 'any address'}: {error} (options '{AGENT_ADDRESS.key}', "
        f"'{AGENT_BIND_ADDRESS.key}' and '{AGENT_PORTS.key}' say where)"
    )


def _run_on_worker() -> None:
    setup: WorkerAgentSetup = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the task that has started us
    try:
        channel = connect(setup.hub, timeout=_CONNECT_TIMEOUT, source=setup.place.bind)
    except (OSError, EOFError, SluiceError) as error:
        _log.warning(
            "this host has no agent, and its tasks read without one: cannot connect to the agent on the "
            "driver host at %s: %s",
            setup.hub,
            error,
        )
        return
    link = Link(channel)
    try:
        agent = Agent(setup, link, assigns_to_workers=False)
    except (OSError, SluiceError) as error:
        _log.warning(
            "this host gets no agent, and its tasks read without one: %s", _why_not_started(setup, error)
        )
        return
    agent.report(JoinHub(agent.place))

    def check() -> None:
        agent.report_figures()
        if link.unanswered >= GIVEN_UP_AFTER:
            _log.warning("the agent on the driver host does not answer: the agent on this host ends")
            link.close()

    link.start(check)
    agent.serve()
