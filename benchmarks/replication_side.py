"""Pairs of master and slave, TierMQ's and RocketMQ's, as processes; and how far a slave is behind its master.

Both kinds have the same settings, files of RocketMQ's own sizes, asynchronous flush and a topic of eight queues. Lag is
seen from outside, in the same way of both: one connection sends at a steady rate to one queue of the master, another
one asks the slave again and again where that queue ends. A message's lag is the time from its acknowledgement to the
first answer of the slave that counts it.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import broker_side, process_tree
from benchmarks.broker_side import QUEUES, TOPIC, Loaded
from broker.brokers import send_command
from interop.rocketmq import BROKER_NAME, CLUSTER_NAME, Distribution, Server
from servers.loopback import free_ports
from servers.serving import SIZES, Serving
from tiermq.config import StoreConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.frame import encode_frame
from tiermq.remoting.json_dialect import decode_object

SYNC = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}
"""Of a master that acknowledges what its slave has."""
BODY_BYTES = 1024
LOOK_S = 0.05
TICK_S = 0.002
"""Sends leave at this interval: as many as the rate asks for."""
ASK_S = 0.0005
"""Least time between two questions to the slave."""
_OFFSET = re.compile(rb'"queueOffset":"?(\d+)')
_END = re.compile(rb'"offset":"?(\d+)')


@dataclass(frozen=True, slots=True)
class Pair:
    """A master under load, and its slave."""

    master: Loaded
    slave_pid: int
    slave_port: int


def _ask(port: int, code: int, **fields: object) -> RemotingCommand:
    with BlockingClient("127.0.0.1", port, timeout_s=60.0) as client:
        return client.request(RemotingCommand(code, ext={name: str(value) for name, value in fields.items()}))


def await_in_sync(master_port: int) -> None:
    """Until the master counts its slave."""
    while decode_object(_ask(master_port, RequestCode.GET_BROKER_HA_STATUS).body)["inSyncSlaveNums"] < 1:
        time.sleep(LOOK_S)  # A peer of another process reports no event.


@contextlib.contextmanager
def tiermq(jars: Any, directory: Path, **role: object) -> Iterator[Pair]:
    """`role`: of the master, by RocketMQ's names."""
    own = {re.sub("([A-Z]+)", r"_\1", name).lower(): value for name, value in role.items()}
    sizes = {name: getattr(StoreConfig(), name) for name in SIZES}
    with (
        broker_side.tiermq(jars, directory, ha_listen_port=0, **own) as master,
        Serving(
            directory / "tiermq-slave", "--namesrv", master.name_server, **sizes, flush_disk_type="ASYNC_FLUSH",
            broker_role="SLAVE", broker_id=1, ha_listen_port=0, slave_read_enable=True,
        ) as slave,
    ):  # fmt: skip
        await_in_sync(master.port)
        assert slave.process is not None
        yield Pair(master, slave.process.pid, slave.port)


@contextlib.contextmanager
def rocketmq(jars: Distribution, directory: Path, **role: object) -> Iterator[Pair]:
    """The same of RocketMQ."""
    home = directory / "rocketmq-slave-home"
    home.mkdir()
    with broker_side.rocketmq(jars, directory, **role) as master:
        [port] = free_ports(1)
        store = directory / "rocketmq-slave"
        settings = {
            "brokerClusterName": CLUSTER_NAME, "brokerName": BROKER_NAME, "brokerId": 1, "brokerRole": "SLAVE",
            "brokerIP1": "127.0.0.1", "bindAddress": "127.0.0.1", "listenPort": port, "haListenPort": port + 1,
            "namesrvAddr": master.name_server, "storePathRootDir": store, "storePathCommitLog": store / "commitlog",
            "timerWheelEnable": "false", "slaveReadEnable": "true", "flushDiskType": "ASYNC_FLUSH",
            "registerNameServerPeriod": 10_000,
        }  # fmt: skip
        (home / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        program = ("org.apache.rocketmq.broker.BrokerStartup", "-c", str(home / "broker.conf"))
        slave = Server(jars.java(home, *program), home / "broker.out")
        try:
            slave.await_boot()
            await_in_sync(master.port)
            yield Pair(master, slave.process.pid, port)
        finally:
            slave.stop()


PAIRS = {"tiermq": tiermq, "rocketmq": rocketmq}
ALONE = {"tiermq": broker_side.tiermq, "rocketmq": broker_side.rocketmq}


@contextlib.contextmanager
def slave_apart(pair: Pair) -> Iterator[None]:
    """The last processor belongs to the slave alone, the others to everything else below this process."""
    cores = sorted(os.sched_getaffinity(0))
    others = {process.pid for process in process_tree.tree()} - {pair.slave_pid}
    _pin(others, set(cores[:-1]))
    _pin({pair.slave_pid}, {cores[-1]})
    try:
        yield
    finally:
        _pin({*others, pair.slave_pid}, set(cores))


def _pin(processes: set[int], cores: set[int]) -> None:
    for pid in processes:
        for thread in (process_tree.PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # It has ended.
                os.sched_setaffinity(int(thread.name), cores)


# Lag


class _Wire:
    """One connection that is never waited for: what is sent is kept until the peer takes it."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._out, self._in = bytearray(), bytearray()

    def send(self, data: bytes) -> None:
        self._out += data
        with contextlib.suppress(BlockingIOError):
            del self._out[: self.socket.send(self._out)]

    def headers(self) -> Iterator[bytes]:
        """Of the answers that have come."""
        with contextlib.suppress(BlockingIOError):
            data = self.socket.recv(1 << 20)
            if not data:
                raise RuntimeError("the broker closed the connection")
            self._in += data
        place = 0
        while len(self._in) - place >= 8:
            size, head = struct.unpack_from(">ii", self._in, place)
            if len(self._in) - place < 4 + size:
                break
            yield bytes(self._in[place + 8 : place + 8 + (head & 0xFFFFFF)])
            place += 4 + size
        del self._in[:place]

    def close(self) -> None:
        self.socket.close()


@dataclass(frozen=True, slots=True)
class Lag:
    """Of the messages of one round, in milliseconds; and how many a second there were."""

    rate: float
    values_ms: list[float]

    def quantile(self, share: float) -> float:
        return sorted(self.values_ms)[min(len(self.values_ms) - 1, int(len(self.values_ms) * share))]


def measure_lag(pair: Pair, rate: float, seconds: float) -> Lag:
    """Raises RuntimeError when sends fail, or the machine is too slow for that rate."""
    master, slave = _Wire(pair.master.port), _Wire(pair.slave_port)
    send = encode_frame(send_command(TOPIC, b"x" * BODY_BYTES, queue=0, queues=QUEUES))
    ask = RemotingCommand(RequestCode.GET_MAX_OFFSET, ext={"topic": TOPIC, "queueId": "0"})
    question = encode_frame(ask)
    acknowledged: dict[int, float] = {}
    ends: list[tuple[float, int]] = []
    sent, asked_s, is_asked, begin_s = 0, 0.0, False, time.monotonic()
    try:
        while True:
            now_s = time.monotonic()
            due = int(rate * min(seconds, now_s - begin_s))
            if due > sent:
                master.send(send * (due - sent))
                sent = due
            if not is_asked and now_s - asked_s >= ASK_S:
                slave.send(question)
                is_asked, asked_s = True, now_s
            if now_s - begin_s > seconds and len(acknowledged) == sent and ends and ends[-1][1] > max(acknowledged):
                break
            if now_s - begin_s > 10 * seconds:
                raise RuntimeError(f"{len(acknowledged)} of {sent} sends acknowledged, the slave has {ends[-1:]}")
            ready, _, _ = select.select([master.socket, slave.socket], [], [], min(TICK_S, ASK_S))
            now_s = time.monotonic()
            if master.socket in ready:
                for header in master.headers():
                    found = _OFFSET.search(header)
                    if found is None:
                        raise RuntimeError(f"a send failed: {header!r}")
                    acknowledged[int(found[1])] = now_s
            if slave.socket in ready:
                for header in slave.headers():
                    found = _END.search(header)
                    is_asked = False
                    if found is not None:  # It may not know the topic yet.
                        ends.append((now_s, int(found[1])))
    finally:
        master.close()
        slave.close()
    values, place = [], 0
    for offset, at_s in sorted(acknowledged.items()):
        while ends[place][1] <= offset:
            place += 1
        values.append(1e3 * max(0.0, ends[place][0] - at_s))
    return Lag(sent / seconds, values)
