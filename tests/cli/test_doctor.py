"""``sluice doctor``: its findings, independent of the packages installed here."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_support import sluice

from sluice.cli.commands import doctor
from sluice.cli.commands.doctor import Finding, check_installation
from sluice.environment import Probed

HERE = Probed("python3", sys.executable, platform.python_version(), "x86_64")


def always(probed: Probed) -> Callable[[str], Probed]:
    return lambda _command: probed


@pytest.fixture
def checks(tmp_path: Path) -> Callable[[str], dict[str, Finding]]:
    """Runs all checks where ``java -version`` says this."""

    def check(java: str) -> dict[str, Finding]:
        command = tmp_path / "bin" / "java"
        command.parent.mkdir(exist_ok=True)
        command.write_text(f"#!/bin/sh\necho '{java}' >&2\n")
        command.chmod(0o755)
        environment = {"JAVA_HOME": str(tmp_path)}
        return {finding.name: finding for finding in check_installation(environment, always(HERE))}

    return check


def test_all_is_checked(checks: Callable[[str], dict[str, Finding]]) -> None:
    """Python, PySpark, packages, Java, and both Pythons that Spark starts."""
    found = checks('openjdk version "17.0.2" 2022-01-18')
    assert [name for name, finding in found.items() if finding.is_well] == [
        "Python",
        "Sluice",
        "PySpark",
        "packages",
        "Java",
        "Python of Spark's workers",
        "Python that Spark asks for formats",
    ]
    assert "boto3 " in found["packages"].text
    assert found["Java"].text.startswith("17 (")


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.2"])
def test_a_java_that_is_too_old(checks: Callable[[str], dict[str, Finding]], version: str) -> None:
    """Spark would fail with ``UnsupportedClassVersionError``."""
    java = checks(f'openjdk version "{version}" 2020-01-01')["Java"]
    assert not java.is_well
    assert "needs 17" in java.text


def test_no_java(checks: Callable[[str], dict[str, Finding]]) -> None:
    """A JAVA_HOME that leads nowhere, or something else of that name."""
    assert not checks("hello")["Java"].is_well
    found = {each.name: each for each in check_installation({"JAVA_HOME": "/no"}, always(HERE))}
    assert found["Java"].text.startswith("JAVA_HOME is /no, which has none that runs: install 17 or newer")


# --- which Spark ----------------------------------------------------------------------------------------


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The versions of the installed packages, for tests to fill."""
    versions: dict[str, str] = {}
    monkeypatch.setattr(doctor, "_installed", versions.get)
    return versions


def write_spark(home: Path, version: str) -> dict[str, str]:
    (home / "python" / "pyspark").mkdir(parents=True)
    (home / "python" / "pyspark" / "version.py").write_text(f'__version__: str = "{version}"\n')
    return {"SPARK_HOME": str(home), "JAVA_HOME": "/no"}


def pyspark(environment: dict[str, str]) -> Finding:
    return next(each for each in check_installation(environment, always(HERE)) if each.name == "PySpark")


def test_the_spark_of_a_cluster_will_do(installed: dict[str, str], tmp_path: Path) -> None:
    """A fresh environment has no Spark. Java is looked at for that one."""
    environment = write_spark(tmp_path, "4.0.1")
    assert pyspark(environment) == Finding("PySpark", "that of SPARK_HOME, 4.0.1", is_well=True)
    assert "Java" in {each.name for each in check_installation(environment, always(HERE))}
    assert installed == {}


def test_a_second_spark_of_another_version_is_a_problem(installed: dict[str, str], tmp_path: Path) -> None:
    """Driver and workers would run one each."""
    installed["pyspark"] = "4.3.0"
    found = pyspark(write_spark(tmp_path, "4.0.1"))
    assert not found.is_well
    assert found.text == (
        f"pyspark 4.3.0 is installed, and SPARK_HOME ({tmp_path}) has Spark 4.0.1: pip uninstall pyspark, as "
        "Spark brings its own, or pip install pyspark==4.0.1"
    )
    installed["pyspark"] = "4.0.1"
    assert pyspark({"SPARK_HOME": str(tmp_path)}).is_well


@pytest.mark.parametrize(
    ("spark", "python", "pyarrow", "problem"),
    [
        ("4.3.0", "3.10.12", "18.0", "PySpark 4.3.0 needs Python 3.11 or newer; this is 3.10.12"),
        ("4.3.0.dev1", "3.11.0", "17.0.0", "PySpark 4.3.0.dev1 needs pyarrow 18 or newer; this is 17.0.0"),
        ("4.2.0", "3.10.12", "17.0.0", "PySpark 4.2.0 needs pyarrow 18 or newer; this is 17.0.0"),
        ("4.2.0", "3.10.12", "18.0.0", None),
        ("4.1.0", "3.10.12", "15.0.0", None),
    ],
)
def test_what_is_too_old_for_this_pyspark(
    installed: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    spark: str,
    python: str,
    pyarrow: str,
    problem: str | None,
) -> None:
    monkeypatch.setattr(platform, "python_version", lambda: python)
    installed.update({"pyspark": spark, "pyarrow": pyarrow})

    assert pyspark({}) == Finding("PySpark", problem or f"pyspark {spark}", is_well=problem is None)


@pytest.mark.usefixtures("installed")
def test_a_home_that_says_nothing(tmp_path: Path) -> None:
    """The directory is empty, or holds no known Spark."""
    assert not pyspark({"SPARK_HOME": str(tmp_path)}).is_well
    (tmp_path / "version.py").write_text("VERSION = 1\n")
    assert not pyspark({"SPARK_HOME": str(tmp_path)}).is_well


# --- how Sluice got there -------------------------------------------------------------------------------


def test_a_folder_that_hides_sluice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command itself is found elsewhere. A folder without ``__init__.py`` hides nothing."""

    def problems() -> list[str]:
        found = check_installation({}, always(HERE))
        return [each.text for each in found if each.name == "working folder"]

    monkeypatch.chdir(tmp_path)
    (tmp_path / "sluice").mkdir()
    assert problems() == []
    for path in (tmp_path / "sluice.py", tmp_path / "sluice" / "__init__.py"):
        path.touch()
        (problem,) = problems()
        assert problem.startswith(f"programs that start here import {path} instead of Sluice: rename it")
    monkeypatch.chdir(Path(doctor.__file__).parents[3])
    assert problems() == []


def test_a_sluice_that_is_only_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with ``--py-files`` alone."""
    found = {each.name: each for each in check_installation({}, always(HERE))}
    assert found["Sluice"].is_well
    monkeypatch.setattr(doctor, "_installed", lambda _name: None)
    monkeypatch.setattr(doctor, "__file__", "/job/sluice.zip/sluice/cli/commands/doctor.py")
    found = {each.name: each for each in check_installation({}, always(HERE))}
    assert not found["Sluice"].is_well
    assert found["Sluice"].text.startswith("it is on the path, in /job/sluice.zip, and not installed")


def test_the_archive_of_executors_and_the_python_of_the_driver() -> None:
    """As Spark's own tutorial sets them."""
    environment = {"PYSPARK_DRIVER_PYTHON": "python", "PYSPARK_PYTHON": "./environment/bin/python"}
    found = {each.name: each for each in check_installation(environment, always(HERE))}
    assert not found["Python of formats that Spark finds"].is_well


def test_a_python_of_sparks_settings(tmp_path: Path) -> None:
    """Formats that Spark finds ignore it."""
    name = "Python of formats that Spark finds"
    (tmp_path / "conf").mkdir()
    file = tmp_path / "conf" / "spark-defaults.conf"
    file.write_text(
        "# spark.pyspark.python /no\nspark.master yarn\nspark.pyspark.python   /opt/app/bin/python\n"
    )

    def found(**environment: str) -> dict[str, Finding]:
        return {each.name: each for each in check_installation(environment, always(HERE))}

    for environment in ({"SPARK_HOME": str(tmp_path)}, {"SPARK_CONF_DIR": str(file.parent)}):
        told = found(**environment)[name]
        assert not told.is_well
        assert "set PYSPARK_PYTHON=/opt/app/bin/python as well" in told.text
    assert name not in found(SPARK_HOME=str(tmp_path), PYSPARK_PYTHON="python3")
    file.write_text("spark.master yarn\n")
    assert name not in found(SPARK_HOME=str(tmp_path))
    assert name not in found(SPARK_HOME="/no")


# --- the command ----------------------------------------------------------------------------------------


def ran(*arguments: str) -> tuple[int, dict[str, bool]]:
    done = sluice("doctor", "--json", *arguments)
    return done.code, {each["check"]: each["ok"] for each in done.value["findings"]}


def test_what_an_application_would_find_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """With this Python for Spark, all that concerns Python is well."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    _, found = ran()
    assert {"Python", "PySpark", "Java", "packages"} <= found.keys()
    assert found["Python of Spark's workers"]
    assert found["Python that Spark asks for formats"]


def test_a_python_without_sluice_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The exit code says so, and the text what to set."""
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "python"))
    code, found = ran()
    shown = sluice("doctor")
    assert (code, found["Python of Spark's workers"]) == (1, False)
    assert f"set PYSPARK_PYTHON={sys.executable} before the session starts" in shown.out
