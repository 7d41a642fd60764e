"""Exporters with the real libraries of what they export to, in process."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from metrics_support import metrics, shard
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from sluice.errors import SluiceError
from sluice.metrics import (
    CloudWatchExporter,
    JsonExporter,
    OpenTelemetryExporter,
    PrometheusExporter,
    cloudwatch,
)
from sluice.metrics.board import Board
from sluice.metrics.catalogue import METRICS
from sluice.metrics.exporters import Guard


def get(address: str, path: str) -> tuple[str, bytes]:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=120) as answer:
        return answer.headers["Content-Type"], answer.read()


# --- Prometheus ---------------------------------------------------------------------------------------


@pytest.fixture
def prometheus() -> Iterator[PrometheusExporter]:
    exporter = PrometheusExporter(port=0)
    yield exporter
    exporter.close()


def scrape(exporter: PrometheusExporter) -> dict[str, list[Any]]:
    kind, body = get(exporter.address, "/metrics")
    assert kind.startswith("text/plain")
    return {family.name: family.samples for family in text_string_to_metric_families(body.decode())}


def test_prometheus_scrapes_what_is_known(prometheus: PrometheusExporter) -> None:
    """With the names that OpenTelemetry's rules give; counters end in ``_total``."""
    board = Board()
    prometheus.start(board)
    empty = scrape(prometheus)
    board.record(metrics(shard(lag=2500)))
    found = scrape(prometheus)

    assert empty == {}
    (lag,) = found["sluice_source_lag_seconds"]
    assert lag.value == 2.5
    assert lag.labels == {
        "sluice_query_id": "q1",
        "sluice_query_name": "orders",
        "sluice_source": "0",
        "aws_kinesis_stream_name": "clicks",
        "sluice_shard_id": "s0",
        "sluice_lag_basis": "service",
    }
    assert [each.name for each in found["sluice_query_rows"]] == ["sluice_query_rows_total"]
    assert found["sluice_agent_buffer_usage_bytes"][0].value == 5
    assert found["sluice_sink_rate_per_second"][0].value == 10


def test_a_port_that_is_taken_is_an_error_that_says_so() -> None:
    """When the listener is made, where somebody sees it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SluiceError, match="port 0 takes a free one"):
            PrometheusExporter(port=taken.getsockname()[1]).start(Board())


# --- JSON ---------------------------------------------------------------------------------------------


def test_json_for_sluice_top() -> None:
    """Without any extra; on this host alone unless another is given."""
    board, exporter = Board(), JsonExporter(port=0)
    exporter.start(board)
    board.record(metrics())
    try:
        kind, body = get(exporter.address, "/sluice.json?refresh=1")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(exporter.address, "/metrics")
    finally:
        exporter.close()

    value = json.loads(body)
    assert kind == "application/json"
    assert exporter.address.startswith("127.0.0.1:")
    assert value["queries"][0]["name"] == "orders"
    assert {each["name"] for each in value["queries"][0]["totals"]} >= {"sluice.source.records"}


# --- OpenTelemetry ------------------------------------------------------------------------------------


def collect(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    data = reader.get_metrics_data()
    scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []
    return {each.name: list(each.data.data_points) for scope in scopes for each in scope.metrics}


def test_opentelemetry_collects_what_is_known() -> None:
    """With unchanged names; series of shards that no longer exist end, including counters."""
    reader, board = InMemoryMetricReader(), Board()
    provider = MeterProvider([reader])
    exporter = OpenTelemetryExporter(provider, clock=iter(range(10_000)).__next__)
    exporter.start(board)
    board.record(metrics(shard("parent"), shard("kept")))
    before = collect(reader)
    board.record(metrics(shard("kept"), shard("child")))
    after = collect(reader)
    exporter.close()

    def shards(found: dict[str, list[Any]], name: str) -> set[str]:
        return {point.attributes["sluice.shard.id"] for point in found[name]}

    for name in ("sluice.source.lag", "sluice.source.reads.refused"):
        assert shards(before, name) == {"parent", "kept"}
        assert shards(after, name) == {"kept", "child"}
    assert [point.value for point in after["sluice.query.batches"]] == [2]
    assert set(before) <= set(METRICS)
    assert collect(reader) == {}
    provider.shutdown()


# --- CloudWatch ---------------------------------------------------------------------------------------


@pytest.fixture
def client() -> Any:
    return boto3.client(
        "cloudwatch", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
    )


def sent(call: dict[str, Any]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for datum in call["MetricData"]:
        found.setdefault(datum["MetricName"], []).append(datum["Value"])
    return found


def test_cloudwatch_gets_streams_and_what_was_added(monkeypatch: pytest.MonkeyPatch, client: Any) -> None:
    """Metrics of single shards are billed each, so counters are summed over the stream."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(client, "put_metric_data", lambda **call: calls.append(call))
    board = Board()
    exporter = CloudWatchExporter(client=client, interval=3600, dimensions={"Environment": "test"})
    exporter.start(board)
    board.record(metrics(shard("a", polled=10), shard("b", polled=20)))
    exporter.send()
    board.record(metrics(shard("a", polled=15), shard("b", polled=20)))
    exporter.send()
    exporter.close()

    assert calls[0]["Namespace"] == "Sluice"
    assert "sluice.source.lag" not in sent(calls[0])
    assert sent(calls[0])["sluice.source.lag.max"] == [1.5]
    assert sorted(sent(calls[0])["sluice.source.records"]) == [0, 30]
    assert sorted(sent(calls[1])["sluice.source.records"]) == [0, 5]
    dimensions = next(each["Dimensions"] for each in calls[0]["MetricData"] if each["Unit"] == "Bytes")
    assert {"Name": "Environment", "Value": "test"} in dimensions
    assert "sluice.query.id" not in {each["Name"] for each in dimensions}


def test_cloudwatch_counts_what_was_sent_once(monkeypatch: pytest.MonkeyPatch, client: Any) -> None:
    """Of several requests one fails: what the others have brought is not sent again."""
    added: Counter[str] = Counter()
    outcomes: Iterator[bool] = iter(())

    def put(**call: Any) -> None:
        if not next(outcomes, True):
            raise ValueError("refused")
        for datum in call["MetricData"]:
            if datum["MetricName"] == "sluice.source.records":
                added[str(datum["Dimensions"])] += datum["Value"]

    monkeypatch.setattr(client, "put_metric_data", put)
    monkeypatch.setattr(cloudwatch, "_MOST", 1)
    board = Board()
    exporter = CloudWatchExporter(client=client, interval=3600, shards=True)
    exporter.start(board)
    board.record(metrics(*(shard(name, polled=10) for name in "abc")))
    for fails_at in range(1, 40):
        outcomes = iter([True] * fails_at + [False])
        with contextlib.suppress(ValueError):
            exporter.send()
    outcomes = iter(())
    exporter.send()
    exporter.close()

    assert sorted(added.values()) == [0, 0, 0, 10, 10, 10]


def test_cloudwatch_gets_the_figures_of_a_short_run_when_it_is_closed(
    monkeypatch: pytest.MonkeyPatch, client: Any
) -> None:
    """As of a query with Trigger.AvailableNow, which ends before a minute is over."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(client, "put_metric_data", lambda **call: calls.append(call))
    board = Board()
    exporter = CloudWatchExporter(client=client)
    exporter.start(board)
    board.record(metrics())
    board.forget("q1")
    exporter.close()

    assert len(calls) == 1
    assert sent(calls[0])["sluice.sink.records"] == [5]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("заказы", "\\u0437\\u0430\\u043a\\u0430\\u0437\\u044b"),
        ("a\tb\x7f", "a?b?"),
        (" ", None),
        ("n" * 2000, "n" * 1024),
    ],
)
def test_cloudwatch_gets_names_that_it_takes(
    monkeypatch: pytest.MonkeyPatch, client: Any, name: str, expected: str | None
) -> None:
    """ASCII of at most 1,024 characters: for another one it refuses all that is in the request."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(client, "put_metric_data", lambda **call: calls.append(call))
    board = Board()
    exporter = CloudWatchExporter(client=client, interval=3600)
    exporter.start(board)
    board.record(metrics(name=name))
    exporter.send()
    exporter.close()

    (datum,) = [each for each in calls[0]["MetricData"] if each["MetricName"] == "sluice.query.rows"]
    dimensions = {each["Name"]: each["Value"] for each in datum["Dimensions"]}
    assert dimensions.get("sluice.query.name") == expected


# --- failures -----------------------------------------------------------------------------------------


def test_failures_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """With how many there were."""
    now = 0.0
    guard = Guard("exporter x", clock=lambda: now)

    def fail() -> None:
        raise ValueError("no")

    with caplog.at_level(logging.WARNING):
        for second in range(130):
            now = float(second)
            assert guard.call(fail) is False
        assert guard.call(lambda: None) is True

    assert len(caplog.records) == 3
    assert "60 times" in caplog.messages[1]


def test_without_the_extra_the_error_says_what_to_install() -> None:
    """In one sentence; the rest of the package works."""
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "import sluice.metrics\n"
        "try: sluice.metrics.PrometheusExporter\n"
        "except sluice.metrics.SluiceError as error: print(error)\n"
        "print('pyspark' in sys.modules, 'boto3' in sys.modules)"
    )
    done = subprocess.run(
        (sys.executable, "-c", code), capture_output=True, text=True, check=True, timeout=300
    )

    assert "pip install 'pyspark-sluice[prometheus]'" in done.stdout
    assert done.stdout.endswith("False False\n")
