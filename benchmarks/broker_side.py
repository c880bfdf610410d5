"""Brokers, measured: RocketMQ's and ours as processes of their own, loaded by one and the same Java client.

The load is RocketMQ's official benchmark programs (`official_load`). Both brokers have the same settings (asynchronous
flush, files of RocketMQ's own sizes), stores on the same file system and a topic of eight queues. Processor time is the
broker's process alone, all its threads.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import official_load, process_tree
from benchmarks.report import Round
from interop.official import with_programs
from interop.rocketmq import Cluster, Distribution, Unavailable, fetch
from servers.serving import SIZES, Serving

TOPIC = "Load"
BATCH_TOPIC = "LoadBatch"
BACKLOG_TOPIC = "LoadBacklog"
HISTORY = "History"
QUEUES = 8
THREADS = 64
CONSUMER_THREADS = 20
BATCH = 16
ROUTE_LOOK_S = 0.05
HISTORY_BODY_BYTES = 1024
TUNED = ("-Xms2g", "-XX:+AlwaysPreTouch")
"""A heap that does not grow while it is measured: -Xmx has its size, too."""
TUNED_PLACE = "tuned"
EPOLL = {"useEpollNativeSelector": True}
SLOW_JAVA = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""What suits a test that starts many short-lived JVMs, and no benchmark."""


class Served(Distribution):
    """RocketMQ's jars, run as a server is run."""

    broker_options: tuple[str, ...] = ()

    def java(self, home: Path, main_class: str, *arguments: str, heap: str = "512m") -> list[str]:
        is_broker = main_class.endswith("BrokerStartup")
        command = super().java(home, main_class, *arguments, heap="2g" if is_broker else heap)
        first, *words = (word for word in command if word not in SLOW_JAVA)
        return [first, *(self.broker_options if is_broker else ()), *words]


class Tuned(Served):
    """The same with a fixed heap."""

    broker_options = TUNED


def distribution() -> Distribution:
    """Ends the program with one line where RocketMQ's jars cannot be had."""
    try:
        found = fetch()
    except Unavailable as reason:
        raise SystemExit(f"the real RocketMQ cannot be run here: {reason}") from reason
    with contextlib.suppress(Unavailable):  # Then the load is our own program; the report says which it was.
        found = with_programs(found)
    return Served(found.version, found.lib, found.classes, found.more)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A broker that runs, its load, and its process."""

    name: str
    load: Callable[..., dict[str, Any]]
    pid: int
    name_server: str
    port: int
    metrics: str | None = None

    def cold_messages(self) -> int:
        """How many messages were given out of the tier so far."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        given = [
            line.rsplit(" ", 1)[1] for line in lines if line.startswith("rocketmq_tiered_store_messages_out_total")
        ]
        return int(sum(map(float, given)))

    def round(self, **job: Any) -> Round:
        """One job. Ends the program when a message failed: the rate would be of something else."""
        before = process_tree.cpu_seconds(self.pid)
        reported = self.load(**job)
        if reported["failed"]:
            raise SystemExit(f"{self.name}: {reported['failed']} of {reported['messages']} messages failed")
        spent = process_tree.cpu_seconds(self.pid) - before
        return Round(reported["messages"], reported["messages"] * job.get("bytes", 0), reported["seconds"], spent)


class Measured(Cluster):
    @property
    def pid(self) -> int:
        assert self._broker is not None
        return self._broker.process.pid

    @property
    def port(self) -> int:
        return self._broker_port

    @property
    def name_server(self) -> str:
        return f"127.0.0.1:{self._name_server_port}"


@contextlib.contextmanager
def rocketmq(jars: Any, directory: Path, **settings: object) -> Iterator[Loaded]:
    """`settings` are RocketMQ's, by its names."""
    store = directory / "rocketmq-store"
    if not store.exists():
        make_topics(store)
    with (
        Measured(jars, store, directory / "rocketmq", {"flushDiskType": "ASYNC_FLUSH", **settings}) as cluster,
        official_load.loading(jars, cluster.name_server, cluster.port, QUEUES, directory) as load,
    ):
        _await_route(cluster.name_server, TOPIC)
        yield Loaded("rocketmq", load, cluster.pid, cluster.name_server, cluster.port)


@contextlib.contextmanager
def rocketmq_tuned(jars: Any, directory: Path, **settings: object) -> Iterator[Loaded]:
    """The same, as its operators set it up for speed: a fixed heap whose pages are there, and Netty's epoll."""
    fixed = Tuned(jars.version, jars.lib, jars.classes, jars.more)
    place = directory / TUNED_PLACE
    place.mkdir(exist_ok=True)
    with rocketmq(fixed, place, **EPOLL, **settings) as side:
        require_epoll(side.pid)
        yield replace(side, name="rocketmq_tuned")


def require_epoll(pid: int) -> None:
    """RocketMQ's broker goes on without epoll where Netty's library for it is missing; its threads have the name."""
    names = {path.read_text().strip() for path in Path(f"/proc/{pid}/task").glob("*/comm")}
    if not any("EPOLL" in name for name in names):
        raise SystemExit(f"expected a broker that uses epoll, found threads {', '.join(sorted(names))}")


@contextlib.contextmanager
def tiermq(jars: Any, directory: Path, *words: str, **settings: object) -> Iterator[Loaded]:
    from tiermq.config import StoreConfig

    store = directory / "tiermq-store"
    if not store.exists():
        make_topics(store)
    sizes = {name: getattr(StoreConfig(), name) for name in SIZES}
    with (
        Serving(store, *words, **{**sizes, "flush_disk_type": "ASYNC_FLUSH", **settings}) as served,
        official_load.loading(jars, served.name_server, served.port, QUEUES, directory) as load,
    ):
        assert served.process is not None
        metrics = served.ready["metrics"]
        yield Loaded("tiermq", load, served.process.pid, served.name_server, served.port, metrics)


def _await_route(name_server: str, topic: str) -> None:
    """Until the name server knows the topic: RocketMQ's broker answers before it has said so, and the
    official programs count a message without a route as one that failed.
    """
    from tiermq.remoting.client import BlockingClient
    from tiermq.remoting.codes import RequestCode
    from tiermq.remoting.command import RemotingCommand

    host, _, port = name_server.rpartition(":")
    with BlockingClient(host, int(port), timeout_s=60) as client:
        while client.request(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": topic})).code != 0:
            time.sleep(ROUTE_LOOK_S)


def make_topics(store: Path, more: Mapping[str, int] | None = None) -> None:
    """Both read this file when they start. `more`: topics by name, with their number of queues."""
    from tiermq.broker.topic.topic_table import FILE, encode_topics
    from tiermq.namesrv.topic_config import NO_VERSION, TopicConfig

    (store / "config").mkdir(parents=True)
    topics = {**dict.fromkeys((TOPIC, BATCH_TOPIC, BACKLOG_TOPIC, HISTORY), QUEUES), **(more or {})}
    table = {name: TopicConfig(name, queues, queues) for name, queues in topics.items()}
    (store / "config" / FILE).write_bytes(encode_topics(table, NO_VERSION.next(1)))


def make_history(directory: Path, messages: int) -> str:
    """A store whose history is in a tier, wholly; gives the tier's address."""
    from tiermq import Message
    from tiermq.tier.tiered_store import TieredStore

    store, tier = directory / "tiermq-store", f"file://{directory}/tier"
    make_topics(store)
    body = b"h" * HISTORY_BODY_BYTES
    with TieredStore.open(store, tier=tier, broker_name="b1") as filled:
        for start in range(0, messages, 1_000):
            filled.put_many(Message(HISTORY, body, number % QUEUES) for number in range(start, start + 1_000))
        filled.flush_to_tier()
    return tier


@contextlib.contextmanager
def cold_consumer(name_server: str) -> Iterator[None]:
    """A consumer that reads all of history from its beginning, and again, in a process of its own."""
    loop = (
        "import sys\n"
        "from tiermq.cli.main import cli\n"
        "while True:\n"
        "    cli(['consume', sys.argv[1], '-n', sys.argv[2], '--quiet'], standalone_mode=False)\n"
        "    print('all of it', flush=True)\n"
    )
    command = [sys.executable, "-c", loop, HISTORY, name_server]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        process.stdout.readline()  # It has read everything once, so it is known to read at all.
        yield
        if process.poll() is not None:
            raise SystemExit("the cold consumer ended before the measurement did")
    finally:
        process.kill()
        process.communicate()


def cold_rate(side: Loaded, seconds: float) -> float:
    """Messages per second that a cold consumer gets while nothing else goes on."""
    with cold_consumer(side.name_server):
        before, began_s = side.cold_messages(), time.monotonic()
        time.sleep(seconds)
        return (side.cold_messages() - before) / (time.monotonic() - began_s)


def hold_idle(port: int, count: int) -> int:
    """Connect so many peers that then are silent; how many of them are still served after that."""
    peers = Path(__file__).resolve().parent.parent / "tests" / "remoting" / "idle_peers.py"
    command = [sys.executable, str(peers), str(port), str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            return 0
        process.stdin.write(_heartbeat().hex() + "\n")
        process.stdin.flush()
        return count if process.stdout.readline().strip() == "served" else 0


def _heartbeat() -> bytes:
    from tiermq.remoting.codes import RequestCode
    from tiermq.remoting.command import RemotingCommand
    from tiermq.remoting.frame import encode_frame

    return encode_frame(RemotingCommand(RequestCode.GET_MAX_OFFSET, ext={"topic": TOPIC, "queueId": "0"}))
