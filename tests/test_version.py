"""``sluice.__version__`` is that of the installed distribution, and costs nothing until it is asked for."""

from __future__ import annotations

from importlib import metadata

import pytest

import sluice


def test_the_version_is_that_of_the_distribution() -> None:
    """Not a second copy of it in the source."""
    assert sluice.__version__ == metadata.version("pyspark-sluice")
    assert "__version__" not in vars(sluice)


def test_without_a_distribution_there_is_one_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory on the path, as with ``--py-files``."""

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert sluice.__version__ == "0"


@pytest.mark.parametrize("name", ["nothing", "__path_hooks__"])
def test_other_names_are_unknown(name: str) -> None:
    """As in any module."""
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
        getattr(sluice, name)
