"""Brokers on one machine: `tiermq serve --brokers 2` against one broker, under the same two clients.

The clients are processes that keep 64 prepared sends open each: all on one connection, or (`--connections 64`) one on
each, as many programs with a client each do. Both write to the one broker, or one to each of two. They are cheap, and
still use the same processors as the brokers: on a machine of two cores two brokers and two clients have half of what
they could use. So the processor time of the brokers is counted as well. What it takes for a message is what a broker
can do with a core that nothing else uses, and N brokers N times that. With `--bytes 1024` and one connection that is
compared with what one core is to carry, 345,000 a second.

Run as a program it is a client:   port, connections, sends, hex of one frame  ->  seconds      (a line each)
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import struct
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import harness, store_side, wire_side
from benchmarks.harness import JavaBench
from benchmarks.process_tree import TICKS_PER_SECOND, tree
from benchmarks.report import Report, Round, cpu_rate
from tiermq.remoting.command import HeaderType

NAME = "brokers"
TOPIC = "Brokers"
QUEUES = 4
CLIENTS = 2
RECORD_BYTES = 300
"""Of a record beside its body, with its unit and index entries."""
BYTES_PER_MESSAGE = 2048  # Of --size: 1 GiB means 524,288 messages in a round.
ONE_CORE_1024_PER_S = 345_000
"""What one core is to carry of pipelined sends of 1 KiB."""


@dataclass(slots=True)
class Brokers:
    """Brokers under one supervisor, and the clients of both."""

    ports: list[int]
    name_server: str
    process_ids: list[int]
    clients: list[_Client]
    body_bytes: int
    connections: int

    def round(self, messages: int) -> Round:
        frame = wire_side.send_frame(HeaderType.ROCKETMQ, TOPIC, self.body_bytes)
        before, began_s = self.cpu_s(), time.perf_counter()
        for number, client in enumerate(self.clients):
            client.begin(self.ports[number % len(self.ports)], self.connections, messages // CLIENTS, frame)
        for client in self.clients:
            client.end()
        return Round(messages, messages * len(frame), time.perf_counter() - began_s, self.cpu_s() - before)

    def cpu_s(self) -> float:
        return sum(each.ticks for pid in self.process_ids for each in tree(pid)) / TICKS_PER_SECOND

    def stored(self) -> int:
        """The messages that the brokers report."""
        [row] = json.loads(_tiermq("topic", "list", "-n", self.name_server, "--json"))["topics"]
        return int(row["messages"])


class _Client:
    """A process that sends."""

    def __init__(self) -> None:
        words = [sys.executable, "-m", "benchmarks.bench_brokers"]
        root = Path(__file__).resolve().parent.parent
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)

    def begin(self, port: int, connections: int, sends: int, frame: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{port} {connections} {sends} {frame.hex()}\n")
        self._process.stdin.flush()

    def end(self) -> None:
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError(f"expected seconds from a client, found that it ended with {self._process.wait()}")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return the result object."""
    parser = harness.parser(NAME)
    parser.add_argument("--bytes", type=int, default=wire_side.BODY_BYTES, help="of a message's body (default 128)")
    parser.add_argument(
        "--connections", type=int, choices=(1, 2, 4, 8, 16, 32, 64), default=1, help="of each client (default 1)"
    )
    arguments = parser.parse_args(argv)
    options = harness.options_of(arguments)
    messages = max(10 * wire_side.WINDOW * CLIENTS, options.size // BYTES_PER_MESSAGE)
    messages -= messages % (wire_side.WINDOW * CLIENTS)
    made = Report(NAME)
    made.environment |= {"messages": messages, "clients": CLIENTS, "window": wire_side.WINDOW, "bytes": arguments.bytes}
    made.environment["connections"] = arguments.connections
    stored_bytes = 2 * (options.rounds + options.warmup) * messages * (RECORD_BYTES + arguments.bytes)
    with contextlib.ExitStack() as running, harness.work_directory(options.directory, stored_bytes) as directory:
        clients = [_Client() for _ in range(CLIENTS)]
        for client in clients:
            running.callback(client.close)
        sides = {
            name: running.enter_context(_served(directory / name, count, clients, arguments))
            for name, count in (("one", 1), ("two", 2))
        }
        measured = harness.alternate(
            {name: lambda side=side: side.round(messages) for name, side in sides.items()},  # type: ignore[misc]
            options.rounds, options.warmup,
        )  # fmt: skip
        for name, side in sides.items():
            sent = messages * (options.rounds + options.warmup)
            if side.stored() != sent:
                raise RuntimeError(f"{name}: expected {sent} messages in the stores, found {side.stored()}")
        made.add(measured)
        for name, rounds in measured.items():
            made.rates[f"{name}_cpu_seconds_per_million"] = round(1e6 / cpu_rate(rounds), 2)
        on_a_core = cpu_rate(measured["one"])
        made.rates["on_a_core_of_its_own_messages_per_second"] = round(on_a_core, 1)
        if arguments.bytes == 1024:
            made.ratios["one_core_1024_vs_345000_per_second"] = round(on_a_core / ONE_CORE_1024_PER_S, 4)
        made.compare("two_brokers_vs_one", measured["two"], measured["one"])
        running.close()
        return harness.finish(made, options, directory, JavaBench(wanted=False), store_side.kernel())


@contextlib.contextmanager
def _served(directory: Path, count: int, clients: list[_Client], arguments: Namespace) -> Iterator[Brokers]:
    words = ["serve", str(directory), "--name", "b", "--port", "0", "--namesrv-port", "0", "--json"]
    command = [sys.executable, "-m", "tiermq.cli", *words, *(["--brokers", str(count)] if count > 1 else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            brokers = ready.get("brokers", [ready])
            _tiermq("topic", "create", TOPIC, "--queues", str(QUEUES), "-n", ready["nameServer"])
            ports = [int(each["address"].rpartition(":")[2]) for each in brokers]
            pids = [each.get("processId", process.pid) for each in brokers]
            yield Brokers(ports, ready["nameServer"], pids, clients, arguments.bytes, arguments.connections)
        finally:
            process.terminate()
            process.communicate()


def _tiermq(*words: str) -> str:
    command = [sys.executable, "-m", "tiermq.cli", *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


class _Connection:
    """One connection of a client."""

    def __init__(self, port: int, sends: int, window: int, frame: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._left, self._window, self._open, self._held = sends, window, 0, b""
        self._frames = frame * window

    def send(self) -> bool:
        """Send a window; False when all were sent."""
        if self._left < self._window:
            return False
        self._left -= self._window
        self._open = self._window
        self.socket.sendall(self._frames)
        return True

    def receive(self) -> bool:
        """Read what came; whether the whole window is answered."""
        if not (piece := self.socket.recv(1 << 16)):
            raise SystemExit("the broker has closed")
        held, at = self._held + piece, 0
        while len(held) - at >= 4 and len(held) - at >= (end := 4 + struct.unpack_from(">i", held, at)[0]):
            at += end
            self._open -= 1
        self._held = held[at:]
        return not self._open


def _send(port: int, count: int, sends: int, frame: bytes) -> float:
    """Seconds for that many sends, all answered; a window of them is open at a time, shared by the connections."""
    connections = [_Connection(port, sends // count, wire_side.WINDOW // count, frame) for _ in range(count)]
    with contextlib.ExitStack() as opened, selectors.DefaultSelector() as selector:
        for each in connections:
            opened.enter_context(each.socket)
            selector.register(each.socket, selectors.EVENT_READ, each)
        before = time.perf_counter()
        running = sum(each.send() for each in connections)
        while running:
            for key, _ in selector.select():
                if key.data.receive() and not key.data.send():
                    running -= 1
        return time.perf_counter() - before


def _main() -> None:
    for line in sys.stdin:
        port, connections, sends, frame = line.split()
        print(_send(int(port), int(connections), int(sends), bytes.fromhex(frame)), flush=True)


if __name__ == "__main__":
    _main()
