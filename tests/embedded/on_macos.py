"""The embedded store and the client on what Python has on macOS: what only Linux has is taken away, /proc too.

python on_macos.py put DIRECTORY      puts into two stores, and dies before one is closed; prints nothing
python on_macos.py read DIRECTORY     opens, recovers, checks and reads them, then runs a broker with a client

Not replaced: the kernel. So the layout of its answer about a lock stays that of Linux.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib
import os
import selectors
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from test_other_systems import MODULES, names_of

MESSAGES = 5_000
BEFORE = ("asyncio", "concurrent.futures.thread", "ssl", "subprocess", "tempfile", "urllib.request", "uuid")
"""Modules of Python that look at the system when they are imported."""
MISSING_CALLS = ("fallocate", "fallocate64", "mallopt", "malloc_trim", "mmap64", "prctl", "syncfs")
BODIES = [b"%d" % number for number in range(MESSAGES)]


class MacLibrary:
    """The C library without what only Linux has."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._library = _cdll(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        if name in MISSING_CALLS:
            raise AttributeError(f"symbol not found: {name}")
        return getattr(self._library, name)


_cdll = ctypes.CDLL


def without_proc(call: Callable[..., Any]) -> Callable[..., Any]:
    def refusing(path: Any, *arguments: Any, **options: Any) -> Any:
        if str(path).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", path)
        return call(path, *arguments, **options)

    return refusing


def become_macos() -> None:
    for name in BEFORE:
        importlib.import_module(name)
    for name in MODULES:
        module = importlib.import_module(name)
        for absent in (names_of(name, "linux") - names_of(name, "darwin")) & vars(module).keys():
            delattr(module, absent)
    setattr(ctypes, "CDLL", MacLibrary)  # noqa: B010 - its type is another
    builtins.open = without_proc(open)
    for call in ("open", "stat", "readlink", "listdir", "scandir"):
        setattr(os, call, without_proc(getattr(os, call)))
    sys.modules["uvloop"] = None  # type: ignore[assignment] # An import raises ImportError.
    selectors.DefaultSelector = selectors.PollSelector  # type: ignore[assignment,misc] # Not epoll; kqueue is not here.
    sys.platform = "darwin"


become_macos()

import tiermq  # noqa: E402 - what this file is about
from tiermq import LocalStore, Message, TieredStore  # noqa: E402
from tiermq.cli.main import cli  # noqa: E402
from tiermq.files import system_calls  # noqa: E402
from tiermq.store.readonly.directory import LockQuestion  # noqa: E402
from tiermq.testing import LocalBroker  # noqa: E402

assert not system_calls.ON_LINUX
LockQuestion.__init__.__defaults__ = (True,)


def put(directory: Path) -> None:
    messages = [Message("orders", body, keys=[f"k{body.decode()}"]) for body in BODIES]
    with TieredStore.open(directory / "clean", tier=directory / "tier") as clean:
        clean.put_many(messages)
        with clean.consumer("orders", "audit") as consumer:
            assert next(iter(consumer)).body == b"0"
    crashed = LocalStore.open(directory / "crashed", flush_disk_type="SYNC_FLUSH")
    crashed.put_many(messages)
    os._exit(0)


def read(directory: Path) -> None:
    with LocalStore.open(directory / "crashed", flush_disk_type="SYNC_FLUSH") as crashed:
        assert [message.body for message in crashed.read("orders")] == BODIES
        assert [message.body for message in crashed.query("orders", "k7")] == [b"7"]
        assert cli(["store", "stat", str(directory / "crashed")], standalone_mode=False) in (None, 0)
        crashed.put(Message("orders", b"more"))
    for words in (["store", "check", str(directory / "crashed")], ["store", "check", str(directory / "clean")]):
        assert cli(words, standalone_mode=False) in (None, 0)
    with TieredStore.open(directory / "restored", tier=directory / "tier", restore=True) as restored:
        assert [message.body for message in restored.read("orders")] == BODIES
    with LocalBroker(directory / "broker", tier=(directory / "broker-tier").as_uri()) as broker:
        with tiermq.connect(broker.name_server) as cluster, cluster.producer("shop") as producer:
            producer.send(Message("orders", b"sent"))
        assert [message.body for message in broker.messages("orders")] == [b"sent"]


if __name__ == "__main__":
    {"put": put, "read": read}[sys.argv[1]](Path(sys.argv[2]))
