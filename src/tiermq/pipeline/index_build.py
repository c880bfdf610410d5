"""Index files built by tasks: keys are staged in the tier, then an index file is made of them.

    KeyStage   in a task that has read records: their keys ─► objects of this attempt alone ─► StagedKeys, a row each
    BuildTask  staged keys ─► one index file, at the offset that the driver gave it by their number, not registered

Keys never pass through the driver: it gets rows (of which range, how many, in which object), and an index file has as
many keys as it should, however logs were cut. A build may be run twice: it writes the same bytes. An object whose job
did not finish is removed by the next job of the broker (`BrokerIndex.open`).
"""

from __future__ import annotations

import tempfile
import threading
import uuid
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from tiermq.errors import CorruptSegment, SegmentMissing, TierUnavailable
from tiermq.files.os_file_access import OsFileAccess
from tiermq.kernel.tier_records import COLLECTED_KEY_BYTES
from tiermq.pipeline.compact.merge import write_index_file
from tiermq.pipeline.index_files import encoded_companion
from tiermq.pipeline.worker_cache import driver_of
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.index.compacted_index import FEW_SLOTS, UNREGISTERED
from tiermq.tier.index.index_coverage import CoverageRecord
from tiermq.tier.index.index_item import compacted_bytes
from tiermq.tier.index.index_write_file import FileFacts, IndexWriteFile
from tiermq.tier.names import KEYS_STEM, OBJECT_SUFFIX, QueueKey, SegmentKey

STAGE_BYTES = 32 * 1024 * 1024
"""A staged object is ended when it has this number of bytes."""

OBJECTS_IN_MEMORY = 4
"""Of staged objects that a build reads: ranges are in the order of queues, and objects in that of tasks."""


@dataclass(frozen=True, slots=True)
class StagedKeys:
    """All `count` keys of the records in [start, stop) of a queue's log, at `position` of a staged object."""

    queue: QueueKey
    topic_id: int
    start: int
    stop: int
    count: int = 0
    name: str = ""  # Empty without keys.
    position: int = 0
    crc32: int = 0  # Of the whole object.


class KeyStage:
    """The keys that one attempt of a task has collected. Any thread may `add`; after the last one, `finish`."""

    def __init__(self, driver: TierDriver, index: QueueKey) -> None:
        self._driver = driver
        self._index = index
        self._waiting: list[StagedKeys] = []
        self._keys = bytearray()
        self._done: list[StagedKeys] = []
        self._lock = threading.Lock()

    def add(self, queue: QueueKey, topic_id: int, start: int, stop: int, keys: bytes) -> None:
        """Take the keys of a range, also of one without any."""
        count = len(keys) // COLLECTED_KEY_BYTES
        with self._lock:
            self._waiting.append(StagedKeys(queue, topic_id, start, stop, count, position=len(self._keys)))
            self._keys += keys
            if len(self._keys) >= STAGE_BYTES:
                with suppress(TierUnavailable):  # Tried again by `finish`.
                    self._put()

    def finish(self) -> tuple[StagedKeys, ...]:
        """All ranges that were taken, durable. Raises what the driver raises."""
        self._put()
        return tuple(self._done)

    def _put(self) -> None:
        name, crc32 = "", 0
        if self._keys:
            name = f"{self._index.directory}/{KEYS_STEM}{uuid.uuid4().hex}{OBJECT_SUFFIX}"
            crc32 = zlib.crc32(self._keys)
            self._driver.put_object(name, bytes(self._keys))
        self._done += [replace(each, name=name, crc32=crc32) if each.count else each for each in self._waiting]
        self._waiting.clear()
        self._keys.clear()


def unstage(driver: TierDriver, index: QueueKey) -> None:
    """Remove all staged keys of a broker."""
    for name in driver.list_objects(f"{index.directory}/{KEYS_STEM}"):
        driver.delete_object(name)


def grouped(staged: Iterable[StagedKeys], items_max: int) -> list[tuple[StagedKeys, ...]]:
    """The keys in groups of up to `items_max`, in order: one for each index file. Large ranges are split."""
    groups: list[list[StagedKeys]] = []
    room = 0
    for each in staged:
        done = 0
        while done < each.count:
            if not room:
                groups.append([])
                room = items_max
            count = min(room, each.count - done)
            position = each.position + done * COLLECTED_KEY_BYTES
            groups[-1].append(replace(each, count=count, position=position))
            done, room = done + count, room - count
    return [tuple(group) for group in groups]


@dataclass(frozen=True, slots=True)
class BuildTask:
    """Make the index file `key` of all those keys. `coverage`: what is indexed without it."""

    tier: str
    key: SegmentKey
    begin_ms: int
    slots: int
    staged: tuple[StagedKeys, ...]
    coverage: bytes
    has_few_slots: bool = False

    @property
    def item_count(self) -> int:
        return sum(each.count for each in self.staged)

    @property
    def size(self) -> int:
        return compacted_bytes(self.slots, self.item_count)


@dataclass(frozen=True, slots=True)
class BuiltIndex:
    """An uploaded index file, sealed and not registered."""

    key: SegmentKey
    size: int
    crc32: int
    facts: FileFacts
    has_few_slots: bool = False


def run_build_task(task: BuildTask) -> BuiltIndex:
    """Make the file in a directory of this attempt, and write it. Raises what the driver and the disk raise."""
    driver = driver_of(task.tier)
    with tempfile.TemporaryDirectory(prefix="tiermq-index-") as directory:
        made = IndexWriteFile.create(OsFileAccess(), directory, task.begin_ms, task.slots, task.item_count + 1)
        try:
            _put_all(driver, made, task.staged)
            data, facts = made.compact(), made.facts()
        finally:
            made.destroy()
    if len(data) != task.size:
        raise CorruptSegment(
            f"{task.key.path}: expected {task.size} bytes by the keys that were found, made {len(data)}"
        )
    record = replace(CoverageRecord.decode(task.coverage, task.key.path), files=(facts,))
    marks = {UNREGISTERED: True} | ({FEW_SLOTS: True} if task.has_few_slots else {})
    crc32 = write_index_file(driver, task.key, data, encoded_companion(record, **marks))
    return BuiltIndex(task.key, len(data), crc32, facts, task.has_few_slots)


def _put_all(driver: TierDriver, made: IndexWriteFile, staged: Iterable[StagedKeys]) -> None:
    read = lru_cache(OBJECTS_IN_MEMORY)(partial(_read, driver))
    for each in staged:
        end = each.position + each.count * COLLECTED_KEY_BYTES
        keys, done = read(each.name, each.crc32)[each.position : end], 0
        while done < each.count:
            put = made.put_collected(keys, done, each.topic_id, each.queue.queue_id)
            if not put:
                raise CorruptSegment(f"{each.queue.logical_path}: key {done} of {each.count} does not fit its file")
            done += put


def _read(driver: TierDriver, name: str, crc32: int) -> memoryview:
    stored = driver.get_object(name)
    if stored is None:
        raise SegmentMissing(f"{name}: expected staged keys, found none; run the job again")
    if zlib.crc32(stored.data) != crc32:
        raise CorruptSegment(f"{name}: its staged keys are not what was written; run the job again")
    return memoryview(stored.data)
