"""The limit of a network work: an exchange over loopback that does nothing but carry the bytes.

A process of its own answers each request of so many bytes by so many bytes; this one keeps as many requests in flight
on as many connections as the work's real client does. Neither looks at a byte, and all requests that one read brings
are answered by one write. What is left is the system's sockets, and a few microseconds of Python per read.

Run as a program it is the server:   bytes of a request, bytes of an answer  ->  its port, one line
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request with its answer, as they lie on the wire, and how many messages they carry."""

    asked_bytes: int
    answered_bytes: int
    messages: int = 1
    in_flight: int = 1
    """Requests that wait for their answers at once, over all connections."""
    connections: int = 1

    def parameters(self) -> dict[str, int]:
        """What `Echo.prepare` wants."""
        return {name: getattr(self, name) for name in self.__slots__}


class Wire:
    """One end of a connection: counts whole pieces that come in, and sends as many of its own."""

    def __init__(self, end: socket.socket, expected_bytes: int, piece: bytes, most: int) -> None:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.end = end
        self._expected_bytes = expected_bytes
        self._piece_bytes = len(piece)
        self._pieces = memoryview(piece * most)
        self._into = bytearray(READ_BYTES)
        self._pending_bytes = 0

    def take(self) -> int | None:
        """How many whole pieces one read has completed; None when the other end has closed."""
        count = self.end.recv_into(self._into)
        if not count:
            return None
        whole, self._pending_bytes = divmod(self._pending_bytes + count, self._expected_bytes)
        return whole

    def give(self, count: int) -> None:
        """Send so many pieces."""
        self.end.sendall(self._pieces[: count * self._piece_bytes])


def answer(asked_bytes: int, answered_bytes: int, most: int) -> None:
    """Serve until the input ends, on one thread."""
    with socket.create_server(("127.0.0.1", 0)) as listener, selectors.DefaultSelector() as ready:
        ready.register(listener, selectors.EVENT_READ)
        ready.register(sys.stdin, selectors.EVENT_READ)
        print(listener.getsockname()[1], flush=True)
        while True:
            for key, _ in ready.select():
                if key.fileobj is sys.stdin:
                    return
                if key.fileobj is listener:
                    end = listener.accept()[0]
                    ready.register(end, selectors.EVENT_READ, Wire(end, asked_bytes, bytes(answered_bytes), most))
                    continue
                whole = key.data.take()
                if whole is None:
                    ready.unregister(key.fileobj)
                    key.data.end.close()
                elif whole:
                    key.data.give(whole)


class Echo:
    """The side that asks (`peer_process.Served`): `run messages=N` makes as many exchanges as carry N messages."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._wires: list[Wire] = []
        self._exchange = Exchange(0, 0)

    def prepare(self, parameters: dict[str, str]) -> dict[str, Any]:
        """Start the server and connect."""
        made = Exchange(**{name: int(value) for name, value in parameters.items()})
        if min(made.parameters().values()) < 1 or made.in_flight % made.connections:
            raise SystemExit(f"expected positive numbers, and as many requests on each connection, found {made}")
        self._exchange = made
        most = made.in_flight // made.connections
        words = [made.asked_bytes, made.answered_bytes, most]
        server = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.compare.echo_limit", *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._stack.callback(server.communicate)  # It closes the input, which ends the server.
        assert server.stdout is not None
        port = int(server.stdout.readline())
        for _ in range(made.connections):
            end = self._stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            self._wires.append(Wire(end, made.answered_bytes, bytes(made.asked_bytes), most))
        return {"port": port}

    def reset(self, parameters: dict[str, str]) -> None:
        """Nothing is left of a round."""

    def run(self, parameters: dict[str, str]) -> tuple[int, int]:
        """All exchanges of one round, over all connections."""
        made = self._exchange
        left = total = -(-int(parameters["messages"]) // made.messages)
        done = 0
        with selectors.DefaultSelector() as ready:
            for wire in self._wires:
                ready.register(wire.end, selectors.EVENT_READ, wire)
                first = min(left, made.in_flight // made.connections)
                wire.give(first)
                left -= first
            while done < total:
                for key, _ in ready.select():
                    whole = key.data.take()
                    if whole is None:
                        raise SystemExit(f"the server has closed a connection after {done} of {total} answers")
                    done += whole
                    more = min(left, whole)
                    if more:
                        key.data.give(more)
                    left -= more
        return total * made.messages, total * (made.asked_bytes + made.answered_bytes)

    def close(self) -> None:
        self._stack.close()


if __name__ == "__main__":
    answer(*map(int, sys.argv[1:4]))
