"""Builds what a release publishes, checks it, and uses it as a new user would.

The distributions are in dist/, the SBOM is in build/release. Nothing is uploaded.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from integration.support import servers
from integration.support.jvm import java_home
from integration.support.pages import check_quickstart, quickstart
from integration.support.paths import BUILD, ROOT

DISTRIBUTIONS = ROOT / "dist"
RELEASE = BUILD / "release"
# Nothing that would bring modules, a Spark or an account from outside the environment.
_UNSET = ("PYTHONPATH", "SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "AWS_PROFILE")
INHERITED = {name: value for name, value in os.environ.items() if name not in _UNSET}


def main() -> None:
    for directory in (DISTRIBUTIONS, RELEASE):
        shutil.rmtree(directory, ignore_errors=True)
    RELEASE.mkdir(parents=True)
    wheel = build()
    python = install(wheel)
    write_sbom(python, wheel)
    run_quickstart(python, wheel)


def build() -> Path:
    """Builds the sdist, and the wheel from the sdist: a file that the sdist lacks is missing in both."""
    tool("build", "--outdir", str(DISTRIBUTIONS), str(ROOT))
    (wheel,) = DISTRIBUTIONS.glob("*.whl")
    tool("twine", "check", "--strict", *map(str, sorted(DISTRIBUTIONS.iterdir())))
    tool("check_wheel_contents", str(wheel))
    return wheel


def install(wheel: Path) -> Path:
    """Installs the wheel without extras into an empty environment, and returns its Python."""
    environment = RELEASE / "environment"
    tool("venv", "--without-pip", str(environment))  # pip would be in the SBOM
    python = environment / "bin" / "python"
    tool("pip", "--python", str(python), "install", "--quiet", str(wheel))
    return python


def write_sbom(python: Path, wheel: Path) -> None:
    """Records the versions that pip chose."""
    name, version = wheel.name.split("-")[:2]
    path = RELEASE / f"{name}-{version}.cdx.json"
    what = ("--mc-type", "library", "--output-reproducible", "--output-file", str(path), str(python))
    tool("cyclonedx_py", "environment", "--pyproject", str(ROOT / "pyproject.toml"), *what)
    sbom = json.loads(path.read_text())
    sbom["metadata"]["component"]["version"] = version  # pyproject.toml does not have it: hatchling reads it
    path.write_text(json.dumps(sbom, indent=2))


def run_quickstart(python: Path, wheel: Path) -> None:
    """Runs the page with moto. The environment's programs are first on PATH, as if it were activated."""
    tool("pip", "--python", str(python), "install", "--quiet", f"{wheel}[spark]")
    directory = RELEASE / "quickstart"
    directory.mkdir()
    with servers.moto() as moto:
        environment = {
            "PATH": os.pathsep.join([str(python.parent), INHERITED["PATH"]]),
            "JAVA_HOME": str(java_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "AWS_ENDPOINT_URL": moto.endpoint,
            "AWS_DEFAULT_REGION": "eu-west-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }
        run(str(python.parent / "sluice"), "doctor", directory=directory, **environment)
        program = directory / "quickstart.py"
        program.write_text(quickstart(directory))
        shown = run(str(python), str(program), directory=directory, **environment)
    check_quickstart(shown)


def tool(module: str, *arguments: str) -> None:
    run(sys.executable, "-m", module, *arguments, directory=ROOT)


def run(*command: str, directory: Path, **environment: str) -> str:
    """Returns what the command prints; ends this program if the command fails."""
    print("==", *command, flush=True)
    environment = {**INHERITED, **environment}
    done = subprocess.run(
        command, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    print(done.stdout, end="", flush=True)
    if done.returncode:
        sys.exit(f"failed ({done.returncode}): {' '.join(command)}")
    return done.stdout


if __name__ == "__main__":
    main()
