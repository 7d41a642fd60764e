"""Runs every benchmark, one after the other, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SHARED = {"floor", "server"}  # modules that measure nothing themselves


def main() -> int:
    folder = Path(__file__).parent
    names = sorted({path.stem for path in folder.glob("[!_]*.py")} - SHARED)
    failed = []
    for name in names:
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"integration.benchmarks.{name}"], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
