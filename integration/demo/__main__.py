"""Runs the demo from a clean machine to a clean machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from integration.demo.display import Display, Rate, Snapshot, make_display
from integration.demo.events import mark
from integration.demo.fanout import FanOut
from integration.demo.pipeline import CONSUMER, Pipeline
from integration.demo.producer import Record
from integration.demo.progress import PipelineError, Progress
from integration.demo.proof import Comparison, checksum, compare_clicks, compare_totals
from integration.demo.quiet import quiet_spark
from integration.support import servers
from integration.support.kinesis import Stored, Streams
from integration.support.spark import stop_queries
from sluice.metrics import PrometheusExporter, SluiceListener

CLICKS, OUTPUT, TOTALS = "clicks", "clicks-out", "totals"
SPARK_LOG = "spark.log"
# Each refresh asks the JVM for every report that it keeps: as many as come in some seconds will do.
SETTINGS = {"spark.sql.streaming.numRecentProgressUpdates": "40"}
PAUSE = 0.5
WARM_UP_TIMEOUT = 180.0
DRAIN_TIMEOUT = 180.0  # for records that are in flight when the producer is done
SETTLE = 1.5  # after the last record expected: one too many would come now
INTERRUPTED = 130
TOP_TIMEOUT = 120.0
BIN = f"{os.path.relpath(Path(sys.executable).parent)}{os.sep}"  # not on PATH of another terminal


@dataclass(frozen=True)
class Plan:
    seconds: float
    rate: float
    shards: int


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.demo", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="how long clicks are put (default 30)")
    parser.add_argument("--rate", type=float, default=500, help="clicks a second (default 500)")
    parser.add_argument("--shards", type=int, default=4, help="of the input stream (default 4)")
    arguments = parser.parse_args()
    plan = Plan(arguments.seconds, arguments.rate, arguments.shards)
    signal.signal(signal.SIGTERM, _as_interrupt)
    display = make_display()
    try:
        with contextlib.closing(display):
            comparisons = run(plan, display)
    except KeyboardInterrupt:
        display.say("stopped; the pipeline, the servers and their files are gone")
        return INTERRUPTED
    except PipelineError as error:
        display.say(f"the pipeline failed: {error}")
        return 1
    return summary(comparisons, display)


def run(plan: Plan, display: Display) -> Sequence[Comparison]:
    """From nothing to the output read back; all processes that it starts have ended when it returns or
    raises.
    """
    with contextlib.ExitStack() as stack:
        try:
            return _run(plan, display, stack)
        finally:
            # A second Ctrl-C must not cut the cleaning short; all of it is bounded.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run(plan: Plan, display: Display, stack: contextlib.ExitStack) -> Sequence[Comparison]:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-demo-")))
    display.say("starting an embedded Kinesis (ministack) on a free loopback port")
    server = stack.enter_context(servers.ministack())
    streams = Streams(server.endpoint)
    for name, shards in ((CLICKS, plan.shards), (OUTPUT, 2), (TOTALS, 1)):
        streams.create(shards, name=name)
    display.say(f"{server.endpoint}: streams {CLICKS} ({plan.shards} shards), {OUTPUT} (2), {TOTALS} (1)")

    display.say(f"starting Spark {pyspark.__version__}")
    spark = stack.enter_context(quiet_spark(directory / "spark", SETTINGS, directory / SPARK_LOG))
    # PySpark's own handler would call the JVM, maybe in the middle of another call, which it then reports.
    signal.signal(signal.SIGINT, _as_interrupt)
    display.say(f"on Java {java_version(spark)}, {os.environ['JAVA_HOME']}")
    exporter = PrometheusExporter(port=0)
    listener = SluiceListener(exporter)
    stack.callback(listener.close)
    spark.streams.addListener(listener)
    stack.callback(spark.streams.removeListener, listener)
    display.say(f"metrics for Prometheus: http://{exporter.address}/metrics, while this runs")
    display.say(f"shards, lag and rates, in another terminal: {BIN}sluice top {exporter.address}")
    pipeline = Pipeline(spark, server.endpoint, directory / "checkpoints")
    stack.callback(stop_queries, spark)
    queries = pipeline.start(clicks=CLICKS, output=OUTPUT, totals=TOTALS)
    display.say("two queries read kinesis-efo and write async-sink: each click, and totals by window")
    display.say(f"query clicks reads by fan-out with consumer {CONSUMER}, query totals by polling")

    record = Record(directory / "clicks.jsonl")
    fan_out = FanOut(streams, CLICKS, directory / SPARK_LOG)
    show = Screen(display, record, Progress(queries), fan_out)
    display.say("the first batch: Spark starts its workers, which takes longest")
    put_mark(streams, ahead=False)
    show_until(show, lambda: show.progress.least >= 1 and show.is_subscribed, WARM_UP_TIMEOUT)
    display.say(f"consumer {fan_out.arn()} is registered")
    display.say(f"subscribed to {', '.join(sorted(fan_out.state().subscribed)) or 'no shard'}")

    display.say(f"putting {plan.rate:g} clicks a second for {plan.seconds:g} s, from another process")
    producer = stack.enter_context(start_producer(plan, server.endpoint, directory))
    show_until(show, lambda: producer.poll() is not None, plan.seconds + DRAIN_TIMEOUT)
    if producer.returncode != 0:
        raise PipelineError("the producer failed: " + (directory / "producer.log").read_text())
    put = len(record.clicks)
    display.say(f"the producer is done: {put:,} clicks; waiting for the last of them to come through")
    display.say("what `sluice top` shows now:")
    for line in top(exporter.address):
        display.say(f"   {line}")
    show_until(show, lambda: show.progress.least > put, DRAIN_TIMEOUT)
    display.say("putting a mark an hour ahead, so that the watermark passes the last windows")
    put_mark(streams, ahead=True)
    show_until(show, lambda: counted(streams.read(TOTALS)) >= put, DRAIN_TIMEOUT)
    show_until(show, lambda: False, SETTLE)
    stop_queries(spark)
    fan_out.wait_until_gone()
    display.say(f"the queries are stopped; consumer {CONSUMER} deregistered")
    for name, figures in show.progress.figures.items():
        rows = f"{figures.rows:,} records in {figures.batches} batches"
        display.say(f"query {name}: {rows}, {figures.late_rows} too late for their window")
    display.say("reading the output streams back, and working out again what they should hold")
    return [
        compare_clicks(record.clicks, streams.read(OUTPUT)),
        compare_totals(record.clicks, streams.read(TOTALS)),
    ]


class Screen:
    """Shows the current state at each `refresh`."""

    def __init__(self, display: Display, record: Record, progress: Progress, fan_out: FanOut) -> None:
        self._display = display
        self._record = record
        self._fan_out = fan_out
        self.progress = progress
        self.is_subscribed = False
        self._rates = {name: Rate() for name in ("put", *progress.figures)}
        self._start = time.monotonic()

    def refresh(self) -> None:
        self._record.refresh()
        self.progress.refresh()
        put, figures = len(self._record.clicks), self.progress.figures
        rates = {name: self._rates[name].update(each.rows) for name, each in figures.items()}
        elapsed = time.monotonic() - self._start
        state = self._fan_out.state()
        self.is_subscribed = len(state.subscribed) == state.shards
        self._display.show(Snapshot(elapsed, put, self._rates["put"].update(put), figures, rates, state))


def show_until(screen: Screen, done: Callable[[], bool], seconds: float) -> None:
    """Returns when `done` says so, or after `seconds`: the comparison at the end shows the missing rows."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        finished = done()
        screen.refresh()
        if finished:
            return
        time.sleep(PAUSE)


def top(address: str) -> Sequence[str]:
    """A frame of ``sluice top``, as another process sees it."""
    command = (sys.executable, "-m", "sluice", "top", address, "--once")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TOP_TIMEOUT)
    if done.returncode:
        raise PipelineError(done.stderr.strip())
    return done.stdout.splitlines()


def put_mark(streams: Streams, *, ahead: bool) -> None:
    event = mark(ahead=ahead)
    streams.put(CLICKS, [(event.user, event.to_json())])


def counted(totals: Iterable[Stored]) -> int:
    """How many clicks the totals written so far have counted."""
    return sum(json.loads(record.data)["clicks"] for record in totals)


def summary(comparisons: Sequence[Comparison], display: Display) -> int:
    """Says whether what came out is what went in; 0 if so."""
    for each in comparisons:
        verdict = "equal" if each.is_equal else f"NOT equal: {each.missing} missing, {each.surplus} too many"
        display.say(f"{each.what}: {verdict}")
        display.say(f"   expected {each.expected.total():>7,}   checksum {checksum(each.expected)}")
        display.say(f"   found    {each.found.total():>7,}   checksum {checksum(each.found)}")
    proved = all(each.is_equal and each.expected for each in comparisons)
    display.say("what came out is what went in" if proved else "what came out is NOT what went in")
    return 0 if proved else 1


@contextlib.contextmanager
def start_producer(plan: Plan, endpoint: str, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = (sys.executable, "-m", "integration.demo.producer", endpoint, CLICKS)
    figures = (str(directory / "clicks.jsonl"), str(plan.seconds), str(plan.rate))
    with servers.leashed((*command, *figures), directory, log="producer.log") as process:
        yield process


def java_version(spark: SparkSession) -> str:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return str(jvm.System.getProperty("java.version"))


def _as_interrupt(*_: object) -> None:
    logging.disable()  # py4j reports each call that this cuts short, at length
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
