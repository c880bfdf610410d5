"""The code of docs/python_client.md runs, as its reader runs it: against a broker, in a process of its own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import tiermq
from servers.loopback import free_ports
from tiermq import Message
from tiermq.testing import LocalBroker
from waiting import until

PAGE = (Path(__file__).parents[3] / "docs" / "python_client.md").read_text(encoding="utf-8")
CODE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SEND, CONSUME, ASYNC, HANDLE, SERVICE, WORKER, TEST = CODE


def run(broker: LocalBroker, code: str) -> str:
    shown = code.replace("127.0.0.1:9876", broker.name_server)
    assert shown != code
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_tutorial_runs_in_its_order(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker:
        run(broker, SEND)
        assert "two coffees ['order-42'] paid" in run(broker, CONSUME)
        assert set(run(broker, ASYNC).split("\n")) == {"two coffees", "a tea", "three cakes", ""}
        ends = threading.Event()

        def move() -> None:
            while not ends.wait(0.3):
                broker.advance(seconds=1)

        moves = threading.Thread(target=move)
        moves.start()
        try:
            assert run(broker, HANDLE) == "dear customer at attempt 2\n"
        finally:
            ends.set()
            moves.join()


def test_the_web_service_sends(broker: LocalBroker, tmp_path: Path) -> None:
    broker.create_topic("orders")
    [port] = free_ports(1)
    (tmp_path / "service.py").write_text(SERVICE.replace("127.0.0.1:9876", broker.name_server))
    command = [sys.executable, "-m", "uvicorn", "service:app", "--port", str(port), "--log-level", "info"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "running on" in line:
                break
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/orders", data=b"a coffee") as answer:
            key = json.load(answer)["id"]
        process.send_signal(signal.SIGTERM)
        process.wait()
    assert [(each.body, each.unique_key) for each in broker.messages("orders")] == [(b"a coffee", key)]


def test_the_worker_does_its_tasks_and_ends_cleanly(broker: LocalBroker, tmp_path: Path) -> None:
    broker.create_topic("tasks")
    with tiermq.connect(broker.name_server) as cluster, cluster.producer("shop") as producer:
        producer.send(Message("tasks", b'{"task": "add", "with": {"a": 1, "b": 2}}'))
    command = [sys.executable, "-c", WORKER.replace("127.0.0.1:9876", broker.name_server)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert {process.stdout.readline() for _ in range(2)} == {"ready\n", "3\n"}
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    until(lambda: sum(broker.committed_offset("workers", "tasks", queue) or 0 for queue in range(4)) == 1)


def test_the_test_passes(tmp_path: Path) -> None:
    (tmp_path / "test_page.py").write_text(TEST)
    plugin = "tiermq.testing.pytest_plugin"
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", plugin, "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
