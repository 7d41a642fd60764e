"""Which Python Spark would ask, whether it has Sluice, and the sentence that says what to set."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import sluice
from sluice.environment import (
    SHIMS,
    Probed,
    explain_found_formats,
    explain_lookup,
    explain_workers,
    lookup_python,
    minimum_pyspark,
    probe_python,
    sent_with_py_files,
    worker_python,
)

HERE = Probed("python3", sys.executable, platform.python_version(), "x86_64")
ELSEWHERE = Probed("python3", "/usr/bin/python3", platform.python_version(), "x86_64", ("sluice", *SHIMS))
SETTING = f"PYSPARK_PYTHON={sys.executable} before the session starts"


def always(probed: Probed) -> Callable[[str], Probed]:
    return lambda _command: probed


@pytest.fixture
def make_python(tmp_path: Path) -> Callable[[str], str]:
    """Makes a command in a new directory, from the lines of a shell script."""

    def make(script: str) -> str:
        command = tmp_path / "bin" / "python3"
        command.parent.mkdir()
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(0o755)
        return str(command)

    return make


@pytest.mark.parametrize(
    ("environment", "lookup", "worker"),
    [
        ({}, "python3", "python3"),
        ({"PYSPARK_PYTHON": "/a"}, "/a", "/a"),
        ({"PYSPARK_DRIVER_PYTHON": "jupyter"}, "jupyter", "python3"),
        ({"PYSPARK_DRIVER_PYTHON": "jupyter", "PYSPARK_PYTHON": "/a"}, "jupyter", "/a"),
    ],
)
def test_which_python_spark_asks(environment: dict[str, str], lookup: str, worker: str) -> None:
    """As `PythonUtils.defaultPythonExec` and `SparkContext.pythonExec` choose it."""
    assert (lookup_python(environment), worker_python(environment)) == (lookup, worker)


def test_one_sentence_where_the_environment_is_not_activated() -> None:
    """Spark asks the python3 of PATH. Nothing is said if that has Sluice."""
    assert explain_lookup({}, always(HERE)) is explain_workers({}, always(HERE)) is None
    assert explain_lookup({}, always(ELSEWHERE)) == (
        f"Spark asks 'python3' (/usr/bin/python3, Python {platform.python_version()}) for formats, which "
        f"does not have Sluice: set {SETTING}"
    )
    assert explain_workers({}, always(ELSEWHERE)) == (
        f"Spark runs data sources in 'python3' (/usr/bin/python3, Python {platform.python_version()}), which "
        f"does not have Sluice: set {SETTING}"
    )


@pytest.mark.parametrize("name", ["PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"])
def test_a_path_with_a_blank_is_named(name: str) -> None:
    """Spark would run tasks with it, and find no format."""
    command = "/home/me/my project/.venv/bin/python"
    there = Probed(command, command, platform.python_version(), "x86_64")
    told = explain_lookup({name: command}, always(there)) or ""
    assert told.startswith(f"Spark searches for no formats, since '{command}' has a blank in its path: link")
    assert explain_workers({name: command}, always(there)) is None


def test_one_sentence_under_jupyter() -> None:
    """There the other variable counts, and registering helps without a restart."""
    environment = {"PYSPARK_DRIVER_PYTHON": "jupyter", "PYSPARK_PYTHON": sys.executable}
    assert explain_lookup(environment, always(Probed("jupyter", None))) == (
        "Spark asks 'jupyter' for formats, which does not run a Python: set PYSPARK_DRIVER_PYTHON="
        f"{sys.executable} before the session starts, or call sluice.register(spark) in it"
    )


@pytest.mark.parametrize(
    ("missing", "lookup", "workers"),
    [
        (("pyarrow",), "lacks pyarrow", "lacks pyarrow"),
        (SHIMS, "lacks pyspark_kinesis_efo, pyspark_async_sink, pyspark_dynamodb_streams", None),
    ],
)
def test_what_is_missing_is_named(missing: tuple[str, ...], lookup: str, workers: str | None) -> None:
    """The two modules that Spark looks for are not needed where formats are registered."""
    probed = Probed("python3", "/p", platform.python_version(), "x86_64", missing)
    assert probed.problem(shims=True) == lookup
    assert probed.problem() == workers
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert Probed("python3", "/p", "3.9.2").problem() == f"is not the Python {ours} of the application"


def test_another_python_is_asked(make_python: Callable[[str], str], tmp_path: Path) -> None:
    """What it finds by itself, and in the files that Spark sends to workers."""
    other = make_python(f'exec {sys.executable} -I -S "$@"')
    probed = probe_python(other)
    assert probed.version == platform.python_version()
    assert "sluice" in probed.missing
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "sluice.py").touch()
    seeing = tmp_path / "bin" / "seeing"
    seeing.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    seeing.chmod(0o755)
    assert "sluice" not in probe_python(str(seeing), [str(tmp_path / "sent")]).missing


def test_a_folder_of_the_name_is_no_sluice(
    make_python: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the working folder, such as a checkout: it would hide the cause."""
    other = make_python(f'exec {sys.executable} -S "$@"')
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (tmp_path / "sluice").mkdir()
    monkeypatch.chdir(tmp_path)

    assert probe_python(other).problem() == "does not have Sluice"


@pytest.mark.parametrize("script", ["exit 1", "echo hello", "echo '{}'", "echo '[]'"])
def test_what_is_no_python_is_called_that(make_python: Callable[[str], str], script: str) -> None:
    """Such as ``jupyter``, or the user's script."""
    assert probe_python(make_python(script)).problem() == "does not run a Python"
    assert probe_python("/no/such/python").problem() == "does not run a Python"


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("4.0.0", None),
        ("4.1.0.dev3", None),
        ("4.0.0-amzn-1", None),
        ("10.0", None),
        ("3.5.9", "PySpark 4.0 or newer is needed, which has data sources in Python; this is 3.5.9"),
        (None, "PySpark is not installed: pip install 'pyspark-sluice[spark]'"),
    ],
)
def test_which_pyspark_will_do(version: str | None, problem: str | None) -> None:
    """The extra is named where there is none."""
    told = minimum_pyspark(version)
    assert told is None if problem is None else (told or "").startswith(problem)


# --- archives and files that Spark brings to workers --------------------------------------------------


ARCHIVED = "./environment/bin/python"


def test_an_archive_that_the_driver_does_not_have(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Executors have it. What helps is the archive here, too, and no other path."""
    monkeypatch.chdir(tmp_path)
    there = (
        f"which does not exist in {tmp_path}: executors have it from --archives, but Spark plans data "
        "sources on the driver host, at the same path. Unpack it here, too, or link it: "
        f"ln -s {sys.prefix} environment"
    )
    environment = {"PYSPARK_PYTHON": ARCHIVED}
    assert explain_workers(environment) == f"Spark runs data sources in '{ARCHIVED}', {there}"
    assert explain_lookup(environment) == f"Spark asks '{ARCHIVED}' for formats, {there}"
    (tmp_path / "environment").symlink_to(sys.prefix)
    assert explain_workers(environment) is None
    assert explain_lookup(environment) is None


def test_a_command_or_an_absolute_path_that_is_missing_is_of_no_archive() -> None:
    """There the advice is another path."""
    for command in ("no-such-python", "/no/such/python"):
        told = explain_workers({"PYSPARK_PYTHON": command}) or ""
        assert told.endswith(f"does not run a Python: set {SETTING}")


@pytest.mark.parametrize(
    ("driver", "workers", "is_told"),
    [
        ("python", ARCHIVED, True),
        ("/opt/app/bin/python", ARCHIVED, True),
        (ARCHIVED, ARCHIVED, False),
        (None, ARCHIVED, False),
        ("/opt/app/bin/python", "/opt/app/bin/python", False),
        ("/opt/app/bin/python", "/opt/other/bin/python", False),
        ("python", None, False),
    ],
)
def test_formats_that_spark_finds_run_in_the_drivers_python(
    driver: str | None, workers: str | None, is_told: bool
) -> None:
    """Also on executors, which have an archive."""
    given = {"PYSPARK_DRIVER_PYTHON": driver, "PYSPARK_PYTHON": workers}
    told = explain_found_formats({key: value for key, value in given.items() if value})
    assert (told is not None) == is_told
    if told is not None:
        assert f"run in '{driver}' of PYSPARK_DRIVER_PYTHON, also on executors" in told


def test_another_sluice_than_this_one(make_python: Callable[[str], str]) -> None:
    """The one plans what the other reads."""
    other = Probed("python3", "/p", platform.python_version(), "x86_64", sluice="7.8.9")
    assert (other.problem() or "").startswith("has Sluice 7.8.9, and this Python has Sluice ")
    unknown = Probed("python3", "/p", platform.python_version(), "x86_64")
    assert unknown.problem() is None
    same = make_python(f'exec {sys.executable} "$@"')
    assert probe_python(same).sluice == probe_python(sys.executable).sluice != ""
    assert probe_python(same).problem() is None


def test_what_py_files_have_brought() -> None:
    """spark-submit puts them on the path of the application, and not on that of its JVM."""
    own = str(Path(sluice.__file__).parents[1])
    submitted = {"PYSPARK_GATEWAY_PORT": "1", "PYTHONPATH": os.pathsep.join([own, "/other"])}
    assert sent_with_py_files(submitted, ["/other"]) == [own, own]
    assert sent_with_py_files(submitted, ["/other", own]) == []  # the user has put it there
    assert sent_with_py_files({"PYTHONPATH": own}, []) == []
    assert sent_with_py_files({**submitted, "PYTHONPATH": "/other"}, []) == []
    assert sent_with_py_files(submitted) in ([], [own, own], [own, own, "/other"])  # whoever has started this
    copy = Path("/tmp/spark-1/userFiles-2/sluice.zip")  # noqa: S108 - of Spark, once there is a session
    there = {"PYSPARK_GATEWAY_PORT": "1", "PYTHONPATH": "/job/sluice.zip"}
    assert sent_with_py_files(there, [], copy) == [str(copy), "/job/sluice.zip"]
    assert sent_with_py_files({}, None, copy) == [str(copy)]  # by addPyFile


def test_one_sentence_where_py_files_have_brought_it() -> None:
    """Setting another Python does not help."""
    told = explain_lookup({}, always(ELSEWHERE), is_sent=True)
    assert told == (
        f"Spark asks 'python3' (/usr/bin/python3, Python {platform.python_version()}) for formats, which "
        "does not have Sluice, and gets nothing of what --py-files brings: call sluice.register(spark), and "
        "have the file on the driver's PYTHONPATH as well, where streaming reads are planned"
    )


def test_a_python_is_asked_without_what_only_this_one_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Even if it is this one, which is not started otherwise."""
    assert probe_python(sys.executable).problem(shims=True) is None
    (tmp_path / "boto3.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    assert "boto3" not in probe_python(str(bare)).missing
    assert "boto3" in probe_python(str(bare), without=[str(tmp_path)]).missing
    assert probe_python(sys.executable, without=["/other"]).problem() is None


# --- what `import sluice` says in an application ------------------------------------------------------


def imported(program: str, **environment: str) -> str:
    """What a program writes to standard error."""
    done = subprocess.run(
        (sys.executable, "-c", program),
        env={**os.environ, "SPARK_REMOTE": "", **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stderr


def test_importing_sluice_says_what_to_set(make_python: Callable[[str], str]) -> None:
    """One line, in a program that has imported PySpark."""
    other = make_python("exit 1")
    said = imported("import pyspark, sluice", PYSPARK_PYTHON=other, PYSPARK_DRIVER_PYTHON="")
    assert said == (f"Spark asks '{other}' for formats, which does not run a Python: set {SETTING}\n")


def test_importing_sluice_says_nothing_where_all_is_well() -> None:
    """Nor in a program without PySpark."""
    nothing = {"PYSPARK_DRIVER_PYTHON": "/no/such/python"}
    assert imported("import pyspark, sluice", PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON="") == ""
    assert imported("import sluice", **nothing) == ""


def test_a_client_of_connect_gets_no_warning_and_lacks_nothing() -> None:
    """pyspark-client has no SparkContext, and the server's Python is not this machine's business."""
    without = (
        "import pyspark.sql, pyspark.sql.datasource, pyspark; del pyspark.SparkContext, pyspark.SparkFiles;"
    )
    program = f"{without} import sluice, sluice.spark.registration, sluice.spark.dropped_rows"
    assert imported(program, PYSPARK_PYTHON="/no/such/python", PYSPARK_DRIVER_PYTHON="") == ""
    nothing = {"PYSPARK_PYTHON": "/no/such/python", "SPARK_REMOTE": "sc://localhost"}
    assert imported("import pyspark, sluice", **nothing) == ""


def test_advice_keeps_nobody_from_importing() -> None:
    """For any failure of a platform to start another Python."""
    program = "import subprocess, pyspark; subprocess.run = lambda *a, **k: 1 / 0; import sluice"
    assert imported(program, PYSPARK_PYTHON="/bin/sh", PYSPARK_DRIVER_PYTHON="") == ""


@pytest.mark.parametrize("main", ["pyspark.daemon", "sluice.kinesis.agent.__main__"])
def test_what_spark_starts_says_nothing(main: str) -> None:
    """It would say so in every worker."""
    program = (
        "import sys, importlib.machinery as m; import pyspark;"
        f"sys.modules['__main__'].__spec__ = m.ModuleSpec({main!r}, None); import sluice"
    )
    assert imported(program, PYSPARK_DRIVER_PYTHON="/no/such/python") == ""


# --- PySpark is not brought along ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "message"),
    [
        ("sys.modules['pyspark'] = None", "PySpark is not installed: pip install 'pyspark-sluice[spark]'"),
        (
            "import types; sys.modules['pyspark'] = types.SimpleNamespace(__version__='3.5.1')",
            "PySpark 4.0 or newer is needed, which has data sources in Python; this is 3.5.1",
        ),
    ],
)
def test_what_needs_pyspark_says_so(there: str, message: str) -> None:
    """Everything else can be imported without it."""
    program = f"""
import sys
{there}
import sluice, sluice.sink, sluice.source, sluice.destinations.kinesis, sluice.kinesis.planner.coordinator
import pyspark_kinesis_efo, pyspark_async_sink, pyspark_dynamodb_streams
try:
    sluice.register(None)
except sluice.SparkVersionError as error:
    assert isinstance(error, ImportError) and isinstance(error, sluice.SluiceError)
    print(error, file=sys.stderr)
"""
    said = imported(program, PYTHONWARNINGS="ignore", PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON="")
    assert said.startswith(message)
    assert said.count("\n") == 1
