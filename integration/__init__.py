"""Tests with real Spark, real sockets and emulators that are not ours; the demo and the benchmarks."""

import os
import sys

# Spark is to ask this Python for formats. `import sluice` warns where it would not, so this comes first.
os.environ.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
