"""Kills a broker that uploads, with kill -9, and says what it had promised by then."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiermq.message.stored_message import StoredMessage
from tiermq.tier.tiered_store import TieredStore

CHILD = Path(__file__).with_name("tiering_child.py")
SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 20_000,
    "max_hash_slot_num": 64,
    "max_index_num": 200,
    "tiered_store_commit_log_max_size": 40_000,
    "tiered_store_consume_queue_max_size": 20 * 300,
    "tiered_store_index_file_max_hash_slot_num": 64,
    "tiered_store_index_file_max_index_num": 500,
}


@dataclass
class Promised:
    """What the dead have acknowledged: offset to number, per queue; below which number all is in the tier for sure."""

    queues: dict[int, dict[int, int]] = field(default_factory=lambda: {0: {}, 1: {}, 2: {}})
    next_number: int = 0
    tiered: int = 0

    def add(self, line: str) -> None:
        if line == "tiered":
            self.tiered = self.next_number
            return
        number, offset = map(int, line.split())
        self.queues[number % 3][offset] = number
        self.next_number = max(self.next_number, number + 1)


def run_and_kill(
    directory: Path, url: str, promised: Promised, rounds: int, environment: Mapping[str, str] | None = None
) -> None:
    """Let a broker go on from where the last one was killed, until it has uploaded so many times; then kill it."""
    settings = [f"{name}={value}" for name, value in SIZES.items()]
    # Messages that the last one stored but could not acknowledge any more keep their numbers for themselves.
    command = [sys.executable, str(CHILD), str(directory), url, str(promised.next_number + 100_000), *settings]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
    ) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                promised.add(line.strip())
                rounds -= line == "tiered\n"
                if not rounds:
                    break
        finally:
            child.kill()
        for line in child.stdout:  # What was in the pipe was acknowledged too.
            if line.endswith("\n"):
                promised.add(line.strip())


def everything(store: TieredStore, queue_id: int) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    offset = store.min_offset("orders", queue_id)
    while offset < store.max_offset("orders", queue_id):
        page = store.get("orders", queue_id, offset)
        assert page.next_offset > offset, page
        found += page.messages
        offset = page.next_offset
    return found


def check(store: TieredStore, promised: Promised, *, tiered_only: bool = False) -> None:
    """Every promise is kept, at its offset, once; offsets have no hole and no double."""
    for queue_id, offsets in promised.queues.items():
        messages = everything(store, queue_id)
        assert [message.queue_offset for message in messages] == list(range(len(messages)))
        numbers = [int(message.body) for message in messages]
        assert len(set(numbers)) == len(numbers)
        for offset, number in offsets.items():
            if not tiered_only or number < promised.tiered:
                assert numbers[offset] == number
        for number in numbers[:: max(1, len(numbers) // 5)]:
            found = store.query("orders", f"key-{number}").messages
            assert [int(message.body) for message in found] == [number]
