"""Free ports of this machine's loopback address, and child processes that end by their own process id."""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import os
import socket
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

FIRST_PORT, PORT_COUNT = 11_000, 10_000  # Twins lie in the next ten thousand; the kernel's own begin at 32768.
APART = 4
"""A broker on port p also listens on p-2 (its VIP port), RocketMQ's on p+1 too (replicas): no two given share one."""
_turns = itertools.count(os.getpid() * 617)  # Processes that run tests side by side begin far from each other.
CLAIMS_MAX = 400
_claims: deque[int] = deque()
"""Locked files of the ports given last: other processes that run tests leave them alone until their servers listen."""


def _is_claimed(port: int) -> bool:
    """Claim a port for this process; whether another one has."""
    directory = Path(tempfile.gettempdir()) / "tiermq-test-ports"
    directory.mkdir(exist_ok=True)
    file = os.open(directory / str(port), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return True
    _claims.append(file)
    while len(_claims) > CLAIMS_MAX:
        os.close(_claims.popleft())
    return False


def free_ports(count: int, *, also_above: int = 0) -> list[int]:
    """Ports without a listener, nor on their neighbours p-2 and p+1. `also_above`: the port this much higher is
    free instead of the neighbours (gRPC twins).

    They lie below those that the kernel gives to processes that want any, and no other process that runs tests is given
    them: no process takes them between now and a server's start, nor while a server that was killed is started again.
    """
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            port = FIRST_PORT + APART * next(_turns) % PORT_COUNT
            try:
                for each in (port, port + also_above) if also_above else (port - 2, port, port + 1):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", each))
            except OSError:
                continue
            if not _is_claimed(port):
                found.append(port)
    return found


T = TypeVar("T")
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of unshare(2).


def with_own_network(work: Callable[[], T]) -> T:
    """Run `work` in a thread whose network is a loopback of its own: for servers that listen on every address.

    Threads and processes that it starts have the same network. Needs root.
    """
    outcome: list[T] = []
    problems: list[BaseException] = []

    def run() -> None:
        try:
            if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK):
                raise OSError(ctypes.get_errno(), "no network of its own: this needs root")
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            outcome.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            problems.append(error)

    thread = threading.Thread(target=run, name="own-network")
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
    return outcome[0]


def stop(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """End a process whose data is not needed any more. Asking politely takes some servers twenty seconds."""
    if process.poll() is None:
        process.kill()
    process.wait()
