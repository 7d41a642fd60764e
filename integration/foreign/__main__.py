"""Takes the course with servers: ``python -m integration.foreign [SERVER...]``."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path

from integration.foreign.course import Result, take_course
from integration.foreign.rows import ROWS
from integration.foreign.servers import SERVERS, ForeignServer
from integration.support.paths import BUILD
from integration.support.spark import JVM_OPTIONS, prepare_environment

INTERRUPTED = 130
_COLUMNS = "server version with in out lost doubled wrong s kills restarts verdict"


def main() -> int:
    """0: every promise was kept with every server that was asked for."""
    parser = argparse.ArgumentParser(prog="python -m integration.foreign", description=__doc__)
    parser.add_argument("servers", nargs="*", help=f"some of {', '.join(SERVERS)}; all by default")
    parser.add_argument("--output", type=Path, default=BUILD / "foreign", help="takes logs and the table")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.servers if name not in SERVERS]:
        parser.error(f"unknown servers: {', '.join(unknown)}; there are {', '.join(SERVERS)}")
    signal.signal(signal.SIGTERM, _interrupt)
    prepare_environment()
    # The quick compiler alone: a JVM that is not there for long takes half of the CPU.
    os.environ.setdefault(JVM_OPTIONS, "-XX:TieredStopAtLevel=1")
    arguments.output.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    try:
        for name in arguments.servers or SERVERS:
            results += run_with(SERVERS[name], arguments.output)
    except KeyboardInterrupt:
        print("stopped; every process that was started is gone")
        return INTERRUPTED
    text = json.dumps([asdict(each) for each in results], indent=1)
    arguments.output.joinpath("results.json").write_text(text)
    table = _table(results)
    arguments.output.joinpath("table.md").write_text(table)
    print(f"\n{table}\nlogs are in {arguments.output}")
    return 1 if any(each.problems for each in results) else 0


def run_with(server: ForeignServer, logs: Path) -> list[Result]:
    """Installs a server, and takes the course with each of its targets."""
    began = time.monotonic()

    def say(line: str) -> None:
        took = int(time.monotonic() - began)
        print(f"[{took // 60}:{took % 60:02}] {server.name}: {line}", flush=True)

    say(f"installing {server.version}")
    try:
        installed = server.install()
    except Exception as error:  # noqa: BLE001 - whatever it is, the others are to run
        reason = f"NOT RUN: {type(error).__name__}: {str(error)[-300:]}"
        say(reason)
        return [Result(server.name, server.version, target, problems=[reason]) for target in server.targets]
    results = []
    for target in server.targets:
        say(f"course with {target}")
        results.append(take_course(server, target, installed, logs, say))
        say(results[-1].verdict)
    return results


def _table(results: list[Result]) -> str:
    lines = [tuple(_COLUMNS.split()), ("---",) * len(_COLUMNS.split())]
    for each in results:
        counts = (each.found, each.lost, each.doubled, each.wrong)
        rows = (ROWS, *(counts if each.found else ["-"] * len(counts)))
        run = (round(each.seconds), each.kills, each.restarts)
        verdict = each.verdict.replace("\n", " ").replace("|", "/")
        lines.append((each.server, each.version, f"`{each.target}`", *map(str, (*rows, *run)), verdict))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
