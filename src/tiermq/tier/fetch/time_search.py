"""Offset by time in the tier: the sparse time index selects a range of messages, two reads find the message.

    times 100 200 200 200 300 at offsets 7..11:
    t =  50 -> 7      t = 150 -> 8      t = 200 -> lower 8, upper 10      t = 250 -> 11      t = 301 -> 12

A tier that RocketMQ wrote has no time index, and a commit may be larger than the range of an entry. Then the range is
halved by looking at single messages (the unit, and the head of its record) until one fetch holds what is left. What was
learned on the way is remembered, so the next search in the neighbourhood needs two reads again.

Nothing that is read here is put into the window cache: a group does not read it next.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from tiermq.consumequeue.queue_units import Boundary
from tiermq.consumequeue.unit import is_real
from tiermq.errors import CorruptRecord
from tiermq.tier.fetch.window_cache import WindowCache
from tiermq.tier.fetch.window_loader import fetch_window
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.metadata.metadata_values import NEVER_MS, UNKNOWN_OFFSET, TimeEntry
from tiermq.tier.queue.records import PEEK_BYTES, claimed_record
from tiermq.tier.queue.tier_queue import PROBE_UNITS
from tiermq.tier.queue.units import Unit, iter_units, unit_at

SEARCHED_MESSAGES_MAX = 4_096
SEARCHED_BYTES_MAX = 16 * 1024 * 1024
LEARNED_MAX = 4_096  # Entries remembered for each queue.


@dataclass(slots=True)
class _Range:
    """The answer is the first good message of [begin, end) that is late enough, else `otherwise`."""

    begin: TimeEntry
    end: TimeEntry
    otherwise: int

    @property
    def is_short(self) -> bool:
        """Whether one fetch holds it."""
        count = self.end.queue_offset - self.begin.queue_offset
        return count <= 1 or (
            count <= SEARCHED_MESSAGES_MAX and self.end.log_offset - self.begin.log_offset <= SEARCHED_BYTES_MAX
        )


class TimeSearch:
    """Searches queues by time. Threads: any; what was learned is guarded by `_lock`."""

    def __init__(self, cache: WindowCache | None = None) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._learned: WeakKeyDictionary[FlatMessageFile, list[TimeEntry]] = WeakKeyDictionary()

    def offset_by_time(self, file: FlatMessageFile, timestamp_ms: int, boundary: Boundary = Boundary.LOWER) -> int:
        """LOWER: the first message stored at the time or later, or the committed end. UPPER: the last one stored
        exactly at the time, else the first one stored later. Never outside of what the tier holds. Raises TierError.
        """
        low, high = max(0, file.min_offset), max(0, file.commit_offset)
        if low >= high:
            return low
        wanted_ms = timestamp_ms if boundary is Boundary.LOWER else timestamp_ms + 1
        span = self._narrowed(file, wanted_ms, self._range(file, wanted_ms, low, high))
        at, end = span.begin.queue_offset, span.end.queue_offset
        before: tuple[int, int] | None = None
        found = span.otherwise
        while at < end:
            window = fetch_window(file, at, end - at, SEARCHED_BYTES_MAX)
            first = window.first_stored_from(wanted_ms)
            before = window.last_stored_before(first) or before
            at = window.end_offset
            if first < at:
                found = first
                break
        if boundary is Boundary.UPPER and before is not None and before[1] == timestamp_ms:
            return before[0]
        return found

    def store_time_of(self, file: FlatMessageFile, offset: int) -> int:
        """Store time of one message; -1 when the tier does not hold it, or not intact. Raises TierError."""
        if not max(0, file.min_offset) <= offset < file.commit_offset:
            return -1
        window = None if self._cache is None else self._cache.peek(file, offset)
        if window is not None:
            return window.store_time_of(offset)
        entry = _entry_of(file, unit_at(file.units.read_units(offset, 1), 0, offset))
        return -1 if entry is None else entry.store_ms

    def _range(self, file: FlatMessageFile, wanted_ms: int, low: int, high: int) -> _Range:
        """Between the last entry that is too early and the first that is not, within what the tier holds."""
        entries = self._entries(file, low, high)
        index = bisect_left(entries, wanted_ms, key=_store_ms)
        begin = entries[index - 1] if index else TimeEntry(low, -1, file.log.min_offset)
        end = entries[index] if index < len(entries) else TimeEntry(high, NEVER_MS, file.log.commit_offset)
        return _Range(begin, end, end.queue_offset)

    def _entries(self, file: FlatMessageFile, low: int, high: int) -> list[TimeEntry]:
        """Everything that is known about times without a request, in order."""
        found = {
            segment.begin_offset: TimeEntry(segment.begin_offset, segment.begin_ms, segment.base)
            for segment in file.log.segments
            if segment.begin_offset != UNKNOWN_OFFSET and segment.begin_ms != NEVER_MS
        }
        found |= {entry.queue_offset: entry for entry in file.time_entries()}
        with self._lock:
            found |= {entry.queue_offset: entry for entry in self._learned.get(file, ())}
        return sorted((entry for entry in found.values() if low <= entry.queue_offset < high), key=_queue_offset)

    def _narrowed(self, file: FlatMessageFile, wanted_ms: int, span: _Range) -> _Range:
        """Halve a range until one fetch holds it."""
        while not span.is_short:
            middle = (span.begin.queue_offset + span.end.queue_offset) // 2
            entry = self._first_good(file, middle, span.end.queue_offset)
            if entry is None:
                # Only gaps and damage from the middle on; what is behind the range is known already.
                span.end = TimeEntry(middle, span.end.store_ms, span.end.log_offset)
                continue
            self._learn(file, entry)
            if entry.store_ms >= wanted_ms:
                span.end = entry
                span.otherwise = entry.queue_offset
            else:
                span.begin = entry
        return span

    def _first_good(self, file: FlatMessageFile, offset: int, end: int) -> TimeEntry | None:
        """The first good message of [offset, end), from its unit and the head of its record."""
        while offset < end:
            units = file.units.read_units(offset, min(PROBE_UNITS, end - offset))
            for unit in iter_units(units, offset):
                entry = _entry_of(file, unit)
                if entry is not None:
                    return entry
            offset += PROBE_UNITS
            offset = max([offset, *(gap.to_offset for gap in file.gaps() if gap.from_offset <= offset < gap.to_offset)])
        return None

    def _learn(self, file: FlatMessageFile, entry: TimeEntry) -> None:
        with self._lock:
            learned = self._learned.setdefault(file, [])
            at = bisect_left(learned, entry.queue_offset, key=_queue_offset)
            is_known = at < len(learned) and learned[at].queue_offset == entry.queue_offset
            if not is_known and len(learned) < LEARNED_MAX:
                insort(learned, entry, key=_queue_offset)


def _entry_of(file: FlatMessageFile, unit: Unit) -> TimeEntry | None:
    """The head of the record of one unit; None when it is invalid, or of another message."""
    begin, end = file.log.min_offset, file.log.commit_offset
    if not is_real(unit.log_offset, unit.size) or unit.log_offset < begin or unit.end > end:
        return None
    head = file.log.read(unit.log_offset, min(PEEK_BYTES, end - unit.log_offset))
    try:
        log_offset, store_ms = claimed_record(unit, head)
    except CorruptRecord:
        return None
    return TimeEntry(unit.queue_offset, store_ms, log_offset) if log_offset + unit.size <= end else None


def _store_ms(entry: TimeEntry) -> int:
    return entry.store_ms


def _queue_offset(entry: TimeEntry) -> int:
    return entry.queue_offset
