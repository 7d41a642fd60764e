"""What the tests of `integration` have, too: one profile of Hypothesis, and lines that say what is left."""

from integration.support.run_plugin import pytest_configure

__all__ = ["pytest_configure"]
