"""Checks everything on a real AWS account: ``python -m integration.verify_aws``.

It says what it will make and cost, and asks before it makes anything. What it made is removed at the end,
after a failure and after Ctrl-C too; ``--remove RUN`` removes what a killed run has left.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import signal
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Sequence
from pathlib import Path

import boto3
import botocore
import pyspark
from botocore.exceptions import BotoCoreError, ClientError

import sluice
from integration.support.drivers import started_drivers
from integration.verify_aws.checks import Checks, Verdict
from integration.verify_aws.resources import COSTS, Account

INTERRUPTED = 130


def main() -> int:
    parser = argparse.ArgumentParser(prog="make verify-aws", description=__doc__)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--region", help="default: the SDK's own")
    parser.add_argument("--report", type=Path, default=Path("aws-report.md"), help="where the report goes")
    parser.add_argument(
        "--remove", metavar="RUN", help="remove what a killed run has left, and do nothing else"
    )
    arguments = parser.parse_args()
    session = boto3.session.Session(region_name=arguments.region)
    if not session.region_name:
        sys.exit("no region: give --region, or set AWS_DEFAULT_REGION")
    account = Account(session, arguments.remove or uuid.uuid4().hex[:8])
    try:
        identity = account.sts.get_caller_identity()
    except (BotoCoreError, ClientError) as error:
        sys.exit(f"no usable credentials: {error}")
    if arguments.remove:
        return _remove(account)
    _announce(account, identity["Account"])
    if not arguments.yes and input("Type yes to go ahead: ").strip() != "yes":
        say("nothing was made")
        return 1
    signal.signal(signal.SIGTERM, _interrupt)
    return run(account, arguments.report)


def run(account: Account, report: Path) -> int:
    """Runs the checks, removes what they made, and writes the report; 0 if all hold."""
    verdicts: list[Verdict] = []
    failed: list[str] = []
    interrupted = False
    try:
        with tempfile.TemporaryDirectory(prefix="sluice-verify-") as made, started_drivers() as drivers:
            for name, check in Checks(account, Path(made), drivers, say).all():
                say(f"check: {name}")
                try:
                    verdicts.append(check())
                except Exception:  # noqa: BLE001 - the other checks run, and all is removed
                    failed.append(name)
                    traceback.print_exc()
                else:
                    say(_line(verdicts[-1]))
    except KeyboardInterrupt:
        interrupted = True
        say("stopped")
    finally:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)  # a second Ctrl-C must leave nothing that is billed
        left = _remove(account)
    if interrupted:
        return INTERRUPTED
    report.write_text(_report(account, verdicts, failed))
    say(f"the report is in {report}")
    return int(bool(left or failed) or not all(verdict.holds for verdict in verdicts))


def _announce(account: Account, number: str) -> None:
    say(f"account {number}, region {account.region}: everything this makes is named {account.name}…")
    say("two streams (4 and 1 shards), a consumer, a table, a queue, a delivery stream, a role, a bucket")
    for what, dollars in COSTS:
        say(f"   {dollars:5.2f} USD  {what}")
    say(f"   {sum(dollars for _, dollars in COSTS):5.2f} USD  in all, about; it takes about 20 minutes")


def _remove(account: Account) -> int:
    """Removes everything; 1 if something is left."""
    say("removing what was made")
    failed = account.remove(say)
    for each in failed:
        say(f"NOT removed: {each}")
    if failed:
        say(f"try again with --remove {account.name.rpartition('-')[2]}")
    return int(bool(failed))


def _line(verdict: Verdict) -> str:
    figures = (
        f"{verdict.rows:,} rows, {verdict.lost} lost, {verdict.doubled} doubled, {verdict.seconds:.0f} s"
    )
    return f"   {'holds' if verdict.holds else 'FAILS'}: {figures}"


def _report(account: Account, verdicts: Sequence[Verdict], failed: Sequence[str]) -> str:
    today = dt.datetime.now(dt.timezone.utc).date()
    versions = f"Sluice {sluice.__version__}, PySpark {pyspark.__version__}, botocore {botocore.__version__}"
    lines = [
        f"Run on AWS, region {account.region}, on {today} with {versions}:",
        "",
        "| check | promise | rows | lost | doubled | seconds | |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in verdicts:
        promise = "exactly once" if each.exactly_once else "at least once"
        figures = f"{each.rows:,} | {each.lost} | {each.doubled} | {each.seconds:.0f}"
        lines.append(f"| {each.check} | {promise} | {figures} | {'holds' if each.holds else '**fails**'} |")
    lines += [f"| {name} | | | | | | **did not finish** |" for name in failed]
    return "\n".join(lines) + "\n"


def say(what: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
