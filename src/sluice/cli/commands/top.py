"""``sluice top``: shards, lag, rates and throttling, live."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import time
from typing import Final

from sluice.cli.report import Report, UsageError
from sluice.cli.top_view import Look, frame, line, look_at_listener, rated

HELP = "shards, lag, rates and throttling of running queries, live"
EXAMPLE = "sluice top 127.0.0.1:9464"

_ADDRESS: Final = re.compile(r"(https?://.+|\[[0-9a-fA-F:]+\]:\d+|[\w.-]+:\d+)(/.*)?")
_HEADER_LINES: Final = 7
_LONGEST: Final = 86_400.0
"""Seconds between two looks; NaN is none."""
_HOME: Final = "\x1b[H\x1b[J"
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def configure(parser: argparse.ArgumentParser) -> None:
    """See `sluice.cli.app.Command`."""
    parser.add_argument("address", help="the address of a listener: host:port, or http://host:port")
    parser.add_argument("--interval", type=float, default=2.0, help="seconds between two frames (2)")
    parser.add_argument("--once", action="store_true", help="print one frame, and end")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Report:
    """Looks repeatedly, and returns the last look."""
    address, interval = arguments.address, arguments.interval
    if not _ADDRESS.fullmatch(address):
        raise UsageError(
            f"{address} is not the address of a listener, which has a port: 127.0.0.1:9464. Of a checkpoint "
            "'sluice offsets show' shows the lag"
        )
    if not 0 <= interval < _LONGEST:
        raise UsageError("--interval is a number of seconds from 0 to a day")
    last = look_at_listener(address, time.time())
    is_live = sys.stdout.isatty()
    if arguments.once or arguments.json:
        time.sleep(interval)
        last = rated(look_at_listener(address, time.time()), last)
        return Report(last.to_json(), frame(last))
    try:
        if is_live:
            sys.stdout.write(_HIDE_CURSOR)
        while True:
            sys.stdout.write((_HOME + _screen(last) if is_live else line(last)) + "\n")
            sys.stdout.flush()
            time.sleep(interval)
            last = rated(look_at_listener(address, time.time()), last)
    except (KeyboardInterrupt, BrokenPipeError):  # how people end it, and how `| head` does
        pass
    finally:
        if is_live:
            sys.stdout.write(_SHOW_CURSOR)
    return Report({}, "")


def _screen(look: Look) -> str:
    """As much of a frame as fits on the terminal."""
    size = shutil.get_terminal_size()
    rows = max(1, (size.lines - 2) // max(1, len(look.queries)) - _HEADER_LINES)
    cut = [each[: size.columns] for each in frame(look, rows=rows).splitlines()]
    return "\n".join(cut[: size.lines - 1])
