"""What the machine itself can do with the bytes of the tier's works.

SequentialWrites  pwrite + fdatasync of the chunks of an upload, one after the other into one new file
PlainReads        the files of all commit logs, once, into the same memory; nothing is looked at
PageReads         one pread for each page, where it lies
KeyReads          three for each key: its slot, its item, its record
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.compare.tier_data import QUEUE_COUNT, QUEUES, RECORD_BYTES, TOPICS, Amount, Chance
from benchmarks.harness import timed
from benchmarks.report import Round

READ_BYTES = 1 << 20
SLOT_BYTES, ITEM_BYTES, INDEX_HEADER_BYTES = 8, 28, 28


class SequentialWrites:
    """One round is a new file."""

    def __init__(self, path: Path, amount: Amount) -> None:
        self._path = path
        self._amount = amount
        self._chunks = list(amount.chunks())
        self._source = memoryview(os.urandom(max(self._chunks)))

    def round(self) -> Round:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            return timed(lambda: self._work(descriptor))
        finally:
            os.close(descriptor)
            self._path.unlink()

    def _work(self, descriptor: int) -> tuple[int, int]:
        at = 0
        for length in self._chunks:
            at += os.pwrite(descriptor, self._source[:length], at)
            os.fdatasync(descriptor)
        if at != sum(self._chunks):
            raise RuntimeError(f"expected {sum(self._chunks)} bytes written, found {at}")
        return self._amount.messages, self._amount.bytes


def open_logs(stack: ExitStack, tier: Path) -> list[int]:
    """Descriptors of the commit logs of a tier: one file for each queue."""
    found = []
    for path in sorted(tier.rglob("COMMIT_LOG/*")):
        if path.suffix == "":
            descriptor = os.open(path, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            found.append(descriptor)
    return found


class PlainReads:
    """One round reads everything once."""

    def __init__(self, logs: Sequence[int], amount: Amount) -> None:
        self._logs = logs
        self._amount = amount
        self._memory = bytearray(READ_BYTES)

    def round(self) -> Round:
        return timed(self._work)

    def _work(self) -> tuple[int, int]:
        total, memory = 0, [self._memory]
        for descriptor in self._logs:
            at = 0
            while count := os.preadv(descriptor, memory, at):
                at += count
            total += at
        if total != self._amount.bytes:
            raise RuntimeError(f"expected {self._amount.bytes} bytes of records, found {total}")
        return self._amount.messages, total


class PageReads:
    """The n-th round reads the pages of both sides' n-th."""

    def __init__(self, logs: Sequence[int], amount: Amount, page: int, count: int) -> None:
        self._logs, self._amount = logs, amount
        self._page, self._count = page, count
        self._seeds = itertools.count(1)
        self._memory = bytearray(page * RECORD_BYTES)
        if len(logs) != QUEUE_COUNT:
            raise RuntimeError(f"expected {QUEUE_COUNT} commit logs of one file each, found {len(logs)}")

    def round(self) -> Round:
        return timed(self._work)

    def _work(self) -> tuple[int, int]:
        chance, last, size = Chance(next(self._seeds)), self._amount.per_queue - self._page, 0
        for _ in range(self._count):
            log = self._logs[chance.below(len(TOPICS)) * QUEUES + chance.below(QUEUES)]
            size += os.preadv(log, [self._memory], chance.below(last) * RECORD_BYTES)
        return self._count * self._page, size


class KeyReads:
    """One round reads as often as an uploaded index asks for it, at places of chance."""

    def __init__(self, index: int, logs: Sequence[int], amount: Amount, count: int) -> None:
        self._index, self._logs, self._amount = index, logs, amount
        self._count = count
        self._seeds = itertools.count(1)

    def round(self) -> Round:
        return timed(self._work)

    def _work(self) -> tuple[int, int]:
        chance, size = Chance(next(self._seeds)), 0
        slots, items = self._amount.slots, self._amount.messages
        first_item = INDEX_HEADER_BYTES + SLOT_BYTES * slots
        for _ in range(self._count):
            number = chance.below(self._amount.messages)
            os.pread(self._index, SLOT_BYTES, INDEX_HEADER_BYTES + SLOT_BYTES * (number % slots))
            os.pread(self._index, ITEM_BYTES, first_item + ITEM_BYTES * (number % items))
            place = number // QUEUE_COUNT * RECORD_BYTES
            size += len(os.pread(self._logs[number % QUEUE_COUNT], RECORD_BYTES, place))
        return self._count, size
