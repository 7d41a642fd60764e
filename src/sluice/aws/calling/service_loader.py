"""Loads the SDK's descriptions of services without listing all services first.

To make a client, the SDK twice looks into each of its 400 folders to find out whether there is one with the
service's name: 18 ms of CPU in every process that calls AWS. Here the one folder is looked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from botocore.loaders import Loader

__all__ = ["ServiceLoader"]


class ServiceLoader(Loader):
    """The SDK's loader (``data_loader``).

    Args:
        search_path: folders of more descriptions (``AWS_DATA_PATH``), as the SDK's own `create_loader` takes
            them.
    """

    def __init__(self, search_path: str | None = None) -> None:
        folders = [] if search_path is None else search_path.split(os.pathsep)
        super().__init__(
            extra_search_paths=[str(Path(os.path.expandvars(folder)).expanduser()) for folder in folders]
        )

    def list_available_services(self, type_name: str) -> Any:
        """The names of all services, listed when they are asked for one by one."""
        every = super().list_available_services
        return _Services(self.search_paths, lambda: every(type_name))


class _Services(Collection[str]):
    def __init__(self, folders: Sequence[str], list_all: Callable[[], Sequence[str]]) -> None:
        self._folders = folders
        self._list_all = list_all

    def __contains__(self, name: object) -> bool:
        return any(Path(folder, str(name)).is_dir() for folder in self._folders)

    def __iter__(self) -> Iterator[str]:
        return iter(self._list_all())

    def __len__(self) -> int:
        return len(self._list_all())
