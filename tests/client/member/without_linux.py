"""Sends and consumes where there is nothing that only Linux has: no modules of Unix, no uvloop.

python without_linux.py NAME_SERVER OFFSETS_FILE                     prints each body that it got, sync and async
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from types import ModuleType

ONLY_POSIX = ("fcntl", "grp", "mmap", "posix_spawn", "pty", "pwd", "resource", "syslog", "termios", "uvloop")


def forget(module: ModuleType, *beginnings: str) -> None:
    for name in [name for name in vars(module) if name.startswith(beginnings)]:
        delattr(module, name)


for absent in ONLY_POSIX:
    sys.modules[absent] = None  # type: ignore[assignment] # An import raises ImportError, as on a system without it.
forget(
    os, "fork", "posix_", "pread", "pwrite", "sched_", "sendfile", "splice", "preadv", "pwritev", "fdatasync",
    "statvfs", "O_DIRECT", "O_DSYNC", "getuid", "geteuid", "fchmod", "uname", "memfd", "copy_file_range", "eventfd",
)  # fmt: skip
forget(socket, "AF_NETLINK", "SO_REUSEPORT", "TCP_QUICKACK", "TCP_CORK", "TCP_USER_TIMEOUT", "TCP_INFO")
forget(signal, "SIGKILL", "SIGHUP", "SIGUSR", "SIGCHLD", "SIGALRM")
for absent in ("add_reader", "add_writer", "add_signal_handler", "create_unix_connection"):  # Not in Windows' loop.
    setattr(asyncio.SelectorEventLoop, absent, None)
sys.platform = "win32"

import tiermq  # noqa: E402 - what this file is about
from tiermq import Decision, Message  # noqa: E402
from tiermq.client.member.received_message import ReceivedMessage  # noqa: E402


def sync(name_server: str, offsets: Path) -> None:
    with tiermq.connect(name_server) as cluster:
        with cluster.producer("shop", check=lambda _message: Decision.COMMIT) as producer:
            producer.send(Message("orders", b"sent", keys=["k"], tags="paid"))
            producer.send_later(Message("orders", b"sent later " * 1_000)).result()
            with producer.transaction(Message("orders", b"decided")):
                pass
        with cluster.consumer("audit", topic="orders", start="first") as consumer:
            for _ in range(3):
                print("sync", next(consumer).body[:10].decode().strip())
        options = {"topic": "orders", "start": "first", "broadcast": True, "offsets_file": offsets}
        with cluster.consumer("all", **options) as consumer:  # type: ignore[arg-type]
            next(consumer)


async def asynchronous(name_server: str) -> None:
    async with tiermq.aconnect(name_server) as cluster:
        async with cluster.simple_consumer("pops", topic="orders", start="first") as consumer:
            found: list[ReceivedMessage] = []
            while len(found) < 3:
                got = await consumer.receive(3, wait_s=5)
                for message in got:
                    await consumer.ack(message)
                found += got
        for message in found:
            print("async", message.body[:10].decode().strip())


if __name__ == "__main__":
    sync(sys.argv[1], Path(sys.argv[2]))
    asyncio.run(asynchronous(sys.argv[1]))
