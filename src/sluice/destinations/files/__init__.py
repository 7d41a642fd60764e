"""Destination ``s3``: Parquet files or JSON lines in a bucket, each epoch exactly once (FLIP-143).

Tasks write rows into multipart uploads, which are invisible. The driver completes the uploads of an epoch,
and then puts the epoch's manifest. Only files that a manifest lists are committed.
"""

from sluice.destinations.files.destination import S3Destination

__all__ = ["S3Destination"]
