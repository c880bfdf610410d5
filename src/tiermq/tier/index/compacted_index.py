"""CompactedIndex: one index file in the tier, queried by key hash with one or two small reads.

A slot has the offset of its run of items; a second read gets the run. But runs are in the order of their slots and keys
are spread evenly over slots, so the place of a run is known to some items beforehand, the better the more slots have
been read (`SlotFences`). One read of that place has the run if it begins and ends with items of other slots. Only a
file with checksums is read so: in others nothing proves that the order holds.

The number of slots is a property of the file, not of the configuration. After a start it comes from the companion
object, which is read once anyway for its times, and counts if the file has exactly the resulting size. A file without
such a companion (RocketMQ's) costs its first query one more read, of the file's beginning: the position in the first
slot is the end of the slots, and the object's size must agree.

The companion, `<path of the segment>.tiermq.json`, has the facts that the format has no field for (the oldest store
time, the topics in the file, checksums of its blocks: `block_sums`) and the coverage of the whole index at that moment.
After the loss of a disk it shows where indexing continues. RocketMQ's files have none.
Files of jobs carry marks there, under names that readers of coverage ignore:

    "merged_from": [base, …]      the file holds all items of those files, which may be deleted
    "unregistered": true          the file's job did not finish: its messages do not count as indexed
    "few_slots": true             the file is small and has fewer slots than files of this tier should have, so that
                                  RocketMQ, which takes the number of slots from its settings, cannot read it; a merge
                                  gives its items the right number

The life of one index file, from the first item to the tier.

    UNSEALED ──full, old──► SEALED ──copied to the tier──► UPLOAD
        └──────────────────────┴──────────────┬──────────────┘
                                           SHUTDOWN     closed, expired, or removed because it was empty

UNSEALED and SEALED answer from the local file, UPLOAD from the tier. A query that has an entry in hand while it moves
on gets its answer from wherever the items are: the tier's copy is known before the local file is let go.
"""

from __future__ import annotations

import enum
import json
import math
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from tiermq.clock import EVER_MS
from tiermq.errors import (
    CorruptRecord,
    CorruptSegment,
    IllegalRange,
    IllegalTransition,
    StoreClosed,
    StoreDamaged,
    TierError,
)
from tiermq.tier.block_sums import BlockSums
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.index.index_coverage import CoverageDamaged, CoverageRecord
from tiermq.tier.index.index_item import (
    COMPACTED_SLOT,
    HEADER_BYTES,
    ITEM,
    ITEM_BYTES,
    SLOT_BYTES,
    IndexHeader,
    IndexItem,
    compacted_bytes,
    decode_header,
    decode_run,
)
from tiermq.tier.index.index_write_file import FileFacts, IndexWriteFile, Selected, is_in_time
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.names import OBJECT_SUFFIX, QueueKey, SegmentKey, SegmentType

RUN_READ_BYTES = ITEM_BYTES * 1024
"""How much of a slot's run is read at once. Few slots have more; of those the newest items come first."""


GUESS_BYTES_MAX = 64 << 10
"""How much may be read to find a run without its slot."""
GUESS_DEVIATIONS = 4
FENCES_MAX = 4096


class SlotFences:
    """Where runs of some slots begin, as far as it was read, and where others can be expected between them.

    Any thread may call; its lock guards every change.
    """

    __slots__ = ("_hits", "_lock", "_misses", "_positions", "_slots")

    def __init__(self, slots: int, first: int, end: int) -> None:
        """Runs of `slots` slots are in bytes [first, end)."""
        self._lock = threading.Lock()
        self._slots = [0, slots]
        self._positions = [first, end]
        self._hits = 0
        self._misses = 0

    def guess(self, slot: int) -> tuple[int, int, int, int] | None:
        """Bytes [low, high) that have the run of a slot very likely, and [begin, end) that have it certainly.

        None where that is too much to read, or where guesses were wrong too often.
        """
        with self._lock:
            if self._misses > 8 + self._hits // 4:
                return None
            at = bisect_right(self._slots, slot)
            left, right = self._slots[at - 1], self._slots[at]
            begin, end = self._positions[at - 1], self._positions[at]
        items = (end - begin) // ITEM_BYTES
        share = 1 / (right - left)
        before = (slot - left) * share
        mean = items * before
        margin = 4 + GUESS_DEVIATIONS * math.sqrt(items * before * (1 - before)) + 2 * items * share
        low = max(0, int(mean - margin))
        high = min(items, int(mean + items * share + margin) + 1)
        if (high - low) * ITEM_BYTES > GUESS_BYTES_MAX:
            return None
        return begin + low * ITEM_BYTES, begin + high * ITEM_BYTES, begin, end

    def note(self, slot: int, position: int, length: int) -> None:
        """The run of a slot is there."""
        with self._lock:
            for each, where in ((slot, position), (slot + 1, position + length)):
                at = bisect_left(self._slots, each)
                if self._slots[at] != each and self._positions[at - 1] <= where <= self._positions[at]:
                    self._slots.insert(at, each)
                    self._positions.insert(at, where)
            if len(self._slots) > FENCES_MAX:
                del self._slots[1:-1:2], self._positions[1:-1:2]

    def count(self, *, is_hit: bool) -> None:
        """Whether a guess was right."""
        with self._lock:
            if is_hit:
                self._hits += 1
            else:
                self._misses += 1


MERGED_FROM = "merged_from"
UNREGISTERED = "unregistered"
FEW_SLOTS = "few_slots"
MARKS = {MERGED_FROM, UNREGISTERED, FEW_SLOTS}


def companion_name(key: SegmentKey) -> str:
    """Where the facts about an uploaded index file are kept."""
    return key.path + OBJECT_SUFFIX


class Companion(NamedTuple):
    """What stands beside an index file: the coverage of the whole index, and the marks of a job."""

    record: CoverageRecord
    marks: Mapping[str, Any]


def read_companion(driver: TierDriver, key: SegmentKey) -> Companion | None:
    """The companion of a file; None if missing or no JSON object. Raises StoreDamaged for one of a newer version."""
    stored = driver.get_object(companion_name(key))
    if stored is None:
        return None
    try:
        record = CoverageRecord.decode(bytes(stored.data), companion_name(key))
    except CoverageDamaged:
        return None
    marks = {name: value for name, value in json.loads(bytes(stored.data)).items() if name in MARKS}
    return Companion(record, marks)


def merged_bases(driver: TierDriver, segments: Iterable[Segment]) -> set[int]:
    """The bases of files whose items are also in one of these, into which a job has merged them: they may be removed
    at any time, also late, by a job that stood still.
    """
    found: set[int] = set()
    for segment in segments:
        companion = read_companion(driver, segment.key)
        bases = None if companion is None else companion.marks.get(MERGED_FROM)
        if isinstance(bases, list):
            found.update(base for base in bases if type(base) is int and base < segment.key.base)
    return found


class CompactedIndex:
    """One uploaded index file. Immutable, except for cached reads; any thread may query."""

    __slots__ = ("_companion", "_driver", "_fences", "_has_other_size", "_slots", "_sums", "segment")

    def __init__(self, driver: TierDriver, segment: Segment, slots: int = 0, sums: BlockSums | None = None) -> None:
        """`slots` and `sums`: where they are known; else the companion is read for them."""
        self._driver = driver
        self._sums = sums
        self._slots = slots  # 0: not known yet.
        self._fences: SlotFences | None = None  # None: not known yet, or the file has no checksums.
        self._has_other_size = False  # Than the segment's row has.
        self._companion: CoverageRecord | bool | None = False  # False: not read yet; None: there is no companion.
        self.segment = segment

    @property
    def key(self) -> SegmentKey:
        return self.segment.key

    @property
    def begin_ms(self) -> int:
        return self.segment.begin_ms

    def companion(self) -> CoverageRecord | None:
        """The companion object; None for a file of RocketMQ. Read from the tier once.

        Raises what the driver raises, and CorruptSegment for a companion that cannot be read.
        """
        if isinstance(self._companion, bool):
            name = companion_name(self.key)
            stored = self._driver.get_object(name)
            try:
                companion = None if stored is None else CoverageRecord.decode(bytes(stored.data), name)
                if stored is not None and self._sums is None:
                    self._sums = BlockSums.of_companion(stored.data, self.segment.size)
                self._companion = companion
            except StoreDamaged as error:
                raise CorruptSegment(str(error)) from error
        return self._companion

    def facts(self) -> FileFacts | None:
        """The facts in the companion; None without a companion. Raises what the driver raises."""
        try:
            companion = self.companion()
        except CorruptSegment:
            return None
        if companion is None:
            return None
        return next((facts for facts in companion.files if facts.begin_ms == self.begin_ms), None)

    def slots(self) -> int:
        """The slot count, read from the file. Raises CorruptSegment when the object is no index file."""
        if self._slots == 0:
            header, first_position = self._read_start()
            slots = (first_position - HEADER_BYTES) // SLOT_BYTES
            total = compacted_bytes(slots, header.item_count)
            # The row may be older than the object, or imported: when it does not fit, the object's own size decides.
            if slots < 1 or total not in (self.segment.size, self._driver.size(self.key)):
                raise CorruptSegment(
                    f"{self.key.path}: expected a compacted index of 28 + 8*{slots} + 28*{header.item_count} bytes, "
                    f"found an object of {self._driver.size(self.key)}; delete it and index its time again"
                )
            self._slots, self._has_other_size = slots, total != self.segment.size
        return self._slots

    def _companion_slots(self) -> int:
        """The slot count of the companion, for a file not read yet; 0 when it does not fit the file's size."""
        try:
            facts = self.facts()
        except TierError:
            return 0  # The file is read instead, which raises if the tier is unreachable.
        if facts is None or facts.slots < 1 or facts.item_count < 1:
            return 0
        return facts.slots if compacted_bytes(facts.slots, facts.item_count) == self.segment.size else 0

    def _read_start(self) -> tuple[IndexHeader, int]:
        """The header, and the position of the first slot's run, which is where the slots end."""
        try:
            start = self._driver.read(self.key, 0, HEADER_BYTES + SLOT_BYTES)
            return decode_header(start), COMPACTED_SLOT.unpack_from(start, HEADER_BYTES)[0]
        except (CorruptRecord, IllegalRange) as error:
            raise CorruptSegment(f"{self.key.path}: expected a compacted index, found {error}") from error

    def _read(self, position: int, length: int) -> memoryview:
        if self._sums is None:
            return self._driver.read(self.key, position, length)
        low, count = self._sums.range_to_read(position, length)
        return self._sums.checked(self._driver.read(self.key, low, count), low, position, length, self.key)

    def select(self, key_hash: int, max_count: int, begin_ms: int, end_ms: int) -> Selected:
        """Items of a hash whose records may be in the time range, newest first.

        Raises SegmentMissing, TierUnavailable, CorruptSegment.
        """
        slots = (self._sums and self._slots) or self._companion_slots() or self.slots()
        fences = self._fences_of(slots)
        if fences is not None and (run := self._guessed_run(fences, slots, key_hash % slots)) is not None:
            return self._chosen(run, key_hash, max_count, begin_ms, end_ms)
        slot_at = HEADER_BYTES + SLOT_BYTES * (key_hash % slots)
        position, length = COMPACTED_SLOT.unpack(self._read(slot_at, SLOT_BYTES))
        if fences is not None:
            fences.note(key_hash % slots, position, length)
        if length == 0:
            return Selected([], has_more=False)
        if position < HEADER_BYTES + SLOT_BYTES * slots or length < 0 or length % ITEM_BYTES:
            raise CorruptSegment(
                f"{self.key.path}: expected a run of {ITEM_BYTES}-byte items behind {slots} slots, found slot "
                f"{key_hash % slots} with position {position} and length {length}; delete the object and index again"
            )
        found: list[IndexItem] = []
        read_bytes = RUN_READ_BYTES
        end = position + length
        while position < end:
            run = self._read(position, min(read_bytes, end - position))
            for item in decode_run(run):
                if item.key_hash == key_hash and is_in_time(item, self.begin_ms, begin_ms, end_ms):
                    if len(found) >= max_count:
                        return Selected(found, has_more=True)
                    found.append(item)
            position += len(run)
            if len(found) >= max_count:
                break
            read_bytes *= 4
        return Selected(found, has_more=position < end)

    def _fences_of(self, slots: int) -> SlotFences | None:
        if self._fences is None and self._sums is not None and not self._has_other_size:
            first = HEADER_BYTES + SLOT_BYTES * slots
            if self.segment.size > first and (self.segment.size - first) % ITEM_BYTES == 0:
                self._fences = SlotFences(slots, first, self.segment.size)
        return self._fences

    def _guessed_run(self, fences: SlotFences, slots: int, slot: int) -> memoryview | None:
        """The items of a slot, read where they are expected; None when they are not wholly there."""
        guess = fences.guess(slot)
        if guess is None or self._sums is None:
            return None
        low, high, begin, end = guess
        whole_low, whole_high = self._sums.part(low, high) if high > low else (low, high)  # It is read anyway.
        low = max(begin, low - (low - whole_low) // ITEM_BYTES * ITEM_BYTES)
        high = min(end, high + (whole_high - high) // ITEM_BYTES * ITEM_BYTES)
        data = self._read(low, high - low) if high > low else memoryview(b"")

        def slot_of(item: int) -> int:
            return int(ITEM.unpack_from(data, item * ITEM_BYTES)[0]) % slots

        count = len(data) // ITEM_BYTES
        first = bisect_left(range(count), slot, key=slot_of)
        last = bisect_right(range(count), slot, lo=first, key=slot_of)
        is_hit = (first > 0 or low == begin) and (last < count or high == end)
        fences.count(is_hit=is_hit)
        if not is_hit:
            return None
        fences.note(slot, low + first * ITEM_BYTES, (last - first) * ITEM_BYTES)
        return data[first * ITEM_BYTES : last * ITEM_BYTES]

    def _chosen(self, run: memoryview, key_hash: int, max_count: int, begin_ms: int, end_ms: int) -> Selected:
        """The items of a whole run that are asked for."""
        found = [
            item
            for item in decode_run(run)
            if item.key_hash == key_hash and is_in_time(item, self.begin_ms, begin_ms, end_ms)
        ]
        return Selected(found[:max_count], has_more=len(found) > max_count)


# The part of MetadataStore that the index uses.
#
# Every change is durable when the call returns. A deletion marks the row, then removes the object, then the row, so
# that a crash in between leaves the marked row.


class IndexRows(Protocol):
    """See `tiermq.tier.metadata.metadata_store.MetadataStore`."""

    def put_segment(self, segment: Segment) -> None:
        """Store the segment exactly as given, replacing a row of the same key."""

    def segments(self, queue: QueueKey, type: SegmentType | None = None) -> list[Segment]:  # noqa: A002
        """The live segments of a queue, by type and base."""
        ...

    def segments_being_deleted(self) -> list[Segment]:
        """The segments whose deletion has begun and is not finished."""
        ...

    def mark_deleted(self, key: SegmentKey) -> None:
        """Mark the segment, before its object is deleted."""

    def delete_segment(self, key: SegmentKey) -> bool:
        """Delete the row, after the object."""
        ...


class IndexState(enum.Enum):
    """Where a file is in its life."""

    UNSEALED = "UNSEALED"
    SEALED = "SEALED"
    UPLOAD = "UPLOAD"
    SHUTDOWN = "SHUTDOWN"


_NEXT = {
    IndexState.UNSEALED: {IndexState.SEALED, IndexState.SHUTDOWN},
    IndexState.SEALED: {IndexState.UPLOAD, IndexState.SHUTDOWN},
    IndexState.UPLOAD: {IndexState.SHUTDOWN},
    IndexState.SHUTDOWN: set(),
}


@dataclass(slots=True, eq=False)
class IndexEntry:
    """One file in the index store's table. Its state changes under the store's lock only."""

    begin_ms: int
    state: IndexState
    local: IndexWriteFile | None = None
    remote: CompactedIndex | None = None
    sealed_record: CoverageRecord | None = None  # What was indexed when the file was sealed.

    def move(self, state: IndexState) -> None:
        """Go to `state`; raises IllegalTransition where the diagram has no arrow."""
        if state not in _NEXT[self.state]:
            raise IllegalTransition(
                f"index file {self.begin_ms}: expected one of {sorted(next_.value for next_ in _NEXT[self.state])} "
                f"after {self.state.value}, was asked for {state.value}"
            )
        self.state = state

    def newest_ms(self) -> int:
        """No message of the file was stored after; -1 of an empty one. Known without asking the tier."""
        if self.remote is not None:
            return self.remote.segment.end_ms
        facts = self._local_facts()
        return EVER_MS if facts is None else facts.newest_ms if facts.item_count else -1

    def oldest_ms(self) -> int:
        """No message of the file was stored before; 0 when that is unknown.

        Begin is when the file was created: its messages are older. How much older, only an uploaded file's companion
        has, which is read once.
        """
        try:
            facts = self._local_facts() if self.remote is None else self.remote.facts()
        except TierError:
            return 0  # Asking one file too many is better than missing what it holds.
        return 0 if facts is None else facts.oldest_ms

    def _local_facts(self) -> FileFacts | None:
        try:
            return None if self.local is None else self.local.facts()
        except StoreClosed:
            return None

    def select(self, key_hash: int, max_count: int, begin_ms: int, end_ms: int) -> Selected:
        """Items of a hash, newest first, from wherever they are now. Raises what the driver raises."""
        if self.local is not None:
            found = self.local.select(key_hash, max_count, begin_ms, end_ms)
            if found is not None:
                return found
        if self.remote is not None:
            return self.remote.select(key_hash, max_count, begin_ms, end_ms)
        return Selected([], has_more=False)
