"""Looks up the log offsets of keys: in uploaded index files for the cold side, in the store's index for the hot side.

    topic, key ─► hash ─► every index file, concurrently: one slot, one short run of items ─► offsets in each queue's
    log

An index finds candidates: hashes collide, and the rows decide. It must not miss any. The companion of
the newest uploaded index file records how far each queue's log is indexed, and with which gaps; what is not covered is
returned as ranges of offsets, to be scanned. RocketMQ's index files have no companions: without one, nothing is taken
to be covered. A cold range that the index does not cover is looked up on the hot side, if the store still has it.

Cost of a key: two or three small reads of each index file whose time fits, however many segments there are. Where many
keys cost more than a scan of their topic, nothing is looked up.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tiermq.errors import CorruptRecord, CorruptSegment, SegmentMissing
from tiermq.history.catalog import Catalog, QueueHistory
from tiermq.history.planning import FoundPlaces, plan_scan
from tiermq.history.scan_values import RecordPlace, ScanCounters, ScanPlan, ScanRequest, Side
from tiermq.history.time_ranges import LogPlaces, OffsetRange, intersect, subtract
from tiermq.message.record_head import HeadKind, read_head
from tiermq.message.topic_name import is_light_queue
from tiermq.store.readonly.store import ReadOnlyStore
from tiermq.tier.driver.contract import SegmentInfo
from tiermq.tier.index.compacted_index import CompactedIndex
from tiermq.tier.index.index_coverage import Coverage
from tiermq.tier.index.index_item import (
    COMPACTED_SLOT,
    HEADER_BYTES,
    SLOT_BYTES,
    IndexItem,
    decode_header,
    index_hash,
    low_32_bits,
)
from tiermq.tier.metadata.metadata_values import Segment

ITEMS_MAX = 1 << 18
"""A key with more items in one index file is found by a scan, which is then faster."""

KEYS_LOOKED_UP = 100
"""So many keys are always looked up in the tier's index."""

LOOKUP_COST_BYTES = 128 << 10
"""The overhead of a key in an index file (two or three small reads), in bytes that a scan reads meanwhile."""

Broker = tuple[str, str]


@dataclass(slots=True)
class _Uploaded:
    """The uploaded index of one broker: its files, and what they cover."""

    files: list[CompactedIndex] = field(default_factory=list)
    coverage: Coverage | None = None


class KeyIndex:
    """Looks the keys of one request up, in the index files that a catalogue knows. Used by one thread.

    Raises what the driver raises. A damaged index file covers nothing, so its messages are scanned for.
    """

    def __init__(self, catalog: Catalog, request: ScanRequest) -> None:
        self._catalog = catalog
        self._history = catalog.history
        self._request = request
        self._uploaded: dict[Broker, _Uploaded] = {}
        self._cold: dict[tuple[str, str, str], dict[int, list[IndexItem]] | None] = {}
        self._hot: dict[tuple[Path, str], dict[int, list[tuple[int, RecordPlace]]]] = {}
        self._hot_covers: dict[Path, tuple[int, int]] = {}
        self._topic_bytes: Counter[tuple[str, str, str]] = Counter()

    def find(self, queue: QueueHistory, side: Side, within: OffsetRange, counters: ScanCounters) -> FoundPlaces:
        """See `planning.KeyLookup`."""
        if side is Side.HOT:
            return self._find_hot(queue, within, counters)
        before = (self._history.tier.requests, self._history.tier.bytes_read)
        found = self._find_cold(queue, within, counters)
        counters.requests += self._history.tier.requests - before[0]
        counters.index_bytes_read += self._history.tier.bytes_read - before[1]
        return found

    # The tier

    def _find_cold(self, queue: QueueHistory, within: OffsetRange, counters: ScanCounters) -> FoundPlaces:
        key = queue.key
        uploaded = self._index_of((key.cluster, key.broker))
        covered = uploaded.coverage.queues.get((key.topic, key.queue_id)) if uploaded.coverage is not None else None
        if covered is None or (queue.topic_id >= 0 and covered.topic_id != queue.topic_id):
            return FoundPlaces((), (within,))
        by_queue = self._items_of(key.cluster, key.broker, key.topic, uploaded, counters)
        if by_queue is None:
            return FoundPlaces((), (within,))
        places = LogPlaces(queue)
        log_begin = min((log.key.base for log in queue.logs), default=0)
        log_end = max((log.end for log in queue.logs), default=0)
        missing = [(hole.start, min(hole.stop, log_end)) for hole in covered.holes]
        missing.append((covered.end, log_end))
        unknown: list[OffsetRange] = []
        scanned: list[OffsetRange] = []
        for hole in intersect(missing, (log_begin, log_end)):
            offsets, log_range = places.around(*hole)
            unknown += intersect(subtract_all([offsets], unknown), within)
            scanned.append(log_range)
        wanted = {low_32_bits(queue.topic_id)} if queue.topic_id >= 0 else None
        found = {
            item.tier_offset: item.size
            for item in by_queue.get(key.queue_id, ())
            if (wanted is None or item.topic_id in wanted)
            and log_begin <= item.tier_offset < log_end
            and not any(begin <= item.tier_offset < end for begin, end in scanned)
        }
        exact = tuple(RecordPlace(place, found[place]) for place in sorted(found))
        return FoundPlaces(exact, tuple(sorted(unknown)))

    def _index_of(self, broker: Broker) -> _Uploaded:
        found = self._uploaded.get(broker)
        if found is None:
            infos = self._catalog.index_segments().get(broker, [])
            found = self._uploaded[broker] = self._open_index(infos)
        return found

    def _open_index(self, infos: Sequence[SegmentInfo]) -> _Uploaded:
        """The index files, and the coverage of the newest complete one."""
        newest_first = sorted((info for info in infos if info.size), key=lambda info: info.key.base, reverse=True)
        opened = list(self._history.pool.map(self._open_file, newest_first))
        files = [file for file in opened if file is not None]
        if len(files) < len(newest_first):
            return _Uploaded(files, None)  # The contents of the damaged file are unknown.
        for file in files:
            try:
                companion = file.companion()
            except CorruptSegment:
                return _Uploaded(files, None)
            if companion is None:
                return _Uploaded(files, None)
            coverage = companion.coverage()
            if coverage.is_base_known:
                return _Uploaded(files, coverage)
        return _Uploaded(files, None)

    def _open_file(self, info: SegmentInfo) -> CompactedIndex | None:
        """One index file: its header has begin time and slot count. None if it is invalid."""
        try:
            start = self._history.tier.read(info.key, 0, HEADER_BYTES + SLOT_BYTES)
            header = decode_header(start)
        except (CorruptRecord, SegmentMissing, ValueError):
            return None
        slots = (int(COMPACTED_SLOT.unpack_from(start, HEADER_BYTES)[0]) - HEADER_BYTES) // SLOT_BYTES
        if slots < 1 or HEADER_BYTES + SLOT_BYTES * slots > info.size:
            return None
        segment = Segment(info.key, info.size, begin_ms=header.begin_ms, end_ms=header.end_ms)
        return CompactedIndex(self._history.tier, segment, slots)

    def _items_of(
        self, cluster: str, broker: str, topic: str, uploaded: _Uploaded, counters: ScanCounters
    ) -> dict[int, list[IndexItem]] | None:
        """Items of all wanted keys of a topic, by queue id; None when no file can be read or a scan costs less."""
        name = (cluster, broker, topic)
        if name not in self._cold:
            files = [file for file in uploaded.files if file.segment.end_ms + 999 >= self._request.begin_ms]
            if self._costs_more(len(files), name):
                self._cold[name] = None
            else:
                counters.index_files_asked += len(files)
                self._cold[name] = self._ask_files(files, topic)
        return self._cold[name]

    def _costs_more(self, files: int, topic: tuple[str, str, str]) -> bool:
        """Whether looking all keys up takes longer than a scan of the topic."""
        if len(self._request.keys) <= KEYS_LOOKED_UP:
            return False
        if not self._topic_bytes:
            for queue in self._catalog.queues():
                self._topic_bytes[queue.key.cluster, queue.key.broker, queue.key.topic] += queue.cold_bytes
        return len(self._request.keys) * files * LOOKUP_COST_BYTES > self._topic_bytes[topic]

    def _ask_files(self, files: Iterable[CompactedIndex], topic: str) -> dict[int, list[IndexItem]] | None:
        hashes = sorted({index_hash(topic, key) for key in self._request.keys})
        asked = [partial(self._select, file, value) for file in files for value in hashes]
        by_queue: defaultdict[int, list[IndexItem]] = defaultdict(list)
        for items in self._history.pool.map(lambda ask: ask(), asked):
            if items is None:
                return None
            for item in items:
                by_queue[item.queue_id].append(item)
        return dict(by_queue)

    def _select(self, file: CompactedIndex, value: int) -> list[IndexItem] | None:
        try:
            found = file.select(value, ITEMS_MAX, self._request.begin_ms, self._request.end_ms)
        except (CorruptSegment, CorruptRecord, SegmentMissing, ValueError):
            return None  # Expired meanwhile, or damaged: then the queue is scanned.
        return None if found.has_more else found.items

    # The store

    def _find_hot(self, queue: QueueHistory, within: OffsetRange, counters: ScanCounters) -> FoundPlaces:
        if queue.store is None or is_light_queue(queue.key.topic):
            return FoundPlaces((), (within,))
        store = self._history.store(queue.store.path)
        begin, end = self._hot_cover(store, counters)
        topic, queue_id = queue.key.topic, queue.key.queue_id
        first = store.first_unit_from(topic, queue_id, begin, *within)
        behind = store.first_unit_from(topic, queue_id, end, *within)
        if end <= begin or first >= behind:
            return FoundPlaces((), (within,))
        found = self._hot_places(store, topic).get(queue_id, [])
        if store.bounds(topic, queue_id)[0] > within[0]:
            return FoundPlaces((), (within,))  # Some were deleted since the catalogue was read: reading finds them.
        exact = {place.log_offset: place for offset, place in found if first <= offset < behind}
        unknown = [(low, high) for low, high in ((within[0], first), (behind, within[1])) if low < high]
        return FoundPlaces(tuple(exact[at] for at in sorted(exact)), tuple(unknown))

    def _hot_cover(self, store: ReadOnlyStore, counters: ScanCounters) -> tuple[int, int]:
        if store.root not in self._hot_covers:
            begin, end, count = store.indexed_range()
            store.refresh()  # After it, so that index reads see at least what is covered.
            counters.index_files_asked += count
            self._hot_covers[store.root] = (begin, end)
        return self._hot_covers[store.root]

    def _hot_places(self, store: ReadOnlyStore, topic: str) -> dict[int, list[tuple[int, RecordPlace]]]:
        """Records of a topic that the store's index has for the keys: (queue offset, log offset) by queue id.

        An index file outlives the oldest of its records; those are skipped.
        """
        name = (store.root, topic)
        if name not in self._hot:
            by_queue: defaultdict[int, list[tuple[int, RecordPlace]]] = defaultdict(list)
            for key in self._request.keys:
                for place in store.find_key(topic, key, self._request.begin_ms, self._request.end_ms):
                    piece = store.log_file(place)
                    if piece is None:
                        continue
                    head = read_head(piece.data, place - piece.base)
                    if head.kind is HeadKind.OK and head.topic == topic.encode():
                        by_queue[head.queue_id].append((head.queue_offset, RecordPlace(place, head.size)))
            self._hot[name] = dict(by_queue)
        return self._hot[name]


def plan_history(catalog: Catalog, request: ScanRequest, **settings: Any) -> ScanPlan:
    """`plan_scan`, with the keys of the request looked up in the index."""
    return plan_scan(catalog, request, lookup=KeyIndex(catalog, request) if request.keys else None, **settings)


def subtract_all(ranges: Iterable[OffsetRange], holes: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Ranges without any of the holes."""
    left = list(ranges)
    for hole in holes:
        left = subtract(left, hole)
    return left
