"""What all tests of the commands share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kinesis_transport import forget_process_state


@pytest.fixture(autouse=True)
def _fresh_process() -> Iterator[None]:
    """Each test has its own clients."""
    yield
    forget_process_state()
