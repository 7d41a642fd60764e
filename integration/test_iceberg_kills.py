"""The Iceberg destination of examples/ in real Spark, killed at every step of an epoch: no row twice."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from integration.support import steps
from integration.support.drivers import Driver, started_drivers
from integration.support.holding_proxy import PASSED, Trap
from integration.support.iceberg import CLEANING, EXECUTED, STEPS, IcebergTable, SteppedIceberg
from integration.support.s3_driver import S3DriverPlan
from integration.support.steps import COMMITTING, Steps

HAS_SNAPSHOT = (EXECUTED, CLEANING, COMMITTING)  # Spark has not logged that the epoch is committed


@pytest.mark.parametrize(
    ("kills", "rows"),
    [(3, 600), pytest.param(8, 60_000, marks=pytest.mark.soak(seconds=100))],
)
def test_a_killed_driver_writes_every_row_once(tmp_path: Path, kills: int, rows: int) -> None:
    """After each kill the table has whole epochs, none twice; in the end all rows, and no other file."""
    table = IcebergTable(tmp_path, ["id", "part"])
    options = {
        **table.options,
        "destination": f"{SteppedIceberg.__module__}:{SteppedIceberg.__name__}",
        "progressListener": f"{steps.__name__}:committing",
    }
    plan = S3DriverPlan(0, str(tmp_path), options)
    plan.source.mkdir()
    rows_of_epoch = -(-rows // (kills + 1))
    attempts = itertools.count()
    sent = orphans = 0

    def start() -> Driver:
        driver = Driver(replace(plan, attempt=next(attempts)), "integration.support.s3_driver")
        drivers.append(driver)
        return driver

    def go(driver: Driver) -> None:
        nonlocal sent
        ids = range(sent, min(sent + rows_of_epoch, rows))
        hidden = plan.source / f".{sent}"
        hidden.write_text("".join(json.dumps({"id": each}) + "\n" for each in ids))
        hidden.rename(plan.source / f"{sent:06}.json")
        sent = ids.stop
        driver.wait_for("ready")
        assert driver.process.stdin is not None
        driver.process.stdin.write(b"go\n")
        driver.process.stdin.flush()

    with Steps().running() as announced, started_drivers() as drivers:
        following = start()
        for step in itertools.islice(itertools.cycle(STEPS), kills):
            # While one runs to its death the next one warms up.
            driver, following = following, start()
            announced.trap = trap = Trap(step, PASSED)
            go(driver)
            driver.wait_until(trap.reached.is_set, step)
            driver.kill()
            trap.release()
            found = table.rows()
            assert set(found.values()) <= {1}, step
            assert found.keys() == set(range(min(len(table.epochs()) * rows_of_epoch, rows))), step
            logged = len(list(tmp_path.glob("checkpoint/commits/[0-9]*")))
            # A step can be one of an epoch that is repeated.
            assert len(table.epochs()) - logged in ([1] if step in HAS_SNAPSHOT else [0, 1]), step
            orphans += len(table.orphans())
        announced.trap = None
        go(following)
        following.wait_for("done")
        following.end()

    assert table.rows() == Counter(range(rows))
    assert table.epochs() == [str(batch) for batch in range(kills + 1)]
    assert orphans
    assert table.orphans() == set()
    print(f"\n{kills} kills, {kills + 1} epochs, {rows} rows: all once; {orphans} orphans were removed")
