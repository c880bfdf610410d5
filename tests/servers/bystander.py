"""Bystander: a client in a process of its own that asks a server one thing after another, and how long each took.

    with Bystander(port, request) as bystander:
        windows = [(began, ended), ...]              # moments of perf_counter: what else the server did meanwhile
    bystander.worst_waits(windows)

A process of its own: what it waits for is the server, not a lock of the interpreter that it shares with it. Clocks of
two processes of one machine are the same (CLOCK_MONOTONIC).
"""

from __future__ import annotations

import json
import select
import socket
import statistics
import subprocess
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Self

from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.frame import encode_frame

IDLE_ASKS = 2_000


class Bystander:
    """See the module. Asks IDLE_ASKS times before the block begins, and until it ends."""

    def __init__(self, port: int, request: RemotingCommand) -> None:
        self._words = [sys.executable, __file__, str(port), encode_frame(request).hex()]
        self._asks: list[tuple[float, float]] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "idle asks are done\n"
        return self

    def __exit__(self, *_error: object) -> None:
        answer, _ = self._process.communicate()
        self._asks = json.loads(answer)

    def worst_waits(self, windows: Sequence[tuple[float, float]]) -> list[float]:
        """The longest of its requests in each window, in seconds. One belongs where most of it was."""
        worst = [0.0] * len(windows)
        for before, after in self._asks:
            shares = [min(after, ended) - max(before, began) for began, ended in windows]
            most = max(shares)
            if most > 0:
                window = shares.index(most)
                worst[window] = max(worst[window], after - before)
        return worst

    @property
    def idle_wait(self) -> float:
        """What a request takes that nothing is beside: the median of those before the block."""
        return statistics.median(after - before for before, after in self._asks[:IDLE_ASKS])


def ask_until_stdin_ends(port: int, frame: bytes) -> list[tuple[float, float]]:
    asks: list[tuple[float, float]] = []
    with socket.create_connection(("127.0.0.1", port)) as peer, peer.makefile("rb") as answers:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while not select.select([sys.stdin], [], [], 0)[0]:
            before = perf_counter()
            peer.sendall(frame)
            answers.read(int.from_bytes(answers.read(4)))
            asks.append((before, perf_counter()))
            if len(asks) == IDLE_ASKS:
                print("idle asks are done", flush=True)
    return asks


if __name__ == "__main__":
    print(json.dumps(ask_until_stdin_ends(int(sys.argv[1]), bytes.fromhex(sys.argv[2]))))
