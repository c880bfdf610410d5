"""Bystander: a client in a process of its own that asks a server again and again, and how long each answer took.

    with Bystander(port, request) as bystander:
        idle = bystander.pause()                            # nothing else is asked of the server meanwhile
        flood = bystander.watch(lambda: peer.ask(...))      # moments of perf_counter
    bystander.p99([flood]) / bystander.p99([idle])

It asks each INTERVAL_S, one request at a time. A request that takes longer keeps others from being asked; those count
as well, by what each would have waited: a server that stands still for 100 ms makes 50 clients wait, not one.
A process of its own: what it waits for is the server, not a lock of the interpreter that it shares with it. Clocks of
two processes of one machine are the same (CLOCK_MONOTONIC).
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Self

from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.frame import encode_frame

INTERVAL_S = 0.002
ASKS_OF_A_LINE = 25
PAUSE_S = 0.1
Window = tuple[float, float]


class Bystander:
    """See the module."""

    def __init__(self, port: int, request: RemotingCommand) -> None:
        self._words = [sys.executable, __file__, str(port), encode_frame(request).hex()]
        self._asks: list[tuple[float, float]] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pause()
        return self

    def __exit__(self, *_error: object) -> None:
        answer, _ = self._process.communicate()
        self._asks = json.loads(answer.splitlines()[-1])

    def pause(self) -> Window:
        """Return when requests of PAUSE_S are answered, the first of them sent after the call."""
        began = self._asked_since(perf_counter())
        return began, self._asked_since(began + PAUSE_S)

    def _asked_since(self, moment: float) -> float:
        assert self._process.stdout is not None
        while (asked := float(self._process.stdout.readline())) < moment:
            pass
        return asked

    def watch(self, work: Callable[[], object]) -> Window:
        """When `work` began and ended."""
        began = perf_counter()
        work()
        return began, perf_counter()

    def p99(self, windows: Iterable[Window]) -> float:
        """Of the requests that ended in these windows or began there, in seconds. After the block."""
        windows = list(windows)
        waits: list[float] = []
        for asked, answered in self._asks:
            if any(asked < ended and began < answered for began, ended in windows):
                waits += (
                    answered - asked - late * INTERVAL_S for late in range(1 + int((answered - asked) / INTERVAL_S))
                )
        return sorted(waits)[len(waits) * 99 // 100]


def ask_until_stdin_ends(port: int, frame: bytes) -> list[tuple[float, float]]:
    asks: list[tuple[float, float]] = []
    with socket.create_connection(("127.0.0.1", port)) as peer, peer.makefile("rb") as answers:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        due = perf_counter()
        while not select.select([sys.stdin], [], [], max(0.0, due - perf_counter()))[0]:
            asked = perf_counter()
            peer.sendall(frame)
            answers.read(int.from_bytes(answers.read(4)))
            asks.append((asked, perf_counter()))
            due = max(due + INTERVAL_S, perf_counter())
            if len(asks) % ASKS_OF_A_LINE == 0:
                print(asked, flush=True)
    return asks


if __name__ == "__main__":
    print(json.dumps(ask_until_stdin_ends(int(sys.argv[1]), bytes.fromhex(sys.argv[2]))))
