"""Our Python client beside three others, send and consume, on one broker.

They are RocketMQ's own Java client, `rocketmq`, which wraps RocketMQ's C++ client, and `rocketmq-python-client`, the
official one by gRPC.

1 KiB, 64 in flight: futures here, 64 threads there, since those clients are used so. Consumers take a backlog: ours by
a loop, Java's in 20 threads (its default), the C++ one in one thread, the gRPC one in its default. Each round is a
process, which warms up before it measures; Java's is one process for all rounds, so that its compiled code stays warm,
and its processor time has the start and the end of each client in it. Client and broker share the machine's cores. The
broker is `tiermq serve`, or with `--rocketmq` the real one, within RocketMQ's proxy in local mode. A round of the gRPC
client has a fifth of the messages. `cpu_ratios` compare the clients' own processor time.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tiermq
from benchmarks import harness, store_side
from benchmarks.bench_grpc import their_proxy
from benchmarks.broker_side import Served
from benchmarks.harness import JavaBench, Side
from benchmarks.report import Report, Round
from clients.environments import CLIENTS, GRPC_CLIENTS, Unavailable
from interop.java_client import JavaClient
from interop.rocketmq import Unavailable as NoRocketMQ
from interop.rocketmq import fetch
from servers.loopback import free_ports
from servers.serving import Serving

NAME = "client"
SIDE = Path(__file__).with_name("client_side.py")
BYTES = 1024
IN_FLIGHT = 64
QUEUES = 8
WARM = 2_000
TRIES = 3
GRPC_SHARE = 5
OTHERS = {"cpp": CLIENTS[0], "grpc": GRPC_CLIENTS[0]}
JAVA_THREADS = 20
BROKER = {"mapped_file_size_commit_log": 256 << 20}
Load = Callable[..., dict[str, Any]]
_groups = itertools.count()


@contextlib.contextmanager
def broker(directory: Path, *, is_rocketmq: bool) -> Iterator[tuple[str, str]]:
    """The address of a name server, and endpoints of gRPC."""
    if is_rocketmq:
        with their_proxy(directory) as proxy:
            yield proxy.name_server, proxy.endpoints
    else:
        [port] = free_ports(1)
        with Serving(directory / "store", "--grpc-port", str(port), **BROKER) as served:
            yield served.name_server, str(served.ready["grpc"])


class Sides:
    """Runs one round of one client."""

    def __init__(self, name_server: str, endpoints: str, messages: int, scratch: Path, java: Load | None) -> None:
        self._messages = messages
        self._java = java
        self._job: dict[str, Any] = {
            "nameServer": name_server,
            "endpoints": endpoints,
            "bytes": BYTES,
            "inFlight": IN_FLIGHT,
        }
        self._scratch = scratch

    def round(self, client: str, work: str) -> Round:
        """The C++ client may crash: then its round is done again."""
        if client == "java":
            return self._java_round(work)
        for _ in range(TRIES if client == "cpp" else 1):
            found = self._once(client, work)
            if found is not None:
                return found
        raise AssertionError(f"{client} ended without a figure")

    def _java_round(self, work: str) -> Round:
        assert self._java is not None
        job: dict[str, Any] = {"kind": work, "messages": self._messages, "bytes": BYTES, "group": f"j{next(_groups)}"}
        if work == "send":
            job |= {"topic": "BenchSend", "threads": IN_FLIGHT, "timeoutMs": 30_000}
        else:
            job |= {"topic": "BenchConsume", "threads": JAVA_THREADS}
        reported = self._java(**job)
        if reported["failed"]:
            raise SystemExit(f"java: {reported['failed']} of {reported['messages']} messages failed")
        return Round(self._messages, self._messages * BYTES, reported["seconds"], reported["cpuSeconds"])

    def _once(self, client: str, work: str) -> Round | None:
        topic = "BenchSend" if work == "send" else "BenchConsume"
        messages = self._messages // GRPC_SHARE if client == "grpc" else self._messages
        job = self._job | {"client": client, "work": work, "topic": topic, "messages": messages}
        job["group"] = f"bench-{next(_groups)}"
        environment = {**os.environ, "HOME": str(self._scratch)}
        if client in OTHERS:
            environment["PYTHONPATH"] = str(OTHERS[client].home)
        command = [sys.executable, str(SIDE), json.dumps(job)]
        # Those of others may not end by themselves: they are ended when they have said how long it took.
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            line = next((line for line in process.stdout if line.startswith("{")), None)
            if client in OTHERS:
                process.kill()
        if line is None:
            return None
        reported = json.loads(line)
        return Round(messages, messages * BYTES, reported["seconds"], reported["cpuSeconds"])


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
    made = Report(NAME)
    made.environment |= {"messages": messages, "bytes": BYTES, "in_flight": IN_FLIGHT, "rocketmq": arguments.rocketmq}
    others = []
    for name, foreign in OTHERS.items():
        try:
            foreign.prepare()
        except Unavailable as reason:
            made.environment[name] = str(reason)
        else:
            others.append(name)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch,
        broker(Path(scratch), is_rocketmq=arguments.rocketmq) as (name_server, endpoints),
        contextlib.ExitStack() as stack,
    ):
        java: Load | None = None
        try:
            jars = fetch()
        except NoRocketMQ as reason:
            made.environment["java"] = str(reason)
        else:
            client = JavaClient(Served(jars.version, jars.lib, jars.classes), name_server, Path(scratch))
            java = stack.enter_context(client.loading())
            others.insert(0, "java")
        fill(name_server, messages + WARM + 1_000)
        sides = Sides(name_server, endpoints, messages, Path(scratch), java)
        works: dict[str, Side] = {}
        wanted = [(side, work) for work in ("send", "consume") for side in ("tiermq", "tiermq-async")]
        wanted += [(name, work) for name in others for work in ("send", "consume")]
        for side, work in wanted:
            works[f"{side}_{work}"] = lambda side=side, work=work: sides.round(side, work)  # type: ignore[misc]
        measured = harness.alternate(works, options.rounds, options.warmup)
        made.add(measured)
        for name in others:
            made.compare(f"client_send_vs_{name}", measured["tiermq_send"], measured[f"{name}_send"])
            made.compare(f"client_async_send_vs_{name}", measured["tiermq-async_send"], measured[f"{name}_send"])
            made.compare(f"client_consume_vs_{name}", measured["tiermq_consume"], measured[f"{name}_consume"])
            consumed = measured["tiermq-async_consume"]
            made.compare(f"client_async_consume_vs_{name}", consumed, measured[f"{name}_consume"])
        return harness.finish(made, options, Path(scratch), JavaBench(wanted=False), store_side.kernel())


if __name__ == "__main__":
    harness.main(run)
