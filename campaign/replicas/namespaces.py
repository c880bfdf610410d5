"""Network namespaces of one round: a hub with a bridge, and machines whose links to it can be cut.

    hub 10.77.0.1 (clients, name server), 10.77.0.2 (object store)
     └── bridge ── veth ── machine 10.77.0.11, .12, …      each in a namespace of its own

The hub is the namespace of the thread that makes it, and everything that the thread starts. Nothing has a name outside
of the process, and the kernel removes all of it when the last process has gone. Needs root, `ip` and `nsenter`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from typing import Any

HUB, STORE = "10.77.0.1", "10.77.0.2"
CLONE_NEWNET = 0x40000000


def missing() -> str:
    """Why there can be no namespaces here; "" when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [name for name in ("ip", "nsenter", "setpriv") if shutil.which(name) is None]
    return f"the program {absent[0]} is missing" if absent else ""


def leave_network() -> None:
    """Give this thread, and what it starts from now on, a network of its own. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare: no network namespace")


def apart(work: Callable[[], Any]) -> Any:
    """Run it in a thread with a network of its own, and return or raise what it does."""
    found: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            leave_network()
            found.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="apart")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]


def make_hub() -> None:
    """In a thread that has left its network."""
    _ip("link set lo up", "link add bridge0 type bridge", "link set bridge0 up")
    _ip(f"address add {HUB}/24 dev bridge0", f"address add {STORE}/24 dev bridge0")


class Machine:
    """A namespace with one address. Its cuts may be called by any thread of the hub."""

    def __init__(self, number: int) -> None:
        self.address = f"10.77.0.{10 + number}"
        self._link = f"machine{number}"
        self._lost: set[str] = set()
        self._descriptor: int = apart(lambda: os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        self.inside = ("nsenter", f"--net={path}", "--")
        """Words before a command that runs there."""
        _ip(f"link add {self._link} type veth peer name eth0 netns {path}", f"link set {self._link} master bridge0")
        _ip(f"link set {self._link} up")
        self._ip("link set lo up", "link set eth0 up", f"address add {self.address}/24 dev eth0")

    def unplug(self) -> None:
        """Nothing comes in or goes out."""
        _ip(f"link set {self._link} down")

    def lose(self, address: str) -> None:
        """What this machine sends to that address is lost; what comes from there arrives."""
        if address not in self._lost:
            self._lost.add(address)
            self._ip(f"route add blackhole {address}/32")

    def heal(self) -> None:
        """All links are as at the beginning."""
        _ip(f"link set {self._link} up")
        for address in sorted(self._lost):
            self._ip(f"route del blackhole {address}/32")
        self._lost.clear()

    def close(self) -> None:
        os.close(self._descriptor)

    def _ip(self, *lines: str) -> None:
        _ip(*lines, inside=self.inside)


def _ip(*lines: str, inside: tuple[str, ...] = ()) -> None:
    subprocess.run([*inside, "ip", "-batch", "-"], input="\n".join(lines).encode(), check=True, capture_output=True)
