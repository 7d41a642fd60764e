"""Destination ``s3``: Parquet files or JSON lines in a bucket, each epoch exactly once.

Tasks stream rows into multipart uploads, which nobody sees. The driver completes those of an epoch and then
puts its manifest: one object, which is the only point of truth. What no manifest lists was never written.
"""

from sluice.destinations.s3.destination import S3Destination

__all__ = ["S3Destination"]
