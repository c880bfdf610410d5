"""The daemon that forks workers: silent about a listener that is gone, loud about everything else."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tiermq.spark.worker_daemon import without_listener


@pytest.mark.parametrize("error", [BrokenPipeError(), ConnectionResetError()])
def test_a_worker_whose_listener_is_gone_ends_with_a_code(error: OSError) -> None:
    def worker(_sock: Any, _authenticated: bool) -> int:
        raise error

    assert without_listener(worker)(None, True) == 1


def test_a_real_closed_socket_is_such_a_case_and_another_error_is_none() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()

    def worker(sock: Any, authenticated: bool) -> int:
        if authenticated:
            sock.sendall(b"x")
        return int("no number") if not authenticated else 0

    with ours:
        assert without_listener(worker)(ours, True) == 1
        with pytest.raises(ValueError, match="no number"):
            without_listener(worker)(ours, False)


def test_a_worker_that_ends_well_ends_as_before() -> None:
    assert without_listener(lambda _sock, _authenticated: 7)(None, False) == 7


def test_nothing_that_starts_threads_is_imported_before_workers_are_forked() -> None:
    program = (
        "import os, sys, tiermq.spark.worker_daemon\n"
        "assert len(os.listdir('/proc/self/task')) == 1\n"
        "assert not {'pandas', 'pyarrow', 'numpy', 'obstore'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_workers_of_a_session_here_are_forked_by_it(spark: SparkSession) -> None:
    assert spark.conf.get("spark.python.daemon.module") == "tiermq.spark.worker_daemon"

    def parents(_rows: Any) -> Any:
        from pathlib import Path

        import pyarrow as pa

        status = Path("/proc/self/status").read_text()
        parent = next(line.split()[1] for line in status.splitlines() if line.startswith("PPid"))
        text = Path(f"/proc/{parent}/cmdline").read_text().replace("\0", " ")
        yield pa.RecordBatch.from_pydict({"text": [text]})

    (row,) = spark.range(0, 1, 1, 1).mapInArrow(parents, "text string").collect()
    assert "tiermq.spark.worker_daemon" in row["text"]
