"""The Spark session with the defaults that this pipeline is measured with.

    spark = get_spark()                                  # local[*,4] on this machine
    spark = get_spark("local-cluster[2,1,1024]")         # real executors, here
    spark = get_spark("spark://host:7077", conf={...})   # any cluster; `conf` wins over every default
    spark = get_spark("sc://host")                       # Spark Connect: the server has its own settings

JVM options of the start are passed through its environment, and only while it starts: the variables of
this process are as before when `get_spark` returns. Variables that the user has set are not changed.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import tiermq
from tiermq.files.system_calls import processor_count
from tiermq.message.hosts import LOOPBACK
from tiermq.spark.java import find_java, quiet_home
from tiermq.spark.query_pruning import prune_queries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_ATTEMPTS = 4
_LOCAL = re.compile(r"local(?:\[\s*(\*|\d+)\s*\])?")
_LOCAL_WITH_ATTEMPTS = re.compile(r"local\[\s*(\*|\d+)\s*,\s*\d+\s*\]")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")
_HERE = re.compile(r"local\b.*|spark://(?:localhost|127\.[\d.]+|\[::1\])(?::\d+)?")
# Batches come from our own workers and have been checked there, so the JVM need not check each access to them again.
_ARROW_UNCHECKED = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
_LOG_SETTINGS = str(Path(__file__).with_name("log4j2.properties"))
# Java options are separated by spaces: where the path has one, Spark is as loud as it likes.
_QUIET = "" if " " in _LOG_SETTINGS else f"-Dlog4j2.configurationFile={_LOG_SETTINGS}"
_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")
_log = logging.getLogger(__name__)


def get_spark(master: str = "local[*]", *, app: str = "tiermq", conf: Mapping[str, str] | None = None) -> SparkSession:
    """The running session, or a new one. As in Spark, a session that runs already is returned as it is.

    `local[N]` becomes `local[N,4]`: without a number of attempts Spark gives up at the first worker that dies.
    Raises JavaMissing when there is no Java to run on.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app)
    if master.startswith("sc://"):
        return _configured(builder.remote(master), conf or {}).getOrCreate()
    master = with_attempts(master)
    running = SparkSession.getActiveSession()
    if running is not None:
        runs_on = running.conf.get("spark.master", None)
        if runs_on != master:
            _log.warning("a session on %s runs already: it is used instead of a new one on %s", runs_on, master)
        session = _configured(SparkSession.builder, conf or {}).getOrCreate()
        prune_queries(session)
        return session
    settings = merged(session_defaults(master), conf or {})
    with _environment(start_environment(master)):
        session = _configured(builder.master(master), settings).getOrCreate()
    prune_queries(session)
    return session


def session_defaults(master: str) -> dict[str, str]:
    """The default settings of a session."""
    defaults = {
        # A Python task costs 27 ms instead of 58 ms, since no small packet waits for an acknowledgement.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.worker.reuse": "true",
        "spark.driver.extraJavaOptions": f"{_ARROW_UNCHECKED} {_QUIET}",
        "spark.executor.extraJavaOptions": _ARROW_UNCHECKED,
        "spark.executorEnv.PYTHONPATH": _python_path(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if _HERE.fullmatch(master):
        defaults |= {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            # Not on other machines: there the package may come with the job, which is too late for a daemon.
            "spark.python.daemon.module": "tiermq.spark.worker_daemon",
        }
    cores = known_cores(master)
    if cores is not None:
        defaults["spark.sql.shuffle.partitions"] = str(cores)
    return defaults


def merged(defaults: Mapping[str, str], conf: Mapping[str, str]) -> dict[str, str]:
    """The defaults under what the user wants. Java options are added to ours: the JVM lets the last one win."""
    added = {name: f"{defaults[name]} {conf[name]}" for name in _JAVA_OPTIONS if name in conf and name in defaults}
    return {**defaults, **conf, **added}


def start_environment(master: str) -> dict[str, str]:
    """The variables that the JVM and through it the Python workers start with."""
    values = {
        "JAVA_HOME": str(quiet_home(find_java())),
        # Otherwise workers run whatever `python3` is on PATH, which need not have this package.
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON") or sys.executable,
        "PYTHONPATH": _python_path(),
    }
    if _HERE.fullmatch(master):
        values["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP") or LOOPBACK
    return values


def with_attempts(master: str) -> str:
    """`local` and `local[N]` with a number of attempts per task; any other master as it is."""
    plain = _LOCAL.fullmatch(master)
    return f"local[{plain[1] or 1},{TASK_ATTEMPTS}]" if plain else master


def known_cores(master: str) -> int | None:
    """How many tasks a master on this machine runs at once; None for a cluster, which only Spark can ask."""
    local = _LOCAL.fullmatch(master) or _LOCAL_WITH_ATTEMPTS.fullmatch(master)
    if local:
        return processor_count() if local[1] == "*" else int(local[1] or 1)
    cluster = _LOCAL_CLUSTER.fullmatch(master)
    return int(cluster[1]) * int(cluster[2]) if cluster else None


def _python_path() -> str:
    """PYTHONPATH of workers: what it is here, and this package when it runs from its sources."""
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    own = str(Path(tiermq.__file__).resolve().parent.parent)
    if own not in entries and own not in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        entries.insert(0, own)
    return os.pathsep.join(entries)


def _configured(builder: SparkSession.Builder, settings: Mapping[str, str]) -> SparkSession.Builder:
    for name, value in settings.items():
        if value:
            builder = builder.config(name, value)
    return builder


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """These variables for as long as the block runs."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update({name: value for name, value in values.items() if value})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
