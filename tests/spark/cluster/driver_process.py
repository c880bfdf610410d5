"""The driver of a Spark application in a process of its own, which does what tests ask it to, until it is killed.

A test calls `DriverProcess.call("offload", ...)`, which runs the function of that name in `scenarios` with a session of
the cluster, there. The process and its JVM can be killed at any time; the next call starts another one.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

CONF = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.sql.session.timeZone": "UTC",
    # Executors are killed on purpose, and more often than a real application would stand.
    "spark.task.maxFailures": "8",
    "spark.excludeOnFailure.enabled": "false",
    # Any task that is slower than others gets a second copy, at once.
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.0",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.task.duration.threshold": "1s",
}


class DriverDied(Exception):
    """The process ended before it answered."""


class DriverProcess:
    """Used by one thread."""

    def __init__(self, master: str, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._master = master
        self._folder = folder
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[str] | None = None
        self._conf: dict[str, str] = {}
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def log(self) -> Path:
        return self._folder / "driver.log"

    def call(self, name: str, /, *, conf: Mapping[str, str] | None = None, **arguments: Any) -> Any:
        """What a scenario returns. Raises DriverDied when it was killed, AssertionError when it raised something."""
        self.start(conf)
        self.send(name, **arguments)
        return self.answer()

    def start(self, conf: Mapping[str, str] | None = None) -> None:
        """A process with this session; the one that runs, when it has the same settings."""
        wanted = {**({} if self._master.startswith("sc://") else CONF), **(conf or {})}
        if self._process is not None and self._process.poll() is None and wanted == self._conf:
            return
        self.stop()
        self._conf = wanted
        request, answer = os.pipe()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "spark.cluster.driver_process", str(answer), self._master, json.dumps(wanted)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(answer,),
                env=self._environment,
                cwd=self._folder,
                text=True,
            )
        os.close(answer)
        self._answers = os.fdopen(request)

    def send(self, name: str, /, **arguments: Any) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, arguments]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        line = self._answers.readline()
        if not line:
            assert self._process is not None
            self._process.wait()
            raise DriverDied(f"the driver ended; see {self.log}")
        is_good, value = json.loads(line)
        assert is_good, value
        return value

    def kill(self) -> None:
        """kill -9 of the Python driver. Its JVM finds out, and ends with whatever it runs."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # It may be dead already.
            self._process.stdin.close()  # The end of its requests: it stops its session and ends.
        self._process.wait()
        self._answers.close()
        self._process = None


def die(*, with_jvm: bool) -> None:
    """kill -9 of this driver, and at will of its JVM before."""
    from pyspark import SparkContext

    if with_jvm and SparkContext._gateway is not None:
        os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    answers = os.fdopen(int(sys.argv[1]), "w")
    os.set_inheritable(answers.fileno(), False)
    from tiermq.spark import get_spark

    spark = get_spark(sys.argv[2], conf=json.loads(sys.argv[3]))
    scenarios = importlib.import_module("spark.cluster.scenarios")
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            outcome = [True, getattr(scenarios, name)(spark, **arguments)]
        except Exception:  # noqa: BLE001 - the outermost edge of this process: the test gets it.
            outcome = [False, traceback.format_exc()]
        answers.write(json.dumps(outcome) + "\n")
        answers.flush()
    spark.stop()


if __name__ == "__main__":
    main()
