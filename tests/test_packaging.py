"""What a release says of itself: whose repository built it, that its tests passed, and what it needs."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from sluice.environment import PACKAGES

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The metadata hook, without hatchling, which only a build has."""
    interface = ModuleType("hatchling.metadata.plugin.interface")
    interface.__dict__["MetadataHookInterface"] = type("MetadataHookInterface", (), {"root": str(ROOT)})
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.RepositoryMetadata()


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


def test_links_of_the_readme_lead_somewhere_from_a_package_index(
    hook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is absolute, and its file exists; without a repository they stay as they are."""
    metadata: dict[str, Any] = {}

    monkeypatch.setenv("SLUICE_REPOSITORY_URL", "https://example.org/sluice")
    hook.update(metadata)
    links = re.findall(r"\]\(([^)]+)\)", metadata["readme"]["text"])
    ours = [link for link in links if link.startswith("https://example.org/")]
    assert all(re.match("https://|#", link) for link in links)
    assert ours
    for link in ours:
        path = link.removeprefix("https://example.org/sluice/blob/main/")
        assert (ROOT / path.partition("#")[0]).is_file()

    monkeypatch.delenv("SLUICE_REPOSITORY_URL")
    hook.update(metadata)
    assert metadata["readme"]["text"] == (ROOT / "README.md").read_text()


def workflow(name: str) -> Any:
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())


def commands(job: Any) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_only_what_was_tested_is_published() -> None:
    """And only the job that publishes may ask for a token of the index."""
    release = workflow("release")
    jobs = release["jobs"]

    assert sorted(jobs["publish"]["needs"]) == ["build", "test"]
    assert jobs["announce"]["needs"] == "publish"
    assert {name: job["permissions"] for name, job in jobs.items() if "permissions" in job} == {
        "publish": {"id-token": "write"},
        "announce": {"contents": "write"},
    }
    assert release["permissions"] == {"contents": "read"}
    assert commands(jobs["test"]) == [".ci/run"]
    assert commands(jobs["build"])[0] == "make release-check"


def test_actions_are_pinned() -> None:
    """By commit, with the version for readers: a tag can be moved to other code."""
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        for use in re.findall(r"uses: (.+)", path.read_text()):
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[0-9.]+", use), f"{path.name}: {use}"


def test_classifiers_name_what_is_tested() -> None:
    """CI runs each Python of the classifiers, and each target of `make test-matrix`; the tests need Linux."""
    project = (ROOT / "pyproject.toml").read_text()
    jobs = workflow("ci")["jobs"]
    matrix = jobs["matrix"]["strategy"]["matrix"]["include"]
    targets = re.findall(r"^MATRIX = (.+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()
    everywhere = jobs["all"]["steps"][1]["with"]["python-version"]

    pythons = {each["python"] for each in matrix} | {everywhere}
    assert pythons == set(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project))
    assert {each["target"] for each in matrix} == {*targets, "lowest"}
    assert re.findall(r'"Operating System :: (.+)"', project) == ["POSIX :: Linux"]


# Modules and where they come from; extras are what few need. Every other module belongs to all installations.
IN_EXTRAS = {
    "argcomplete": "completion",
    "hypothesis": "testing",
    "opentelemetry": "opentelemetry",
    "prometheus_client": "prometheus",
    "pyspark": "spark",
}


def test_what_is_imported_is_declared_and_the_other_way_round() -> None:
    """The environment of the tests has more than a user installs: there an import of it would fail."""
    project = (ROOT / "pyproject.toml").read_text()
    lists = re.findall(r"^([\w-]+) = \[\n((?: .*\n)+)\]", project, re.MULTILINE)
    declared = {name: re.findall(r'^ +"([\w-]+)>', text, re.MULTILINE) for name, text in lists}
    imported = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in _imported_at_run_time(ast.parse(path.read_text()))
    }
    third_party = imported - {"sluice", *sys.stdlib_module_names}

    assert sorted(declared["dependencies"]) == sorted(third_party - IN_EXTRAS.keys())
    assert sorted(declared["dependencies"]) == sorted(PACKAGES)
    for name, extra in IN_EXTRAS.items():
        assert name in third_party
        assert any(each.replace("-", "_").startswith(name) for each in declared[extra])


def _imported_at_run_time(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for other in node.orelse:
                yield from _imported_at_run_time(other)
        else:
            yield from _imported_at_run_time(node)
