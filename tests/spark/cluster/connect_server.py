"""A Spark Connect server in a process of its own, whose executors are those of a cluster.

It gets the settings that `get_spark` would give a session on that master: a client cannot change them any more. It must
find this package, since it plans scans and commits writes in Python workers beside itself.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from servers.loopback import free_ports
from spark.cluster.driver_process import CONF
from tiermq.spark.session import merged, session_defaults, start_environment

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
START_SECONDS_MAX = 240
_POLL_S = 0.1


class ConnectServer:
    """Used by one thread."""

    def __init__(self, master: str, folder: Path, environment: Mapping[str, str]) -> None:
        (self._port,) = free_ports(1)
        self._master = master
        self._folder = folder
        address = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self._port),
        }
        self._conf = merged(session_defaults(master), {**CONF, **address})
        home = {"SPARK_HOME": str(Path(pyspark.__file__).parent)}
        self._environment = {**os.environ, **environment, **start_environment(master), **home}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"sc://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--class", SERVER]
        command += ["--master", self._master]
        for name, value in self._conf.items():
            command += ["--conf", f"{name}={value}"]
        with (self._folder / "connect.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, env=self._environment, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait()

    def _wait(self) -> None:
        assert self._process is not None
        given_up_at = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < given_up_at:
            assert self._process.poll() is None, f"the server ended; see {self._folder}"
            try:
                socket.create_connection(("127.0.0.1", self._port), 1).close()
            except OSError:
                time.sleep(_POLL_S)
            else:
                return
        raise AssertionError(f"no Spark Connect server within {START_SECONDS_MAX} s; see {self._folder}")
