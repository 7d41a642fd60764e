"""What the tests of `integration` have, too: one profile of Hypothesis, and lines that say what is left."""

import logging

from integration.support.run_plugin import pytest_configure

__all__ = ["pytest_configure"]

# Some tests leave a request that never ends on an event loop. Python finds it at any time, and logs that in
# the middle of another test, which may assert that nothing is logged.
logging.getLogger("asyncio").propagate = False
