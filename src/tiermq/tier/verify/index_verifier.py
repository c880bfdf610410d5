"""One uploaded index file: its structure, and that every item leads to a message that has a key of that hash.

The file is read in order: header, slots, items. Items are in the order of hashes, messages in the order of offsets;
so items are collected in batches, sorted by queue and offset, and followed in that order: messages close to each other
are read at once. Items of deleted topics and of expired messages are stale, which is as it should be.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import groupby

from tiermq.errors import CorruptRecord
from tiermq.kernel import check_index_items
from tiermq.kernel.index_reader import TIME_TOLERANCE_MS
from tiermq.message.properties import KEY_SEPARATOR, KEYS, UNIQ_KEY, get_text_property
from tiermq.message.record_head import HeadKind, RecordHead, read_head
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.index.index_item import (
    COMPACTED_SLOT,
    HEADER_BYTES,
    ITEM,
    ITEM_BYTES,
    MAGIC_END,
    SLOT_BYTES,
    IndexHeader,
    IndexItem,
    decode_header,
    index_hash,
)
from tiermq.tier.names import QueueKey
from tiermq.tier.queue.segments import UNREADABLE
from tiermq.tier.queue.tier_queue import TierQueue
from tiermq.tier.verify.checked_segment import VERIFY_READ_BYTES, CheckedSegment
from tiermq.tier.verify.missing_keys import KeySums
from tiermq.tier.verify.verify_plan import IndexTask, VerifyResult
from tiermq.tier.verify.verify_report import Problem, VerifyReport

BATCH_ITEMS = 200_000
RECORD_WINDOW_BYTES = 4 * 1024 * 1024


class IndexVerifier:
    """Verifies one index file; used once, by one thread."""

    def __init__(
        self,
        driver: TierDriver,
        task: IndexTask,
        report: VerifyReport,
        progress: Callable[[int], None] = lambda _bytes: None,
    ) -> None:
        self._driver, self._report = driver, report
        self._number, self._info, self._places = task.number, task.info, task.places
        self._segment = CheckedSegment(driver, task.info, task.rows, report, progress)
        self._begin_ms = 0
        self._newest_ms = 0
        self._key_sums: dict[QueueKey, KeySums] = {}

    def run(self) -> VerifyResult:
        self._report.count("index_files")
        if self._info.size > 0:  # RocketMQ uploads nothing of a file without items.
            self._check()
        sums = [each for sums in self._key_sums.values() for each in sums.found()]
        return VerifyResult.of(self._number, self._report, key_sums=sums)

    def _check(self) -> None:
        try:
            header = decode_header(self._segment.read(HEADER_BYTES))
            slots = _slot_count(self._info.size, header.item_count)
        except CorruptRecord as error:
            self._flaw(str(error))
            return
        if header.magic != MAGIC_END:
            self._flaw("its magic is that of an open file")
        self._begin_ms = header.begin_ms
        lengths = self._check_slots(header, slots)
        self._check_items(header, lengths)

    def _check_slots(self, header: IndexHeader, slots: int) -> array[int]:
        """The number of items of each slot; slots must follow each other without holes."""
        counts = array("i")
        position = HEADER_BYTES + SLOT_BYTES * slots
        left = slots * SLOT_BYTES
        while left > 0:
            data = self._segment.read(min(left, VERIFY_READ_BYTES))
            if not data:
                return counts
            left -= len(data)
            for start, length in COMPACTED_SLOT.iter_unpack(data):
                if start != position or length < 0 or length % ITEM_BYTES:
                    self._flaw(
                        f"slot {len(counts)}: expected its items at {position}, found {start} and {length} bytes"
                    )
                    start, length = position, max(0, length) // ITEM_BYTES * ITEM_BYTES
                counts.append(length // ITEM_BYTES)
                position = start + length
        used = sum(1 for count in counts if count)
        if position != self._info.size:
            self._flaw(f"its slots have items up to {position}, the file ends at {self._info.size}")
        if used != header.slot_count:
            self._flaw(f"its header counts {header.slot_count} slots in use, {used} are")
        return counts

    def _check_items(self, header: IndexHeader, counts: array[int]) -> None:
        batch: list[IndexItem] = []
        slot, left_in_slot = -1, 0
        misplaced = done = 0
        while done < header.item_count:
            data = self._segment.read(VERIFY_READ_BYTES // ITEM_BYTES * ITEM_BYTES)
            if not data:
                break
            for values in ITEM.iter_unpack(data[: len(data) // ITEM_BYTES * ITEM_BYTES]):
                while left_in_slot == 0 and slot + 1 < len(counts):
                    slot, left_in_slot = slot + 1, counts[slot + 1]
                left_in_slot -= 1
                misplaced += bool(counts) and values[0] % len(counts) != slot
                batch.append(IndexItem._make(values))
                done += 1
            if len(batch) >= BATCH_ITEMS:
                self._follow(batch)
                batch = []
        self._follow(batch)
        self._report.count("index_items", done)
        if misplaced:
            self._flaw(f"{misplaced} items stand in a slot that is not theirs")
        if self._newest_ms > header.end_ms + TIME_TOLERANCE_MS:
            self._flaw(f"its header has the end time {header.end_ms}, found an item of {self._newest_ms}")

    # Following items to their messages

    def _follow(self, items: list[IndexItem]) -> None:
        items.sort(key=lambda item: (item.topic_id, item.queue_id, item.tier_offset))
        for (topic_id, queue_id), group in groupby(items, key=lambda item: (item.topic_id, item.queue_id)):
            topic = self._places.topic(topic_id)
            key = self._info.key
            logs = (
                self._places.logs(QueueKey(key.cluster, key.broker, topic, queue_id)) if topic and queue_id >= 0 else ()
            )
            wanted = list(group)
            if topic is None or not logs:
                self._report.count("stale_items", len(wanted))
            else:
                self._follow_queue(topic, wanted, logs)

    def _follow_queue(self, topic: str, items: list[IndexItem], logs: Sequence[SegmentInfo]) -> None:
        begin = logs[0].key.base
        stale = sum(1 for item in items if item.tier_offset < begin)
        if stale:
            self._report.count("stale_items", stale)
        packed = memoryview(b"".join(ITEM.pack(*item) for item in items[stale:]))
        queue = logs[0].key.queue
        if queue in self._places.key_ranges:
            sums = self._key_sums.setdefault(queue, KeySums(self._places.key_ranges[queue]))
            sums.add_items(items[stale:], packed)
        window, start, done = memoryview(b""), 0, stale
        while done < len(items):
            item = items[done]
            end = item.tier_offset + item.size
            if not start <= item.tier_offset <= end <= start + len(window):
                window, start = self._read(item, logs), item.tier_offset
            good, newest_ms = check_index_items(
                packed[(done - stale) * ITEM_BYTES :], window, start, topic, item.queue_id, self._begin_ms
            )
            self._newest_ms = max(self._newest_ms, newest_ms)
            if good == 0:
                at = item.tier_offset - start
                self._compare(topic, item, window[at : at + max(item.size, 0)])
            done += good or 1

    def _read(self, item: IndexItem, logs: Sequence[SegmentInfo]) -> memoryview:
        """Bytes of the log from an item's record on: some more than it has, for those that follow."""
        queue = TierQueue(self._driver, logs[0].key.queue, logs, ())
        if queue.logs.find(item.tier_offset, item.tier_offset + item.size) is None:
            return memoryview(b"")
        try:
            return queue.read_records(item.tier_offset, max(item.size, RECORD_WINDOW_BYTES))
        except UNREADABLE:
            return memoryview(b"")  # Reported by the verification of the queue.

    def _compare(self, topic: str, item: IndexItem, record: memoryview) -> None:
        item_text = f"topic {topic}, queue {item.queue_id}, log offset {item.tier_offset}"
        head = read_head(record)
        if head.kind is not HeadKind.OK or (head.physical_offset, head.size) != (item.tier_offset, item.size):
            self._item_flaw(f"{item_text}: expected a record of {item.size} bytes, found {head.reason or 'another'}")
            return
        if (head.queue_id, head.topic) != (item.queue_id, topic.encode()):
            self._item_flaw(f"{item_text}: its record is of another queue")
            return
        self._newest_ms = max(self._newest_ms, head.store_timestamp_ms)
        try:
            hashes = {index_hash(topic, key) for key in _keys(record, head)}
        except CorruptRecord as error:
            self._item_flaw(f"{item_text}: {error}")
            return
        if item.key_hash not in hashes:
            self._item_flaw(f"{item_text}: no key of its message has the hash {item.key_hash}")
        elif not item.earliest_ms(self._begin_ms) <= head.store_timestamp_ms <= item.latest_ms(self._begin_ms):
            self._item_flaw(f"{item_text}: stored at {head.store_timestamp_ms}, the item has {item.seconds} s")

    def _flaw(self, text: str) -> None:
        self._report.problem(Problem.INDEX_STRUCTURE, self._info.key.path, text)

    def _item_flaw(self, text: str) -> None:
        self._report.problem(Problem.INDEX_ITEM, self._info.key.path, text)


def _slot_count(size: int, item_count: int) -> int:
    """How many slots a file of that size has besides its items. Raises CorruptRecord when no number fits."""
    slots, rest = divmod(size - HEADER_BYTES - ITEM_BYTES * item_count, SLOT_BYTES)
    if item_count <= 0 or slots <= 0 or rest:
        raise CorruptRecord(f"expected 28 + 8*slots + 28*items bytes, found {size} bytes that claim {item_count} items")
    return slots


def _keys(record: memoryview, head: RecordHead) -> list[str]:
    properties = bytes(record[head.properties_position : head.properties_position + head.properties_length])
    keys = (get_text_property(properties, KEYS) or "").split(KEY_SEPARATOR)
    unique = get_text_property(properties, UNIQ_KEY)
    return [key for key in (*keys, unique) if key]
