"""Windows lacks what POSIX has: everything imports there, polling works, and fan-out is refused by name.

A process without these modules and functions simulates Windows.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from integration.model import Laws
from integration.model.server import serving

SRC = Path(__file__).resolve().parent.parent / "src"

# Imports other packages first, because their support of Windows is not tested here. Then removes the parts of
# the standard library whose documentation says "Availability: Unix".
WINDOWS = """
import asyncio, importlib, os, pkgutil, select, signal, socket, subprocess, sys
import botocore.session, hypothesis, msgspec, pyarrow.compute, pyarrow.parquet, pyspark.sql.datasource
import pyspark.sql.streaming, tenacity, urllib3
botocore.session.Session().create_client("kinesis", region_name="eu-west-1")

for module in ("fcntl", "grp", "posix", "pwd", "pty", "resource", "syslog", "termios"):
    sys.modules[module] = None
GONE = {
    os: "fork forkpty register_at_fork getuid geteuid getgid getegid getpgid getpgrp getsid setsid setpgid "
    "killpg chown fchmod fchown lchown mkfifo mknod nice pread pwrite preadv pwritev sched_getaffinity "
    "sendfile setuid sysconf uname wait wait3 wait4 WNOHANG fdatasync openpty ttyname statvfs "
    "memfd_create eventfd posix_fallocate O_CLOEXEC O_NONBLOCK O_DIRECTORY O_NOFOLLOW O_SYNC",
    select: "poll epoll kqueue POLLIN POLLOUT POLLHUP POLLERR",
    signal: "SIGKILL SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGCHLD SIGALRM SIGPIPE SIGSTOP SIGCONT alarm setitimer "
    "pthread_sigmask pthread_kill sigwait sigpending siginterrupt",
    socket: "AF_UNIX AF_NETLINK SO_REUSEPORT send_fds recv_fds MSG_DONTWAIT CMSG_LEN CMSG_SPACE",
}
for module, names in GONE.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in ("sendmsg", "recvmsg", "recvmsg_into"):
    if hasattr(socket.socket, name):
        type.__setattr__(socket.socket, name, None)
"""


def on_windows(code: str, *arguments: str) -> str:
    """What a process there prints."""
    done = subprocess.run(
        (sys.executable, "-W", "error::RuntimeWarning", "-c", WINDOWS + textwrap.dedent(code), *arguments),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_everything_is_imported() -> None:
    """The shims as well, which would warn, and modules that nothing calls there."""
    printed = on_windows(
        f"""
        names = [m.name for m in pkgutil.walk_packages([{str(SRC)!r}]) if not m.name.endswith("__main__")]
        for name in names:
            importlib.import_module(name)
        import pyspark_async_sink, pyspark_dynamodb_streams, pyspark_kinesis_efo
        print(len(names), pyspark_kinesis_efo.DefaultSource.name(), pyspark_async_sink.DefaultSource.name())
        """
    )
    count, *formats = printed.split()
    assert int(count) > 100
    assert formats == ["kinesis-efo", "async-sink"]


def test_a_stream_is_polled() -> None:
    """From the options to the rows, in batch and streaming reads."""
    with serving(Laws.kind()) as server:
        server.model.create("s")
        for number in range(10):
            server.model.put("s", str(number), b"data")
        printed = on_windows(
            """
            from sluice.kinesis.options.config import source_config_from_options
            from sluice.kinesis.source import KinesisSource
            from sluice.spark.source_reader import BatchReader, make_stream_reader

            def rows(reader, *offsets):
                parts = reader.partitions(*offsets)
                return sum(batch.num_rows for part in parts for batch in reader.read(part))

            options = {"streamName": "s", "startingPosition": "TRIM_HORIZON", "endpointUrl": sys.argv[1]}
            options |= {"region": "eu-west-1", "awsAccessKeyId": "k", "awsSecretAccessKey": "s"}
            reader = BatchReader(KinesisSource(source_config_from_options(options)))
            print(rows(reader))
            reader = make_stream_reader(KinesisSource(source_config_from_options(options, streaming=True)))
            start = reader.initialOffset()
            print(rows(reader, start, reader.latestOffset(start)))
            reader.stop()
            """,
            server.endpoint,
        )
    assert printed.split() == ["10", "10"]


def test_fan_out_is_refused_by_name() -> None:
    """In one error that says what to do."""
    keys = ("consumerName", "recordPublisher", "consumerArn", "consumerArn.s")
    printed = on_windows(
        """
        from sluice.errors import OptionError
        from sluice.kinesis.options.config import source_config_from_options

        ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/s/consumer/me:1700000000"
        for key, value in zip(sys.argv[1:], ("me", "efo", ARN, ARN)):
            try:
                source_config_from_options({"streamName": "s", "region": "eu-west-1", key: value})
            except OptionError as error:
                print(error)
        """,
        *keys,
    )
    lines = printed.splitlines()
    assert tuple(line.split("'")[1] for line in lines) == keys
    for line in lines:
        assert "fan-out needs Linux or macOS" in line
        assert "leave it out to read by polling" in line
        assert "required" not in line


def test_an_agent_that_polls_is_refused_by_name() -> None:
    """Polling works without."""
    printed = on_windows(
        """
        from sluice.errors import OptionError
        from sluice.kinesis.options.config import source_config_from_options

        for agent in ("none", "driver"):
            options = {"streamName": "s", "region": "eu-west-1", "agent": agent}
            try:
                print(source_config_from_options(options).agent)
            except OptionError as error:
                print(error)
        """
    )
    fine, refused = printed.splitlines()
    assert fine == "None"
    assert "option 'agent' is 'driver': an agent needs Linux or macOS" in refused


def test_a_bucket_for_the_query_is_refused_by_name() -> None:
    """It needs a server; a bucket for each task works."""
    printed = on_windows(
        """
        from sluice.destinations.registry import read_sink
        from sluice.errors import OptionError

        options = {"destination": "http", "url": "http://localhost/", "rateLimiting": "token-bucket"}
        options |= {"tokenBucketRate": "5", "tokenBucketBurst": "5"}
        for scope in ("task", "query"):
            try:
                read_sink(options | {"tokenBucketScope": scope})
                print(scope)
            except OptionError as error:
                print(error)
        """
    )
    fine, refused = printed.splitlines()
    assert fine == "task"
    assert "option 'tokenBucketScope' is 'query': query needs Linux or macOS" in refused
