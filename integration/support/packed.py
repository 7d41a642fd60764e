"""Python environments as venv-pack packs them: relocatable, the interpreter a link to the one of the host."""

from __future__ import annotations

import re
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from integration.support.paths import ROOT

VERSION: Final = "7.8.9"
"""Of Sluice in these environments, unless another one is given."""
_NAME: Final = "pyspark-sluice"
_NEEDED: Final = ("boto3", "botocore", "cryptography", "msgspec", "numpy", "pyarrow", "pybase64", "tenacity")
_SKIPPED: Final = ("__pycache__", "pyarrow/tests", "pyarrow/include", "pyarrow/src")
_PACKAGES: Final = ("sluice", "pyspark_kinesis_efo", "pyspark_async_sink", "pyspark_dynamodb_streams")


def make_environment(directory: Path, *, version: str | None = VERSION) -> Path:
    """Makes an environment with all that Sluice needs but PySpark, which the cluster has.

    `version`: of Sluice in it; None: without Sluice.
    """
    packages = directory / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    (directory / "bin").mkdir()
    interpreter = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    (directory / "pyvenv.cfg").write_text(
        f"home = {interpreter.parent}\ninclude-system-site-packages = false\n"
    )
    for name in ("python", "python3"):
        (directory / "bin" / name).symlink_to(interpreter)
    for distribution in _requirements():
        _copy(distribution, packages)
    if version is not None:
        for name in _PACKAGES:
            shutil.copytree(
                ROOT / "src" / name, packages / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        about = packages / f"pyspark_sluice-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_NAME}\nVersion: {version}\n")
        (about / "entry_points.txt").write_text("[console_scripts]\nsluice = sluice.cli.app:main\n")
    return directory / "bin" / "python"


def pack(environment: Path, archive: Path) -> Path:
    """Packs an environment, for ``--archives``; as ``.tar.gz``, since Spark refuses links in a ``.tar``."""
    with tarfile.open(archive, "w:gz", compresslevel=1) as out:
        for each in sorted(environment.iterdir()):
            out.add(each, each.name)
    return archive


def zip_of_sluice(archive: Path) -> Path:
    """Sluice without what it needs, for ``--py-files``."""
    with zipfile.ZipFile(archive, "w") as out:
        for name in _PACKAGES:
            for file in sorted((ROOT / "src" / name).rglob("*.py")):
                out.write(file, file.relative_to(ROOT / "src"))
    return archive


def _requirements() -> Iterator[metadata.Distribution]:
    """The distributions that Sluice needs, and those that these need."""
    left = list(_NEEDED)
    seen = set(left)
    while left:
        distribution = metadata.distribution(left.pop())
        yield distribution
        for requirement in distribution.requires or ():
            found = re.match(r"[\w.-]+", requirement)
            assert found is not None
            if "extra ==" not in requirement and found[0] not in seen and _is_installed(found[0]):
                seen.add(found[0])
                left.append(found[0])


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:  # it is for other versions of Python
        return False
    return True


def _copy(distribution: metadata.Distribution, packages: Path) -> None:
    for file in distribution.files or ():
        text = str(file)
        if text.startswith("..") or any(skipped in text for skipped in _SKIPPED):
            continue
        target = packages / text
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            target.hardlink_to(Path(str(file.locate())))
        except OSError:  # on another disk
            shutil.copyfile(str(file.locate()), target)
