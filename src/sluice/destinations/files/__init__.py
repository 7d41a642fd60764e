"""Destinations ``files`` and ``s3``: Parquet files or JSON lines, each epoch exactly once (FLIP-143).

Tasks write rows into staged files, which no reader finds. The driver publishes the files of an epoch, and
puts the epoch's manifest. Only files that a manifest lists are committed.
"""

from sluice.destinations.files.destination import FilesDestination, S3Destination

__all__ = ["FilesDestination", "S3Destination"]
