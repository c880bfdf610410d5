"""CompactedIndex: one index file in the tier, asked by key hash with two small reads.

The number of slots is the file's own; today's configuration has no say. Whoever uploaded the file knows it, and after a
start the companion tells it, which is asked for once anyway for its times. It is believed when the file has exactly the
size that follows. A file without such a companion (RocketMQ's) costs its first question one more read, of the file's
beginning: the first slot says where the slots end, and the object's size must agree.

Beside the object lies a small companion, `<path of the segment>.tiermq.json`: the facts that the format has no field
for (the oldest store time, the topics in the file, checksums of its blocks: `block_sums`) and the coverage of the whole
index at that moment. It makes the tier self-describing: whoever loses his disk knows from it where indexing has to go
on. RocketMQ's files have none.
"""

from __future__ import annotations

from functools import partial

from tiermq.errors import CorruptRecord, CorruptSegment, IllegalRange, StoreDamaged, TierError
from tiermq.tier.block_sums import BlockSums
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.index.index_coverage import CoverageRecord
from tiermq.tier.index.index_item import (
    COMPACTED_SLOT,
    HEADER_BYTES,
    ITEM_BYTES,
    SLOT_BYTES,
    IndexHeader,
    IndexItem,
    compacted_bytes,
    decode_header,
    decode_run,
)
from tiermq.tier.index.index_write_file import FileFacts, Selected, is_in_time
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.names import OBJECT_SUFFIX, SegmentKey

RUN_READ_BYTES = ITEM_BYTES * 1024
"""How much of a slot's run is read at once. Few slots have more; of those the newest items come first."""


def companion_name(key: SegmentKey) -> str:
    """Where the facts about an uploaded index file are kept."""
    return key.path + OBJECT_SUFFIX


class CompactedIndex:
    """One uploaded index file. Immutable, but for what it remembers of the tier's answers; any thread may ask."""

    __slots__ = ("_companion", "_driver", "_slots", "_sums", "segment")

    def __init__(self, driver: TierDriver, segment: Segment, slots: int = 0, sums: BlockSums | None = None) -> None:
        """`slots` and `sums`: where they are known; else the companion is asked for them."""
        self._driver = driver
        self._sums = sums
        self._slots = slots  # 0: not known yet.
        self._companion: CoverageRecord | bool | None = False  # False: not asked yet; None: there is none.
        self.segment = segment

    @property
    def key(self) -> SegmentKey:
        return self.segment.key

    @property
    def begin_ms(self) -> int:
        return self.segment.begin_ms

    def companion(self) -> CoverageRecord | None:
        """What was written beside the file; None for a file of RocketMQ's. Asks the tier once.

        Raises what the driver raises, and CorruptSegment for a companion that cannot be read.
        """
        if isinstance(self._companion, bool):
            name = companion_name(self.key)
            stored = self._driver.get_object(name)
            try:
                companion = None if stored is None else CoverageRecord.decode(bytes(stored.data), name)
                if stored is not None and self._sums is None:
                    self._sums = BlockSums.told_by(stored.data, self.segment.size)
                self._companion = companion
            except StoreDamaged as error:
                raise CorruptSegment(str(error)) from error
        return self._companion

    def facts(self) -> FileFacts | None:
        """What the companion says of this file; None when nobody can tell. Raises what the driver raises."""
        try:
            companion = self.companion()
        except CorruptSegment:
            return None
        if companion is None:
            return None
        return next((facts for facts in companion.files if facts.begin_ms == self.begin_ms), None)

    def slots(self) -> int:
        """The file's own slot count, by the file itself. Raises CorruptSegment when the object is no index file."""
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
            self._slots = slots
        return self._slots

    def _told_slots(self) -> int:
        """The slot count that the companion tells, of a file that nobody has looked at; 0 when none fits its size."""
        try:
            facts = self.facts()
        except TierError:
            return 0  # The file itself can tell; when the tier is out of reach, that will be said there.
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
        return self._sums.read(self.key.path, partial(self._driver.read, self.key), position, length)

    def select(self, key_hash: int, max_count: int, begin_ms: int, end_ms: int) -> Selected:
        """Items of a hash whose records may lie in the time range, newest first.

        Raises SegmentMissing, TierUnavailable, CorruptSegment.
        """
        slots = (self._sums and self._slots) or self._told_slots() or self.slots()
        slot_at = HEADER_BYTES + SLOT_BYTES * (key_hash % slots)
        position, length = COMPACTED_SLOT.unpack(self._read(slot_at, SLOT_BYTES))
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
