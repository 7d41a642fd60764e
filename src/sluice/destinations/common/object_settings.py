"""How objects are stored in S3: the options of destination ``s3`` and of dead letters, and what they send.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_Operations_Amazon_Simple_Storage_Service.html says which
operation takes which parameter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from sluice.options import BOOLEAN, Option, OptionValues, choice, matching

__all__ = ["ACCESS_OPTIONS", "NO_CHECKSUMS", "OBJECT_OPTIONS", "ObjectSettings", "hint_for"]

NO_CHECKSUMS: Final = "none"
_KMS: Final = ("aws:kms", "aws:kms:dsse")

SERVER_SIDE_ENCRYPTION = Option(
    "serverSideEncryption",
    choice("AES256", *_KMS),
    None,
    "Encryption of the objects, sent with each request that creates one.",
    shown_default="the bucket's",
)
KMS_KEY_ID = Option(
    "kmsKeyId",
    matching("key", "an id, alias or ARN of a KMS key", re.compile(r"[\w:/-]{1,2048}", re.ASCII)),
    None,
    "KMS key of `serverSideEncryption` `aws:kms` or `aws:kms:dsse`.",
    shown_default="the bucket's, or the account's own",
)
BUCKET_KEY_ENABLED = Option(
    "bucketKeyEnabled",
    BOOLEAN,
    None,
    "With `serverSideEncryption=aws:kms`: use an S3 bucket key, which saves calls of KMS.",
    shown_default="the bucket's",
)
ACL = Option(
    "acl",
    choice(
        "private",
        "public-read",
        "public-read-write",
        "authenticated-read",
        "aws-exec-read",
        "bucket-owner-read",
        "bucket-owner-full-control",
    ),
    None,
    "Canned ACL of the objects, such as `bucket-owner-full-control` in a bucket of another account.",
    shown_default="none",
)
EXPECTED_BUCKET_OWNER = Option(
    "expectedBucketOwner",
    matching("account", "an account id of 12 digits", re.compile(r"\d{12}", re.ASCII)),
    None,
    "Account that must own the bucket; otherwise S3 rejects every call.",
    shown_default="not checked",
)
REQUEST_PAYER = Option(
    "requestPayer",
    choice("requester"),
    None,
    "`requester` if you pay for requests to a requester-pays bucket.",
    shown_default="the owner pays",
)
STORAGE_CLASS = Option(
    "storageClass",
    choice(
        "STANDARD",
        "REDUCED_REDUNDANCY",
        "STANDARD_IA",
        "ONEZONE_IA",
        "INTELLIGENT_TIERING",
        "GLACIER",
        "DEEP_ARCHIVE",
        "OUTPOSTS",
        "GLACIER_IR",
        "SNOW",
        "EXPRESS_ONEZONE",
        "FSX_OPENZFS",
    ),
    None,
    "Storage class of data files and dead letters. Manifests have the bucket's.",
    shown_default="the bucket's",
)
CHECKSUM_ALGORITHM = Option(
    "checksumAlgorithm",
    choice("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256", NO_CHECKSUMS),
    None,
    "Checksum that S3 verifies and stores. `none` sends no checksum headers, for stores that reject them.",
    shown_default="what the SDK sends",
)

ACCESS_OPTIONS: Final[Sequence[Option[Any]]] = (EXPECTED_BUCKET_OWNER, REQUEST_PAYER)
"""Those that reading takes, too."""

OBJECT_OPTIONS: Final[Sequence[Option[Any]]] = (
    SERVER_SIDE_ENCRYPTION,
    KMS_KEY_ID,
    BUCKET_KEY_ENABLED,
    ACL,
    STORAGE_CLASS,
    CHECKSUM_ALGORITHM,
    *ACCESS_OPTIONS,
)

_MAKE_OBJECTS: Final = frozenset({"CreateMultipartUpload", "PutObject"})
_WITH_CHECKSUM: Final = _MAKE_OBJECTS | {"UploadPart"}

_MAY_BE_DENIED: Final = (
    "the credentials lack a permission, or the bucket's policy demands 'serverSideEncryption', 'kmsKeyId', "
    "'acl' or 'requestPayer', or 'expectedBucketOwner' does not own it"
)
_HINTS: Final = (
    (
        re.compile(r"InvalidPart|.*(Checksum|Digest|MD5|SHA256).*|NotImplemented|501", re.IGNORECASE),
        "option 'checksumAlgorithm': 'none' sends no checksum headers, which some stores refuse",
    ),
    # Of KMS, in whose name S3 answers.
    (
        re.compile(r"NotFoundException|DisabledException|InvalidKeyUsageException|KMSInvalidStateException"),
        "options 'serverSideEncryption' and 'kmsKeyId'",
    ),
    (re.compile(r"AccessControlListNotSupported"), "option 'acl': the bucket's owner enforces ownership"),
    (re.compile(r"InvalidStorageClass"), "option 'storageClass'"),
    (re.compile(r"AccessDenied|403"), _MAY_BE_DENIED),
)


@dataclass(frozen=True)
class ObjectSettings:
    """The options as plain data. None means: what the SDK or the bucket does by default."""

    server_side_encryption: str | None = None
    kms_key_id: str | None = None
    bucket_key_enabled: bool | None = None
    acl: str | None = None
    storage_class: str | None = None
    checksum_algorithm: str | None = None
    expected_bucket_owner: str | None = None
    request_payer: str | None = None

    @classmethod
    def of(cls, values: OptionValues, options: Sequence[Option[Any]] = OBJECT_OPTIONS) -> ObjectSettings:
        """Reads the options. Notes what does not fit together for `OptionValues.check`."""
        names = {re.sub(r"[A-Z]", lambda c: f"_{c[0].lower()}", option.key): option for option in options}
        given = cls(**{each.name: values.get(names[each.name]) for each in fields(cls) if each.name in names})
        if given.kms_key_id and given.server_side_encryption not in _KMS:
            values.reject(KMS_KEY_ID.key, f"needs '{SERVER_SIDE_ENCRYPTION.key}' {' or '.join(_KMS)}")
        if given.bucket_key_enabled and given.server_side_encryption != _KMS[0]:
            values.reject(BUCKET_KEY_ENABLED.key, f"needs '{SERVER_SIDE_ENCRYPTION.key}' {_KMS[0]}")
        return given

    @property
    def named_checksum(self) -> str | None:
        """The algorithm that requests name; None if they leave it to the SDK, or send none."""
        return None if self.checksum_algorithm == NO_CHECKSUMS else self.checksum_algorithm

    def parameters(self, operation: str, *, is_data: bool = False) -> Mapping[str, Any]:
        """The parameters of a call of `operation`, by the SDK's names.

        Args:
            is_data: the call makes an object of rows. Manifests and lists must stay readable at any time,
                so they have no storage class.
        """
        found: dict[str, Any] = {
            "ExpectedBucketOwner": self.expected_bucket_owner,
            "RequestPayer": self.request_payer,
        }
        if operation in _WITH_CHECKSUM:
            found["ChecksumAlgorithm"] = self.named_checksum
        if operation in _MAKE_OBJECTS:
            found |= {
                "ServerSideEncryption": self.server_side_encryption,
                "SSEKMSKeyId": self.kms_key_id,
                "BucketKeyEnabled": self.bucket_key_enabled,
                "ACL": self.acl,
            }
        if is_data:
            found["StorageClass"] = self.storage_class
        return {name: value for name, value in found.items() if value is not None}


def hint_for(code: str) -> str:
    """What a refusal with this error code may have to do with these options; empty if nothing."""
    return next((hint for codes, hint in _HINTS if codes.fullmatch(code)), "")
