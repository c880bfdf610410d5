"""Messages against the key index: every message with keys that the index calls covered has its items.

    plan      the companion of the newest index file has the coverage of each queue; cut as the queue's tasks are
    1  sums   a task that reads records adds up their keys, a task that reads an index file its items, range by range
    2  join   ranges whose sums agree are whole; an item too few or too many makes them differ
    3  exact  ranges that differ are read once more, with all index files, item by item (`MissingKeysTask`)

So a sound tier is read once, and nothing but a few numbers travels. Sums may also differ for a sound range (an item
that was put twice, an item of a record that no unit knows); the exact look decides.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tiermq.errors import CorruptRecord, CorruptSegment, IllegalRange, SegmentMissing
from tiermq.kernel.tier_records import COLLECTED_KEY_BYTES
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.index.index_coverage import OPEN, QueueCoverage
from tiermq.tier.index.index_item import HEADER_BYTES, ITEM, ITEM_BYTES, IndexItem, decode_header, index_hash
from tiermq.tier.index.index_request import FragmentBuilder, IndexRequest, index_requests
from tiermq.tier.names import QueueKey
from tiermq.tier.queue.records import RecordBatch
from tiermq.tier.queue.tier_queue import TierQueue
from tiermq.tier.queue.units import log_offset_at

_KEY_WORDS = COLLECTED_KEY_BYTES // 4
_ITEM_WORDS = ITEM_BYTES // 4
ITEMS_PER_READ = 1 << 18


class KeyRange(NamedTuple):
    """Log offsets [start, stop) of a queue whose messages the index covers."""

    queue: QueueKey
    topic_id: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class KeySum:
    """How many keys (or items) a range has, and the sums of their hashes and places, as words of their bytes."""

    range: KeyRange
    count: int = 0
    hashes: int = 0
    places: int = 0

    def plus(self, other: KeySum) -> KeySum:
        return KeySum(
            self.range, self.count + other.count, self.hashes + other.hashes, self.places + other.places
        )  # fmt: skip


def covered_ranges(key: QueueKey, known: QueueCoverage | None, topic_id: int, begin: int, end: int) -> list[KeyRange]:
    """What of the log [begin, end) is indexed for certain: not what waits to be, nor what RocketMQ indexed."""
    if known is None or known.topic_id != topic_id:
        return []
    ranges, at = [], max(begin, known.doubtful_end)
    for hole in sorted(known.holes):
        if hole.start > at:
            ranges.append((at, hole.start))
        at = max(at, hole.stop)
        if hole.stop == OPEN:
            break
    ranges.append((at, known.end))
    cut = [(start, min(stop, end)) for start, stop in ranges]
    return [KeyRange(key, topic_id, start, stop) for start, stop in cut if start < stop]


class KeySums:
    """Adds up the keys of one queue's records, or the items that lead to them. Belongs to one thread."""

    def __init__(self, ranges: Sequence[KeyRange]) -> None:
        self._ranges = sorted(ranges, key=lambda each: each.start)
        self._sums = {each: KeySum(each) for each in self._ranges}

    def add_records(self, units: memoryview | bytes, data: memoryview | bytes, first_offset: int) -> None:
        """Contiguous records of their units."""
        start = log_offset_at(units, 0)
        wanted = [each for each in self._ranges if each.start < start + len(data) and each.stop > start]
        if not wanted:
            return
        topic, queue_id = wanted[0].queue.topic, wanted[0].queue.queue_id
        builder = FragmentBuilder(topic, wanted[0].topic_id, queue_id, start)
        builder.add(RecordBatch.of_bytes(data, units, first_offset))
        fragment = builder.build()
        for each in wanted:
            first, behind = fragment.first_key_from(each.start), fragment.first_key_from(each.stop)
            keys = fragment.keys[first * COLLECTED_KEY_BYTES : behind * COLLECTED_KEY_BYTES]
            self._add(each, memoryview(keys).cast("I"), _KEY_WORDS, 0, (1, 2))

    def add_items(self, items: Sequence[IndexItem], packed: memoryview) -> None:
        """Items of the queue in the order of their places, and the same as bytes."""
        for each in self._ranges:
            first = bisect_left(items, each.start, key=lambda item: item.tier_offset)
            behind = bisect_left(items, each.stop, key=lambda item: item.tier_offset)
            self._add(each, packed[first * ITEM_BYTES : behind * ITEM_BYTES].cast("I"), _ITEM_WORDS, 0, (3, 4))

    def _add(self, where: KeyRange, words: memoryview, step: int, hash_at: int, place_at: tuple[int, int]) -> None:
        high, low = (sum(words[at::step]) for at in place_at)
        more = KeySum(where, len(words) // step, sum(words[hash_at::step]), (high << 32) + low)
        self._sums[where] = self._sums[where].plus(more)

    def found(self) -> tuple[KeySum, ...]:
        return tuple(self._sums.values())


@dataclass(frozen=True, slots=True)
class MissingKeysTask:
    """Check a range message by message: which of its keys have no item in any index file."""

    number: int
    range: KeyRange
    logs: tuple[SegmentInfo, ...]
    units: tuple[SegmentInfo, ...]
    unit_range: tuple[int, int]  # The queue offsets whose units may lead into the range.
    index: tuple[SegmentInfo, ...]

    @property
    def key(self) -> QueueKey:
        return self.range.queue

    @property
    def size_bytes(self) -> int:
        return self.range.stop - self.range.start + sum(info.size for info in self.index)

    def batches(self, driver: TierDriver) -> Iterator[RecordBatch]:
        """The records of the range that units lead to. What cannot be read is for the queue's own verification."""
        queue = TierQueue(driver, self.key, self.logs, self.units)
        log_range = {"log_from": self.range.start, "log_to": self.range.stop}
        return queue.batches(*self.unit_range, **log_range, skip=lambda _error: None)


class MissingKeys(NamedTuple):
    """The messages of a range that lack items, in order, and how many messages with keys it has."""

    requests: list[IndexRequest]
    keyed_count: int


def find_missing(driver: TierDriver, task: MissingKeysTask) -> MissingKeys:
    """Raises what the driver raises when the tier cannot be reached."""
    has = _items_of(driver, task)
    missing, keyed = [], 0
    topic, queue_id = task.key.topic, task.key.queue_id
    for batch in task.batches(driver):
        for request in index_requests(batch, topic, task.range.topic_id, queue_id):
            if not (task.range.start <= request.tier_offset < task.range.stop) or not request.is_legal():
                continue
            keyed += bool(request.keys)
            if any((index_hash(topic, key), request.tier_offset) not in has for key in request.keys):
                missing.append(request)
    return MissingKeys(missing, keyed)


def _items_of(driver: TierDriver, task: MissingKeysTask) -> set[tuple[int, int]]:
    """The hash and place of every item that leads into the range. A file that cannot be read has none."""
    topic_id, queue_id = task.range.topic_id & 0xFFFFFFFF, task.key.queue_id
    found: set[tuple[int, int]] = set()
    for info in task.index:
        try:
            left = decode_header(driver.read(info.key, 0, HEADER_BYTES)).item_count
            while left > 0:
                count = min(left, ITEMS_PER_READ)
                data = driver.read(info.key, info.size - left * ITEM_BYTES, count * ITEM_BYTES)
                for values in ITEM.iter_unpack(data):
                    item = IndexItem._make(values)
                    if (item.topic_id & 0xFFFFFFFF, item.queue_id) == (topic_id, queue_id):
                        found.add((item.key_hash, item.tier_offset))
                left -= count
        except (CorruptRecord, CorruptSegment, IllegalRange, SegmentMissing):
            continue  # Reported by the verification of the file.
    return found


def unequal(of_records: Iterable[KeySum], of_items: Iterable[KeySum]) -> list[KeyRange]:
    """The ranges whose records have other keys than the items that lead to them."""
    expected: dict[KeyRange, KeySum] = {}
    found: dict[KeyRange, KeySum] = {}
    for sums, into in ((of_records, expected), (of_items, found)):
        for each in sums:
            into[each.range] = into[each.range].plus(each) if each.range in into else each
    return sorted(where for where, keys in expected.items() if found.get(where, KeySum(where)) != keys)
