"""A real Spark cluster on this machine: a master and two workers, all of them processes of their own on loopback.

    with StandaloneCluster(directory) as cluster:
        get_spark(cluster.master)

The two workers have different host names (127.0.0.1 and 127.0.0.2), because Spark runs a second copy of a slow task
only on another host. Everything is stopped by its process id; executors end with their worker.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from servers.loopback import free_ports
from tiermq.spark.java import find_java

HOSTS = ("127.0.0.1", "127.0.0.2")
START_SECONDS_MAX = 600
_POLL_S = 0.1
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class StandaloneCluster:
    """Used by one thread. `environment` is what executors find, besides what a session gives them; a JAVA_HOME in it
    is the Java of master, workers and executors."""

    def __init__(
        self, directory: Path, environment: Mapping[str, str] | None = None, hidden: Path | None = None
    ) -> None:
        """`hidden`: a directory that workers and executors see empty. Needs root."""
        self._directory = directory
        self._hidden = hidden
        self._environment = dict(environment or {})
        self._ports = free_ports(4)
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self._ports[0]}"

    def __enter__(self) -> Self:
        try:
            port, ui, *worker_uis = self._ports
            self._start("master.Master", HOSTS[0], "--port", str(port), "--webui-port", str(ui))
            self._wait(lambda state: state["status"] == "ALIVE")
            for host, worker_ui in zip(HOSTS, worker_uis, strict=True):
                work = str(self._directory / f"work-{host}")
                options = ["--cores", "1", "--memory", "1g", "--webui-port", str(worker_ui), "--work-dir", work]
                self._start("worker.Worker", host, *options, self.master)
            self._wait(lambda state: int(str(state["aliveworkers"])) == len(HOSTS))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Workers before the master, each asked to end, so that it ends its executors."""
        for process in reversed(self._processes):
            process.terminate()
            process.wait()
        self._processes.clear()

    def _start(self, name: str, host: str, *arguments: str) -> None:
        home = Path(pyspark.__file__).parent
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "PYTHONPATH"))}
        environment |= {
            "SPARK_HOME": str(home),
            "JAVA_HOME": str(find_java().home),
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _JAVA,
        } | self._environment
        self._directory.mkdir(parents=True, exist_ok=True)
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", host, *arguments]
        if self._hidden is not None and "worker" in name:
            command = without_sight_of(self._hidden, command)
        with (self._directory / f"{name}-{host}.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(command, cwd=self._directory, env=environment, stdout=log, stderr=subprocess.STDOUT)
            )

    @property
    def workers(self) -> list[int]:
        """Process ids of the workers; executors are children of theirs."""
        return [process.pid for process in self._processes[1:]]

    def _wait(self, is_ready: object) -> None:
        assert callable(is_ready)
        given_up_at = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < given_up_at:
            ended = [process.args for process in self._processes if process.poll() is not None]
            assert not ended, f"{ended} ended; see {self._directory}"
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._ports[1]}/json/", timeout=10) as answer:
                    if is_ready(json.load(answer)):
                        return
            except (OSError, ValueError):
                pass  # It does not listen yet, or has no answer but an error's.
            time.sleep(_POLL_S)
        raise AssertionError(f"no Spark cluster within {START_SECONDS_MAX} s; see {self._directory}")


def without_sight_of(directory: Path, command: Sequence[str]) -> list[str]:
    """The command in a mount namespace of its own, in which the directory is empty: as on another machine."""
    return ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(directory), *command]
