"""Runs a Python module with a clock that can be set forward: ``python aging.py <file> <module>``.

The file holds the seconds that ``time.time`` is ahead. So an emulator that trims records by their age
does that at once: nothing about it is changed but the time. Standard library only.
"""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path

_real_time = time.time


def main() -> None:
    ahead = Path(sys.argv[1])
    module = sys.argv[2]

    def aged_time() -> float:
        return _real_time() + float(ahead.read_text() or 0)

    time.time = aged_time
    sys.argv[1:] = []
    sys.path.pop(0)  # this directory, whose modules nobody there means
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
