"""The daemon that forks workers: silent about a listener that is gone, loud about everything else."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark.source_world import SourceWorld
from tiermq.spark.worker_daemon import without_listener
from waiting import until


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


LOUD = """
import sys, types
import pyspark.daemon as daemon
main = sys.modules["__main__"]
main.__spec__ = types.SimpleNamespace(name="pyspark.daemon")
main.traceback = daemon.traceback
from tiermq.spark.worker_daemon import silence_broken_pipes
silence_broken_pipes()
silence_broken_pipes()
for error in (BrokenPipeError("hung up"), ValueError("a defect")):
    try:
        raise error
    except Exception:
        main.traceback.print_exc()
"""


def test_pysparks_own_daemon_prints_no_broken_pipe_and_everything_else() -> None:
    done = subprocess.run([sys.executable, "-c", LOUD], capture_output=True, text=True, check=True)
    assert "a defect" in done.stderr
    assert "hung up" not in done.stderr


LAST_BYTES = """
import socket, sys, types
import pyspark.daemon as daemon

def main(infile, outfile):
    if "loud" in sys.argv:
        outfile.close()  # Its flush is then a ValueError, a defect.
    else:
        outfile.write(b"the last bytes")

sys.modules["pyspark_of_a_test"] = types.SimpleNamespace(main=main)
if "own" in sys.argv:
    daemon.manager = lambda: None
    from tiermq.spark.worker_daemon import main as start
    start()
else:
    this = sys.modules["__main__"]
    this.__spec__ = types.SimpleNamespace(name="pyspark.daemon")
    this.traceback = daemon.traceback
    from tiermq.spark.worker_daemon import silence_broken_pipes
    silence_broken_pipes()
    daemon.print = this.print
ours, theirs = socket.socketpair()
theirs.close()
daemon.worker(ours, True)
"""


@pytest.mark.parametrize("daemon", ["own", "pyspark's"])
def test_a_worker_that_cannot_write_its_last_bytes_prints_nothing_about_it(daemon: str) -> None:
    words = [sys.executable, "-c", LAST_BYTES, "pyspark_of_a_test", daemon]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    done = subprocess.run([*words, "loud"], capture_output=True, text=True, check=True)
    assert "failed to flush" in done.stderr
    assert "ValueError" in done.stderr


@pytest.fixture
def short_path() -> Iterator[str]:
    """A directory for a socket: the kernel takes 107 bytes, and those of tests may be longer."""
    with tempfile.TemporaryDirectory() as path:
        yield path


@pytest.mark.parametrize("sent", [b"", (5).to_bytes(4) + b"ab"])
def test_a_jvm_that_hangs_up_on_a_real_daemon_and_its_worker_causes_no_traceback(short_path: str, sent: bytes) -> None:
    environment = {
        **os.environ, "PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_WORKER_FACTORY_SOCK_DIR": short_path,
    }  # fmt: skip
    words = [sys.executable, "-m", "tiermq.spark.worker_daemon", "pyspark.sql.worker.plan_data_source_read"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as daemon:
        assert daemon.stdout is not None
        path = daemon.stdout.read(int.from_bytes(daemon.stdout.read(4)))
        for hangs_up_at_once in (True, False):
            with socket.socket(socket.AF_UNIX) as jvm:
                jvm.connect(path.decode())
                if not hangs_up_at_once:
                    worker = int.from_bytes(jvm.recv(4))
                    jvm.sendall(sent)
        until(lambda: not Path(f"/proc/{worker}").exists())
        _, errors = daemon.communicate()
    assert errors == b""


QUIET = """
import sys
from tiermq.spark import get_spark, messages
spark = get_spark("local[2]")
frame = messages(spark, tier=sys.argv[1])
frame.show(1)
assert len(frame.take(2)) == 2
stream = spark.readStream.format("tiermq").option("tier", sys.argv[1]).option("startingOffsets", "earliest").load()
query = stream.writeStream.format("noop").start()
query.processAllAvailable()
query.stop()
spark.stop()
"""


def test_a_good_run_prints_no_warning_and_no_traceback(tmp_path: Path) -> None:
    world = SourceWorld(tmp_path)
    for queue_id in range(4):
        world.put(200, "orders", queue_id)
    world.flush_to_tier()
    world.bury()
    done = subprocess.run([sys.executable, "-c", QUIET, world.url], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


OWN_SESSION = """
import sys
from pyspark.sql import SparkSession
from tiermq.spark import TierMQDataSource
spark = SparkSession.builder.master("local[1]").getOrCreate()
spark.dataSource.register(TierMQDataSource)
whole = spark.read.format("tiermq").option("tier", sys.argv[1]).load()
assert whole.where("topic = 'rare'").count() == 3
spark.stop()
"""


def test_a_session_without_the_rule_that_reads_everything_prints_what_to_call(tmp_path: Path) -> None:
    world = SourceWorld(tmp_path)
    world.put(20, "orders", 0)
    world.put(3, "rare", 0)
    world.flush_to_tier()
    world.bury()
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    words = [sys.executable, "-c", OWN_SESSION, world.url]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    assert done.stderr.count("Call tiermq.spark.prune_queries(spark) once") == 1
