"""Records in JSON and in CBOR from every service there is: the same ones, whatever it makes of CBOR."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from integration.model.server import serving
from integration.support.kinesis import REGION, Streams
from integration.support.servers import kinesis_local, ministack, moto
from sluice.aws.endpoint_state import endpoint_state
from sluice.kinesis.log.client import KinesisLog
from sluice.kinesis.options.config import source_config_from_options
from sluice.kinesis.subscriptions.events import decode_head, decode_page
from sluice.kinesis.subscriptions.subscription import Subscribing
from sluice.source.logs.stream_log import IteratorStart, Page
from sluice.source.model.splits import SplitId

Serve = Callable[[], AbstractContextManager[Any]]
SERVERS: dict[str, tuple[Serve, bool]] = {
    # and whether it knows CBOR: ministack does where there is another package, moto never
    "model": (serving, True),
    "kinesis-local": (kinesis_local, True),
    "ministack": (ministack, False),
    "moto": (moto, False),
}
HORIZON = IteratorStart("TRIM_HORIZON")
SIZES = (1, 23, 24, 255, 256, 65_535, 65_536, *[100] * 300)
DATA = [bytes([n % 256]) * size for n, size in enumerate(SIZES)]


def options(endpoint: str, stream: str, wire_format: str) -> dict[str, str]:
    return {
        "streamName": stream,
        "endpointUrl": endpoint,
        "region": REGION,
        "awsAccessKeyId": "AKIDEXAMPLE",
        "awsSecretAccessKey": "secret",
        "wireFormat": wire_format,
    }


def read(endpoint: str, stream: str, wire_format: str) -> list[tuple[str, int, str, bytes]]:
    """All records of the only shard, by polling."""
    log = KinesisLog.of(source_config_from_options(options(endpoint, stream, wire_format)))
    (split,) = log.list_splits(stream)
    iterator = log.get_iterator(split.id, HORIZON)
    found: list[tuple[str, int, str, bytes]] = []
    while iterator is not None and len(found) < len(DATA):
        page = log.get_records(split.id, iterator, 10_000)
        found += fields(page)
        iterator = page.next_iterator
        time.sleep(0.25)  # five reads a second
    return found


def fields(page: Page) -> list[tuple[str, int, str, bytes]]:
    return [(r.sequence_number, r.arrival, r.partition_key, bytes(r.data)) for r in page.records]


@pytest.mark.parametrize("name", SERVERS)
def test_records_are_the_same_in_every_form(name: str) -> None:
    """JSON, and CBOR where the service knows it; auto finds out which."""
    serve, knows_cbor = SERVERS[name]
    with serve() as server:
        streams = Streams(server.endpoint)
        stream = streams.create()
        streams.wait_active(stream)
        streams.put(stream, [(f"schl\u00fcssel-{n % 7}", data) for n, data in enumerate(DATA)])
        expected = read(server.endpoint, stream, "json")

        assert sorted(record[3] for record in expected) == sorted(DATA)
        assert read(server.endpoint, stream, "auto") == expected
        assert endpoint_state(server.endpoint).knows_cbor == knows_cbor
        if knows_cbor:
            assert read(server.endpoint, stream, "cbor") == expected


def is_active(client: Any, arn: str) -> bool:
    described = client.describe_stream_consumer(ConsumerARN=arn)["ConsumerDescription"]
    return bool(described["ConsumerStatus"] == "ACTIVE")


@pytest.mark.parametrize("wire_format", ["json", "cbor", "auto"])
def test_events_are_the_same_in_every_form(wire_format: str) -> None:
    """A subscription gives what polling does; its events say which form they have."""
    with serving() as server:
        streams = Streams(server.endpoint)
        stream = streams.create()
        streams.wait_active(stream)
        streams.put(stream, [("k", data) for data in DATA])
        config = source_config_from_options(options(server.endpoint, stream, wire_format)).connection
        # Not the source's client: it leaves it to its callers to ask again when they are throttled.
        client = streams.client
        summary = client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
        consumer = client.register_stream_consumer(StreamARN=summary["StreamARN"], ConsumerName="c")
        arn = consumer["Consumer"]["ConsumerARN"]
        while not is_active(client, arn):
            time.sleep(0.1)
        subscription = Subscribing(config, arn)(SplitId(stream, "shardId-000000000000"), HORIZON)
        found: list[tuple[str, int, str, bytes]] = []
        forms = set()
        while len(found) < len(DATA):
            payload = subscription.next_payload()
            assert payload is not None
            forms.add(bytes(payload[:1]) == b"{")
            records = fields(decode_page(payload))
            head = decode_head(payload)
            assert (head.numbers, head.arrivals) == ([r[0] for r in records], [r[1] for r in records])
            found += records
        subscription.close()

        assert forms == {wire_format != "cbor"}
        assert found == read(server.endpoint, stream, "json")
