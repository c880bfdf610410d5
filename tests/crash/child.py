"""The process that a kill test kills: `python child.py '{"root": ..., "mode": ..., ...}'`.

It reports to its parent on standard output, one line each, written by one `os.write`:

    S number topic queue                       about to be put
    A number topic queue offset physical       acknowledged

Modes: `produce` until killed; `open` and `clean`, which go on until the n-th call to the file system and kill
themselves there, so that a seed always dies in the same place.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
from typing import Any

from tiermq import Message
from tiermq.files.os_file_access import OsFileAccess
from tiermq.message.client_batch import BatchElement, encode_client_batch
from tiermq.store.local_store import LocalStore

QUEUES = [("orders", 0), ("orders", 1), ("refunds", 0), ("refunds", 7)]
SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 256 * 1024,
    "mapped_file_size_consume_queue": 20 * 500,
    "max_hash_slot_num": 500,
    "max_index_num": 2000,
    "file_reserved_time": 0,
    "delete_commit_log_files_interval": 0,
    "disk_max_used_space_ratio": 95,
}
THREADS = 3
NUMBERS_PER_THREAD = 1_000_000


def body_of(number: int) -> bytes:
    """Bytes that tell their number, of a length that varies with it."""
    text = f"message {number} ".encode()
    return (text * (number * 37 % 90 + 1))[: max(len(text), number * 7919 % 1500)]


def key_of(number: int) -> str:
    return f"key-{number}"


def properties_of(number: int) -> bytes:
    return f"KEYS\x01{key_of(number)}\x02TAGS\x01tag{number % 5}\x02".encode()


class SelfKillingAccess(OsFileAccess):
    """The real file system, until the n-th call that changes a name or makes a file."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def create(self, path: str, size: int) -> Any:
        self._count()
        return super().create(path, size)

    def create_unsynced(self, path: str, size: int) -> Any:
        self._count()
        return super().create_unsynced(path, size)

    def open(self, path: str, size: int, writable: bool = True) -> Any:
        self._count()
        return super().open(path, size, writable)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)

    def sync_directory(self, path: str) -> None:
        self._count()
        super().sync_directory(path)

    def write_bytes(self, path: str, data: bytes) -> None:
        self._count()
        super().write_bytes(path, data)


def say(lines: list[str]) -> None:
    os.write(1, "".join(lines).encode())


class Producer(threading.Thread):
    """Puts single messages, lists and batches to random queues, and reports each before and after."""

    def __init__(self, store: LocalStore, seed: int, first_number: int) -> None:
        super().__init__(daemon=True)
        self.store = store
        self.random = random.Random(seed)
        self.number = first_number

    def run(self) -> None:
        while True:
            self.step()

    def step(self) -> None:
        count = self.random.choice([1, 1, 1, 4, 16])
        numbers = list(range(self.number, self.number + count))
        self.number += count
        if count == 4:
            topic, queue_id = self.random.choice(QUEUES)
            places = [(topic, queue_id)] * count
        else:
            places = [self.random.choice(QUEUES) for _ in numbers]
        say([f"S {number} {topic} {queue_id}\n" for number, (topic, queue_id) in zip(numbers, places, strict=True)])
        results = self.put(numbers, places)
        say(
            [
                f"A {number} {topic} {queue_id} {result.queue_offset} {result.physical_offset}\n"
                for number, (topic, queue_id), result in zip(numbers, places, results, strict=True)
                if result.ok
            ]
        )

    def put(self, numbers: list[int], places: list[tuple[str, int]]) -> list[Any]:
        if len(numbers) == 4:
            elements = [BatchElement(0, body_of(number), properties_of(number)) for number in numbers]
            return list(self.store.put_batch(Message(places[0][0], encode_client_batch(elements), places[0][1])))
        messages = [
            Message(topic, body_of(number), queue_id, encoded_properties=properties_of(number))
            for number, (topic, queue_id) in zip(numbers, places, strict=True)
        ]
        return [self.store.put(messages[0])] if len(messages) == 1 else list(self.store.put_many(messages))


def main() -> None:
    order = json.loads(sys.argv[1])
    access = SelfKillingAccess(order["calls"]) if order["mode"] != "produce" else None
    store = LocalStore.open(
        order["root"], access=access, store_host="127.0.0.1:10911", **{**SMALL, **order.get("settings", {})}
    )
    first = order["first_number"]
    producers = [Producer(store, order["seed"] + at, first + at * NUMBERS_PER_THREAD) for at in range(THREADS)]
    if order["mode"] == "clean":
        while True:
            for _ in range(60):
                producers[0].step()
            store.dispatch_now()
            store.clean_now()
    for producer in producers:
        producer.start()
    if order["mode"] == "open":
        store.close()  # It may have come so far before its last call.
        return
    for producer in producers:
        producer.join()


if __name__ == "__main__":
    main()
