"""gRPC beside RocketMQ's own proxy in local mode: calls, processor time, memory, and many receives that wait.

    load (Java, the proxy's own stubs) ─► tiermq serve --grpc-port
                                       └► ProxyStartup, proxyMode LOCAL: proxy and broker in one process

Both have RocketMQ's file sizes and flush asynchronously; the JVM of the proxy chooses its collector and compiler, with
2 GiB of heap at most. Load and servers share the machine's processors, so processor time of the server says more than
calls per second where there are few. `cpu_ratios` are of the servers' own time.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiermq
from benchmarks import harness, java_peer, process_tree, store_side
from benchmarks.compare.broker_process import HOST, forget_peak, name_server, resident
from benchmarks.harness import JavaBench
from benchmarks.peer import JAVA, Peer, kept_classes
from benchmarks.report import Report, Round, cpu_rate
from interop.proxy import fetch_proxy
from interop.rocketmq import CLUSTER_NAME, JAVA_OPENINGS, Server, fetch_servers
from servers.loopback import free_ports
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from waiting import until

NAME = "grpc"
OURS, PROXY = "tiermq", "proxy"
BYTES = 1024
SEND_CALLERS, RECEIVE_CALLERS = 64, 8
CONNECTIONS = 4
QUEUES = 8
BYSTANDER_SENDS = 500
CALM_S = 2.0
"""After its first message a server comes to rest before its memory is looked at."""
_numbers = itertools.count()


def held_bytes(pid: int, directory: Path) -> int:
    """Resident memory without pages of files below `directory`: those of a store are the kernel's cache."""
    held, counted = 0, True
    for each in process_tree.tree(pid):
        mapped = (process_tree.PROC / str(each.pid) / "smaps").read_text(encoding="utf-8", errors="replace")
        for line in mapped.splitlines():
            if re.match("[0-9a-f]+-[0-9a-f]+ ", line):
                counted = f" {directory}/" not in line
            elif counted and line.startswith("Rss:"):
                held += int(line.split()[1]) * 1024
    return held


@dataclass
class Served:
    """A server that runs."""

    name: str
    pid: int
    endpoints: str
    name_server: str
    directory: Path

    def make_topic(self, topic: str) -> None:
        with tiermq.connect(self.name_server) as cluster:
            cluster.create_topic(topic, QUEUES)

    def fill(self, topic: str, messages: int) -> None:
        body = bytes([120]) * BYTES
        with tiermq.connect(self.name_server) as cluster, cluster.producer("fill", compress_above=None) as producer:
            for begin in range(0, messages, 1_000):
                producer.send_all([tiermq.Message(topic, body)] * min(1_000, messages - begin))


@contextmanager
def our_broker(directory: Path) -> Iterator[Served]:
    [port] = free_ports(1)
    words = [
        "serve",
        str(directory / "store"),
        "--grpc-port",
        str(port),
        "--port",
        "0",
        "--namesrv-port",
        "0",
        "--json",
    ]
    command = [sys.executable, "-m", "tiermq.cli", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            ready = json.loads(process.stdout.readline())
            yield Served(OURS, process.pid, ready["grpc"], ready["nameServer"], directory)
        finally:
            process.kill()


@contextmanager
def their_proxy(directory: Path) -> Iterator[Served]:
    """RocketMQ's proxy in local mode, which has its broker inside, and RocketMQ's name server beside it."""
    jars = fetch_proxy()
    grpc_port, remoting_port, broker_port, ha_port = free_ports(4)
    with ExitStack() as stack:
        address = name_server(stack, fetch_servers(jars.version), directory)
        home = directory / "proxy"
        (home / "conf").mkdir(parents=True)
        settings: dict[str, object] = {
            "brokerClusterName": CLUSTER_NAME,
            "brokerName": "broker-a",
            "brokerId": 0,
            "brokerIP1": HOST,
            "bindAddress": HOST,
            "listenPort": broker_port,
            "haListenPort": ha_port,
            "namesrvAddr": address,
            "storePathRootDir": home / "store",
            "storePathCommitLog": home / "store" / "commitlog",
            "waitTimeMillsInSendQueue": 60_000,
        }
        conf = home / "broker.conf"
        conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        proxy = home / "conf" / "rmq-proxy.json"
        ports = {"grpcServerPort": grpc_port, "remotingListenPort": remoting_port, "localServeAddr": HOST}
        proxy.write_text(json.dumps({"rocketMQClusterName": CLUSTER_NAME, "proxyMode": "LOCAL", **ports}))
        command = [
            "java",
            "-Xmx2g",
            *JAVA_OPENINGS,
            f"-Duser.home={home}",
            f"-Drocketmq.home.dir={home}",
            f"-Dcom.rocketmq.proxy.configPath={proxy}",
            "-cp",
            os.pathsep.join([str(jars.classes), f"{jars.lib}/*"]),
            "org.apache.rocketmq.proxy.ProxyStartup",
            *("-pc", str(proxy), "-bc", str(conf), "-pm", "local", "-n", address),
        ]
        server = Server(command, home / "proxy.out", "startup successfully")
        stack.callback(server.kill)
        server.await_boot()
        # It boots before its broker has registered.
        with BlockingClient(HOST, int(address.rpartition(":")[2])) as client:
            asked = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
            until(lambda: f":{broker_port}".encode() in bytes(client.request(asked).body))
        yield Served(PROXY, server.process.pid, f"{HOST}:{grpc_port}", address, directory)


def load_command() -> list[str]:
    """Raises JdkMissing and PeerFailed."""
    java, javac, _ = java_peer.find_jdk()
    lib = fetch_proxy().lib
    classes = kept_classes("grpc", [javac, "-cp", f"{lib}/*"], sorted((JAVA / "grpc").glob("*.java")), lib.parent.name)
    return [str(java), "-Xmx1g", "-cp", os.pathsep.join([str(classes), f"{lib}/*"]), "GrpcLoad"]


class Loaded:
    """A server, and the process that asks it."""

    def __init__(self, served: Served, command: list[str], stack: ExitStack) -> None:
        self.served = served
        self.held_max = 0
        """Of memory, after each round."""
        self._command = command
        self._stack = stack
        self._peers: dict[tuple[str, str], Peer] = {}

    def peer(self, work: str, topic: str) -> Peer:
        """Clients of one kind, connected when they are first wanted."""
        if (work, topic) not in self._peers:
            made = Peer(f"load of {self.served.name}", self._command)
            self._stack.callback(made.end)
            group, kind = f"group-{next(_numbers)}", "send" if work == "send" else "receive"
            place = {"endpoints": self.served.endpoints, "topic": topic, "group": group}
            made.prepare(work=kind, connections=CONNECTIONS, **place)
            self._peers[work, topic] = made
        return self._peers[work, topic]

    def round(self, work: str, messages: int) -> Round:
        topic = "BenchSend" if work == "send" else "BenchReceive"
        callers = SEND_CALLERS if work == "send" else RECEIVE_CALLERS
        peer = self.peer(work, topic)
        if work == "receive":
            self.served.fill(topic, messages + 32 * callers)
        before = process_tree.cpu_seconds(self.served.pid)
        reported = peer.ask("run", work=work, messages=messages, callers=callers, bytes=BYTES)
        spent = process_tree.cpu_seconds(self.served.pid) - before
        self.held_max = max(self.held_max, held_bytes(self.served.pid, self.served.directory))
        return Round(reported["messages"], reported["messages"] * BYTES, reported["seconds"], spent)


def waiting_receives(loaded: Loaded, count: int) -> dict[str, object]:
    """What so many receives that wait take, and what a send beside them takes."""
    loaded.served.make_topic("BenchEmpty")
    sender = loaded.peer("send", "BenchSend")
    alone = sender.ask("run", work="bystander", messages=BYSTANDER_SENDS, bytes=BYTES)
    before = resident(loaded.served.pid).anonymous
    spent = process_tree.cpu_seconds(loaded.served.pid)
    reported = loaded.peer("receive", "BenchEmpty").ask("wait", count=count)
    spent = process_tree.cpu_seconds(loaded.served.pid) - spent
    after = resident(loaded.served.pid).anonymous
    beside = sender.ask("run", work="bystander", messages=BYSTANDER_SENDS, bytes=BYTES)
    return {
        "asked": count,
        "waiting": reported["waiting"],
        "own_mb_more": round((after - before) / 1e6, 1),
        "cpu_seconds": round(spent, 2),
        "send_p50_ms": [round(alone["p50_ms"], 2), round(beside["p50_ms"], 2)],
        "send_p99_ms": [round(alone["p99_ms"], 2), round(beside["p99_ms"], 2)],
    }


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return the result object."""
    parser = harness.parser(NAME)
    parser.add_argument("--messages", type=int, help="messages of a round (default 30,000, quick 2,000)")
    parser.add_argument("--waiting", type=int, help="receives that wait (default 5,000, quick 200)")
    parser.add_argument("--alone", action="store_true", help="TierMQ alone, for profiles")
    arguments = parser.parse_args(argv)
    options = harness.options_of(arguments)
    messages = arguments.messages or (2_000 if options.quick else 30_000)
    waiting = arguments.waiting or (200 if options.quick else 5_000)
    made = Report(NAME)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, ExitStack() as stack:
        command = load_command()
        opened: dict[str, Callable[[Path], Any]] = {OURS: our_broker}
        if not arguments.alone:
            opened[PROXY] = their_proxy
        sides: dict[str, Loaded] = {}
        memory: dict[str, dict[str, float]] = {}
        for name, opens in opened.items():
            directory = Path(scratch, name)
            directory.mkdir()
            served = stack.enter_context(opens(directory))
            sides[name] = Loaded(served, command, stack)
            for topic in ("BenchSend", "BenchReceive"):
                served.make_topic(topic)
            served.fill("BenchSend", 1)
            time.sleep(CALM_S)
            memory[name] = {"idle_mb": round(held_bytes(served.pid, directory) / 1e6, 1)}
            forget_peak(served.pid)
        for work, callers in (("send", SEND_CALLERS), ("receive", RECEIVE_CALLERS)):
            works = {
                f"{name}_{work}_{callers}": lambda side=side, work=work: side.round(work, messages)
                for name, side in sides.items()
            }
            measured = harness.alternate(works, options.rounds, options.warmup)
            made.add(measured)
            for name in measured:
                made.rates[f"{name}_cpu_us_per_message"] = round(1e6 / cpu_rate(measured[name]), 1)
            if PROXY in sides:
                ratio = f"grpc_{work}_vs_proxy"
                made.compare(ratio, measured[f"{OURS}_{work}_{callers}"], measured[f"{PROXY}_{work}_{callers}"])
                made.ratios[f"grpc_{work}_cpu_vs_proxy"] = made.cpu_ratios[ratio]
        for name, side in sides.items():
            memory[name]["load_mb"] = round(side.held_max / 1e6, 1)
            memory[name]["peak_with_pages_of_files_mb"] = round(resident(side.served.pid).peak / 1e6, 1)
        if PROXY in sides:
            for state in ("idle", "load"):
                part = memory[PROXY][f"{state}_mb"] / memory[OURS][f"{state}_mb"]
                made.ratios[f"grpc_memory_{state}_proxy_vs_tiermq"] = round(part, 3)
        made.environment["memory"] = memory
        made.environment["waiting receives"] = {name: waiting_receives(side, waiting) for name, side in sides.items()}
        made.environment |= {"messages": messages, "bytes": BYTES, "connections": CONNECTIONS}
        return harness.finish(made, options, Path(scratch), JavaBench(wanted=False), store_side.kernel())


if __name__ == "__main__":
    harness.main(run)
