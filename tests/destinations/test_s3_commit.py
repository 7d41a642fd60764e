"""Destination s3 on the driver: options, manifests, the removal of orphans, and answers of S3."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from botocore.session import Session
from fake_s3 import (
    BACKOFF,
    PATH,
    FakeS3,
    bucket,
    committed_keys,
    committed_rows,
    destination,
    refusal,
    retrier,
)
from pyspark.sql.types import LongType, StructField, StructType

from sluice.destinations import read_sink
from sluice.destinations.common.bucket import Bucket
from sluice.destinations.common.object_settings import ObjectSettings
from sluice.destinations.files import S3Destination
from sluice.errors import CommitError, OptionError, ServiceError
from sluice.sink import Epoch, Origin
from sluice.sink.committing.epoch_commit import EpochCommit

SCHEMA = StructType([StructField("id", LongType())])
S3 = {"destination": "s3", "path": PATH, "region": "eu-west-1"}


def prepared(s3: FakeS3, epoch: Epoch, *ids: int, attempt: int = 0) -> list[Any]:
    origin = Origin("s3", epoch.query, epoch.run, epoch.batch, 0, attempt)
    task = destination(s3).create_writer(SCHEMA, origin)
    if ids:
        task.write(pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64())}))
    uploads = pickle.loads(pickle.dumps(task.prepare_commit()))
    task.close()
    return list(uploads)


def commit(s3: FakeS3, epoch: Epoch) -> EpochCommit:
    return EpochCommit(destination(s3), epoch, retrier=retrier(), backoff=BACKOFF)


def ids(s3: FakeS3) -> list[int]:
    return [row["id"] for row in committed_rows(s3)]


def faults(*kinds: str | Exception | None, at: str) -> Any:
    """Faults for the calls of one operation, in this order."""
    left = list(kinds)
    return lambda _number, operation: left.pop(0) if operation == at and left else None


def test_options_make_the_settings() -> None:
    """Keys in any case. The default compression depends on the format."""
    plain: Any = read_sink(S3).destination
    made: Any = read_sink(
        S3 | {"FILEFORMAT": "JSONL", "partitionby": "a , b", "maxFileSize": "64MiB", "maxOpenFiles": "3"}
    ).destination

    assert isinstance(plain, S3Destination)
    assert (plain._settings.file_format, plain._settings.compression) == ("parquet", "snappy")
    assert (made._settings.file_format, made._settings.compression) == ("jsonl", "none")
    assert made._settings.partition_by == ("a", "b")
    assert (made._settings.max_file_size, made._settings.max_open_files) == (64 * 2**20, 3)
    assert plain.name == f"s3 path '{PATH}'"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "lake/events"}, "option 'path' is 'lake/events': allowed is s3://bucket/prefix"),
        ({"path": "s3://lake/{a}"}, "option 'path' is"),
        ({"path": "s3://lake//a"}, "option 'path' is"),
        ({"fileFormat": "csv"}, "option 'fileFormat' is 'csv': allowed is one of parquet, jsonl"),
        ({"partitionBy": "a,,b"}, "option 'partitionBy' is 'a,,b'"),
        ({"fileFormat": "jsonl", "compression": "zstd"}, "allowed with jsonl are none, gzip"),
        ({"maxFileSize": "1MiB"}, "option 'maxFileSize' is '1MiB': allowed is a size of at least 8388608"),
        ({"maxFileSize": "100000000000"}, "at most 67108864000"),
        ({"fileFormt": "jsonl"}, "did you mean 'fileFormat'"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, str], message: str) -> None:
    """Before the query starts."""
    with pytest.raises(OptionError) as caught:
        read_sink(S3 | options)

    assert message in str(caught.value)


def test_the_path_is_required() -> None:
    """Although Spark has an option with the same name."""
    with pytest.raises(OptionError, match="option 'path' is required"):
        read_sink({"destination": "s3", "region": "eu-west-1"})


def test_the_manifest_of_an_epoch() -> None:
    """Its key has the query and the batch. It lists each file with rows and bytes, relative to the path."""
    s3 = FakeS3()
    epoch = Epoch("q", "r", 7)
    commit(s3, epoch).commit(prepared(s3, epoch, 1, 2) + prepared(s3, epoch, 3, attempt=1))
    (key,) = set(s3.objects) - s3.data
    manifest = json.loads(s3.objects[key])

    assert key == "events/_sluice/q/00000000000000000007.json"
    assert (manifest["version"], manifest["query"], manifest["batch"], manifest["run"]) == (1, "q", 7, "r")
    assert manifest["rows"] == 3
    name = "part-00000_q_00000000000000000007_r_{}_0000.jsonl"
    assert manifest["files"] == [
        {"path": name.format(0), "rows": 2, "bytes": 18},
        {"path": name.format(1), "rows": 1, "bytes": 9},
    ]


@pytest.mark.parametrize(
    "arrives", ["at once", "before the abort", "before the restart", "in the next commit", "at the end"]
)
def test_a_manifest_that_arrives_late(arrives: str) -> None:
    """The request got no answer, and the commit failed and was aborted; then S3 executes it after all."""
    s3 = FakeS3(delay=10**9)
    first, second = Epoch("q", "r1", 0), Epoch("q", "r2", 0)
    uploads = prepared(s3, first, 1, 2)
    outage = [refusal("SlowDown", 503)] * 99
    s3.fault = faults(None, "lost" if arrives == "at once" else "late", *outage, at="put_object")
    with pytest.raises(CommitError, match="batch 0 could not be committed after 8 attempts: PutObject"):
        commit(s3, first).commit(uploads)
    s3.fault = lambda _number, _operation: None
    if arrives == "before the abort":
        s3.apply_late_calls()
    commit(s3, first).abort(uploads)
    if arrives == "before the restart":
        s3.apply_late_calls()
    again = prepared(s3, second, 1, 2)
    if arrives == "in the next commit":
        s3.apply_late_calls(calls=3)
    commit(s3, second).commit(again)
    s3.apply_late_calls()
    third = Epoch("q", "r2", 1)
    commit(s3, third).commit(prepared(s3, third, 3))

    assert ids(s3) == [1, 2, 3]
    assert any("_r2_" in key for key in committed_keys(s3)[:1]) == (arrives == "at the end")
    assert s3.data == set(committed_keys(s3))
    assert s3.uploads == {}
    assert s3.pending == set()


def test_of_two_concurrent_runs_the_first_manifest_counts() -> None:
    """A driver that was cut off and its successor commit the same batch."""
    s3 = FakeS3()
    old, new = Epoch("q", "r1", 0), Epoch("q", "r2", 0)
    uploads = {epoch.run: prepared(s3, epoch, 1, 2) for epoch in (old, new)}
    for epoch in (old, new):
        destination(s3).create_committer(epoch).commit(uploads[epoch.run])
    for epoch in (new, old):
        global_committer = destination(s3).create_global_committer(epoch)
        global_committer.commit([global_committer.combine(uploads[epoch.run])])
        destination(s3).clean_up(epoch, committed=True)

    assert ids(s3) == [1, 2]
    assert all("_r2_" in key for key in s3.data)
    assert s3.pending == set()


def test_only_orphans_of_the_query_are_removed() -> None:
    """Nothing of other queries, of later batches or of other programs."""
    s3 = FakeS3()
    kept = [
        prepared(s3, Epoch("other", "r", 0), 1),
        prepared(s3, Epoch("q", "r0", 8), 2),
        prepared(s3, Epoch(None, "w", None), 3),
    ]
    removed = [
        prepared(s3, Epoch("q", "r0", 6), 4),
        prepared(s3, Epoch("q", "r0", 7), 5),
        prepared(s3, Epoch("q", "r1", 7), 6, attempt=5),
    ]
    foreign = s3.create_multipart_upload(Bucket="lake", Key="events/x%y.jsonl", ContentType="x")["UploadId"]
    s3.objects["events/part-00000_q_00000000000000000003_r0_0_0000.jsonl"] = b"{}"
    epoch = Epoch("q", "r1", 7)
    commit(s3, epoch).commit(prepared(s3, epoch, 7))

    assert set(s3.uploads) == {foreign, *(each[0].token for each in kept)}
    assert not any(each[0].token in s3.uploads for each in removed)
    # Only objects on a pending list are removed; names do not matter.
    assert "events/part-00000_q_00000000000000000003_r0_0_0000.jsonl" in s3.objects
    assert ids(s3) == [7]


def test_a_404_that_is_not_from_s3_hides_no_manifest() -> None:
    """A gateway may answer so for a moment."""
    s3 = FakeS3()
    first, second = Epoch("q", "r", 0), Epoch("q", "r", 1)
    s3.fault = lambda _number, operation: (
        refusal("AccessDenied", 403) if operation == "list_multipart_uploads" else None
    )
    commit(s3, first).commit(prepared(s3, first, 1))
    s3.fault = faults(refusal("404", 404), at="get_object")
    commit(s3, second).commit(prepared(s3, second, 2))
    assert ids(s3) == [1, 2]

    s3.fault = faults(refusal("404", 404), at="get_object")
    with pytest.raises(ServiceError, match="GetObject of s3://lake/events/_sluice/q/"):
        ids(s3)


def test_a_missing_upload_fails_the_commit() -> None:
    """It may have been aborted by a rule of the bucket. The error has its key; the epoch is not committed."""
    s3 = FakeS3()
    epoch = Epoch("q", "r", 0)
    uploads = prepared(s3, epoch, 1) + prepared(s3, epoch, 2, attempt=1)
    del s3.uploads[uploads[1].token]
    with pytest.raises(CommitError, match=r"CompleteMultipartUpload of s3://lake/events/part.*NoSuchUpload"):
        commit(s3, epoch).commit(uploads)

    assert committed_keys(s3) == []


@pytest.mark.parametrize(
    ("conditional", "found"),
    [
        ("ignored", "it replaced an object"),
        ("NotImplemented", "it answered NotImplemented"),
        ("304", "it answered 304"),
        ("InvalidArgument", "it answered InvalidArgument"),
    ],
)
def test_a_store_without_conditional_writes_is_refused(conditional: str, found: str) -> None:
    """At the start, and before anything is committed; once, and nothing of the check is left."""
    s3 = FakeS3(conditional=conditional)
    epoch = Epoch("q", "r", 0)

    with pytest.raises(OptionError, match=rf"no conditional writes \(If-None-Match: {found}\).*'allowUnsafe"):
        destination(s3).check()
    uploads = prepared(s3, epoch, 1)
    with pytest.raises(CommitError, match="'allowUnsafeCommits' true"):
        commit(s3, epoch).commit(uploads)

    assert s3.objects == {}


def test_a_store_without_conditional_writes_is_taken_if_the_user_says_so() -> None:
    """The sink then checks whether the manifest exists before it puts it."""
    s3 = FakeS3(conditional="ignored")
    made = bucket(s3, unsafe=True)

    made.check_conditional_writes("")
    assert made.put_if_absent("a", b"1")
    assert not made.put_if_absent("a", b"2")
    assert s3.objects == {"a": b"1"}


@pytest.mark.parametrize("code", ["AccessDenied", "SlowDown"])
def test_a_check_that_is_refused_says_nothing_of_conditional_writes(code: str) -> None:
    """Nor does one without an answer. The commit asks again."""
    s3 = FakeS3(lambda _number, _operation: refusal(code, 403 if code == "AccessDenied" else 503))

    with pytest.raises(ServiceError, match=code):
        bucket(s3, is_known=False).check_conditional_writes("events/")


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "SHA256", "none", None])
@pytest.mark.parametrize("of_sdk", ["CRC32", None])
def test_parts_are_completed_with_the_checksums_that_the_upload_named(
    algorithm: str | None, of_sdk: str | None
) -> None:
    """S3 refuses others, such as those that the SDK adds to parts by itself."""
    s3 = FakeS3(sdk_checksum=None if algorithm == "none" else of_sdk)
    made = bucket(s3, checksum_algorithm=algorithm)

    upload = made.create_upload("events/x", "any")
    parts = [
        made.upload_part("events/x", upload, 1, b"1" * 5 * 2**20),
        made.upload_part("events/x", upload, 2, b"2"),
    ]
    made.complete_upload("events/x", upload, parts)

    assert set(s3.objects) == {"events/x"}
    named = {
        parameters.get("ChecksumAlgorithm")
        for call, parameters in s3.calls
        if call != "complete_multipart_upload"
    }
    assert named == {None if algorithm == "none" else algorithm}


@pytest.mark.parametrize("again", [Epoch("q", "r2", 0, "b"), Epoch("q", "r2", 0, "c")])
def test_other_rows_under_a_committed_id_fail_before_anything_is_dropped(again: Epoch) -> None:
    """As with an older checkpoint. A repeated batch has the same contents, in any run."""
    s3 = FakeS3()
    first = Epoch("q", "r1", 0, "a")
    commit(s3, first).commit(prepared(s3, first, 1))
    uploads = prepared(s3, again, 2)

    with pytest.raises(CommitError, match="batch 0 of query q was committed before, with other contents"):
        commit(s3, again).commit(uploads)
    assert ids(s3) == [1]
    assert set(s3.uploads) == {uploads[0].token}

    repeated = replace(again, run="r3", content="a")
    commit(s3, repeated).commit(prepared(s3, repeated, 1))
    assert ids(s3) == [1]


def test_other_rows_that_another_driver_commits_at_the_same_moment_fail() -> None:
    """Its manifest comes between the look for one and the put."""
    s3 = FakeS3()
    first, second = Epoch("q", "r1", 0, "a"), Epoch("q", "r2", 0, "b")
    uploads = prepared(s3, second, 2)
    made = destination(s3).create_global_committer(second)
    mine = made.combine(uploads)
    assert made.filter_recovered_committables([mine]) == [mine]
    commit(s3, first).commit(prepared(s3, first, 1))

    with pytest.raises(CommitError, match="with other contents"):
        made.commit([mine])
    assert ids(s3) == [1]


def test_a_version_that_is_committed_for_an_application_is_not_written_again() -> None:
    """With any characters in the id: two ids never share their versions."""
    s3 = FakeS3()
    writes = [("an app", 3), ("an app", 3), ("an-app", 3), ("an app", 4), ("an_app", 3)]
    for number, (application, version) in enumerate(writes):
        epoch = Epoch(application, f"w{number}", version, is_transaction=True)
        commit(s3, epoch).commit(prepared(s3, epoch, number))

    assert sorted(ids(s3)) == [0, 2, 3, 4]


MAKE_OBJECTS = ("CreateMultipartUpload", "PutObject")


def test_each_call_has_the_settings_that_s3_takes_for_it() -> None:
    """By the SDK's description of the service, whatever it takes of them."""
    settings = ObjectSettings(
        "aws:kms", "key", True, "private", "STANDARD_IA", "SHA256", "1" * 12, "requester"
    )
    model = Session().get_service_model("s3")
    names = {
        "ServerSideEncryption", "SSEKMSKeyId", "BucketKeyEnabled", "ACL", "StorageClass", "ChecksumAlgorithm",
        "ExpectedBucketOwner", "RequestPayer",
    }  # fmt: skip
    for operation in (
        "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "AbortMultipartUpload",
        "ListMultipartUploads", "PutObject", "GetObject", "HeadObject", "DeleteObject", "ListObjectsV2",
    ):  # fmt: skip
        described: Any = model.operation_model(operation).input_shape
        taken = names & set(described.members)
        assert set(settings.parameters(operation, is_data=operation in MAKE_OBJECTS)) == taken, operation
    assert "StorageClass" not in settings.parameters(
        "PutObject"
    )  # a manifest in an archive could not be read
    assert ObjectSettings().parameters("PutObject") == {}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"kmsKeyId": "k"}, "'kmsKeyId' needs 'serverSideEncryption' aws:kms or aws:kms:dsse"),
        ({"kmsKeyId": "k", "serverSideEncryption": "AES256"}, "'kmsKeyId' needs"),
        ({"bucketKeyEnabled": "true"}, "'bucketKeyEnabled' needs 'serverSideEncryption' aws:kms"),
        ({"acl": "everybody"}, "'acl' is 'everybody': allowed is one of private"),
        ({"expectedBucketOwner": "123"}, "'expectedBucketOwner' is '123': allowed is an account id"),
        ({"requestPayer": "me"}, "'requestPayer' is 'me'"),
        ({"storageClass": "COLD"}, "'storageClass' is 'COLD'"),
        ({"checksumAlgorithm": "MD5"}, "'checksumAlgorithm' is 'MD5'"),
    ],
)
def test_settings_of_objects_that_do_not_fit(given: dict[str, str], problem: str) -> None:
    """Of destination s3 and of dead letters in S3."""
    with pytest.raises(OptionError, match=re.escape(problem)):
        read_sink(S3 | given)
    letters = {"destination": "firehose", "deliveryStream": "x", "deadLetterPath": "s3://letters/x"}
    with pytest.raises(OptionError, match=re.escape(problem)):
        read_sink(letters | given)


@pytest.mark.parametrize(
    ("code", "option"),
    [
        ("InvalidPart", "checksumAlgorithm"),
        ("InvalidDigest", "checksumAlgorithm"),
        ("BadDigest", "checksumAlgorithm"),
        ("NotImplemented", "checksumAlgorithm"),
        ("KMS.NotFoundException", "kmsKeyId"),
        ("AccessControlListNotSupported", "acl"),
        ("InvalidStorageClass", "storageClass"),
        ("AccessDenied", "serverSideEncryption"),
    ],
)
def test_a_refusal_names_the_option_that_it_may_be_about(code: str, option: str) -> None:
    s3 = FakeS3(lambda _number, _operation: refusal(code, 400))

    with pytest.raises(ServiceError, match=f"{re.escape(code)}.*'{option}'"):
        bucket(s3, is_known=False).put("a", b"")


def test_a_listed_manifest_that_cannot_be_read_is_an_error() -> None:
    """And no fewer rows: a gateway may answer NoSuchKey for what exists. It is asked again."""
    s3 = FakeS3()
    epoch = Epoch("q", "r", 0)
    commit(s3, epoch).commit(prepared(s3, epoch, 1))

    s3.fault = faults(refusal("NoSuchKey", 404), at="get_object")
    assert ids(s3) == [1]
    s3.fault = lambda _number, operation: refusal("NoSuchKey", 404) if operation == "get_object" else None
    with pytest.raises(ServiceError, match="exists, and GetObject answers NoSuchKey"):
        committed_keys(s3)


@pytest.mark.parametrize("times", [1, 99])
def test_no_committed_file_is_removed_because_its_manifest_cannot_be_read(times: int) -> None:
    """The clean-up of a later batch finds the pending list of this one, whose removal was lost."""
    s3 = FakeS3()
    first, second = Epoch("q", "r", 0), Epoch("q", "r", 1)
    s3.fault = lambda _number, operation: (
        refusal("AccessDenied", 403) if operation == "delete_object" else None
    )
    commit(s3, first).commit(prepared(s3, first, 1))
    assert s3.pending
    s3.fault = faults(*[refusal("NoSuchKey", 404)] * times, at="get_object")
    commit(s3, second).commit(prepared(s3, second, 2))
    s3.fault = lambda _number, _operation: None

    assert ids(s3) == [1, 2]
    assert set(committed_keys(s3)) <= s3.data


def test_a_conflict_of_conditional_writes_is_tried_again() -> None:
    """S3 answers with it while another write to the same key is running."""
    s3 = FakeS3()
    s3.fault = faults(refusal("ConditionalRequestConflict", 409), at="put_object")
    made = bucket(s3)

    assert made.put_if_absent("a", b"1")


@pytest.mark.parametrize(
    ("method", "call", "field"),
    [
        ("create_multipart_upload", lambda made: made.create_upload("events/x", "text/plain"), "UploadId"),
        ("upload_part", lambda made: made.upload_part("events/x", "u", 1, b"body"), "ETag"),
        ("complete_multipart_upload", lambda made: made.complete_upload("events/x", "u", []), "ETag"),
        ("list_multipart_uploads", lambda made: list(made.uploads("events/")), "IsTruncated"),
        ("list_objects_v2", lambda made: list(made.keys("events/")), "IsTruncated"),
        ("put_object", lambda made: made.put("events/x", b"body"), "ETag"),
        ("put_object", lambda made: made.put_if_absent("events/x", b"body"), "ETag"),
        ("head_object", lambda made: made.exists("events/x"), "ETag"),
        ("get_object", lambda made: made.get("events/x"), "ETag"),
    ],
)
def test_an_answer_without_a_required_field_is_damaged(
    method: str, call: Callable[[Bucket], Any], field: str
) -> None:
    """A truncated listing would hide files, and a completion with an error inside would lose one."""
    s3 = FakeS3()
    setattr(s3, method, lambda **_: {})
    with pytest.raises(ServiceError, match=f"the answer has no {field}") as caught:
        call(bucket(s3))

    assert caught.value.retryable


def test_a_proxy_that_answers_for_s3_loses_no_epoch() -> None:
    """Its answers count neither as a put manifest nor as an existing one of an earlier run."""

    class BehindAProxy(FakeS3):
        seen: ClassVar[set[str]] = set()

        def _answer(self, method: str, *call: Any) -> Any:
            if method in self.seen:
                return super()._answer(method, *call)
            self.seen.add(method)  # of each method, the first call gets the proxy's answer
            return {}

    s3 = BehindAProxy()
    epoch = Epoch("q", "r", 0)
    commit(s3, epoch).commit(prepared(s3, epoch, 1, 2))

    assert ids(s3) == [1, 2]


@pytest.mark.parametrize("text", [b"{", b'{"version": 1}', b'{"version": 2}', b"[]"])
def test_a_manifest_that_cannot_be_read_is_an_error(text: bytes) -> None:
    """To guess would lose or repeat an epoch."""
    s3 = FakeS3()
    s3.objects["events/_sluice/q/00000000000000000000.json"] = text
    with pytest.raises(CommitError, match="manifest events/_sluice/q/"):
        committed_keys(s3)


@pytest.mark.parametrize("encodes_keys", [True, False])
def test_keys_of_uploads_are_those_that_were_begun(*, encodes_keys: bool) -> None:
    made = bucket(FakeS3(encodes_keys=encodes_keys))
    begun = [
        (key, made.create_upload(key, "text/plain")) for key in ("events/p=a+b%2F ü/x", "events/p=a b/y")
    ]
    assert sorted(made.uploads("events/")) == sorted(begun)
