"""The fakes are as strict as the services: a request that a service forbids fails its test."""

from __future__ import annotations

from collections.abc import Iterator

import fake_service
import pytest


@pytest.fixture(autouse=True)
def _no_forbidden_requests() -> Iterator[None]:
    fake_service.VIOLATIONS.clear()
    yield
    assert fake_service.VIOLATIONS == []
