"""What the commands' fake of Kinesis says of ARNs of other regions and accounts, held against moto."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from cli_support import ACCOUNT, OTHER_ACCOUNT, OTHER_REGION, REGION, Service
from kinesis_transport import forget_process_state

from sluice.aws.calling.clients import client_for
from sluice.cli.options import read_connection

Clients = Callable[[str], Any]


@pytest.fixture(params=["fake", "moto"])
def clients(request: pytest.FixtureRequest) -> Iterator[Clients]:
    """A client by region; each region has a stream of the same name, with a consumer of the same name."""
    regions = (REGION, OTHER_REGION)
    if request.param == "fake":
        service = Service()
        places = {REGION: service, OTHER_REGION: service.elsewhere(OTHER_REGION)}
        made = {name: client_for(read_connection(places[name].options), "kinesis") for name in regions}
        for place in places.values():
            place.create("orders")
            place.register("orders", "q")
        yield made.__getitem__
    else:
        moto = pytest.importorskip("moto")
        with moto.mock_aws():
            keys = {"awsAccessKeyId": "AKIDEXAMPLE", "awsSecretAccessKey": "hush"}
            connections = {name: read_connection({**keys, "region": name}) for name in regions}
            made = {name: client_for(connections[name], "kinesis") for name in regions}
            for client in made.values():
                client.create_stream(StreamName="orders", ShardCount=1)
                arn = summary(client, StreamName="orders")["StreamARN"]
                client.register_stream_consumer(StreamARN=arn, ConsumerName="q")
            yield made.__getitem__
    forget_process_state()


def summary(client: Any, **request: str) -> Any:
    return client.describe_stream_summary(**request)["StreamDescriptionSummary"]


def refusal(call: Callable[..., Any], **request: str) -> str:
    with pytest.raises(ClientError) as caught:
        call(**request)
    return str(caught.value.response["Error"]["Code"])


def test_a_namesake_is_another_stream(clients: Clients) -> None:
    """By name each region has its own; the ARN of another place is missing, and never the namesake."""
    here, there = clients(REGION), clients(OTHER_REGION)
    own, other = (summary(each, StreamName="orders")["StreamARN"] for each in (here, there))
    assert own == f"arn:aws:kinesis:{REGION}:{ACCOUNT}:stream/orders"
    assert other == f"arn:aws:kinesis:{OTHER_REGION}:{ACCOUNT}:stream/orders"
    assert summary(here, StreamARN=own)["StreamARN"] == own

    (consumer,) = there.list_stream_consumers(StreamARN=other)["Consumers"]
    strange = consumer["ConsumerARN"].replace(ACCOUNT, OTHER_ACCOUNT)
    assert {
        refusal(here.describe_stream_summary, StreamARN=other),
        refusal(here.list_shards, StreamARN=other),
        refusal(here.describe_stream_consumer, ConsumerARN=consumer["ConsumerARN"]),
        refusal(there.describe_stream_summary, StreamARN=other.replace(ACCOUNT, OTHER_ACCOUNT)),
        refusal(there.describe_stream_consumer, ConsumerARN=strange),
    } == {"ResourceNotFoundException"}
