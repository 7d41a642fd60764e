"""Spark sessions for tests and the demo: small, on loopback only, all they write in one directory."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from integration.support.jvm import java_home
from integration.support.paths import BUILD, ROOT

SPARK_VERSION: tuple[int, ...] = tuple(int(part) for part in pyspark.__version__.split(".")[:2])

# Hadoop's login, as 4.0 and 4.1 bring it, fails on Java 24 and newer ("getSubject is not supported").
_NEWEST_JAVA_BEFORE_4_2 = 23

JVM_OPTIONS = "SLUICE_JVM_OPTIONS"
"""An environment variable: options for the JVMs of drivers, of this process and of those it starts."""

_JVM_GRACE = 60.0

# Java's limit on the path of a Unix socket is 104 on macOS; Spark adds a directory's dot and a UUID.
_LONGEST_SOCKET_DIRECTORY = 60

# Not the user's AWS set-up, not a Spark of another version, not a proxy: what tests see is what they made.
_FOREIGN = (
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_KINESIS",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_SESSION_TOKEN",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_CONF_DIR",
    "SPARK_HOME",
    "SPARK_LOCAL_DIRS",
)


def prepare_environment(*, emulated: bool = True) -> None:
    """Sets the environment variables that Spark, its workers and boto3 read; before the JVM starts.

    `emulated`: AWS is an emulator; otherwise the user's own AWS settings stay.
    """
    for name in _FOREIGN:
        if emulated or not name.startswith("AWS_"):
            os.environ.pop(name, None)
    if emulated:
        os.environ.update(
            AWS_ACCESS_KEY_ID="test",
            AWS_SECRET_ACCESS_KEY="test",  # noqa: S106 - emulators take anything
            AWS_DEFAULT_REGION="us-east-1",
            AWS_CONFIG_FILE=os.devnull,
            AWS_SHARED_CREDENTIALS_FILE=os.devnull,
            AWS_EC2_METADATA_DISABLED="true",
        )
    os.environ.update(
        JAVA_HOME=str(java_home(newest=None if SPARK_VERSION >= (4, 2) else _NEWEST_JAVA_BEFORE_4_2)),
        NO_PROXY="127.0.0.1,localhost",
        no_proxy="127.0.0.1,localhost",
        # Functions of tests and of the demo are pickled by name.
        PYTHONPATH=os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        SPARK_HOME=str(_spark_home()),
        SPARK_LOCAL_IP="127.0.0.1",
        TZ="UTC",
    )


def _spark_home() -> Path:
    """Spark as PySpark brings it, but for its archive of PySpark itself.

    Python processes that Spark starts would import PySpark from that archive and compile it each time. From
    where it is installed they import it in a quarter of the time; Spark gives them 10 seconds to start.
    """
    package = Path(pyspark.__file__).parent
    name = hashlib.sha256(f"{pyspark.__version__} {package}".encode()).hexdigest()[:16]
    home = BUILD / "spark" / name
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=home.parent, prefix="making-"))
        for each in ("bin", "jars", "sbin"):
            made.joinpath(each).symlink_to(package / each)
        try:
            made.rename(home)
        except OSError:  # another process was first: its copy is as good
            shutil.rmtree(made)
    return home


def configuration(directory: Path, *, master: str = "local[2]") -> dict[str, str]:
    """What a session of ours is configured with; `directory` takes all that it writes."""
    temporary = directory / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    options = f"-Djava.io.tmpdir={temporary} {os.environ.get(JVM_OPTIONS, '')}".strip()
    package = "streaming" if SPARK_VERSION < (4, 1) else "streaming.checkpointing"
    return {
        "spark.master": master,
        "spark.app.name": "sluice",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": options,
        "spark.log.level": "WARN",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # What makes a micro-batch cheaper on a local disk; versions that lack one pass over it.
        "spark.python.unix.domain.socket.enabled": str(
            len(str(temporary)) <= _LONGEST_SOCKET_DIRECTORY
        ).lower(),
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
        "spark.sql.streaming.checkpointFileManagerClass": (
            f"org.apache.spark.sql.execution.{package}.FileSystemBasedCheckpointFileManager"
        ),
    }


class Sessions:
    """Hands out one session at a time. Asked for another configuration, it stops the one before."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._active: tuple[dict[str, str], SparkSession] | None = None

    def get(self, settings: Mapping[str, str] | None = None, *, master: str = "local[2]") -> SparkSession:
        """A session with `settings` on top of `configuration`; the active one where it is the same.

        `settings`: Spark properties, static ones included; `master`: ``local[2,4]`` tries a task four times,
        ``local[2]`` once.
        """
        wanted = {**configuration(self._directory, master=master), **(settings or {})}
        if self._active and self._active[0] == wanted and self._alive(self._active[1]):
            return self._active[1]
        self.stop()
        builder = SparkSession.builder
        for key, value in wanted.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        self._active = (wanted, session)
        return session

    def stop_queries(self) -> None:
        """Stops every query of the active session, if there is one."""
        if self._active and self._alive(self._active[1]):
            stop_queries(self._active[1])

    def stop(self) -> None:
        """Stops every query, and the session if there is one."""
        if self._active:
            session = self._active[1]
            self._active = None
            if self._alive(session):
                stop_queries(session)
                session.stop()
        # Properties that Python set in the JVM for the last session would also apply to the next one.
        SparkSession.builder._options.clear()

    @staticmethod
    def _alive(session: SparkSession) -> bool:
        return session.sparkContext._jsc is not None


def stop_jvm() -> None:
    """Ends the JVM of this process, and waits until it has ended and removed its directories."""
    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    if gateway is None:
        return
    gateway.shutdown()
    process: subprocess.Popen[bytes] = gateway.proc
    if process.stdin:
        process.stdin.close()  # what the JVM goes by
    try:
        process.wait(_JVM_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def stop_queries(session: SparkSession) -> None:
    """Stops every streaming query of `session`, failed ones included."""
    for query in session.streams.active:
        with contextlib.suppress(Exception):
            query.stop()


@contextlib.contextmanager
def spark_session(
    directory: Path, settings: Mapping[str, str] | None = None, *, emulated: bool = True
) -> Iterator[SparkSession]:
    """One session, and its JVM, for the length of the ``with`` block."""
    prepare_environment(emulated=emulated)
    sessions = Sessions(directory)
    try:
        yield sessions.get(settings)
    finally:
        sessions.stop()
        stop_jvm()
