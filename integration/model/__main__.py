"""Serves the model: ``python -m integration.model --port 0`` prints its endpoint and runs until it is
stopped.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import threading

from integration.model.clock import RealClock
from integration.model.laws import Laws
from integration.model.server import serving


def main() -> int:
    """Runs until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m integration.model", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0: a free one (default)")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is left to chance")
    parser.add_argument("--kind", action="store_true", help="no law holds, as with emulators")
    parser.add_argument(
        "--law", action="append", default=[], metavar="NAME=JSON", help="empty_pages=0, for one"
    )
    parser.add_argument("--offset", type=float, default=0.0, help="seconds that the service's clock is ahead")
    parser.add_argument("--drift", type=float, default=0.0, help="seconds that it gains each second")
    arguments = parser.parse_args()
    given = {name: json.loads(value) for name, _, value in (each.partition("=") for each in arguments.law)}
    laws = dataclasses.replace(Laws.kind() if arguments.kind else Laws(), **given)
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    clock = RealClock(arguments.offset, arguments.drift)
    with serving(laws, clock, arguments.seed, port=arguments.port) as server:
        print(server.endpoint, flush=True)
        done.wait()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
