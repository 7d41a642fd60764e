"""The clock of the drivers' Python processes, which is not the service's; see ``site/sitecustomize.py``."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_FILE: Final = "SLUICE_CHAOS_CLOCK"
_VALUES: Final = struct.Struct("ddd")  # seconds ahead of the machine's time; gained each second; since when


class ReaderClock:
    """Sets what ``time.time`` says in processes with `environment`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset, self._rate, self._since = 0.0, 0.0, time.time()
        self._write()

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of the processes whose clock this is."""
        paths = [str(Path(__file__).with_name("site")), os.environ.get("PYTHONPATH", "")]
        return {_FILE: str(self._file), "PYTHONPATH": os.pathsep.join(filter(None, paths))}

    @property
    def offset(self) -> float:
        """Seconds ahead of the machine's time of day."""
        return self._offset + self._rate * (time.time() - self._since)

    def set_offset(self, seconds: float) -> None:
        """So many seconds ahead from now on; behind, where it is negative."""
        self._offset, self._since = seconds, time.time()
        self._write()

    def drift(self, rate: float) -> None:
        """From now on it gains `rate` seconds each second."""
        self._offset, self._rate, self._since = self.offset, rate, time.time()
        self._write()

    def _write(self) -> None:
        """In place: the file is mapped. A reader may see half of a change, for less than a microsecond."""
        with self._file.open("r+b" if self._file.exists() else "w+b") as file:
            file.write(_VALUES.pack(self._offset, self._rate, self._since))
