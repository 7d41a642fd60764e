"""Runs chaos: ``python -m integration.chaos --minutes 10``."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from pathlib import Path

from integration.chaos.report import table
from integration.chaos.run import MINISTACK, Settings, run_chaos
from integration.foreign.servers import SERVERS
from integration.support.paths import BUILD
from integration.support.spark import JVM_OPTIONS, prepare_environment

INTERRUPTED = 130


def main() -> int:
    """0: every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m integration.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="with faults (default 10)")
    parser.add_argument("--seed", type=int, help="of a history that is to be had again")
    parser.add_argument("--rate", type=float, default=200.0, help="orders a second (default 200)")
    with_s3 = [MINISTACK, *(each.name for each in SERVERS.values() if "s3" in each.targets)]
    parser.add_argument("--s3", choices=with_s3, default=MINISTACK, help="the server that has the files")
    parser.add_argument("--output", type=Path, default=BUILD / "chaos", help="takes logs and table")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if arguments.seed is None else arguments.seed
    settings = Settings(seed, arguments.minutes * 60, arguments.rate, arguments.output, arguments.s3)
    signal.signal(signal.SIGTERM, _interrupt)
    prepare_environment()
    # The quick compiler alone: a JVM that is not there for long takes half of the CPU.
    os.environ.setdefault(JVM_OPTIONS, "-XX:TieredStopAtLevel=1")
    began = time.monotonic()

    def say(line: str) -> None:
        took = int(time.monotonic() - began)
        print(f"[{took // 60}:{took % 60:02}] {line}", flush=True)

    say(f"chaos, seed {seed}, {arguments.minutes:g} minutes")
    try:
        verdict = run_chaos(settings, say)
    except KeyboardInterrupt:
        say("stopped; every process that was started is gone")
        return INTERRUPTED
    text = table(verdict)
    settings.output.joinpath("table.txt").write_text(text + "\n")
    print(f"\n{text}\n")
    say(f"logs are in {settings.output}")
    return 0 if verdict.is_right else 1


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
