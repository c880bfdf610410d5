"""FlatSegment: one segment of a flat file, with what is committed in the tier and what still waits.

    0                    commit_position          append_position          max_size
    |  durable in the tier  |  pending, in memory      |                       |

Invariants: pending bytes are exactly [commit_position, append_position); a commit writes them at commit_position, which
moves only when the driver has acknowledged them. A commit whose response was lost is repeated unchanged: the driver
finds the same bytes and appends only what is missing.
Times are those of the records: both NEVER_MS until the first append. Offsets are the queue offsets of the messages in
it, [begin_offset, end_offset), where the owner gives them. The checksum covers the committed bytes; None: not known.
`sums` are those of blocks, of the first committed bytes at least; `FlatAppendFile` reads, and compares the blocks.
Bytes [confirmed_from, commit_position) were confirmed by a checksum of the back end in this process.
Threads: appending is guarded by `_append_lock`; one commit at a time, a second one returns False.
"""

from __future__ import annotations

import enum
import threading

from tiermq.errors import TierUnavailable
from tiermq.message.crc import crc32
from tiermq.tier.block_sums import BlockSums
from tiermq.tier.driver.contract import Buffer, SegmentWrite, TierDriver
from tiermq.tier.metadata.metadata_values import NEVER_MS, UNKNOWN_OFFSET, Segment
from tiermq.tier.names import SegmentKey

PENDING_BUFFERS_MAX = 10_000


class AppendStatus(enum.Enum):
    """Result of an append. Nothing was appended unless it is SUCCESS."""

    SUCCESS = 0
    BUFFER_FULL = 1
    FILE_FULL = 2
    FILE_CLOSED = 3


class FlatSegment:
    """See the module."""

    __slots__ = (  # A job's driver has two for each of 100,000 queues.
        "_append_lock",
        "_commit_lock",
        "_driver",
        "_pending",
        "_pending_buffers_max",
        "_settled",
        "append_position",
        "begin_ms",
        "begin_offset",
        "closed",
        "commit_position",
        "confirmed_from",
        "crc32",
        "created_ms",
        "end_ms",
        "end_offset",
        "grew",
        "key",
        "last_error",
        "max_size",
        "recorded_position",
        "sums",
    )

    def __init__(
        self, driver: TierDriver, segment: Segment, max_size: int, pending_buffers_max: int = PENDING_BUFFERS_MAX
    ) -> None:
        self.key: SegmentKey = segment.key
        self.max_size = max_size
        self.created_ms = segment.created_ms
        self.begin_ms = segment.begin_ms
        self.end_ms = segment.end_ms
        self.begin_offset = segment.begin_offset
        self.end_offset = segment.end_offset
        self.commit_position = segment.size
        self.append_position = segment.size
        self.recorded_position = segment.size  # The size in the metadata's row.
        self.crc32: int | None = 0 if segment.size == 0 else segment.crc32
        self.sums = _sums_of(segment)
        self.confirmed_from = segment.size
        self.last_error: TierUnavailable | None = None
        self._settled = self._facts()
        self.closed = False
        self.grew = False  # Whether the last `take_row` brought something.
        self._driver = driver
        self._pending: list[Buffer] = []
        self._pending_buffers_max = pending_buffers_max
        self._append_lock = threading.Lock()
        self._commit_lock = threading.Lock()

    @property
    def base(self) -> int:
        return self.key.base

    @property
    def commit_offset(self) -> int:
        return self.key.base + self.commit_position

    @property
    def append_offset(self) -> int:
        return self.key.base + self.append_position

    @property
    def pending_bytes(self) -> int:
        return self.append_position - self.commit_position

    def room(self) -> int:
        """How many more bytes fit. An empty segment takes anything besides: a huge message must go somewhere."""
        return max(0, self.max_size - self.append_position)

    def has_room_for(self, length: int) -> bool:
        return self.append_position == 0 or length <= self.room()

    def append(
        self,
        data: Buffer,
        begin_ms: int,
        end_ms: int | None = None,
        *,
        begin_offset: int = UNKNOWN_OFFSET,
        end_offset: int = UNKNOWN_OFFSET,
    ) -> AppendStatus:
        """Take bytes for the next commit; the times and queue offsets are those of the records in them."""
        length = len(data)
        with self._append_lock:
            if self.closed:
                return AppendStatus.FILE_CLOSED
            if not self.has_room_for(length):
                return AppendStatus.FILE_FULL
            if len(self._pending) >= self._pending_buffers_max:
                return AppendStatus.BUFFER_FULL
            if length:
                self._pending.append(data)
                self.append_position += length
                self._widen(begin_ms, begin_ms if end_ms is None else end_ms, begin_offset, end_offset)
            return AppendStatus.SUCCESS

    def note_found(self, begin_ms: int, end_ms: int, begin_offset: int, end_offset: int) -> None:
        """What recovery found in the committed bytes. Only while nothing is pending."""
        self._widen(begin_ms, end_ms, begin_offset, end_offset)
        self._settled = self._facts()

    def _facts(self) -> tuple[int, int, int, int]:
        return self.begin_ms, self.end_ms, self.begin_offset, self.end_offset

    def _widen(self, begin_ms: int, end_ms: int, begin_offset: int, end_offset: int) -> None:
        self.begin_ms = min(self.begin_ms, begin_ms)
        self.end_ms = end_ms if self.end_ms == NEVER_MS else max(self.end_ms, end_ms)
        if self.begin_offset == UNKNOWN_OFFSET:
            self.begin_offset = begin_offset
        self.end_offset = max(self.end_offset, end_offset)

    def commit(self) -> bool:
        """Make what was appended durable. False when the back end is out of reach, another commit is under way, or the
        segment is closed; the bytes stay pending then. Any other failure raises: repeating it would not help.
        """
        if self.closed or not self._commit_lock.acquire(blocking=False):
            return False
        try:
            with self._append_lock:
                pending = list(self._pending)
            if not pending:
                return True
            try:
                is_confirmed = self._driver.write(self.key, self.commit_position, pending)
            except TierUnavailable as error:
                self.last_error = error
                return False
            with self._append_lock:
                del self._pending[: len(pending)]
                sums = self.sums
                for data in pending:
                    self.crc32 = None if self.crc32 is None else crc32(data, self.crc32)
                    sums = sums.extended(data) if sums.size == self.commit_position else sums
                    self.sums = sums  # Before the position: who reads up to there finds the sums of all of it.
                    self.commit_position += len(data)
                if not is_confirmed:
                    self.confirmed_from = self.commit_position
                if not self._pending:
                    self._settled = self._facts()
            self.last_error = None
            return True
        finally:
            self._commit_lock.release()

    def pending_write(self) -> SegmentWrite | None:
        """What a commit would write; None when nothing is pending."""
        with self._append_lock:
            if not self._pending or self.closed:
                return None
            return SegmentWrite(self.key, self.commit_position, list(self._pending))

    def discard_pending(self) -> int:
        """Drop pending bytes; returns their number. The caller asks the tier afterwards which part is stored."""
        with self._commit_lock, self._append_lock:
            dropped = self.pending_bytes
            self._pending.clear()
            self.append_position = self.commit_position
            self.begin_ms, self.end_ms, self.begin_offset, self.end_offset = self._settled
            return dropped

    def set_size(self, size: int) -> None:
        """What recovery found in the tier. Only while nothing is pending."""
        if size != self.commit_position:
            self.crc32 = 0 if size == 0 else None
            self.sums = self.sums.cut(size)
            self.confirmed_from = size
        self.commit_position = self.append_position = size

    def take_row(self, row: Segment) -> bool:
        """Take the size of the metadata, after another process wrote; False when it is smaller than the size here."""
        if row.size < self.commit_position:
            return False
        with self._append_lock:
            self._pending.clear()
            self.grew = row.size > self.commit_position
            self.begin_ms, self.end_ms = row.begin_ms, row.end_ms
            self.begin_offset, self.end_offset = row.begin_offset, row.end_offset
            self.crc32 = 0 if row.size == 0 else row.crc32
            self.sums, self.confirmed_from = _sums_of(row), row.size
            self.append_position = self.commit_position = self.recorded_position = row.size
            self._settled = self._facts()
            return True

    def close(self, timeout_s: float = -1) -> bool:
        """Take nothing more, and wait for the commit that is under way; False when it outlasted `timeout_s`."""
        self.closed = True
        if not self._commit_lock.acquire(timeout=timeout_s):
            return False
        self._commit_lock.release()
        return True


def _sums_of(segment: Segment) -> BlockSums:
    return BlockSums.of_nothing(segment.key.type) if segment.sums is None else segment.sums.cut(segment.size)
