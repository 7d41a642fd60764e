"""A query that is watched: what a listener, Prometheus' format and ``sluice top`` show of it, and the
commands of 'Lag rises' (``docs/operate.md``) as they are printed.
"""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from integration.support.kinesis import REGION
from integration.support.model_streams import ModelStreams
from integration.support.paths import ROOT
from integration.support.queries import wait_until
from integration.support.watched import Stranger, copying_query, listening
from sluice.cli.app import main
from sluice.metrics import PrometheusExporter, QueryMetrics, SluiceListener

DRILL = (ROOT / "docs" / "operate.md").read_text()
IDLE = "spark.sql.streaming.noDataProgressEventInterval"


def commands(section: str) -> list[list[str]]:
    """The commands of a section of the page, without ``sluice``."""
    text = re.split(r"\n##+ ", DRILL.split(f"### {section}\n")[1])[0]
    return [line.split() for line in re.findall(r"^\$ sluice (.+)$", text, re.MULTILINE)]


def sluice(arguments: list[str], **instead: str) -> Any:
    """What a command prints as JSON, with some of its words replaced."""
    out = io.StringIO()
    words = [instead.get(re.sub(r"\W", "_", word), word) for word in arguments]
    code = main([*words, "--json"], out=out)
    value = json.loads(out.getvalue())
    assert code == 0, value
    return value


def scrape(address: str, name: str) -> dict[str, float]:
    """A metric's values, summed by shard (or by nothing)."""
    text = urllib3.request("GET", f"http://{address}/metrics").data.decode()
    families = {each.name: each for each in text_string_to_metric_families(text)}
    found: dict[str, float] = {}
    for sample in families[name].samples if name in families else ():
        shard = sample.labels.get("sluice_shard_id", "")
        found[shard] = found.get(shard, 0) + sample.value
    return found


@pytest.fixture
def _soon_idle(spark: SparkSession) -> Iterator[None]:
    """Makes Spark report idle queries more often than every ten seconds."""
    spark.conf.set(IDLE, "1000")
    yield
    spark.conf.unset(IDLE)


@pytest.mark.usefixtures("_soon_idle")
def test_lag_rises_and_the_cause_is_found(spark: SparkSession, service: ModelStreams, tmp_path: Path) -> None:
    """A listener counts the records that were read and written."""
    stream, sink = service.create(2), service.create(1)
    shard, other = sorted(service.open_shards(stream))
    seen: list[QueryMetrics] = []
    exporter = PrometheusExporter(port=0)
    written = 0

    def put(count: int = 20) -> None:
        nonlocal written
        service.put(stream, [(f"key-{written + n}", b"x") for n in range(count)])
        written += count

    put()
    checkpoint = tmp_path / "checkpoint"
    with (
        listening(spark, SluiceListener(exporter, seen.append)),
        copying_query(spark, service, stream, sink, checkpoint) as query,
    ):
        address = exporter.address

        def total(name: str) -> float:
            if (error := query.exception()) is not None:
                raise error
            return sum(scrape(address, name).values())

        wait_until(lambda: total("sluice_sink_records") == written, "the sink's figures")
        wait_until(lambda: total("sluice_source_records") == written, "the source's figures")
        assert scrape(address, "sluice_source_lag_seconds").keys() == {shard, other}
        assert total("sluice_source_reads_refused") == 0
        with Stranger(service, stream, shard):

            def refused() -> bool:
                put()
                time.sleep(0.5)
                return scrape(address, "sluice_source_reads_refused").get(shard, 0) > 2

            wait_until(refused, "refused reads in the metrics")
            top, live = commands("Lag rises")
            shown = sluice([*top, "--interval", "0"], **{"127_0_0_1_9464": address})
            (row,) = [each for each in shown["queries"][0]["shards"] if each["shard"] == shard]
            connection = [f"--option=endpointUrl={service.endpoint}", f"--option=region={REGION}"]
            found = sluice([*live, *connection], checkpoints_orders=str(checkpoint))
        wait_until(lambda: total("sluice_sink_records") == written, "what was left behind")
        by_shard = scrape(address, "sluice_source_reads_refused")
        assert by_shard.get(other, 0) < by_shard[shard]  # the command reads both shards, too

    assert shown["queries"][0]["name"].startswith("query orders (")
    assert row["totals"]["refused"] > 2
    bases = {name: each["basis"] for name, each in found["sources"][0]["streams"][stream]["shards"].items()}
    assert bases[shard] in ("throttled", "service")  # it asks for ten seconds, and the stranger may be slow
    sinks = [each.sink for each in seen if each.sink is not None]
    assert sum(each.records for each in sinks) == written
    assert {each.destination for each in sinks} == {f"kinesis stream '{sink}'"}
