"""``sluice doctor``: whether Spark, Java and the Python that Spark starts fit Sluice."""

from __future__ import annotations

import argparse

from sluice.cli.installation import check_installation
from sluice.cli.report import Report

HELP = "check Python, PySpark, Java, packages, and whether Spark finds Sluice"
EXAMPLE = "sluice doctor --json"


def configure(parser: argparse.ArgumentParser) -> None:
    """See `sluice.cli.app.Command`."""
    parser.description = f"{HELP}; run it in the shell, and in the environment, of the application"
    parser.set_defaults(run=run)


def run(_arguments: argparse.Namespace) -> Report:
    """Checks what an application that is started from here would find."""
    found = list(check_installation())
    value = {"findings": [{"check": each.name, "ok": each.is_well, "text": each.text} for each in found]}
    text = "\n".join(f"{'ok' if each.is_well else 'FAILED':<8} {each.name}: {each.text}" for each in found)
    return Report(value, text, has_problem=not all(each.is_well for each in found))
