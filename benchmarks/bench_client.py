"""Our Python client beside the package `rocketmq`, which wraps RocketMQ's C++ client: send and consume, on one broker.

1 KiB, 64 in flight: futures here, 64 threads there, since that client has no other way. Each round is a process, which
warms up before it measures; client and broker share the machine's cores. The broker is `tiermq serve`, or with
`--rocketmq` the real one. `cpu_ratios` compare the clients' own processor time.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tiermq
from benchmarks import harness, store_side
from benchmarks.harness import JavaBench, Side
from benchmarks.report import Report, Round
from clients.environments import CLIENTS, ForeignClient, Unavailable
from interop.rocketmq import Cluster, fetch_servers
from servers.serving import Serving

NAME = "client"
SIDE = Path(__file__).with_name("client_side.py")
BYTES = 1024
IN_FLIGHT = 64
QUEUES = 8
WARM = 2_000
TRIES = 3
BROKER = {"mapped_file_size_commit_log": 256 << 20}
_groups = itertools.count()


@contextlib.contextmanager
def broker(directory: Path, *, is_rocketmq: bool) -> Iterator[str]:
    """The address of a name server."""
    if is_rocketmq:
        settings = {"mappedFileSizeCommitLog": 256 << 20, "waitTimeMillsInSendQueue": 60_000}
        with Cluster(fetch_servers("5.3.3"), directory / "store", directory / "home", settings) as cluster:
            cluster.await_registered()
            yield cluster.name_server
    else:
        with Serving(directory / "store", **BROKER) as served:
            yield served.name_server


class Sides:
    """Runs one round of one client."""

    def __init__(self, name_server: str, messages: int, cpp: ForeignClient | None, scratch: Path) -> None:
        self._messages = messages
        self._job: dict[str, Any] = {
            "nameServer": name_server,
            "messages": messages,
            "bytes": BYTES,
            "inFlight": IN_FLIGHT,
        }
        self._cpp = cpp
        self._scratch = scratch

    def round(self, client: str, work: str) -> Round:
        """The C++ client may crash: then its round is done again."""
        for _ in range(TRIES if client == "cpp" else 1):
            found = self._once(client, work)
            if found is not None:
                return found
        raise AssertionError(f"{client} ended without a figure")

    def _once(self, client: str, work: str) -> Round | None:
        topic = "BenchSend" if work == "send" else "BenchConsume"
        job = self._job | {"client": client, "work": work, "topic": topic, "group": f"bench-{next(_groups)}"}
        environment = {**os.environ, "HOME": str(self._scratch)}
        if client == "cpp":
            assert self._cpp is not None
            environment["PYTHONPATH"] = str(self._cpp.home)
        command = [sys.executable, str(SIDE), json.dumps(job)]
        # The wrapper of the C++ client may not end by itself: it is ended when it has said how long it took.
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            line = next((line for line in process.stdout if line.startswith("{")), None)
            if client == "cpp":
                process.kill()
        if line is None:
            return None
        told = json.loads(line)
        return Round(self._messages, self._messages * BYTES, told["seconds"], told["cpuSeconds"])


def fill(name_server: str, messages: int) -> None:
    with tiermq.connect(name_server) as cluster:
        for topic in ("BenchSend", "BenchConsume"):
            cluster.create_topic(topic, QUEUES)
        with cluster.producer("fill", compress_above=None) as producer:
            for _ in range(0, messages, 1_000):
                producer.send_all([tiermq.Message("BenchConsume", bytes([120]) * BYTES)] * 1_000)


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return the result object."""
    parser = harness.parser(NAME)
    parser.add_argument("--rocketmq", action="store_true", help="the real RocketMQ 5.3.3 is the broker")
    parser.add_argument("--messages", type=int, help="messages of a round (default 50,000, quick 5,000)")
    arguments = parser.parse_args(argv)
    options = harness.options_of(arguments)
    messages = arguments.messages or (5_000 if options.quick else 50_000)
    cpp: ForeignClient | None = CLIENTS[0]
    made = Report(NAME)
    made.environment |= {"messages": messages, "bytes": BYTES, "in_flight": IN_FLIGHT, "rocketmq": arguments.rocketmq}
    try:
        CLIENTS[0].prepare()
    except Unavailable as reason:
        cpp, made.environment["cpp"] = None, str(reason)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch,
        broker(Path(scratch), is_rocketmq=arguments.rocketmq) as name_server,
    ):
        fill(name_server, messages + WARM + 1_000)
        sides = Sides(name_server, messages, cpp, Path(scratch))
        works: dict[str, Side] = {}
        for client, work in (("tiermq", "send"), ("tiermq-async", "send"), ("tiermq", "consume")):
            works[f"{client}_{work}"] = lambda client=client, work=work: sides.round(client, work)  # type: ignore[misc]
        if cpp is not None:
            works |= {f"cpp_{work}": lambda work=work: sides.round("cpp", work) for work in ("send", "consume")}  # type: ignore[misc]
        measured = harness.alternate(works, options.rounds, options.warmup)
        made.add(measured)
        if cpp is not None:
            made.compare("client_send_vs_cpp", measured["tiermq_send"], measured["cpp_send"])
            made.compare("client_async_send_vs_cpp", measured["tiermq-async_send"], measured["cpp_send"])
            made.compare("client_consume_vs_cpp", measured["tiermq_consume"], measured["cpp_consume"])
        return harness.finish(made, options, Path(scratch), JavaBench(wanted=False), store_side.kernel())


if __name__ == "__main__":
    harness.main(run)
