"""The fakes are as strict as the services: a request that a service forbids fails its test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fake_service
import pytest
from worlds import Worlds

from sluice.aws.calling.clients import client_for
from sluice.aws.calling.connection import ConnectionConfig


@pytest.fixture(autouse=True)
def _no_forbidden_requests() -> Iterator[None]:
    fake_service.VIOLATIONS.clear()
    yield
    assert fake_service.VIOLATIONS == []


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[ConnectionConfig]:
    """Those for which clients are made, from now on. Each gets the client of the fake service."""
    seen = []

    def client(connection: ConnectionConfig, service: str) -> Any:
        seen.append(connection)
        return client_for(fake_service.CONNECTION, service)

    monkeypatch.setattr("sluice.destinations.common.batch_call.client_for", client)
    return seen


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    made = Worlds()
    yield made
    made.close()
