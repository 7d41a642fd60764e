"""What a release says of itself: whose repository built it, and that its tests passed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The metadata hook, without hatchling, which only a build has."""
    interface = ModuleType("hatchling.metadata.plugin.interface")
    interface.__dict__["MetadataHookInterface"] = object
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ProjectUrls()


def test_the_urls_are_those_of_the_repository_that_builds(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork's package names the fork; one that is built elsewhere names none."""
    metadata: dict[str, Any] = {}

    monkeypatch.setenv("SLUICE_REPOSITORY_URL", "https://example.org/fork/sluice/")
    hook.update(metadata)
    assert metadata["urls"]["Source"] == "https://example.org/fork/sluice"
    assert all(url.startswith("https://example.org/fork/sluice") for url in metadata["urls"].values())
    for url in metadata["urls"].values():
        if path := url.partition("/main/")[2]:
            assert (ROOT / path).exists()

    monkeypatch.delenv("SLUICE_REPOSITORY_URL")
    hook.update(metadata)
    assert metadata["urls"] == {}


def test_only_what_was_tested_is_published() -> None:
    """And only the job that publishes may ask for a token of the index."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    jobs = workflow["jobs"]

    assert sorted(jobs["publish"]["needs"]) == ["build", "test"]
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == ["publish"]
    assert workflow["permissions"] == {"contents": "read"}
    assert [step["run"] for step in jobs["test"]["steps"] if "run" in step] == [".ci/run"]
