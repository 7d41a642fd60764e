"""``sluice.__version__`` is that of the distribution, which takes it from there."""

from __future__ import annotations

from importlib import metadata

import sluice


def test_the_version_is_that_of_the_distribution() -> None:
    assert sluice.__version__ == metadata.version("pyspark-sluice")
