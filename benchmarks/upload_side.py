"""TierMQ's side of the benchmarks of the tier: filled index files, stores with a tier, drivers that count."""

from __future__ import annotations

import hashlib
import mmap
import random
import struct
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks import workload
from benchmarks.harness import timed
from benchmarks.report import Round
from tiermq.files.os_file_access import OsFileAccess
from tiermq.kernel import rearrange_index
from tiermq.tier.index.index_table import IndexTable
from tiermq.tier.queue.records import RecordBatch

BEGIN_MS = 1_700_000_000_000
KEYS_PER_RECORD = 60
RECORDS_PER_BATCH = 512


def batch_of_keys(keys: int, log_offset: int, source: random.Random) -> RecordBatch:
    """Records whose only purpose is their keys: random ones of 16 characters, many to a record."""
    data, units = bytearray(), bytearray()
    while keys > 0:
        count = min(keys, KEYS_PER_RECORD)
        keys -= count
        properties = b"KEYS\x01" + source.randbytes(8 * count).hex(" ", 8).encode() + b"\x02"
        size = workload.HEAD.size + 3 + len(workload.TOPICS[0]) + len(properties)
        units += struct.pack(">qiq", log_offset + len(data), size, 0)
        data += workload.HEAD.pack(
            size, workload.MAGIC, 0, 0, 0, 0, log_offset + len(data), 0,
            BEGIN_MS, *workload.BORN_HOST, BEGIN_MS, *workload.STORE_HOST, 0, 0, 0,
        )  # fmt: skip
        data += bytes([len(workload.TOPICS[0])]) + workload.TOPICS[0].encode()
        data += struct.pack(">h", len(properties)) + properties
    return RecordBatch(bytes(data), bytes(units), 0, log_offset, BEGIN_MS, BEGIN_MS)


class BeginClock:
    """It is always the time of the first record, so that each file comes out the same."""

    def now_ms(self) -> int:
        return BEGIN_MS

    def monotonic(self) -> float:
        return BEGIN_MS / 1000


def fill_index_file(directory: Path, slots: int, capacity: int) -> Path:
    """An open index file that is full of random keys; its path."""
    table = IndexTable(OsFileAccess(), str(directory), slots, capacity, BeginClock())
    source = random.Random(8)
    left, offset = capacity - 1, 0
    while left:
        keys = min(left, KEYS_PER_RECORD * RECORDS_PER_BATCH)
        batch = batch_of_keys(keys, offset, source)
        table.put_batch(batch, workload.TOPICS[0], 1, 0)
        left -= keys
        offset += len(batch.data)
    moment = table.moment()
    assert moment is not None
    ((file, facts),) = moment.files
    if facts.item_count != capacity - 1:
        raise RuntimeError(f"expected a file of {capacity - 1} items, found {facts.item_count}")
    table.shut()
    return Path(file.path)


class Rearranging:
    """One full index file, compacted again and again."""

    def __init__(self, path: Path, slots: int, capacity: int) -> None:
        self._slots, self._capacity = slots, capacity
        self._file = path.open("rb")
        self._map = mmap.mmap(self._file.fileno(), 0, prot=mmap.PROT_READ)
        self.digest = ""

    def round(self) -> Round:
        """One timed round. The memory of the result is fresh, as an upload finds it."""
        found: list[bytes] = []

        def work() -> tuple[int, int]:
            found.append(rearrange_index(self._map, self._slots, self._capacity))
            return self._capacity - 1, len(found[0])

        done = timed(work)
        if not self.digest:
            self.digest = hashlib.sha256(found[0]).hexdigest()
        return done

    def close(self) -> None:
        """Unmap."""
        self._map.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
