"""Stores that fit a test: files of a few kilobytes, on a simulated disk and without threads unless a test asks.

A store on a simulated disk repeats itself step by step: nothing is dispatched before `dispatch_now`, nothing is flushed
before `flush`. `killed` and `power_cut` give the disk as the next process would find it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from tiermq import GetStatus, Message, PutResult
from tiermq.clock import Clock
from tiermq.files.file_access import FileAccess
from tiermq.message.stored_message import StoredMessage
from tiermq.store.local_store import LocalStore

ROOT = "/store"
LOG_BYTES = 16 * 1024
SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": LOG_BYTES,
    "mapped_file_size_consume_queue": 50 * 20,
    "mapped_file_size_consume_queue_ext": 4096,
    "mapper_file_size_batch_consume_queue": 20 * 46,
    "max_hash_slot_num": 64,
    "max_index_num": 200,
    "delete_commit_log_files_interval": 0,
}
PATIENCE_MS = 3_600_000
PATIENT = {"sync_flush_timeout": PATIENCE_MS, "os_page_cache_busy_time_out_mills": PATIENCE_MS}
"""A put is refused when the disk or another put takes longer than a second or five. Machines that run tests do that."""


def on_simulation(
    access: FileAccess | None = None, *, clock: Clock | None = None, background: bool = False, **settings: Any
) -> LocalStore:
    """A store on a simulated disk (a new one when none is given), at a standing clock, without threads."""
    return patient(
        LocalStore.open(
            ROOT,
            access=access if access is not None else SimulatedFileAccess(),
            clock=clock if clock is not None else ManualClock(),
            background=background,
            **{**SIZES, **PATIENT, **settings},
        )
    )


def on_disk(path: Path, **settings: Any) -> LocalStore:
    """A store on the real disk, with its threads and the machine's clock."""
    return patient(LocalStore.open(path, **{**SIZES, **PATIENT, **settings}))


def patient(store: LocalStore) -> LocalStore:
    """Let it wait for its next log file as long as it takes, which no setting says."""
    store._parts.allocator._wait_ms = PATIENCE_MS
    return store


def pause_dispatch(store: LocalStore) -> None:
    """Leave what is put undispatched until `resume_dispatch` or `dispatch_now`."""
    store._parts.reput.paused = True
    with store._parts.dispatch.lock:  # The current round is over when the lock is ours.
        pass


def resume_dispatch(store: LocalStore) -> None:
    store._parts.reput.paused = False
    store._parts.reput.wake()


def body(number: int, size: int = 40) -> bytes:
    return f"body {number} ".encode().ljust(size, b".")


def put_all(
    store: LocalStore, count: int, topic: str = "T", queue_id: int = 0, *, first: int = 0, size: int = 40, **fields: Any
) -> list[PutResult]:
    """Put numbered messages, dispatch them, and make sure that each was stored."""
    results = [
        store.put(Message(topic, body(number, size), queue_id, **fields)) for number in range(first, first + count)
    ]
    assert [result for result in results if not result.ok] == []
    if store.config.flush_disk_type.name == "ASYNC_FLUSH":
        store.dispatch_now()
    return results


def read_all(store: LocalStore, topic: str = "T", queue_id: int = 0) -> list[StoredMessage]:
    """Every message of a queue, page by page, as a consumer reads it."""
    found: list[StoredMessage] = []
    offset = store.min_offset(topic, queue_id)
    while True:
        page = store.get(topic, queue_id, offset)
        if page.status in (
            GetStatus.OFFSET_OVERFLOW_ONE,
            GetStatus.NO_MATCHED_LOGIC_QUEUE,
            GetStatus.NO_MESSAGE_IN_QUEUE,
        ):
            return found
        assert page.next_offset > offset, page
        found.extend(page.messages)
        offset = page.next_offset


def bodies(store: LocalStore, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [message.body for message in read_all(store, topic, queue_id)]


def numbered(count: int, first: int = 0, size: int = 40) -> list[bytes]:
    return [body(number, size) for number in range(first, first + count)]


def killed(access: SimulatedFileAccess) -> SimulatedFileAccess:
    """The disk after the process died: every byte that it stored is there."""
    return access.crash(lambda path, page: True)


def power_cut(access: SimulatedFileAccess) -> SimulatedFileAccess:
    """The disk after a power cut that kept nothing but what was synced."""
    return access.crash(lambda path, page: False)


def overwrite(access: SimulatedFileAccess, path: str, position: int, data: bytes) -> None:
    """Change bytes of a file behind everybody's back; a negative position counts from its end."""
    file = access._entries[f"{ROOT}/{path}"]
    start = position if position >= 0 else len(file.current) + position
    for image in (file.current, file.synced):
        image[start : start + len(data)] = data


def contents(access: SimulatedFileAccess, under: str = "") -> dict[str, bytes]:
    """The bytes of every file below a directory of the store."""
    prefix = f"{ROOT}/{under}"
    return {path: bytes(file.current) for path, file in access._entries.items() if path.startswith(prefix)}


def remove_tree(access: SimulatedFileAccess, under: str) -> None:
    """Delete a directory of the store with everything in it, durably."""
    prefix = f"{ROOT}/{under}"
    for table in (access._entries, access._durable):
        for path in [path for path in table if path.startswith(prefix)]:
            del table[path]
    access._directories = {path for path in access._directories if not path.startswith(prefix)}


def log_file(number: int, size: int = LOG_BYTES) -> str:
    return f"commitlog/{number * size:020d}"


def log_place(physical_offset: int, size: int = LOG_BYTES) -> tuple[str, int]:
    """The file and the position in it of a physical offset."""
    return log_file(physical_offset // size, size), physical_offset % size
