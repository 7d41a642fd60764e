"""Starts the vendor's own DynamoDB Local, whose shards roll over when a test says so. Needs a JDK and Maven.

DynamoDB Local is licensed for development and tests. It is fetched from Maven Central, and never committed.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from integration.support.maven import copy_jars
from integration.support.paths import BUILD, EMULATORS
from integration.support.servers import Server, running

__all__ = ["DynamoDbLocal", "dynamodb_local", "missing_tools"]

_SOURCE: Final = EMULATORS / "dynamodb-local"
_ROLL_TIMEOUT: Final = 60.0


@dataclass(frozen=True)
class DynamoDbLocal:
    """A server that answers on ``server.endpoint``."""

    server: Server

    def roll(self) -> None:
        """Closes all open shards. A child takes the place of each when the next record comes."""
        request = self.server.directory / "roll"
        request.touch()
        end = time.monotonic() + _ROLL_TIMEOUT
        while request.exists():
            if time.monotonic() > end:
                raise TimeoutError(f"shards do not roll over: {self.server.log[-2000:]}")
            time.sleep(0.02)


def missing_tools() -> list[str]:
    """What it needs and is not there."""
    return [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]


@contextlib.contextmanager
def dynamodb_local() -> Iterator[DynamoDbLocal]:
    """DynamoDB Local, in memory, until the block ends."""
    library = _installed()

    def command(port: int, directory: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        java = ("java", "-XX:TieredStopAtLevel=1", "-Xmx256m", f"-Djava.library.path={library}")
        return (*java, "-cp", f"{library}/*:{library}", "Rolling", str(port), str(directory / "roll")), {}

    with running("dynamodb-local", command) as server:
        yield DynamoDbLocal(server)


def _installed() -> Path:
    """The directory of its jars and of our `Rolling`, made if it is not there."""
    content = b"".join((_SOURCE / name).read_bytes() for name in ("pom.xml", "Rolling.java"))
    library = BUILD / "maven" / hashlib.sha256(content).hexdigest()[:16]
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent, prefix="installing-") as made:
            copy_jars(_SOURCE / "pom.xml", Path(made))
            compiled = ("javac", "-nowarn", "-cp", f"{made}/*", "-d", made, str(_SOURCE / "Rolling.java"))
            subprocess.run(compiled, check=True)
            with contextlib.suppress(OSError):  # another process was first: its copy is as good
                Path(made).rename(library)
                Path(made).mkdir()
    return library
