"""Tests with real Spark, real sockets and emulators that are not ours; the demo and the benchmarks."""

import atexit
import os
import shutil
import sys
import tempfile


def _python() -> str:
    """This Python, by a path without blanks: with one, Spark would search for no formats."""
    if " " not in sys.executable:
        return sys.executable
    directory = tempfile.mkdtemp(prefix="sluice-python-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    link = os.path.join(directory, "environment")  # noqa: PTH118 - pathlib takes its time
    os.symlink(sys.prefix, link)  # noqa: PTH211 - the same
    return os.path.join(link, os.path.relpath(sys.executable, sys.prefix))  # noqa: PTH118


# Spark is to ask this Python for formats. `import sluice` warns where it would not, so this comes first.
os.environ.update(dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), _python()))
