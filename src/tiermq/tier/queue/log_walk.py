"""LogWalk: a range of a queue's commit log by its own bytes; the queue's units are not asked.

    | records | end mark | records | damage | records | cut record

Records come as `take` recognises them, end marks are passed over, and everything else is damage. Behind damage the
walk continues at the next bytes that are a record, or ends there. Memory: one window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from tiermq.message.layout import MAGIC_AT, MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC
from tiermq.message.record_head import HeadKind, RecordHead, read_head
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.metadata_values import NEVER_MS
from tiermq.tier.queue.records import CODA_BYTES, ReadLog, is_coda, read_window
from tiermq.tier.queue.segments import END, UNREADABLE, StoredSegment, end_of

TAIL_WINDOW_BYTES = 1 << 20
_MAGICS = tuple((magic & 0xFFFFFFFF).to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))

T = TypeVar("T")
Take: TypeAlias = Callable[[memoryview, int], tuple[int, T] | None]
"""(bytes, their log offset) -> how many of the first bytes are whole records, and what they are; None: no record."""


def take_head(window: memoryview, at: int) -> tuple[int, RecordHead] | None:
    """One record by its fixed part and lengths; its body is not checked."""
    head = read_head(window)
    return (head.size, head) if head.kind is HeadKind.OK and head.physical_offset == at else None


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
        self._read, self._end, self._take, self._damage = read, end, take, damage
        self._window_bytes, self._record_max = window_bytes, record_max
        self.at = begin
        self.torn = ""

    def __iter__(self) -> Iterator[T]:
        while self.at < self._end and not self.torn:
            begun = self.at
            try:
                window = memoryview(read_window(self._read, begun, self._end, self._window_bytes, self._record_max))
            except UNREADABLE:
                if self._damage is None:
                    raise
                self.at = min(begun + self._window_bytes, self._end)
                yield self._damage(begun, self.at)
                continue
            yield from self._in_window(window)
            if self.at == begun and not self.torn:
                self._want_more(window)

    def _in_window(self, window: memoryview) -> Iterator[T]:
        """All of a window but a cut record at its end, with which the next window begins."""
        begun, is_end = self.at, self.at + len(window) >= self._end
        while len(window):
            if is_coda(window) and _mark_bytes(window) == CODA_BYTES <= len(window):
                self.at, window = self.at + CODA_BYTES, window[CODA_BYTES:]
                continue
            taken = self._take(window, self.at)
            if taken is not None:
                self.at, window = self.at + taken[0], window[taken[0] :]
                yield taken[1]
                continue
            head = read_head(window)
            is_cut = head.kind is HeadKind.HALF or (head.kind is HeadKind.BLANK and len(window) < CODA_BYTES)
            if self._damage is None:
                self.torn = "" if is_cut else _why_none(head)
                return
            if is_cut and begun < self.at and not is_end and head.size <= self._record_max:
                return
            length = self._damaged_bytes(window, is_end)
            yield self._damage(self.at, self.at + length)
            self.at, window = self.at + length, window[length:]

    def _want_more(self, window: memoryview) -> None:
        """A cut record, or end mark, at the beginning of a window."""
        wanted, left = max(read_head(window).size, SIZE_AND_MAGIC.size), self._end - self.at
        if len(window) < wanted <= left:
            self._window_bytes *= 2  # It is too small to hold even a head, or an end mark.
        else:
            self.torn = f"a record of {wanted} bytes, of which only {left} are there"

    def _damaged_bytes(self, window: memoryview, is_end: bool) -> int:
        """How many bytes there are before the next record in the window."""
        data, position = bytes(window), 1
        while True:
            found = [at for magic in _MAGICS if (at := data.find(magic, position + MAGIC_AT)) >= 0]
            if not found:
                # The next record may begin in the last bytes, with its magic in the window that follows.
                return len(window) if is_end else max(1, len(window) - MAGIC_AT - 3)
            position = min(found) - MAGIC_AT
            if self._take(window[position:], self.at + position) is not None:
                return position
            position += 1


def _mark_bytes(window: memoryview) -> int:
    """The size that an end mark claims; one with another size than its own is damage."""
    return int(SIZE_AND_MAGIC.unpack_from(window)[0])


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

    def read(at: int, length: int) -> memoryview:
        return driver.read(segment.key, at - segment.key.base, length)

    heads, tail = LogWalk(read, begin, end_of(segment), take_head, window_bytes=window_bytes), LogTail(begin, begin)
    for head in heads:
        tail.record_count += 1
        if tail.first_queue_offset < 0:
            tail.first_queue_offset = head.queue_offset
        tail.last_queue_offset = head.queue_offset
        tail.begin_ms = min(tail.begin_ms, head.store_timestamp_ms)
        tail.end_ms = max(tail.end_ms, head.store_timestamp_ms)
    tail.end, tail.torn = heads.at, heads.torn
    return tail
