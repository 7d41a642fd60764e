"""Private directories for temporary files, which processes of one user share."""

from __future__ import annotations

import os
import stat

__all__ = ["is_of_this_user_alone"]


def is_of_this_user_alone(status: os.stat_result) -> bool:
    """Whether it is a directory that only this user can read and write. POSIX only."""
    is_directory = stat.S_ISDIR(status.st_mode)
    return is_directory and status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077
