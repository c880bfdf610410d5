"""Commands whose stdout nobody reads any more, is closed or full: no traceback, and servers go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.brokers import Producer, broker_config, running, send_command
from cli.test_serve_command import FREE, at
from tiermq.broker.broker import Broker
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.remoting.codes import ResponseCode

COMMAND = [sys.executable, "-m", "tiermq.cli"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, str]]:
    """A broker with a name server and a topic, and the name server's address."""
    home = tmp_path_factory.mktemp("cluster")
    with NameServer(NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path="")) as names:
        address = f"127.0.0.1:{names.port}"
        with running(home, config=broker_config(namesrv_addr=address)) as broker, Producer(broker) as producer:
            assert broker.registration is not None
            assert broker.registration.wait_registered(60)
            for number in range(50):
                producer.send("T", b"body %d" % number)
            yield broker, address


def without_a_reader(words: list[str]) -> tuple[int, str]:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*COMMAND, *words], stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "list", "-n", "NAMES"],
        ["topic", "show", "T", "-n", "NAMES"],
        ["group", "list", "-n", "NAMES"],
        ["consume", "T", "-n", "NAMES"],
        ["consume", "T", "-n", "NAMES", "--json"],
        ["produce", "T", "hello", "-n", "NAMES"],
        ["query", "T", "--queue", "0", "--offset", "0", "-n", "NAMES"],
        ["store", "stat", "STORE"],
        ["dump", "STORE/commitlog"],
        ["pipeline", "sql", "select body from t", "--store", "STORE", "--dry-run"],
        ["sql", "select count(*) from t", "--store", "STORE", "--format", "csv"],
        pytest.param(
            ["pipeline", "sql", "select count(*) from t", "--store", "STORE", "--format", "csv"],
            marks=pytest.mark.slow,  # With a JVM of its own.
        ),
        ["--help"],
    ],
)
def test_a_command_without_a_reader_ends_without_a_traceback(cluster: tuple[Broker, str], words: list[str]) -> None:
    broker, names = cluster
    store = str(broker.store.config.root_path)
    code, errors = without_a_reader([word.replace("NAMES", names).replace("STORE", store) for word in words])
    assert (code, errors) == (1, "")


def test_a_command_whose_stdout_is_closed_or_full_says_so_at_most_in_a_line(cluster: tuple[Broker, str]) -> None:
    words = [*COMMAND, "dump", f"{cluster[0].store.config.root_path}/commitlog"]
    closed = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *words], stderr=subprocess.PIPE, text=True, check=False)
    assert (closed.returncode, closed.stderr) == (0, "")
    full = subprocess.run(["sh", "-c", '"$@" >/dev/full', "sh", *words], stderr=subprocess.PIPE, text=True, check=False)
    assert (full.returncode, full.stderr) == (1, "Error: cannot write: No space left on device\n")


def test_a_broker_whose_ready_line_was_read_goes_on_and_ends_cleanly(tmp_path: Path) -> None:
    words = [*COMMAND, "serve", str(tmp_path / "store"), *FREE, "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        ready = json.loads(process.stdout.readline())
        process.stdout.close()
        process.send_signal(signal.SIGHUP)
        with at(ready["address"]) as client:
            assert client.request(send_command()).code == ResponseCode.SUCCESS
        process.terminate()
        assert process.stderr.read() == ""
        assert process.wait() == 0
    assert not (tmp_path / "store" / "abort").exists()


def test_a_name_server_that_nobody_listens_to_serves(tmp_path: Path) -> None:
    words = [*COMMAND, "namesrv", "--bind", "127.0.0.1", "--port", "0", "--json"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "HOME": str(tmp_path)}
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        process.terminate()
        assert process.stderr.read() == ""
        assert process.wait() == 0
