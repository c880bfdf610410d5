"""Reads the golden directories: what the real RocketMQ wrote, and what was sent to it.

How they were made is in `tests/interop/make_golden.py`. Nothing here uses TierMQ: the walk over the commit log knows
the first eight bytes of a record and no more, so that it cannot repeat a mistake of ours.
"""

from __future__ import annotations

import ipaddress
import json
import re
import shutil
import struct
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ALL_NAMES = sorted(path.parent.name for path in HERE.glob("*/settings.json"))
TRIMMED_NAMES = [name for name in ALL_NAMES if "-trimmed" in name]
"""Directories whose oldest log files are deleted."""
NAMES = [name for name in ALL_NAMES if name not in TRIMMED_NAMES]
"""Directories that still hold everything that was ever stored in them."""
MAGICS_OF_RECORDS = (0xDAA320A7, 0xDAA320AB)
MAGIC_OF_BLANK = 0xCBD43194

Fact = dict[str, Any]


@cache
def golden(name: str) -> Golden:
    return Golden(name)


class Golden:
    """One golden directory. Never written to; `copy_store` makes a copy that a test may change."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.store = HERE / name / "store"
        self.settings: Fact = json.loads((HERE / name / "settings.json").read_text(encoding="utf-8"))
        lines = (HERE / name / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
        facts = [json.loads(line) for line in lines]
        self.sent = [fact for fact in facts if fact["kind"] == "sent"]
        self.stored = [_with_plain_hosts(fact) for fact in facts if fact["kind"] == "stored"]
        self.queries = [fact for fact in facts if fact["kind"] == "query"]
        self.offset_searches = [fact for fact in facts if fact["kind"] == "offset_at"]

    @property
    def crashed(self) -> bool:
        return bool(self.settings["ended"] == "crash")

    @property
    def python_settings(self) -> Fact:
        """The store settings in snake_case, as TierMQ spells them."""
        return {re.sub("([A-Z]+)", r"_\1", name).lower(): value for name, value in self.settings["store"].items()}

    def copy_store(self, target: Path) -> Path:
        shutil.copytree(self.store, target)
        return target

    @cached_property
    def commit_log_files(self) -> dict[int, bytes]:
        """Base offset → bytes of each commit-log file."""
        return {int(path.name): path.read_bytes() for path in sorted((self.store / "commitlog").iterdir())}

    @cached_property
    def records(self) -> dict[int, bytes]:
        """Physical offset → bytes of each record, in the log's order."""
        return dict(self._walk())

    def _walk(self) -> Iterator[tuple[int, bytes]]:
        for base, data in self.commit_log_files.items():
            position = 0
            while position < len(data):
                size, magic = struct.unpack_from(">iI", data, position)
                if size == 0:
                    assert not any(data[position:]), f"bytes after the end of the log in {self.name} at {position}"
                    break
                if magic != MAGIC_OF_BLANK:
                    assert magic in MAGICS_OF_RECORDS, f"{self.name}: magic {magic:#x} at {base + position}"
                    yield base + position, data[position : position + size]
                position += size

    def queue_bytes(self, kind: str) -> dict[tuple[str, int], bytes]:
        """(topic, queue) → bytes of all its files, for `consumequeue` or `batchconsumequeue`."""
        queues = sorted((self.store / kind).glob("*/*"))
        return {
            (queue.parent.name, int(queue.name)): b"".join(path.read_bytes() for path in sorted(queue.iterdir()))
            for queue in queues
        }

    def index_files(self) -> list[bytes]:
        """The index files, oldest first."""
        return [path.read_bytes() for path in sorted((self.store / "index").iterdir())]


def _with_plain_hosts(fact: Fact) -> Fact:
    """Java writes `0:0:0:0:0:0:0:1:80`, TierMQ `[::1]:80`: both as (packed address, port)."""
    for name in ("born_host", "store_host"):
        address, _, port = fact[name].rpartition(":")
        fact[name] = (ipaddress.ip_address(address).packed, int(port))
    return fact
