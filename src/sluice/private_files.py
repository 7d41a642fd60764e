"""Directories for temporary files that belong to one user alone, by which processes of that user meet."""

from __future__ import annotations

import os
import stat

__all__ = ["is_of_this_user_alone"]


def is_of_this_user_alone(status: os.stat_result) -> bool:
    """Whether it is a directory into which nobody else can look or put anything. POSIX only."""
    is_directory = stat.S_ISDIR(status.st_mode)
    return is_directory and status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077
