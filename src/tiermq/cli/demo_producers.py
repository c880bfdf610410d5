"""Producers of the demo: several threads that put lists at once, in a child process that is killed, or here.

A list is acknowledged when `put_many` has returned, which with SYNC_FLUSH means that it is on disk. The child tells its
parent of each acknowledged list by a line on its standard output: `queue messages when`, in ns of the machine's clock,
so that a parent that is late still knows how fast it went. A line is shorter than a pipe's atomic write, so lines of
several threads do not mix, and at most the last one is cut by the kill.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from tiermq.cli.demo_orders import (
    LIST_MESSAGES,
    PRODUCERS,
    QUEUES,
    RECORD_BYTES,
    TOPIC,
    body_of,
    key_of,
    number_of,
    queues_of,
    tag_of,
)
from tiermq.errors import StoreError

Told = Callable[[int], None]
"""Told how many more messages were acknowledged."""

_PAGE_BYTES = 4_096
_LOG_FILE_BYTES_MIN, _LOG_FILE_BYTES_MAX = 256 << 10, 16 << 20
_LOG_FILES = 12
_NEVER_MS = 86_400_000


class DemoFailed(StoreError):
    """The demo found a broken promise."""


def store_settings(messages: int) -> dict[str, Any]:
    """Settings for about so many messages: files so small that several are full and can go, tables that suffice."""
    log_file_bytes = min(max(messages * RECORD_BYTES // _LOG_FILES, _LOG_FILE_BYTES_MIN), _LOG_FILE_BYTES_MAX)
    return {
        "flush_disk_type": "SYNC_FLUSH",
        "mapped_file_size_commit_log": log_file_bytes // _PAGE_BYTES * _PAGE_BYTES,
        "mapped_file_size_consume_queue": 20 * 50_000,
        "max_hash_slot_num": 200_000,
        "max_index_num": 800_000,
        "clean_resource_interval": _NEVER_MS,  # Files go when the demo says so, and the account can say why.
    }


def messages_of(queue_id: int, offset: int) -> list[Any]:
    """The list that begins at a place of a queue."""
    from tiermq import Message

    wanted = [number_of(queue_id, offset + each) for each in range(LIST_MESSAGES)]
    return [Message(TOPIC, body_of(each), queue_id, keys=[key_of(each)], tags=tag_of(each)) for each in wanted]


def put_list(store: Any, queue_id: int, offset: int) -> None:
    """Put the list that begins at `offset`, and see that it got its places. Raises DemoFailed."""
    results = store.put_many(messages_of(queue_id, offset))
    refused = [result for result in results if not result.ok]
    if refused:
        raise DemoFailed(
            f"queue {queue_id}: the store refused {len(refused)} of {len(results)} messages with {refused[0].status}"
        )
    if results[0].queue_offset != offset:
        raise DemoFailed(f"queue {queue_id}: expected the next message at {offset}, found {results[0].queue_offset}")


def write_until_killed(directory: str, messages: int) -> None:
    """The child: all producers put until somebody kills this process, or one of them fails.

    A parent that comes late to the kill finds `messages` and a list for each queue at most; the producers wait then.
    """
    from tiermq import LocalStore

    failed = threading.Event()
    end = -(-messages // QUEUES)

    def produce(producer: int) -> None:
        offset = 0
        try:
            while not failed.is_set() and offset < end:
                for queue_id in queues_of(producer):
                    put_list(store, queue_id, offset)
                    os.write(1, b"%d %d %d\n" % (queue_id, offset + LIST_MESSAGES, time.monotonic_ns()))
                offset += LIST_MESSAGES
            failed.wait()
        finally:
            failed.set()

    with LocalStore.open(directory, **store_settings(messages)) as store, ThreadPoolExecutor(PRODUCERS) as pool:
        for running in [pool.submit(produce, producer) for producer in range(PRODUCERS)]:
            running.result()


def killed_producers(directory: Path, messages: int, told: Told) -> tuple[list[int], float]:
    """Run the child for half of `messages`, then kill it: what it acknowledged, by queue, and how fast.

    Raises DemoFailed when it ends by itself.
    """
    code = (
        f"from tiermq.cli.demo_producers import write_until_killed; write_until_killed({str(directory)!r}, {messages})"
    )
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=errors) as child,
    ):
        assert child.stdout is not None
        acknowledged, rate = _follow(child, child.stdout, messages // 2, told)
        child.wait()
        if child.returncode != -signal.SIGKILL:
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip().rpartition("\n")[2]  # Of a traceback the error.
            raise DemoFailed(
                f"the producers in {directory} were to be killed, but ended by themselves with code "
                f"{child.returncode}: {said}"
            )
    return acknowledged, rate


def _follow(child: subprocess.Popen[bytes], lines: IO[bytes], messages: int, told: Told) -> tuple[list[int], float]:
    acknowledged = [0] * QUEUES
    first_ns, last_ns, killed = 0, 0, False
    # After the kill the loop goes on until the pipe is empty: what is still in it was acknowledged too.
    for line in lines:
        if not line.endswith(b"\n"):  # Cut by the kill.
            continue
        queue_id, count, when_ns = map(int, line.split())
        told(count - acknowledged[queue_id])
        acknowledged[queue_id] = count
        first_ns, last_ns = first_ns or when_ns, max(last_ns, when_ns)
        if not killed and sum(acknowledged) >= messages:
            os.kill(child.pid, signal.SIGKILL)
            killed = True
    # The first list pays for starting up, so the rate leaves it out.
    return acknowledged, (sum(acknowledged) - LIST_MESSAGES) * 1e9 / max(1, last_ns - first_ns)


def fill_up(store: Any, held: Sequence[int], wanted: Sequence[int], told: Told) -> None:
    """Let all producers put, at once, what the queues lack of `wanted`, and perhaps a part of a list more."""

    def produce(producer: int) -> None:
        places = {queue_id: held[queue_id] for queue_id in queues_of(producer)}
        while places := {queue_id: at for queue_id, at in places.items() if at < wanted[queue_id]}:
            for queue_id, at in places.items():
                put_list(store, queue_id, at)
                told(LIST_MESSAGES)
                places[queue_id] = at + LIST_MESSAGES

    with ThreadPoolExecutor(PRODUCERS) as pool:
        for running in [pool.submit(produce, producer) for producer in range(PRODUCERS)]:
            running.result()
