"""``sluice top``: shards, lag, rates and throttling, live."""

from __future__ import annotations

import argparse
import itertools
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sluice.cli.checkpoint import Checkpoint
from sluice.cli.options import add_connection, connection_of
from sluice.cli.report import Report, UsageError
from sluice.cli.storage import open_storage
from sluice.cli.top_view import Look, frame, line, look_at_checkpoint, look_at_listener, rated

HELP = "shards, lag, rates and throttling of running queries, live"

_ADDRESS: Final = re.compile(r"(https?://.+|\[[0-9a-fA-F:]+\]:\d+|[\w.-]+:\d+)(/.*)?\Z")
_HEADER_LINES: Final = 7
_LONGEST: Final = 86_400.0
"""Seconds between two looks; NaN is none."""
_HOME: Final = "\x1b[H\x1b[J"
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def configure(parser: argparse.ArgumentParser) -> None:
    """See `sluice.cli.app.Command`."""
    parser.add_argument(
        "source", help="the address of a listener (host:port), or a query's checkpointLocation"
    )
    parser.add_argument("--interval", type=float, default=2.0, help="seconds between two looks (2)")
    parser.add_argument("--once", action="store_true", help="print one frame, of two looks, and end")
    parser.add_argument("--frames", type=int, help="end after this many frames")
    add_connection(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Report:
    """Looks repeatedly, and returns the last look."""
    if not 0 <= arguments.interval < _LONGEST or (arguments.frames is not None and arguments.frames < 1):
        raise UsageError("--interval is a number of seconds from 0 to a day, --frames a number from 1 on")
    look = _looker(arguments)
    if arguments.once or arguments.json:
        first = look(None)
        if arguments.interval:
            time.sleep(arguments.interval)
            first = look(first)
        return Report(first.to_json(), frame(first))
    is_live = sys.stdout.isatty()
    last: Look | None = None
    try:
        if is_live:
            sys.stdout.write(_HIDE_CURSOR)
        for number in itertools.count(1):
            last = look(last)
            if arguments.frames is not None and number >= arguments.frames:
                break
            _show(last, is_live=is_live)
            time.sleep(arguments.interval)
    except (KeyboardInterrupt, BrokenPipeError):  # how people end it, and how `| head` does
        pass
    finally:
        if is_live:
            sys.stdout.write(_SHOW_CURSOR)
    return Report({}, "") if last is None else Report(last.to_json(), _text(last, is_live=is_live))


def _looker(arguments: argparse.Namespace) -> Callable[[Look | None], Look]:
    """A function that looks, and compares with an earlier look."""
    source: str = arguments.source
    if _ADDRESS.match(source) and not Path(source).exists():
        return lambda before: rated(look_at_listener(source, time.time()), before)
    connection = connection_of(arguments)
    storage = open_storage(source, connection)
    if not storage.exists():
        raise UsageError(
            f"{source} is neither a checkpoint nor the address of a listener, which has a port: "
            "127.0.0.1:9464"
        )

    def look(before: Look | None) -> Look:
        # Anew each time: credentials of a role last an hour, and a file system keeps those it began with.
        return rated(look_at_checkpoint(Checkpoint(open_storage(source, connection)), time.time()), before)

    return look


def _show(look: Look, *, is_live: bool) -> None:
    sys.stdout.write((_HOME if is_live else "") + _text(look, is_live=is_live) + "\n")
    sys.stdout.flush()


def _text(look: Look, *, is_live: bool) -> str:
    if not is_live:
        return line(look)
    size = shutil.get_terminal_size()
    rows = max(1, (size.lines - 2) // max(1, len(look.queries)) - _HEADER_LINES)
    cut = [each[: size.columns] for each in frame(look, rows=rows).splitlines()]
    return "\n".join(cut[: size.lines - 1])
