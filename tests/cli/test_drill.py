"""Two of the problems in ``docs/operate.md``, with the commands as printed, with a service in process."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_support import ACCOUNT, RECORDINGS, Outcome, Service, option_arguments, sluice

DRILL = (Path(__file__).parents[2] / "docs" / "operate.md").read_text()
STREAM = f"arn:aws:kinesis:eu-west-1:{ACCOUNT}:stream/orders"
ARN = re.compile(r"arn:\S+")


def commands(section: str) -> list[list[str]]:
    """The commands of a section, without ``sluice``."""
    text = re.split(r"\n##+ ", DRILL.split(f"### {section}\n")[1])[0]
    return [line.split() for line in re.findall(r"^\$ sluice (.+)$", text, re.MULTILINE)]


def run(command: list[str], **instead: str) -> Outcome:
    """Runs a command with some of its words replaced."""
    words = [instead.get(re.sub(r"\W", "_", ARN.sub("arn", word)), word) for word in command]
    return sluice(*words, *option_arguments())


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECORDINGS / "polling" / "checkpoint", tmp_path / "orders"))


def logged(checkpoint: Path) -> Any:
    """The offset of the first batch."""
    return json.loads((checkpoint / "offsets" / "0").read_text().splitlines()[2])


def test_a_query_that_was_stopped_for_too_long_is_reset(checkpoint: Path) -> None:
    """To a time; the first command changes nothing, the last shows the new place."""
    created = logged(checkpoint)["created"]["recorded-polling"]
    Service().create("recorded-polling", 2, created=created)
    show, plan, execute, again = commands("The query was stopped for too long")
    here = {"checkpoints_orders": str(checkpoint)}
    before = {path.name: path.read_text() for path in (checkpoint / "offsets").iterdir()}

    shown, planned = run(show, **here), run(plan, **here)
    unchanged = {path.name: path.read_text() for path in (checkpoint / "offsets").iterdir()}
    # Its files are as old as this copy of the repository.
    done, after = run([*execute, "--force"], **here), run(again, **here)

    assert (shown.code, planned.code, done.code, after.code) == (0, 0, 0, 0), planned.errors + done.errors
    assert unchanged == before
    assert "MEANS" in planned.out
    assert "--undo" in done.out
    assert "2026-11-22T15:45:56Z" in after.out


def test_a_left_over_consumer_is_found_and_removed(checkpoint: Path) -> None:
    """The list says that no checkpoint has it; a removal is said before it is done."""
    service = Service()
    for stream in ("orders", "recorded-polling"):
        service.create(stream, 2)
    request = {"StreamARN": STREAM, "ConsumerName": "spark-test"}
    arn = service.model.call("RegisterStreamConsumer", request)["Consumer"]["ConsumerARN"]
    service.clock.advance(1)
    here = {"checkpoints_orders": str(checkpoint), "arn": arn}
    find, plan, execute = commands("A fan-out consumer is left over")

    found, planned = run(find, **here), run(plan, **here)
    still = run(find, **here)
    done = run(execute, **here)

    assert (found.code, planned.code, still.code, done.code) == (0, 0, 0, 0), found.errors + done.errors
    assert "spark-test" in found.out
    assert "no checkpoint given" in found.out
    assert "spark-test" in still.out
    assert "removed" in done.out
    assert "spark-test" not in run(find, **here).out
