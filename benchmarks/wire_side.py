"""The wire, measured: a server in this process, and a client in a process of its own that keeps 64 requests open.

The client sends a window of frames in one write and reads until as many answers have come, over one connection: what 64
threads of RocketMQ's producer do with the connection that they share. It is the same for every side, so that what
differs is the server alone. The echo is the least that a server on asyncio can do with the same bytes: it writes what
it has read.

Run as a program it is the client:   port, frames, hex of one frame  ->  seconds      (a line each)
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from benchmarks.report import Round
from tiermq.kernel import SendRequest, send_answer
from tiermq.remoting.access import ANY_ACCOUNT, serves
from tiermq.remoting.command import HeaderType, RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.frame import SEND_CODES, encode_frame
from tiermq.remoting.loop_thread import LoopThread
from tiermq.remoting.server import RemotingServer

WINDOW = 64
BODY_BYTES = 128
COMMAND_CODE = 105
MESSAGE_ID = "7F000001000078BF0000000000000000"
UNIQUE_ID = "7F0000010000000000000000000000AB"


def send_frame(header_type: HeaderType, topic: str = "BenchmarkTest", body_bytes: int = BODY_BYTES) -> bytes:
    """A send as RocketMQ's benchmark producer makes it."""
    properties = f"UNIQ_KEY\x01{UNIQUE_ID}\x02WAIT\x01true\x02"
    values = ["benchmark_producer", topic, "TBW102", "4", "3", "0", "1700000000000", "0", properties, "0"]
    ext = {**dict(zip("abcdefghij", values, strict=True)), "k": "false", "m": "false", "n": "broker-a"}
    return encode_frame(RemotingCommand(310, opaque=7, ext=ext, body=bytes(body_bytes), header_type=header_type))


def command_frame() -> bytes:
    """A request without a path of its own: decoded and answered by the general codec."""
    return encode_frame(RemotingCommand(COMMAND_CODE, opaque=7, ext={"topic": "BenchmarkTest"}, body=bytes(BODY_BYTES)))


class Sends:
    """Answers sends and does nothing else."""

    @serves(*SEND_CODES, access=ANY_ACCOUNT)
    def answer(self, _connection: Connection, request: SendRequest) -> bytes:
        return send_answer(
            request.header_type, request.opaque, 0, 479, MESSAGE_ID, 3, 12_345, UNIQUE_ID, "DefaultRegion", "true"
        )


def answer_command(_connection: Connection, command: RemotingCommand) -> RemotingCommand:
    return command.respond(ext=command.ext, body=command.body)


@contextlib.contextmanager
def tiermq_server() -> Iterator[int]:
    """The port of a server that answers sends and commands and does nothing else."""
    server = RemotingServer()
    server.serve(Sends())
    server.register(COMMAND_CODE, answer_command, ANY_ACCOUNT)
    thread = LoopThread("wire-tiermq")
    try:
        thread.run(server.start())
        yield server.port
    finally:
        thread.run(server.stop(0.0))
        thread.stop()


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


@contextlib.contextmanager
def echo_server() -> Iterator[int]:
    """The port of a server that writes what it reads, on the same kind of loop."""
    thread = LoopThread("wire-echo")
    try:
        listener = thread.run(thread.loop.create_server(_Echo, "127.0.0.1", 0))
        yield listener.sockets[0].getsockname()[1]
        thread.call(listener.close)
    finally:
        thread.stop()


class Client:
    """The process that asks. Its processor time is not counted."""

    def __init__(self) -> None:
        words = [sys.executable, "-m", "benchmarks.wire_side"]
        root = Path(__file__).resolve().parent.parent
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)

    def round(self, port: int, frames: int, frame: bytes) -> Round:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        cpu_before = time.process_time()
        self._process.stdin.write(f"{port} {frames} {frame.hex()}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"expected seconds from the client, found that it ended with {self._process.wait()}")
        return Round(frames, frames * len(frame), float(line), time.process_time() - cpu_before)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *found: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def read_exactly(peer: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        piece = peer.recv(count - len(found))
        if not piece:
            raise SystemExit("the server has closed")
        found += piece
    return bytes(found)


def ask(port: int, frames: int, frame: bytes) -> float:
    """Seconds for that many frames, rounded up to whole windows, all answered. Every answer has the same length."""
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.sendall(frame)
        first = read_exactly(peer, 4)
        answer_bytes = 4 + struct.unpack(">i", first)[0]
        read_exactly(peer, answer_bytes - 4)
        window, room = frame * WINDOW, memoryview(bytearray(answer_bytes * WINDOW))
        before = time.perf_counter()
        for _ in range(-(-frames // WINDOW)):
            peer.sendall(window)
            got = 0
            while got < len(room):
                piece = peer.recv_into(room[got:])
                if not piece:
                    raise SystemExit("the server has closed")
                got += piece
        return time.perf_counter() - before


def main() -> None:
    for line in sys.stdin:
        port, frames, frame = line.split()
        print(ask(int(port), int(frames), bytes.fromhex(frame)), flush=True)


if __name__ == "__main__":
    main()
