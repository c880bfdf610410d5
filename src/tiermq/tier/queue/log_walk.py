"""LogWalk: a range of a queue's commit log by its own bytes; the queue's units are not asked.

    | records | end mark | records | damage | records | cut record

Records come as `take` recognises them, end marks are passed over, and everything else is damage. Behind damage the
walk continues at the next bytes that are a record, or ends there. Memory: one window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.message.layout import MAGIC_AT, MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC
from tiermq.message.record_head import HeadKind, RecordHead, read_head
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.metadata_values import NEVER_MS
from tiermq.tier.names import SegmentKey
from tiermq.tier.queue.records import CODA_BYTES, ReadLog, derive_units, is_whole_coda
from tiermq.tier.queue.segments import END, UNREADABLE, StoredSegment, end_of
from tiermq.tier.queue.units import log_range

TAIL_WINDOW_BYTES = 1 << 20
_MAGICS = tuple((magic & 0xFFFFFFFF).to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))

T = TypeVar("T")
Take: TypeAlias = Callable[[memoryview, int], tuple[int, T] | None]
"""(bytes, their log offset) -> how many of the first bytes are whole records, and what they are; None: no record."""


def read_in(driver: TierDriver, key: SegmentKey) -> ReadLog:
    """Reads bytes of one segment by their log offset."""
    return lambda at, length: driver.read(key, at - key.base, length)


def take_head(window: memoryview, at: int) -> tuple[int, RecordHead] | None:
    """One record by its fixed part and lengths; its body is not checked."""
    head = read_head(window)
    return (head.size, head) if head.kind is HeadKind.OK and head.physical_offset == at else None


def take_in_order(queue_offset: int) -> Take[bytes]:
    """The units of whole records that are numbered from `queue_offset` on without a gap."""

    def take(window: memoryview, at: int) -> tuple[int, bytes] | None:
        nonlocal queue_offset
        units = derive_units(window, at, queue_offset)
        queue_offset += len(units) // UNIT_BYTES
        return (log_range(units)[1] - at, units) if units else None

    return take


class LogWindow:
    """A range of the log, read a window at a time: `data` are its bytes from `at` on, as far as they were read.

    A step that needs more reads the window again, from `at` on: joining windows would copy far more than that.
    """

    __slots__ = ("_read", "_window_bytes", "at", "data", "end")

    def __init__(self, read: ReadLog, begin: int, end: int, window_bytes: int) -> None:
        self._read, self._window_bytes = read, window_bytes
        self.at, self.end = begin, end
        self.data = memoryview(b"")

    @property
    def left(self) -> int:
        """Bytes of the range behind the window."""
        return self.end - self.at - len(self.data)

    def more(self, wanted: int = 0) -> bool:
        """Read a longer window, of `wanted` bytes where the range has so many. False: it did not get longer."""
        before = len(self.data)
        length = max(self._window_bytes, wanted if wanted > before else 2 * before)
        self.data = memoryview(b"")  # Let go of it first, so that its memory is used again.
        self.data = memoryview(self._read(self.at, min(length, self.end - self.at)))
        return len(self.data) > before

    def advance(self, count: int) -> None:
        """Pass over so many bytes; those that are not in the window are read all the same."""
        while count > len(self.data):
            count, self.at = count - len(self.data), self.at + len(self.data)
            self.data = memoryview(b"")
            if not self.more():
                break
        self.at, self.data = self.at + count, self.data[count:]


class LogWalk(Generic[T]):
    """Iterate once. `at` is how far the walk has come; `torn` why it ended before `end`.

    `begin` is a record boundary. With `damage`, which makes a value of a damaged range, the walk continues behind
    damage and unreadable bytes; a record of more than `record_max` bytes is damage then. Without it the first damage
    ends the walk, and the driver's errors are raised.
    """

    def __init__(
        self,
        read: ReadLog,
        begin: int,
        end: int,
        take: Take[T],
        *,
        damage: Callable[[int, int], T] | None = None,
        window_bytes: int = TAIL_WINDOW_BYTES,
        record_max: int = END,
    ) -> None:
        self._log, self._window_bytes = LogWindow(read, begin, end, window_bytes), window_bytes
        self._take, self._damage, self._record_max = take, damage, record_max
        self.torn = ""

    @property
    def at(self) -> int:
        return self._log.at

    def __iter__(self) -> Iterator[T]:
        log, damage = self._log, self._damage
        while log.at < log.end and not self.torn:
            try:
                found = self._next()
            except UNREADABLE:
                if damage is None:
                    raise
                begun, log.at = log.at, min(log.at + self._window_bytes, log.end)
                found = damage(begun, log.at)
            if found is not None:
                yield found

    def _next(self) -> T | None:
        """The next records, or damage; None: an end mark was passed over, or the walk is torn."""
        log = self._log
        if not len(log.data):
            log.more()
        if is_whole_coda(log.data):
            log.advance(CODA_BYTES)
            return None
        taken = self._take(log.data, log.at)
        if taken is not None:
            log.advance(taken[0])
            return taken[1]
        head = read_head(log.data)
        wanted = max(head.size, SIZE_AND_MAGIC.size)
        is_cut = self._is_cut(log.data, head)
        if is_cut and wanted <= log.end - log.at and log.left and log.more(wanted):
            return None
        if self._damage is None:
            there = log.end - log.at
            self.torn = f"a record of {wanted} bytes, of which only {there} are there" if is_cut else _why_none(head)
            return None
        begun = log.at
        log.advance(self._damaged_bytes())
        return self._damage(begun, log.at)

    def _is_cut(self, data: memoryview, head: RecordHead) -> bool:
        """Whether there is only a part of a record, or of an end mark, in `data`."""
        is_mark = head.kind is HeadKind.BLANK and len(data) < CODA_BYTES
        return is_mark or (head.kind is HeadKind.HALF and head.size <= self._record_max)

    def _damaged_bytes(self) -> int:
        """How many bytes there are before the next record in the window, or before one that the window cuts."""
        log = self._log
        data, position = bytes(log.data), 1
        while True:
            found = [at for magic in _MAGICS if (at := data.find(magic, position + MAGIC_AT)) >= 0]
            if not found:
                # The next record may begin in the last bytes, with its magic in the window that follows.
                return len(data) if not log.left else max(1, len(data) - MAGIC_AT - 3)
            position = min(found) - MAGIC_AT
            rest = log.data[position:]
            if self._take(rest, log.at + position) is not None or (log.left and self._is_cut(rest, read_head(rest))):
                return position
            position += 1


def _why_none(head: RecordHead) -> str:
    if head.kind is HeadKind.BLANK:
        return f"an end mark of {head.size} bytes"
    return head.reason or f"a record with the physical offset {head.physical_offset}"


@dataclass(slots=True)
class LogTail:
    """The whole part [begin, end) of a segment's tail in log offsets, the records in it, and why it ends there."""

    begin: int
    end: int
    record_count: int = 0
    first_queue_offset: int = -1
    last_queue_offset: int = -1
    begin_ms: int = NEVER_MS
    end_ms: int = -1
    torn: str = ""


def walk_tail(driver: TierDriver, segment: StoredSegment, begin: int, window_bytes: int = TAIL_WINDOW_BYTES) -> LogTail:
    """How much of a segment is whole from log offset `begin`, a record boundary, on.

    There may be whole records (the writer died between the commit log and the consume queue), an end mark, and on a
    back end that can tear a write a record that is cut.
    """
    read, tail = read_in(driver, segment.key), LogTail(begin, begin)
    heads = LogWalk(read, begin, end_of(segment), take_head, window_bytes=window_bytes)
    for head in heads:
        tail.record_count += 1
        if tail.first_queue_offset < 0:
            tail.first_queue_offset = head.queue_offset
        tail.last_queue_offset = head.queue_offset
        tail.begin_ms = min(tail.begin_ms, head.store_timestamp_ms)
        tail.end_ms = max(tail.end_ms, head.store_timestamp_ms)
    tail.end, tail.torn = heads.at, heads.torn
    return tail
