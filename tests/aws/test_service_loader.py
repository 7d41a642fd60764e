"""The SDK's descriptions of services, found without a list of all services."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import Loader
from kinesis_transport import forget_process_state

from sluice.aws.calling.clients import client_for
from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.calling.service_loader import ServiceLoader

CONFIG = ConnectionConfig(region="eu-west-1", access_key_id="AKIDEXAMPLE", secret_access_key="hush")


def test_a_client_is_made_without_a_list_of_all_services(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing them takes 18 ms of CPU, in every process of a query."""

    def list_all(*_: Any) -> None:
        raise AssertionError("all services are listed")

    monkeypatch.setattr(Loader, "list_available_services", list_all)
    forget_process_state()

    assert client_for(CONFIG, "kinesis").meta.service_model.service_name == "kinesis"
    forget_process_state()


def test_users_may_bring_descriptions_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folders of AWS_DATA_PATH, with variables and a tilde as the SDK takes them."""
    folder = tmp_path / "more" / "ours" / "2026-01-01"
    folder.mkdir(parents=True)
    (folder / "service-2.json").write_text(json.dumps({"metadata": {"serviceId": "Ours"}}))
    monkeypatch.setenv("MORE", str(tmp_path / "more"))

    model = ServiceLoader("~/nowhere:$MORE").load_service_model("ours", "service-2")

    assert model["metadata"]["serviceId"] == "Ours"
