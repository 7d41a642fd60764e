"""``sluice offsets``: what a checkpoint holds, another place to go on from, and starts from other tools."""

from __future__ import annotations

import argparse

from sluice.cli import offsets_import, offsets_reset, offsets_show

HELP = "show and reset the offsets of a query; import those of other tools"


def configure(parser: argparse.ArgumentParser) -> None:
    """See `sluice.cli.app.Command`."""
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, module in (("show", offsets_show), ("reset", offsets_reset), ("import", offsets_import)):
        child = subparsers.add_parser(name, help=module.HELP, description=module.HELP, epilog=module.EXAMPLE)
        module.configure(child)
