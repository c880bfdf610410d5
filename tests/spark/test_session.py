"""The session: what it starts with, and that it runs."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tiermq.spark.session import get_spark, known_cores, merged, session_defaults, start_environment, with_attempts


@pytest.mark.parametrize(
    ("given", "master"),
    [
        ("local", "local[1,4]"),
        ("local[3]", "local[3,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2,1]", "local[2,1]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://127.0.0.1:7077", "spark://127.0.0.1:7077"),
    ],
)
def test_a_local_master_gets_attempts_and_any_other_is_left_alone(given: str, master: str) -> None:
    assert with_attempts(given) == master


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3,4]", 3),
        ("local[*,4]", len(os.sched_getaffinity(0))),
        ("local-cluster[2, 3, 1024]", 6),
        ("spark://host:7077", None),
        ("yarn", None),
    ],
)
def test_shuffle_partitions_follow_the_cores_that_are_known(master: str, cores: int | None) -> None:
    assert known_cores(master) == cores
    assert session_defaults(master).get("spark.sql.shuffle.partitions") == (None if cores is None else str(cores))


@pytest.mark.parametrize(
    ("master", "bound"),
    [
        ("local[2,4]", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077", True),
        ("spark://10.0.0.1:7077", False),
        ("k8s://https://host:443", False),
    ],
)
def test_only_a_master_on_this_machine_binds_the_driver_to_loopback(master: str, bound: bool) -> None:
    assert ("spark.driver.bindAddress" in session_defaults(master)) is bound
    assert ("SPARK_LOCAL_IP" in start_environment(master)) is bound


def test_java_options_of_the_user_come_after_ours_and_everything_else_replaces_ours() -> None:
    defaults = session_defaults("local[1,4]")
    conf = {"spark.driver.extraJavaOptions": "-Xss4m", "spark.ui.enabled": "true"}
    settings = merged(defaults, conf)
    assert settings["spark.driver.extraJavaOptions"] == f"{defaults['spark.driver.extraJavaOptions']} -Xss4m"
    assert settings["spark.ui.enabled"] == "true"


def test_the_interpreter_of_workers_is_ours_unless_the_user_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert start_environment("local")["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    assert start_environment("local")["PYSPARK_PYTHON"] == "/opt/python"


def test_workers_find_this_package_when_it_runs_from_its_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/some/where")
    entries = session_defaults("local")["spark.executorEnv.PYTHONPATH"].split(os.pathsep)
    import tiermq

    installed = "site-packages" in tiermq.__file__
    assert entries[-1] == "/some/where"
    assert installed or entries[0] == str(Path(tiermq.__file__).parent.parent)


def test_workers_run_our_interpreter_over_unix_sockets_with_retries(spark: SparkSession) -> None:
    def tell(batches):  # type: ignore[no-untyped-def]
        import sys

        import pyarrow as pa

        import tiermq

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable], "package": [tiermq.__file__]})

    row = spark.range(1).mapInArrow(tell, "python string, package string").head()
    import tiermq

    assert row is not None
    assert (row.python, row.package) == (sys.executable, tiermq.__file__)
    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert spark.conf.get("spark.master") == "local[2,4]"


def test_the_environment_of_this_process_is_as_before(spark: SparkSession) -> None:
    assert "SPARK_LOCAL_IP" not in os.environ


def test_a_running_session_is_returned_and_another_master_is_warned_about(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert get_spark("local[2]") is spark
        assert [record for record in caplog.records if record.name == "tiermq.spark.session"] == []
        assert get_spark("local[7]") is spark
    assert "local[2,4] runs already" in caplog.text
    assert "local[7,4]" in caplog.text
