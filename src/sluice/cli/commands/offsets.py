"""``sluice offsets``: shows and resets positions of a checkpoint, and imports positions of other tools."""

from __future__ import annotations

import argparse

from sluice.cli import offsets_import, offsets_reset, offsets_show
from sluice.cli.options import add_commands

HELP = "show and reset the offsets of a query; import those of other tools"


def configure(parser: argparse.ArgumentParser) -> None:
    """See `sluice.cli.app.Command`."""
    modules = {"show": offsets_show, "reset": offsets_reset, "import": offsets_import}
    children = add_commands(parser, {name: (each.HELP, each.EXAMPLE) for name, each in modules.items()})
    for module, child in zip(modules.values(), children, strict=True):
        module.configure(child)
