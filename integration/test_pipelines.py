"""Both formats in declarative pipelines, as docs/recipes.md prints them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from integration.support.kinesis import Streams
from integration.support.paths import ROOT
from integration.support.queries import WAIT
from integration.support.spark import SPARK_VERSION

REGION = "eu-west-1"
SECTION = (ROOT / "docs" / "recipes.md").read_text().split("## Declarative pipelines")[1]
USERS = ["ada", "bob"]

pytestmark = [
    pytest.mark.soak(seconds=90),
    pytest.mark.skipif(SPARK_VERSION < (4, 1), reason="Spark 4.0 has no declarative pipelines"),
]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", SECTION, re.DOTALL)


def test_a_pipeline_runs_as_printed(streams: Streams, tmp_path: Path) -> None:
    """A table of the source, a view over it, and a flow of the table into the sink."""
    there = Streams(streams.endpoint, region=REGION)
    source, target = there.create(2), there.create(1)
    there.put(source, [(user, user.encode()) for user in USERS])
    (program,), (spec,) = blocks("python"), blocks("yaml")
    program = program.replace('"streamName": "clicks-upper"', f'"streamName": "{target}"')
    (tmp_path / "clicks.py").write_text(
        program.replace('"streamName", "clicks"', f'"streamName", "{source}"')
    )
    (tmp_path / "pipeline.yml").write_text(re.sub(r"storage: \S+", f"storage: file://{tmp_path}/state", spec))

    done = subprocess.run(
        (str(Path(sys.executable).parent / "spark-pipelines"), "run", "--spec", "pipeline.yml"),
        cwd=tmp_path,
        env={**os.environ, "AWS_ENDPOINT_URL_KINESIS": streams.endpoint},
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * WAIT,
    )

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert sorted(record.data for record in there.read(target)) == [user.upper().encode() for user in USERS]
    assert list((tmp_path / "spark-warehouse" / "clicks_by_user").glob("*.parquet"))
