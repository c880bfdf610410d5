"""What lies on disks and in buckets: index files, manifests, timers, RocketMQ's tier metadata."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from campaign.hostile.target import Target, by_both, documented
from tiermq.delivery.tiered_timers.timer_name import (
    Level,
    TimerManifest,
    TimerName,
    bucket_of,
    decode_timer_manifest,
    encode_timer_manifest,
)
from tiermq.delivery.tiered_timers.timer_object import (
    CHECKSUM,
    HEAD,
    ROW,
    TABLE_AT,
    CorruptTimers,
    TimerObject,
    encode_timers,
)
from tiermq.delivery.timer.timer_record import TieredTimer
from tiermq.errors import FutureManifest, StoreDamaged, TierError
from tiermq.files.os_file_access import OsFileAccess
from tiermq.index.index_file import IndexFile, index_file_bytes
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.index.compacted_index import CompactedIndex
from tiermq.tier.index.index_item import COMPACTED_SLOT, HEADER, ITEM, MAGIC_END, IndexItem
from tiermq.tier.metadata.document import CorruptManifest, seal_document
from tiermq.tier.metadata.manifest import QueueManifest, decode_manifest, encode_manifest
from tiermq.tier.metadata.metadata_values import Gap, Segment, SegmentStatus, TimeEntry
from tiermq.tier.names import QueueKey, SegmentType
from tiermq.tier.restore.rocketmq_json import RocketMQMetadata, decode_rocketmq_json, encode_rocketmq_json

SLOTS, ENTRIES = 5, 12
QUEUE = QueueKey("cluster", "b1", "orders", 3)
NOW_MS = 1_757_000_000_000
EVER_MS = 1 << 62
MANIFEST = QueueManifest(
    QUEUE, writer="b1 on host", epoch=3, sequence=9, written_ms=NOW_MS, topic_id=2, reserve_time_hours=72,
    min_offset=100, max_offset=105,
    segments=(
        Segment(QUEUE.segment(SegmentType.COMMIT_LOG, 0), 500, SegmentStatus.SEALED, 1, 10, 20, 30, 7, 100, 105),
        Segment(QUEUE.segment(SegmentType.CONSUME_QUEUE, 2000), 100, SegmentStatus.NEW, 1, 10, 20),
    ),
    time_index=(TimeEntry(100, 10, 0), TimeEntry(104, 19, 400)),
    gaps=(Gap(90, 100, "local files were deleted", 5),),
)  # fmt: skip
MANIFEST_WORDS = (
    b'"version":1',
    b'"body":',
    b'"crc32":',
    b"null",
    b"[]",
    b"{}",
    b"SEALED",
    b"../..",
    b'"segments":',
    b"/",
)
TIMERS = TimerManifest(
    frozenset({TimerName(3, 4, 500, 10, 20), TimerName(4, 1, 90, NOW_MS, NOW_MS, bucket_of(NOW_MS, Level.DAY))}),
    frozenset({TimerName(1, 1, 60, 5, 5)}), 2, 0, 7, "b1",
)  # fmt: skip


class _IndexFiles:
    """Index files of the local store, tried on a real file."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._access = OsFileAccess()
        self._path = str(directory / "20260101000000000")

    def seeds(self) -> list[bytes]:
        made = []
        for count in (0, 3, ENTRIES):
            if os.path.exists(self._path):
                os.remove(self._path)
            file = IndexFile.create(self._access, self._path, SLOTS, ENTRIES, None)
            for number in range(count):
                file.put_key(number * 7 % 9, 100 * number, NOW_MS + 2000 * number)
            file.close()
            made.append(Path(self._path).read_bytes())
        return made

    def attempt(self, data: bytes) -> str:
        Path(self._path).write_bytes(data)
        file, said = documented(lambda: IndexFile.open(self._access, self._path, SLOTS, ENTRIES), StoreDamaged)
        if file is None:
            return said
        try:
            found = [file.select(hash_, 32, 0, EVER_MS) for hash_ in (*range(10), (1 << 31) - 1)]
            header = file.header
            inside = all(
                header.begin_physical_offset <= offset <= header.end_physical_offset
                for each in found
                for offset in each
            )
            assert inside, f"offsets outside of the file's: {found}"
            file.trailing_entries(100)
            put = file.put_key(3, header.end_physical_offset, NOW_MS)
        finally:
            file.close()
        return f"open, {min(3, sum(map(len, found)))} found, {'room' if put else 'full'}"


def _compacted() -> list[bytes]:
    items = [IndexItem(number % 3, 2, 1, 100 * number, 90, number) for number in range(4)]
    runs: dict[int, list[IndexItem]] = {slot: [] for slot in range(3)}
    for item in items:
        runs[item.key_hash % 3].append(item)
    position = HEADER.size + 3 * COMPACTED_SLOT.size
    slots, data = b"", b""
    for run in runs.values():
        packed = b"".join(ITEM.pack(*item) for item in run)
        slots += COMPACTED_SLOT.pack(position, len(packed))
        position, data = position + len(packed), data + packed
    return [HEADER.pack(MAGIC_END, NOW_MS, NOW_MS + 9000, 3, len(items)) + slots + data]


def _try_compacted(data: bytes) -> str:
    """An object of the tier, read through a driver; the kernels judge its items."""
    driver = MemoryDriver()
    key = QueueKey("cluster", "b1", "index", 0).segment(SegmentType.INDEX, NOW_MS)
    if data:
        driver.write(key, 0, [data])
    segment = Segment(key, len(data), SegmentStatus.SEALED, NOW_MS, NOW_MS, NOW_MS + 9000)
    said = []
    for hash_ in range(4):
        index = CompactedIndex(driver, segment)
        selected, refused = documented(partial(index.select, hash_, 8, 0, EVER_MS), TierError)
        said.append(refused or f"{min(2, len(selected.items))} items")
    items = data[HEADER.size :]
    by_both("check_index_items", lambda twin: tuple(twin.check_index_items(items, data, 0, "orders", 1, NOW_MS)))
    return said[0]


def _mend_document(data: bytes) -> bytes:
    """A document whose checksum fits whatever body is left; as it is where there is none."""
    try:
        document = json.loads(data)
        return seal_document(document["body"], 1) if isinstance(document["body"], dict) else data
    except (ValueError, TypeError, LookupError, RecursionError):
        return data


def _try_manifest(decode: Callable[[bytes, str], Any], encode: Callable[[Any], bytes], data: bytes) -> str:
    found, said = documented(lambda: decode(data, "manifest"), CorruptManifest, FutureManifest)
    if found is not None:
        again = decode(encode(found), "again")
        assert again == found, f"{found} reads back as {again}"
    return said or "a manifest"


def _timer_objects() -> list[bytes]:
    timers = [TieredTimer(NOW_MS + number, number == 2, b"record %d" % number) for number in range(4)]
    return [encode_timers(timers[:1]), encode_timers(timers), encode_timers([timers[0]] * 3)]


def _mend_timers(data: bytes) -> bytes:
    """Right checksums and a right count, where there is a table at all."""
    if len(data) < TABLE_AT:
        return data
    made = bytearray(data)
    count = min(int.from_bytes(made[8:12], "big"), (len(made) - TABLE_AT) // ROW.size)
    table = made[TABLE_AT : TABLE_AT + count * ROW.size]
    CHECKSUM.pack_into(made, HEAD.size, zlib.crc32(table, zlib.crc32(made[: HEAD.size])))
    return bytes(made)


def _try_timer_object(data: bytes) -> str:
    found, said = documented(lambda: TimerObject(data, "object"), CorruptTimers)
    if found is None:
        return said
    timers = list(found.timers(-EVER_MS, EVER_MS))
    due = [timer.deliver_ms if isinstance(timer, TieredTimer) else timer.due_ms for timer in timers]
    assert due == sorted(due), f"timers out of order: {due}"
    return f"timers {sorted({type(timer).__name__ for timer in timers})}"


def _rocketmq_metadata() -> list[bytes]:
    segments = MANIFEST.segments
    return [encode_rocketmq_json(RocketMQMetadata((), (), segments, 4)), b'{"topicSerialNumber":3}']


def _try_rocketmq_metadata(data: bytes) -> str:
    found, said = documented(lambda: decode_rocketmq_json(data, "cluster"), StoreDamaged)
    return said or f"{min(3, len(found.segments))} segments"


def stored_targets(scratch: Path) -> list[Target]:
    index = _IndexFiles(scratch / "index")
    timer_manifests = [encode_timer_manifest(TIMERS)]
    return [
        Target("index", index.seeds, index.attempt),
        Target("tier_index", _compacted, _try_compacted),
        Target(
            "manifest",
            lambda: [encode_manifest(MANIFEST)],
            lambda data: _try_manifest(decode_manifest, encode_manifest, data),
            MANIFEST_WORDS,
            _mend_document,
        ),
        Target(
            "timer_manifest",
            lambda: timer_manifests,
            lambda data: _try_manifest(decode_timer_manifest, encode_timer_manifest, data),
            MANIFEST_WORDS,
            _mend_document,
        ),
        Target("timer_object", _timer_objects, _try_timer_object, (), _mend_timers),
        Target(
            "rocketmq_metadata", _rocketmq_metadata, _try_rocketmq_metadata, (*MANIFEST_WORDS, b"1e999", b"[[", b"{{")
        ),
    ]


assert index_file_bytes(SLOTS, ENTRIES) < 2048
