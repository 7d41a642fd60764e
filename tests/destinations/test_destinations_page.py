"""docs/destinations.md agrees with the code. Its tables of options are checked by `test_readme`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sluice.destinations import read_sink, registry
from sluice.destinations.common import bucket
from sluice.destinations.files import FilesDestination, S3Destination
from sluice.destinations.firehose import destination as firehose
from sluice.destinations.http import converter as http
from sluice.destinations.sqs import converter as sqs

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "destinations.md").read_text()
SECTIONS = {
    name: text
    for title, text in re.findall(r"^## (`\w+`[^\n]*)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    for name in re.findall(r"`(\w+)`", title)
}
COLUMNS = {
    "firehose": [firehose.FirehoseRowConverter.COLUMN],
    "sqs": list(sqs._COLUMNS),
    "http": [http.HttpRowConverter.COLUMN],
}
COMMITTING = (FilesDestination, S3Destination)
MADE = {
    "firehose": ({"deliveryStream": "x"}, "firehose:PutRecordBatch"),
    "dynamodb": ({"tableName": "xxx"}, "dynamodb:BatchWriteItem"),
    "sqs": ({"queueUrl": "https://host/1/x"}, "sqs:SendMessage"),
}


def test_the_policy_of_s3_has_what_is_called() -> None:
    """An action for each call, on the objects or on the bucket."""
    (policy,) = re.findall(r"```json\n(.*?)```", SECTIONS["s3"], re.DOTALL)
    on_objects, on_bucket = (set(each["Action"]) for each in json.loads(policy)["Statement"])
    source = (Path(bucket.__file__)).read_text()
    called = set(re.findall(r'_call\(\s*"(\w+)"', source))
    # https://docs.aws.amazon.com/AmazonS3/latest/userguide/mpuoverview.html#mpuAndPermissions
    actions = {
        "CreateMultipartUpload": "s3:PutObject",
        "UploadPart": "s3:PutObject",
        "CompleteMultipartUpload": "s3:PutObject",
        "AbortMultipartUpload": "s3:AbortMultipartUpload",
        "PutObject": "s3:PutObject",
        "GetObject": "s3:GetObject",
        "HeadObject": "s3:GetObject",
        "DeleteObject": "s3:DeleteObject",
        "ListMultipartUploads": "s3:ListBucketMultipartUploads",
        "ListObjectsV2": "s3:ListBucket",
    }

    assert called == set(actions)
    assert on_objects | on_bucket == set(actions.values())
    assert on_bucket == {"s3:ListBucket", "s3:ListBucketMultipartUploads"}


def test_every_destination_but_kinesis_has_a_section() -> None:
    """Destination kinesis is in docs/write.md and docs/options.md."""
    assert set(SECTIONS) == set(registry._BUILT_IN) - {"kinesis"}


def test_one_table_has_the_options_of_files_and_s3() -> None:
    """They have the same options with the same defaults."""
    files, s3 = ([(o.key, o.shown_default, o.default) for o in each.OPTIONS] for each in COMMITTING)
    assert files == s3


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_are_all_there_with_their_types(name: str) -> None:
    """The table has a row for each column, in the order of the code."""
    table = SECTIONS[name].split("| column |")[1].split("\n\n")[0]
    found = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", table, re.MULTILINE)
    types = {column: set(re.split(r", | or ", kinds)) for column, kinds in found}

    assert types == {column.name: set(column.types) for column in COLUMNS[name]}
    assert list(types) == [column.name for column in COLUMNS[name]]


@pytest.mark.parametrize("name", MADE)
def test_policies_allow_the_operation_that_is_called(name: str) -> None:
    """And no other. SQS has no separate action for its batch operation."""
    (policy,) = re.findall(r"```json\n(.*?)```", SECTIONS[name], re.DOTALL)
    ((statement,),) = (json.loads(policy)["Statement"],)
    options, action = MADE[name]
    destination: Any = read_sink({"destination": name} | options).destination

    assert statement["Action"] == action
    assert destination.call._operation.startswith(action.split(":")[1])
