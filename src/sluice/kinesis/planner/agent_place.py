"""Where the agent on the driver host listens, and where tasks find it.

Spark knows the address at which executors find the driver. It passes the address to tasks, but not to the
planning process, so on a cluster tasks fill in the host.
"""

from __future__ import annotations

from typing import Final

from sluice.channels.channel import SPARK_DRIVER
from sluice.channels.tls import load_certificate
from sluice.errors import OptionError
from sluice.hosts import is_loopback, is_unspecified
from sluice.kinesis.options.agent import AGENT_ADDRESS, AGENT_CERTIFICATE, AgentConfig
from sluice.kinesis.options.config import SourceConfig
from sluice.kinesis.shared.launch import ON_THIS_HOST, AgentPlace, AgentSetup
from sluice.spark_settings import SparkSettings

__all__ = ["check_certificate", "place_agent", "set_up_agent"]


_LOOPBACK: Final = "127.0.0.1"
_ALL: Final = ""
"""All addresses of the host."""


def set_up_agent(config: SourceConfig, spark: SparkSettings) -> AgentSetup:
    """The set-up of the agent on the driver host. An agent that only deregisters consumers listens on this
    host alone.

    Raises:
        OptionError: as `place_agent` and `check_certificate`.
    """
    place = ON_THIS_HOST if config.agent is None else place_agent(config.agent, spark)
    setup = AgentSetup.beside_driver(config, place)
    check_certificate(setup)
    return setup


def place_agent(agent: AgentConfig, spark: SparkSettings) -> AgentPlace:
    """Where the agent on the driver host listens. With a ``local`` master no other host can reach it.
    Otherwise it listens on the same address as Spark's driver.

    Raises:
        OptionError: other hosts can't reach the user's address.
    """
    given, bind = agent.address, agent.bind_address
    if bind is not None and is_unspecified(bind):
        bind = _ALL
    if given is not None:
        if is_loopback(given) and spark.is_spread:
            raise OptionError(
                f"option '{AGENT_ADDRESS.key}' is {given!r}: tasks of other hosts can't use it, and "
                f"the master is {spark.master}: allowed is an address of the driver that they reach; left "
                "out, it is Spark's own"
            )
        return AgentPlace(given, given if bind is None else bind)
    if spark.is_local:
        return AgentPlace(bind or _LOOPBACK, _LOOPBACK if bind is None else bind)
    if bind is None:
        return AgentPlace(SPARK_DRIVER, spark.bind or _ALL)
    return AgentPlace(bind or SPARK_DRIVER, bind)


def check_certificate(setup: AgentSetup) -> None:
    """Reads the user's certificate, if there is one, on the driver host. The agent there needs it too.

    Raises:
        OptionError: it cannot be read.
    """
    path = setup.agent.certificate
    if path is None or not setup.is_encrypted:
        return
    try:
        load_certificate(path)
    except OSError as error:
        raise OptionError(
            f"option '{AGENT_CERTIFICATE.key}' is {path!r}, which can't be read on the driver's "
            f"host: {error}; allowed is {AGENT_CERTIFICATE.kind.allowed}, without a passphrase"
        ) from None
