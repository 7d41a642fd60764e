"""Where the agent on the driver host listens, and where tasks find it, on what Spark's command line says."""

from __future__ import annotations

import pytest

from sluice.channels.channel import SPARK_DRIVER
from sluice.errors import OptionError
from sluice.kinesis.options.agent import AgentConfig
from sluice.kinesis.planner.agent_place import place_agent
from sluice.kinesis.shared.launch import AgentPlace
from sluice.spark_settings import SparkSettings

LOCAL = SparkSettings("local[2]", cores=2)
CLUSTER = SparkSettings("spark://10.0.0.1:7077", "driver.example", "10.0.0.1")
ON_ONE_HOST = SparkSettings("spark://127.0.0.1:7077", "127.0.0.1", "127.0.0.1")
UNKNOWN = SparkSettings()
ALL = ""
EVERY = "0.0.0.0"  # noqa: S104 - nothing listens


@pytest.mark.parametrize(
    ("spark", "address", "bind", "place"),
    [
        (LOCAL, None, None, AgentPlace("127.0.0.1", "127.0.0.1")),
        (UNKNOWN, None, None, AgentPlace(SPARK_DRIVER, ALL)),
        (CLUSTER, None, None, AgentPlace(SPARK_DRIVER, "10.0.0.1")),
        (SparkSettings("yarn"), None, None, AgentPlace(SPARK_DRIVER, ALL)),
        (SparkSettings("local-cluster[2,1,512]"), None, None, AgentPlace(SPARK_DRIVER, ALL)),
        (CLUSTER, "10.0.0.9", None, AgentPlace("10.0.0.9", "10.0.0.9")),
        (CLUSTER, "nat.example", EVERY, AgentPlace("nat.example", ALL)),
        (CLUSTER, "nat.example", "10.0.0.2", AgentPlace("nat.example", "10.0.0.2")),
        (CLUSTER, None, "::", AgentPlace(SPARK_DRIVER, ALL)),
        (CLUSTER, None, "10.0.0.2", AgentPlace("10.0.0.2", "10.0.0.2")),
        (LOCAL, None, "10.0.0.2", AgentPlace("10.0.0.2", "10.0.0.2")),
        (LOCAL, None, EVERY, AgentPlace("127.0.0.1", ALL)),
        (LOCAL, "127.0.0.1", None, AgentPlace("127.0.0.1", "127.0.0.1")),
        (ON_ONE_HOST, "127.0.0.1", None, AgentPlace("127.0.0.1", "127.0.0.1")),
        (UNKNOWN, "localhost", None, AgentPlace("localhost", "localhost")),
    ],
)
def test_the_agent_is_where_tasks_reach_it(
    spark: SparkSettings, address: str | None, bind: str | None, place: AgentPlace
) -> None:
    """With a local master nothing else can; otherwise it listens as Spark's driver does."""
    assert place_agent(AgentConfig(address=address, bind_address=bind), spark) == place


@pytest.mark.parametrize("given", ["127.0.0.1", "127.0.1.1", "::1", "localhost"])
def test_a_loopback_address_is_refused_on_a_cluster(given: str) -> None:
    """Every task on another host would poll, while the consumer is paid for."""
    with pytest.raises(OptionError, match=f"'agentAddress' is '{given}'.* spark://10.0.0.1:7077"):
        place_agent(AgentConfig(address=given), CLUSTER)
