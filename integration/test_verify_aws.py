"""The check of a real account, run against the strict model of Kinesis and moto for the rest."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from integration.model import Laws
from integration.model.server import serving
from integration.support.paths import ROOT
from integration.support.servers import moto
from integration.verify_aws.resources import Account

RUN = (sys.executable, "-m", "integration.verify_aws")


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """What sends the SDK's calls to the emulators, as it would send them to a private endpoint."""
    laws = Laws(listing_delay=0.5, status_delay=(0.05, 0.2), consumer_delay=(0.05, 0.3))
    with serving(laws) as kinesis, moto() as others:
        yield {
            **os.environ,
            "AWS_ENDPOINT_URL": others.endpoint,
            "AWS_ENDPOINT_URL_KINESIS": kinesis.endpoint,
        }


@pytest.fixture
def account(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Account:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_KINESIS"):
        monkeypatch.setenv(name, environment[name])
    return Account(boto3.session.Session(region_name="us-east-1"), "test")


def test_everything_made_is_found_by_its_name_and_removed(account: Account) -> None:
    bucket = account.bucket()
    account.s3.put_object(Bucket=bucket, Key="fan-out/file", Body=b"x")
    account.s3.create_multipart_upload(Bucket=bucket, Key="fan-out/half")
    account.stream("in", 2)
    account.table()
    account.queue()
    account.delivery_stream(bucket)
    other = Account(boto3.session.Session(region_name="us-east-1"), "tests-of-somebody-else")
    other.bucket()
    assert len(account.left()) == 6

    assert account.remove(lambda _: None) == []

    assert account.left() == []
    assert other.left() == [f"bucket {other.name}"]
    other.remove(lambda _: None)


def test_without_consent_nothing_is_made(environment: dict[str, str], account: Account) -> None:
    done = subprocess.run(
        (*RUN, "--region", "us-east-1"),
        cwd=ROOT,
        env=environment,
        input="no\n",
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "USD  in all" in done.stdout
    assert "nothing was made" in done.stdout
    assert account.kinesis.list_streams()["StreamNames"] == []


def test_an_interrupted_run_removes_what_it_made(environment: dict[str, str], account: Account) -> None:
    with _running(environment, Path(os.devnull)) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "check: polling" in line:
                break
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate()

    assert process.returncode == 130, rest
    assert account.kinesis.list_streams()["StreamNames"] == []
    assert account.s3.list_buckets()["Buckets"] == []


@pytest.mark.soak(400)
def test_every_check_holds_and_the_report_says_so(environment: dict[str, str], tmp_path: Path) -> None:
    with _running(environment, tmp_path / "report.md") as process:
        said, _ = process.communicate()

    assert process.returncode == 0, said
    lines = (tmp_path / "report.md").read_text().splitlines()
    assert len([line for line in lines if line.endswith("| holds |")]) == 7


@contextlib.contextmanager
def _running(environment: dict[str, str], report: Path) -> Iterator[subprocess.Popen[str]]:
    command = (*RUN, "--yes", "--region", "us-east-1", "--report", str(report))
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
