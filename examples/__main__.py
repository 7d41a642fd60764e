"""Runs examples on an embedded Kinesis with some clicks in it, and leaves nothing behind."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from integration.support import servers
from integration.support.kinesis import Streams
from integration.support.spark import configuration, prepare_environment

HERE = Path(__file__).parent
REGION = "eu-west-1"
STREAMS = {"clicks": 2, "clicks-upper": 1, "totals": 1}
SECTIONS = ("toys", "books", "garden")
# In one process with one JVM, one after the other.
PROGRAM = """
import json, runpy, sys
for path in sys.argv[1:]:
    print(f"== {path}", flush=True)
    if path.endswith(".ipynb"):
        cells = json.load(open(path))["cells"]
        code = "\\n".join("".join(each["source"]) for each in cells if each["cell_type"] == "code")
        exec(compile(code, path, "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(path, run_name="__main__")
"""


def names() -> list[str]:
    """Of the scripts and notebooks."""
    found = [*HERE.glob("[a-z]*.py"), *HERE.glob("*.ipynb")]
    return sorted(path.stem for path in found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples", description=__doc__)
    parser.add_argument("name", nargs="*", help="which; none: lists them")
    chosen = parser.parse_args().name
    if unknown := [name for name in chosen if name not in names()]:
        parser.error(f"there is no example {', '.join(unknown)}: there are {', '.join(names())}")
    if not chosen:
        for name in names():
            print(f"{name:18}{_summary(name)}")
        return 0
    with servers.ministack() as server, tempfile.TemporaryDirectory(prefix="sluice-example-") as directory:
        fill(Streams(server.endpoint, region=REGION))
        return run(chosen, server.endpoint, Path(directory))


def fill(streams: Streams, clicks: int = 60) -> None:
    """Makes the streams, and puts clicks into the first."""
    for name, shards in STREAMS.items():
        streams.create(shards, name=name)
    streams.put("clicks", (click(number) for number in range(clicks)))


def click(number: int) -> tuple[str, bytes]:
    """A partition key and the data of a record."""
    event = {"id": number, "section": SECTIONS[number % len(SECTIONS)], "price": 5 * number}
    return f"user-{number % 7}", json.dumps(event).encode()


def run(chosen: list[str], endpoint: str, directory: Path, settings: Mapping[str, str] | None = None) -> int:
    """The exit code of an application that runs the examples. What Spark logs is shown if it fails.

    Args:
        chosen: names, see `names`.
        endpoint: of Kinesis, with the streams that `fill` makes.
        directory: takes all that is written.
        settings: environment variables.
    """
    prepare_environment()
    lines = [f"{key} {value}\n" for key, value in configuration(directory).items()]
    (directory / "spark-defaults.conf").write_text("".join(lines))
    log = directory / "spark.log"
    with log.open("wb") as errors:
        done = subprocess.run(  # noqa: S603 - this Python, and files in this folder
            (sys.executable, "-c", PROGRAM, *(str(_path(name)) for name in chosen)),
            cwd=HERE.parent,
            env={
                **os.environ,
                "AWS_ENDPOINT_URL_KINESIS": endpoint,
                "SPARK_CONF_DIR": str(directory),
                "TMPDIR": str(directory),
                **(settings or {}),
            },
            stderr=errors,
            check=False,
        )
    if done.returncode:
        sys.stderr.write(log.read_text(errors="replace")[-5000:])
    return done.returncode


def _path(name: str) -> Path:
    return next(path for path in (HERE / f"{name}.py", HERE / f"{name}.ipynb") if path.exists())


def _summary(name: str) -> str:
    path = _path(name)
    if path.suffix == ".ipynb":
        return "a notebook"
    return path.read_text().split('"""')[1].split("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
