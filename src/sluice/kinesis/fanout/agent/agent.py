"""The fan-out agent: the process that keeps subscriptions open between batches.

It ends when its link closes. Beside the driver the link is a socket that the planning process has
made; told of a stop before the link closes, the agent deregisters what the query registered, which the
planning process is killed too fast to do. On a worker host the link leads to the agent beside the driver.

Run as ``python -m sluice.kinesis.fanout <link> <stop>`` with two open file descriptors, or without any
and the set-up on standard input.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Final

from sluice.errors import SluiceError
from sluice.kinesis.client import KinesisLog
from sluice.kinesis.consumers import ConsumerRegistrar
from sluice.kinesis.fanout.agent.range_server import RangeServer
from sluice.kinesis.fanout.agent.shard_buffer import RangeUnavailable
from sluice.kinesis.fanout.agent.subscription_manager import SubscriptionManager
from sluice.kinesis.fanout.agent.worker_agents import WorkerAgents
from sluice.kinesis.fanout.channel import Channel, connect
from sluice.kinesis.fanout.launch import STOP, AgentSetup
from sluice.kinesis.fanout.protocol import (
    Acknowledge,
    Consumers,
    FromAgent,
    JoinHub,
    Listening,
    ReadRange,
    Subscribe,
    ToAgent,
    Unsubscribe,
    decode_to_agent,
    encode,
)
from sluice.kinesis.fanout.subscriptions.subscriber import Subscriber, open_subscriber
from sluice.source.splits import SplitId
from sluice.source.stream_log import IteratorStart

__all__ = ["Agent", "main"]

_log = logging.getLogger(__name__)

_FINE_CUT_POINTS: Final = 1_000
_CONNECT_TIMEOUT: Final = 10.0


class Agent:
    """Does what its link says until that closes.

    Args:
        delegates: whether it deals the shards out to agents on worker hosts instead of subscribing.
    """

    def __init__(self, setup: AgentSetup, link: Channel, *, delegates: bool) -> None:
        self._config = setup.config
        self._link = link
        self._sending = threading.Lock()
        self._consumers = Consumers({}, ())
        self._delegates = WorkerAgents(self.report) if delegates else None
        join = None if self._delegates is None else self._delegates.join
        self.server = RangeServer(setup.host, setup.secret, self._read, join)
        assert setup.config.fan_out is not None  # noqa: S101 - there is no agent without
        log = KinesisLog.of(setup.config)
        self._holder = SubscriptionManager(
            self._open_source,
            self.report,
            capacity=setup.config.fan_out.buffer_bytes,
            cut_points=1 if setup.config.limits.is_none else _FINE_CUT_POINTS,
            now=log.server_time,
            retention=lambda stream: log.describe(stream).retention,
            server=(self.server.host, self.server.port),
        )

    def report(self, message: FromAgent | JoinHub) -> None:
        """Tells the other end of the link."""
        try:
            with self._sending:
                self._link.send(encode(message))
        except OSError:
            pass  # it is gone, which `serve` notices

    def serve(self) -> None:
        """Returns when the link has closed and the subscriptions are."""
        try:
            while True:
                self._obey(decode_to_agent(self._link.receive()))
        except (EOFError, OSError):
            pass
        finally:
            self.server.close()
            if self._delegates is not None:
                self._delegates.close()
            self._holder.close()

    def deregister(self) -> None:
        """Deregisters the consumers that the query registered, unless others have subscribed with them."""
        registry = ConsumerRegistrar(self._config, is_endpoint_known=True)
        for stream, arn in self._consumers.arns.items():
            if arn not in self._consumers.registered:
                continue
            if stream in (self._holder if self._delegates is None else self._delegates).contested:
                _log.warning("consumer %s stays: somebody else has subscribed with it", arn)
                continue
            try:
                registry.deregister(arn)
                _log.info("deregistered consumer %s", arn)
            except SluiceError as error:
                _log.warning("consumer %s stays registered: %s", arn, error)

    def _obey(self, message: ToAgent) -> None:
        owner = self._holder if self._delegates is None else self._delegates
        match message:
            case Subscribe():
                owner.watch(message)
            case Acknowledge():
                owner.trim(message.split, int(message.number))
            case Unsubscribe():
                owner.unwatch(message.split)
            case Consumers():
                self._consumers = message
                if self._delegates is not None:
                    self._delegates.use(message)

    def _read(self, fetch: ReadRange) -> Iterator[bytes | memoryview]:
        if self._delegates is not None:
            raise RangeUnavailable("it holds no shards itself")
        return self._holder.read(fetch)

    def _open_source(self, split: SplitId, start: IteratorStart) -> Subscriber:
        return open_subscriber(self._config, lambda: self._consumers.arns[split.stream], split, start)


def main(arguments: list[str]) -> None:
    """Runs an agent beside the driver (two file descriptors as arguments) or on a worker host (none)."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("sluice").setLevel(logging.INFO)
    if arguments:
        _beside_driver(*map(int, arguments))
    else:
        _on_worker()


def _beside_driver(link_descriptor: int, stop_descriptor: int) -> None:
    link = Channel(socket.socket(fileno=link_descriptor))
    setup: AgentSetup = pickle.loads(link.receive())  # noqa: S301 - over a socket pair with our own parent
    assert setup.config.fan_out is not None  # noqa: S101 - there is no agent without
    agent = Agent(setup, link, delegates=setup.config.fan_out.agent == "workers")
    agent.report(Listening(agent.server.host, agent.server.port))
    agent.serve()
    # The planning process writes this before it dies; without it the link's end was a crash, after
    # which the query will be back and want its consumer.
    if os.read(stop_descriptor, 1) == STOP:
        agent.deregister()


def _on_worker() -> None:
    setup: AgentSetup = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the task that has started us
    assert setup.hub is not None  # noqa: S101 - see AgentSetup
    try:
        link = connect(setup.hub, timeout=_CONNECT_TIMEOUT)
    except (OSError, EOFError, SluiceError) as error:
        _log.warning("no fan-out agent on this host: the one beside the driver can't be reached: %s", error)
        return
    link.set_timeout(None)
    agent = Agent(setup, link, delegates=False)
    agent.report(JoinHub(agent.server.host, agent.server.port))
    agent.serve()
