"""Runs benchmarks one after the other, each in a separate process: the named ones, or all."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

SHARED = {"backlog", "cpu", "floor", "plain", "server", "versus"}  # modules that measure nothing themselves


def main() -> int:
    folder = Path(__file__).parent
    names = sorted({path.stem for path in folder.glob("[!_]*.py")} - SHARED)
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks", description=__doc__)
    parser.add_argument("benchmark", nargs="*", help=f"of {', '.join(names)}")
    chosen = parser.parse_args().benchmark or names
    if unknown := sorted({*chosen} - {*names}):
        parser.error(f"no such benchmark: {', '.join(unknown)}")
    failed = []
    for name in chosen:
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"integration.benchmarks.{name}"], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
