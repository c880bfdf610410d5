"""A server to try things on, and a peer that speaks bytes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any, Self

from tiermq.kernel import SendRequest
from tiermq.remoting.access import ANY_ACCOUNT, Access, serves
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.frame import decode_frame, encode_frame
from tiermq.remoting.loop_thread import LoopThread
from tiermq.remoting.server import RemotingServer, SendHandler

ECHO, ECHO_BLOCKING, BIG, BROKEN, LATER = 1001, 1002, 1003, 1004, 1005


def echo(connection: Connection, command: RemotingCommand) -> RemotingCommand:
    return command.respond(0, ext=command.ext, body=command.body)


def big(connection: Connection, command: RemotingCommand) -> RemotingCommand:
    """As many bytes as were asked for."""
    return command.respond(0, body=bytes(int(command.ext["bytes"])))


def broken(connection: Connection, command: RemotingCommand) -> RemotingCommand:
    raise ZeroDivisionError("no reason")


def make_server(**options: Any) -> RemotingServer:
    server = RemotingServer(**options)
    server.register(ECHO, echo, ANY_ACCOUNT)
    server.register(ECHO_BLOCKING, echo, ANY_ACCOUNT, in_pool=True)
    server.register(BIG, big, ANY_ACCOUNT)
    server.register(BROKEN, broken, ANY_ACCOUNT)
    return server


def serve_sends(
    server: RemotingServer, handler: SendHandler, plain: Access = ANY_ACCOUNT, v2: Access = ANY_ACCOUNT
) -> None:
    """Sends (10) go to `handler` if `plain` lets them, and those with short names (310, 320) if `v2` does."""

    class Sends:
        @serves(RequestCode.SEND_MESSAGE, access=plain)
        @serves(RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, access=v2)
        def take(self, connection: Connection, request: SendRequest) -> bytes | None:
            return handler(connection, request)

    server.serve(Sends())


class ServerThread:
    """A RemotingServer with a loop of its own.

    with ServerThread(server) as running:
        BlockingClient("127.0.0.1", running.port)
    """

    def __init__(self, server: RemotingServer, name: str = "remoting-loop") -> None:
        """Starts it. Raises OSError when the address cannot be had."""
        self.server = server
        self.thread = LoopThread(name)
        try:
            self.thread.run(server.start())
        except BaseException:
            self.thread.stop()
            raise

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.thread.loop

    def stop(self, drain_s: float = 0.0) -> None:
        """Close every connection and end the thread. Twice does no harm."""
        if self.thread.is_running:
            self.thread.run(self.server.stop(drain_s))
            self.thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()


@contextlib.contextmanager
def serving(server: RemotingServer) -> Iterator[ServerThread]:
    with ServerThread(server) as running:
        yield running


def begun_send(frame_bytes: int, body_bytes: int) -> bytes:
    """A send of `frame_bytes`, cut off after `body_bytes` of its body."""
    header = encode_frame(RemotingCommand(RequestCode.SEND_MESSAGE))[8:]
    return struct.pack(">iI", frame_bytes - 4, len(header)) + header + bytes(body_bytes)


class RawPeer:
    """A socket and frames, nothing else."""

    def __init__(self, port: int, *, receive_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.connect(("127.0.0.1", port))

    def send(self, *commands: RemotingCommand) -> None:
        self.socket.sendall(b"".join(encode_frame(command) for command in commands))

    def read_exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            piece = self.socket.recv(count - len(found))
            if not piece:
                raise EOFError(f"the server closed after {len(found)} of {count} bytes")
            found += piece
        return bytes(found)

    def read(self) -> RemotingCommand:
        start = self.read_exactly(4)
        return decode_frame(start + self.read_exactly(struct.unpack(">i", start)[0]))

    def is_closed_by_server(self) -> bool:
        """Reads until the server closes; whatever else comes is an answer that was not expected."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *found: object) -> None:
        self.close()


class Gate:
    """A handler that waits in the pool until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.opened = threading.Event()

    def __call__(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        self.entered.release()
        self.opened.wait()
        return command.respond(0)
