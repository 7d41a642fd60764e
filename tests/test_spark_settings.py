"""What can be learned about Spark's settings: from the command line of its JVM, its files and the
environment.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sluice import spark_settings
from sluice.spark_settings import SparkSettings, find_spark_settings

LOCAL = SparkSettings("local[2]", cores=2)
CLUSTER = SparkSettings("spark://10.0.0.1:7077", "driver.example", "10.0.0.1")
UNKNOWN = SparkSettings()
EVERY = "0.0.0.0"  # noqa: S104 - nothing listens


@pytest.mark.parametrize(
    ("command", "environment", "found"),
    [
        ("java org.apache.spark.deploy.SparkSubmit --conf spark.master=local[2] pyspark-shell", {}, LOCAL),
        ("java org.apache.spark.deploy.SparkSubmit --master local[2] app.py", {}, LOCAL),
        (
            "java -Dspark.master=spark://10.0.0.1:7077 -Dspark.driver.host=driver.example DriverWrapper",
            {"SPARK_LOCAL_IP": "10.0.0.1"},
            CLUSTER,
        ),
        (
            "java SparkSubmit --master yarn a.py",
            {"SPARK_LOCAL_IP": "10.1.1.1"},
            ("yarn", "10.1.1.1", "10.1.1.1"),
        ),
        ("java SparkSubmit pyspark-shell", {}, UNKNOWN),
        ("java SparkSubmit pyspark-shell", {"SPARK_LOCAL_IP": EVERY}, UNKNOWN),
        ("java SparkSubmit pyspark-shell", {"SPARK_LOCAL_IP": "a-name"}, UNKNOWN),
        ("", {}, UNKNOWN),
    ],
)
def test_what_the_command_line_says(
    command: str, environment: dict[str, str], found: SparkSettings | tuple[str, str, str]
) -> None:
    """Settings that Spark got when it was started. Where it says nothing, nothing is assumed."""
    expected = found if isinstance(found, SparkSettings) else SparkSettings(*found)

    assert find_spark_settings(command.split(), environment) == expected


@pytest.mark.parametrize(
    ("command", "cores"),
    [
        ("--master local", 1),
        ("--master local[4]", 4),
        ("--master local[4,2]", 4),
        ("--master local[*]", 3),
        ("--master local[*,2]", 3),
        ("--master local[some]", None),
        ("--master local-cluster[2,1,512]", None),
        ("--master yarn", None),
        ("--master yarn --num-executors 10 --executor-cores 4", 40),
        ("--master k8s://x --conf spark.executor.instances=3 --conf spark.executor.cores=2", 6),
        ("--master k8s://x --conf spark.executor.instances=3", None),
        ("--master yarn --num-executors ten --executor-cores 4", None),
        (
            "--master yarn --num-executors 10 --executor-cores 4 --conf spark.dynamicAllocation.enabled=true",
            None,
        ),
        ("--master spark://10.0.0.1:7077 --total-executor-cores 24 --executor-cores 4", 24),
        ("--master spark://10.0.0.1:7077 --conf spark.cores.max=12", 12),
        ("", None),
    ],
)
def test_the_cores_that_tasks_have(command: str, cores: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are asked for. With dynamic allocation, or no word of it, they are not known."""
    monkeypatch.setattr(spark_settings, "_cores_here", lambda: 3)
    assert find_spark_settings(["java", "SparkSubmit", *command.split()], {}).cores == cores


def test_settings_of_files_come_after_those_of_the_command_line(tmp_path: Path) -> None:
    """As for SparkSubmit, which reads either file."""
    (tmp_path / "spark-defaults.conf").write_text(
        "# a comment\nspark.master  spark://10.0.0.1:7077\nspark.driver.host=driver.example\n"
    )
    (tmp_path / "other").write_text("spark.master=yarn\n")
    environment = {"SPARK_CONF_DIR": str(tmp_path)}

    def read(*more: str) -> SparkSettings:
        return find_spark_settings(["java", "SparkSubmit", *more], environment)

    assert read() == SparkSettings("spark://10.0.0.1:7077", "driver.example")
    assert read("--master", "local[2]").is_local
    assert read("--properties-file", str(tmp_path / "other")).master == "yarn"
    assert read("--properties-file", str(tmp_path / "gone")) == UNKNOWN


def test_the_jvm_is_looked_for_among_the_ancestors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon may stand between. Here is no JVM, so nothing is known."""
    parents = {
        30: (20, ["python", "-m", "pyspark.daemon"]),
        20: (1, ["java", "org.apache.spark.deploy.SparkSubmit"]),
    }
    assert spark_settings._process(os.getpid())[0] == os.getppid()
    monkeypatch.setattr(spark_settings, "_process", lambda pid: parents.get(pid, (0, [])))

    assert spark_settings._command_of_jvm(30) == parents[20][1]
    assert spark_settings._command_of_jvm(40) == ()
