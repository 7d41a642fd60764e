"""The profile of Hypothesis that the tests of `integration` have, too."""

import logging

import integration.support.hypothesis_profile  # noqa: F401 - loads it

# Some tests leave a request that never ends on an event loop. Python finds it at any time, and logs that in
# the middle of another test, which may assert that nothing is logged.
logging.getLogger("asyncio").propagate = False
