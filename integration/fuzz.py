"""Runs the tests that hold decoders against those of others, with new random documents until the time is up.

``python -m integration.fuzz --minutes 10``. Each round has its own seed, which is printed: ``--seed`` repeats
a round.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
EXAMPLES: Final = 300
"""Documents of each test in a round, for those that do not say themselves how many."""

TESTS: Final = {
    "CBOR and JSON": (  # as the SDK's parsers
        "tests/aws/test_cbor_pages.py",
        "tests/aws/test_responses.py",
        "tests/aws/test_mended_text.py",
        "tests/aws/test_record_search.py",
        "tests/aws/test_arrow_arrays.py",
    ),
    "KPL": ("tests/kinesis/kpl", "tests/kinesis/test_record_batches.py", "tests/kinesis/test_records.py"),
    "images": ("tests/dynamodb_streams/test_images.py", "tests/destinations/test_dynamodb_values.py"),
    "offsets": (
        "tests/source/test_offsets.py",
        "tests/source/test_text_positions.py",
    ),
    "event streams": ("tests/kinesis/subscriptions",),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 where a round has failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, help="of one round, which is had again")
    given = parser.parse_args(arguments)
    end, rounds = time.monotonic() + 60 * given.minutes, 0
    while rounds == 0 or (given.seed is None and time.monotonic() < end):
        seed = random.randrange(2**32) if given.seed is None else given.seed
        for area, tests in TESTS.items():
            print(f"== round {rounds + 1}, seed {seed}: {area}", flush=True)
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                f"--hypothesis-seed={seed}",
            ]
            environment = {**os.environ, "SLUICE_EXAMPLES": str(EXAMPLES)}
            environment.pop("CI", None)  # where each run has the same examples
            if subprocess.run([*command, *tests], cwd=ROOT, env=environment, check=False).returncode:
                print(f"FAILED: python -m integration.fuzz --seed {seed}", flush=True)
                return 1
        rounds += 1
    print(f"{rounds} rounds of {EXAMPLES} documents a test, nothing found", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
