"""Destination http in Spark, while tokens and keys expire: all rows arrive, once each."""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.support.http_server import Sent, http_server
from integration.support.sigv4 import Key, Verifier

COUNT = 1000
USES = 20
"""Requests after which a token or key expires."""
ROLE = "arn:aws:iam::123456789012:role/writer"
STS_ANSWER = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>
<AssumedRoleUser><AssumedRoleId>A:s</AssumedRoleId><Arn>arn:aws:sts::123456789012:assumed-role/r/s</Arn>
</AssumedRoleUser><Credentials><AccessKeyId>AKID{0}</AccessKeyId><SecretAccessKey>secret{0}</SecretAccessKey>
<SessionToken>token{0}</SessionToken><Expiration>{1}</Expiration></Credentials>
</AssumeRoleResult></AssumeRoleResponse>"""


class Guarded:
    """Takes rows from those who are authorized, and gives credentials that expire after some requests.

    Attributes:
        rows: that were accepted, by how often.
        refusals: requests that were refused.
        given: how many credentials were given.
        file: that has the token, if it is not asked for.
    """

    def __init__(self, file: Path) -> None:
        self.rows: Counter[int] = Counter()
        self.refusals = 0
        self.given = 0
        self.file = file
        self._uses: Counter[str] = Counter()
        self._tokens: set[str] = set()
        self._verifier = Verifier("aoss", "eu-west-1", {})
        self._lock = threading.Lock()

    def __call__(self, sent: Sent) -> tuple[int, bytes]:
        with self._lock:
            if sent.target == "/token":
                return 200, json.dumps({"access_token": self._new_token(), "expires_in": 3600}).encode()
            if sent.target.startswith("/rows"):
                return self._take(sent)
            number = self._new_key()
            until = dt.datetime.now(dt.timezone.utc) + dt.timedelta(hours=1)
            return 200, STS_ANSWER.format(number, until.strftime("%Y-%m-%dT%H:%M:%SZ")).encode()

    def write_file(self) -> None:
        part = self.file.with_suffix(".part")
        part.write_text(self._new_token())
        part.rename(self.file)

    def _new_token(self) -> str:
        self.given += 1
        self._tokens.add(f"token{self.given}")
        return f"token{self.given}"

    def _new_key(self) -> int:
        self.given += 1
        self._verifier.keys[f"AKID{self.given}"] = Key(f"secret{self.given}", f"token{self.given}")
        return self.given

    def _take(self, sent: Sent) -> tuple[int, bytes]:
        authorization = sent.header("authorization") or ""
        if authorization.startswith("Bearer "):
            token, status = authorization.removeprefix("Bearer "), 401
            problem = None if token in self._tokens else "the token has expired"
        else:
            token, status = sent.header("x-amz-security-token") or "", 403
            problem = self._verifier.problem(sent.method, sent.target, sent.headers, sent.body)
        if problem is not None:
            self.refusals += 1
            return status, json.dumps({"message": problem}).encode()
        self.rows.update(row["id"] for row in json.loads(sent.body))
        self._uses[token] += 1
        if self._uses[token] == USES:
            self._tokens.discard(token)
            self._verifier.expired.add(token)
            if self.file.exists():
                self.write_file()
        return 200, b""


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Guarded, str]]:
    made = Guarded(tmp_path / "token")
    with http_server(made) as url:
        yield made, url


def options_of(way: str, guarded: Guarded, url: str) -> Mapping[str, str]:
    if way == "file":
        guarded.write_file()
        return {"bearerTokenFile": str(guarded.file)}
    if way == "oauth2":
        return {
            "auth": "oauth2ClientCredentials",
            "oauth2TokenUrl": f"{url}/token",
            "oauth2ClientId": "rows",
            "oauth2ClientSecret": "secret",
        }
    keys = {"awsAccessKeyId": "AKID", "awsSecretAccessKey": "secret"}
    role = {"roleArn": ROLE, "stsEndpointUrl": url, "region": "eu-west-1"}
    return {"auth": "sigv4", "sigv4Service": "aoss", **keys, **role}


@pytest.mark.parametrize("way", ["sigv4", "oauth2", "file"])
def test_credentials_expire_in_a_stream(
    spark: SparkSession, tmp_path: Path, checkpoint: str, guarded: tuple[Guarded, str], way: str
) -> None:
    """In several micro-batches of two tasks each, with requests side by side."""
    server, url = guarded
    directory = str(tmp_path / "rows")
    spark.range(COUNT).selectExpr("to_json(struct(id)) AS body").repartition(4).write.parquet(directory)
    query = (
        spark.readStream.schema("body string")
        .option("maxFilesPerTrigger", 2)
        .parquet(directory)
        .repartition(2)
        .writeStream.format("async-sink")
        .options(**options_of(way, server, url))
        .option("destination", "http")
        .option("url", f"{url}/rows?refresh=true&at=a:b")
        .option("maxBatchSize", 5)
        .option("maxInFlightRequests", 4)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    assert server.rows == Counter(range(COUNT))
    assert server.given > COUNT / 5 / USES / 2
    assert server.refusals > 0
