"""A broker as an operator runs it: one process, one `broker.conf` that RocketMQ and TierMQ both read.

    name_server(stack, jars, directory)             RocketMQ's own, the same for both brokers
    BrokerProcess(TIERMQ, ...)                      started, asked for a first message, looked at, ended

RocketMQ's broker runs as `broker_side.distribution` runs servers: the JVM's own choice of collector and compiler, and
2 GiB of heap at most, of which it takes what it needs. Its `runbroker.sh` would take 8 GiB at once.
TierMQ's runs from compiled modules, as an installation by pip has them and as RocketMQ's jars are: a checkout may have
none, so they are kept beside the stores, and made before the first measured start.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks import process_tree
from benchmarks.broker_side import QUEUES, TOPIC
from benchmarks.compare.peer_process import PeerFailed
from benchmarks.compare.work import ROCKETMQ, TIERMQ
from interop.rocketmq import Server, free_port
from tiermq.kernel.frame_reader import LENGTHS
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.frame import decode_frame, encode_frame

HOST = "127.0.0.1"
RETRY_S = 0.003
"""Between two tries at a port where no process listens yet."""
ANSWER_S = 10.0
"""A broker that has accepted a connection answers within this, or the message is sent again."""
SETTLED_S = 3.0
SETTLED_SHARE = 0.01
SETTLED_LOOKS_MAX = 20
_numbers = itertools.count()


# Memory


@dataclass(frozen=True, slots=True)
class Resident:
    """Resident memory in bytes: `whole` is `anonymous`, the process' own, and pages of files: on disk, in memory."""

    whole: int
    anonymous: int
    files: int
    shared: int
    peak: int
    """The most that `whole` was since the process began, or since `forget_peak`."""


def resident(pid: int) -> Resident:
    """Of a process and everything below it. Raises PeerFailed when it has ended."""
    found = [_status(each.pid) for each in process_tree.tree(pid)]
    sums = {name: sum(each.get(name, 0) for each in found) for name in _FIELDS}
    if not sums["VmRSS"]:
        raise PeerFailed(f"expected process {pid} to be running, found it ended")
    return Resident(*(sums[name] for name in _FIELDS))


_FIELDS = ("VmRSS", "RssAnon", "RssFile", "RssShmem", "VmHWM")


def _status(pid: int) -> dict[str, int]:
    try:
        lines = (process_tree.PROC / str(pid) / "status").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):  # It ended meanwhile.
        return {}
    pairs = (line.split(":", 1) for line in lines)
    return {name: int(text.split()[0]) * 1024 for name, text in pairs if name in _FIELDS}


def forget_peak(pid: int) -> None:
    """Count the peak from now on."""
    for each in process_tree.tree(pid):
        (process_tree.PROC / str(each.pid) / "clear_refs").write_text("5")


def settled(pid: int, pause: Callable[[], None] = lambda: time.sleep(SETTLED_S)) -> Resident:
    """When it no longer changes from one look to the next. Raises PeerFailed when it never stops."""
    before = resident(pid)
    for _ in range(SETTLED_LOOKS_MAX):
        pause()
        now = resident(pid)
        if abs(now.whole - before.whole) <= SETTLED_SHARE * before.whole:
            return now
        before = now
    raise PeerFailed(f"process {pid}: expected its memory to settle, found {before.whole} bytes and changing")


# Messages


def ask(address: tuple[str, int], command: RemotingCommand) -> RemotingCommand:
    """One request over a connection of its own, without threads. Raises OSError without a listener or an answer."""
    with socket.create_connection(address, timeout=ANSWER_S) as peer:
        peer.sendall(encode_frame(command))
        with peer.makefile("rb") as stream:
            head = stream.read(LENGTHS.size)
            if len(head) < LENGTHS.size:
                raise ConnectionResetError(f"expected an answer of {address}, found the connection closed")
            length, _ = LENGTHS.unpack(head)
            rest = stream.read(length - 4)
    if len(rest) < length - 4:
        raise ConnectionResetError(f"expected an answer of {length} bytes, found {len(rest)}")
    return decode_frame(head + rest)


def first_message(address: tuple[str, int], process: subprocess.Popen[Any]) -> RemotingCommand:
    """Try until a message is accepted; the answer. Raises PeerFailed when the broker ends before."""
    while True:
        if process.poll() is not None:
            raise PeerFailed(f"expected a broker at {address}, found it ended with {process.returncode}")
        try:
            answer = ask(address, send_of(TOPIC))
        except OSError:  # Not yet: that is what is measured.
            time.sleep(RETRY_S)
            continue
        if answer.code == ResponseCode.SUCCESS:
            return answer
        time.sleep(RETRY_S)


def topic_end(address: tuple[str, int], topic: str, queues: int) -> int:
    """How many messages the topic's queues got so far. Raises PeerFailed when the broker has no such queue."""
    found = 0
    for queue_id in range(queues):
        fields = {"topic": topic, "queueId": str(queue_id)}
        answer = ask(address, RemotingCommand(RequestCode.GET_MAX_OFFSET, ext=fields))
        if answer.code != ResponseCode.SUCCESS:
            raise PeerFailed(f"{address}: expected the end of queue {queue_id} of {topic}, found {answer.remark}")
        found += int(answer.ext["offset"])
    return found


def send_of(topic: str, body: bytes = b"first", queue_id: int = 0) -> RemotingCommand:
    """A send as RocketMQ's client spells it."""
    born_ms = time.time_ns() // 1_000_000
    fields = {"a": "bench", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": str(born_ms)}
    fields |= {"h": "0", "i": "", "j": "0", "k": "false", "m": "false"}
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext=fields, body=body)


# Processes


def name_server(stack: ExitStack, jars: Any, directory: Path) -> str:
    """RocketMQ's name server, ended with the stack; its address."""
    home = directory / "namesrv"
    home.mkdir()
    port = free_port()
    conf = home / "namesrv.conf"
    conf.write_text(f"listenPort={port}\nbindAddress={HOST}\nkvConfigPath={home}/kv.json\n", encoding="utf-8")
    command = jars.java(home, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(conf))
    server = Server(command, home / "namesrv.out")
    stack.callback(server.kill)
    server.await_boot()
    return f"{HOST}:{port}"


def compiled_modules(directory: Path) -> dict[str, str]:
    """The environment of a Python that runs from compiled modules; made below `directory` when they are not there."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    kept = directory / "compiled"
    environment["PYTHONPYCACHEPREFIX"] = str(kept)
    if not kept.exists():
        command = [sys.executable, "-c", "import tiermq.cli.main, tiermq.cli.serve"]
        subprocess.run(command, env=environment, check=True)
    return environment


class BrokerProcess:
    """One broker over one store directory. A context manager; leaving it ends the process, cleanly if all went well."""

    def __init__(
        self, side: str, jars: Any, directory: Path, name_server: str, store: Path | None = None, **more: object
    ) -> None:
        """A store that is not given is made, empty but for the topics; `jars` are RocketMQ's, unused by TierMQ; `more`
        are settings of broker.conf.
        """
        if side not in (TIERMQ, ROCKETMQ):
            raise ValueError(f"expected {TIERMQ} or {ROCKETMQ}, found {side!r}")
        self.name = f"{side}-{next(_numbers)}"
        self.name_server = name_server
        self.home = directory / self.name
        self.home.mkdir(parents=True)
        self.store = store or self.home / "store"
        if store is None:
            make_topics(self.store)
        self.address = HOST, free_port()
        settings = {**self._settings(), **more}
        conf = self.home / "broker.conf"
        conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
        if side == TIERMQ:
            self._command = [sys.executable, "-m", "tiermq.cli", "serve", "-c", str(conf)]
            self._environment = compiled_modules(directory)
        else:
            self._command = jars.java(self.home, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf))
            self._environment = dict(os.environ)
        self._process: subprocess.Popen[bytes] | None = None

    def _settings(self) -> dict[str, object]:
        return {
            "brokerClusterName": "DefaultCluster",
            "brokerName": self.name,
            "brokerId": 0,
            "brokerRole": "ASYNC_MASTER",
            "flushDiskType": "ASYNC_FLUSH",
            "brokerIP1": HOST,
            "bindAddress": HOST,
            "listenPort": self.address[1],
            "haListenPort": self.address[1] + 1,
            "namesrvAddr": self.name_server,
            "storePathRootDir": self.store,
            "storePathCommitLog": self.store / "commitlog",
        }

    def start(self) -> float:
        """Until the first message is accepted: seconds from the start of the process."""
        with (self.home / "output").open("ab") as output:
            before = time.perf_counter()
            self._process = subprocess.Popen(
                self._command,
                cwd=self.home,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            first_message(self.address, self._process)
        except PeerFailed as error:
            raise PeerFailed(f"{self.name}: {error}. It said:\n{self.said()}") from error
        return time.perf_counter() - before

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def said(self) -> str:
        """The end of what it has printed."""
        return (self.home / "output").read_text(encoding="utf-8", errors="replace")[-4000:]

    def await_registered(self) -> None:
        """Until the name server lists it, which is when clients can find it."""
        host, _, port = self.name_server.partition(":")
        wanted = f'"{self.name}"'.encode()
        while wanted not in bytes(ask((host, int(port)), RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)).body):
            time.sleep(RETRY_S)

    def await_messages(self, count: int) -> None:
        """Until the topic's queues hold so many, which is a little after they were accepted. Raises PeerFailed."""
        deadline = time.monotonic() + ANSWER_S
        while (found := topic_end(self.address, TOPIC, QUEUES)) != count:
            if found > count or time.monotonic() > deadline:
                raise PeerFailed(f"{self.name}: expected {count} messages in {TOPIC}, found {found}")
            time.sleep(RETRY_S)

    def stop(self) -> None:
        """As an operator does; returns when the store is closed cleanly."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """When the store is not needed any more."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end(signal.SIGTERM if error is None else signal.SIGKILL)


def make_topics(store: Path, more: Mapping[str, int] | None = None) -> None:
    """The topic of the load; both brokers read this file when they start. `more`: topics by name, with their number of
    queues.
    """
    from tiermq.broker.topic.topic_table import FILE, encode_topics
    from tiermq.namesrv.topic_config import NO_VERSION, TopicConfig

    (store / "config").mkdir(parents=True)
    table = {name: TopicConfig(name, count, count) for name, count in {TOPIC: QUEUES, **(more or {})}.items()}
    (store / "config" / FILE).write_bytes(encode_topics(table, NO_VERSION.next(1)))
