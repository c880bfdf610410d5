"""BrokerIndex: the key index of one broker in the bucket, while a job holds the broker.

    keys of committed records (StagedKeys) ─► build_tasks ─► files by executors, marked ─► register ─► coverage
    many small files ─► merge_tasks ─► one file by an executor ─► swap ─► its sources are removed

The driver has rows of files and the coverage of queues, never keys. Order of `register`, so that coverage never exceeds
the index and a reader that sees a file also sees what it covers:

    1  the messages are committed; all new files are behind the existing ones, each with a companion that has the
       earlier coverage and a mark
    2  the marks are removed, except the last
    3  the last file's companion gets the new coverage: from here on it is valid for readers of the bucket
    4  rows in the metadata, and the record of the store directory, if there is one

Killed before 3, the next job removes marked files, and what they covered is missing in the coverage: it is indexed
again from the tier. Killed after 3, the next job adds the rows. Files without marks of an unfinished job stay: their
items are valid, and an item found twice counts once.

A merge is visible at once: first the merged file, which names its sources, then its row, then the sources are hidden
and removed. A file whose sources are still there is finished by the next job; a file that was cut short is removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import TierError
from tiermq.files.os_file_access import OsFileAccess
from tiermq.pipeline.compact.merge import MadeIndex, MergeTask
from tiermq.pipeline.index_build import BuildTask, BuiltIndex, StagedKeys, grouped, unstage
from tiermq.pipeline.index_files import (
    IndexFile,
    IndexFiles,
    queue_tails_of,
    read_index_files,
    remove_index_file,
    replace_companion,
    write_index_manifest,
)
from tiermq.pipeline.leased_broker import LeasedBroker
from tiermq.pipeline.reindex.task import KeyWork, LogChunk, log_chunks
from tiermq.tier.driver.contract import SegmentInfo
from tiermq.tier.index.compacted_index import FEW_SLOTS, read_companion
from tiermq.tier.index.index_coverage import (
    CoverageRecord,
    LogRange,
    QueueCoverage,
    QueueTail,
    covered_more,
    either,
    sealed_text,
    uncovered,
    with_queues,
)
from tiermq.tier.index.index_item import MINUTE_MS, SLOTS_DEFAULT, is_merged, merged_begin_ms
from tiermq.tier.index.index_recovery import INDEX_DIRECTORY, RECORD_NAME
from tiermq.tier.metadata.metadata_values import Segment, Topic
from tiermq.tier.names import QueueKey, QueueName, SegmentKey, SegmentType

FILES_PER_LEVEL = 8
"""When there are more index files of one size class, they and all smaller ones become one file."""

LEVEL_BITS = 3
"""A size class has 2**3 times as many items as the one below: each item is merged once for each class."""

SHARED_ITEMS_MIN = 100_000
"""Of an index file that one processor makes while others make theirs of the same wave."""

SLOTS_MIN = 64
KEY_CHUNK_BYTES = 64 * 1024 * 1024


class BrokerIndex:
    """See the module. Belongs to the job's thread; `open` before anything else."""

    def __init__(
        self,
        held: LeasedBroker,
        tier: str,
        *,
        slots: int | None = None,
        items_max: int,
        few_slots: bool = False,
        step: Callable[[str], None] = lambda _name: None,
    ) -> None:
        """`slots` of a file; None: as in the files that are there, else the default. `few_slots`: small files get
        fewer, until they are merged. `step` is called before each step.
        """
        self.held = held
        self.tier = tier
        self.files = IndexFiles(held.driver, held.home.index)
        self.record = CoverageRecord((), ())
        self.coverage: dict[QueueName, QueueCoverage] = {}
        self._slots = slots
        self._items_max = items_max
        self._few_slots = few_slots
        self._step = step

    @property
    def slots(self) -> int:
        """Of a file of this tier."""
        known = [file.slots for file in self.files.whole if not file.has_few_slots]
        return self._slots or max(known, default=SLOTS_DEFAULT)

    # What is there

    def open(self, *, settle: bool = True) -> None:
        """Read what is there; with `settle` finish or remove what a job that did not end left, else change nothing.

        Raises StoreDamaged for coverage of a newer version, and what the driver raises.
        """
        self.files = read_index_files(self.held)
        if settle and self._settle():
            self.files = read_index_files(self.held)
        self.record = self.files.uploaded_coverage(self._tails())
        self.coverage = self.record.coverage().queues

    def _tails(self) -> Iterator[QueueTail]:
        """Read from the metadata only where they are needed: for an index of RocketMQ's."""
        yield from queue_tails_of(self.held)

    def _settle(self) -> bool:
        """Returns whether anything changed."""
        held = self.held
        unstage(held.driver, held.home.index)
        doomed = [row.key for row in held.metadata.segments_being_deleted() if row.key.queue == held.home.index]
        doomed += [file.key for file in self.files.whole if file.is_unregistered]
        doomed += [info.key for info in self.files.broken if self._is_cut(info)]
        doomed += [key for key in self.files.marks if (row := held.metadata.segment(key)) is None or row.size == 0]
        bases = {file.key.base: file for file in self.files.registered}
        unknown = []
        for file in self.files.registered:
            if held.metadata.segment(file.key) is None:
                unknown.append(file)
            sources = [bases[base].key for base in file.merged_from or () if base in bases]
            if sources:
                held.driver.seal(file.key)
                doomed += sources
        for file in unknown:
            held.driver.seal(file.key)
            held.metadata.put_segment(file.row(held.clock.now_ms()))
        for key in doomed:
            remove_index_file(held, key)
        if doomed or unknown:
            write_index_manifest(held)
        return bool(doomed or unknown)

    def _is_cut(self, info: SegmentInfo) -> bool:
        """Whether an upload of ours was cut short. Its companion stood before its first byte; RocketMQ writes none."""
        is_known = self.held.home.store is not None and self.held.metadata.segment(info.key) is not None
        return not info.sealed and not is_known and read_companion(self.held.driver, info.key) is not None

    # What is missing

    def missing(
        self,
        queue: QueueKey,
        *,
        of: Mapping[QueueName, QueueCoverage] | None = None,
        trust_doubtful: bool = False,
    ) -> list[LogRange]:
        """Ranges of the queue's committed log that no file in the bucket covers, or that the coverages `of` lack.

        `trust_doubtful`: what RocketMQ indexed counts as covered.
        """
        (topic, log), row = self._topic_and_log(queue), self.held.metadata.queue(queue)
        if topic is None or log is None or row is None or row.max_offset <= max(0, row.min_offset):
            return []
        known = (self.coverage if of is None else of).get(queue.name)
        if trust_doubtful and known is not None:
            known = replace(known, doubtful_end=0)
        return uncovered(known, topic.id, log)

    def _topic_and_log(self, queue: QueueKey) -> tuple[Topic | None, LogRange | None]:
        logs = self.held.metadata.segments(queue, SegmentType.COMMIT_LOG)
        log = (logs[0].key.base, max(row.end for row in logs)) if logs else None
        return self.held.metadata.topic(queue.topic), log

    def works(self, queue: QueueKey, ranges: Sequence[LogRange], chunk_bytes: int = KEY_CHUNK_BYTES) -> list[KeyWork]:
        """The missing ranges of a queue's log as works of a KeyTask."""
        metadata = self.held.metadata
        topic, row = metadata.topic(queue.topic), metadata.queue(queue)
        assert topic is not None
        assert row is not None
        logs = metadata.segments(queue, SegmentType.COMMIT_LOG)
        units = metadata.segments(queue, SegmentType.CONSUME_QUEUE)
        offsets = max(0, row.min_offset), row.max_offset
        return [
            KeyWork(
                queue,
                topic.id,
                each,
                tuple(row for row in logs if row.key.base < each.stop and row.end > each.start),
                tuple(row for row in units if _holds(row, each)),
                is_last=each.to_offset >= offsets[1],
            )
            for each in log_chunks(ranges, metadata.time_entries(queue), offsets, chunk_bytes)
        ]

    # New files

    def build_tasks(self, staged: Sequence[StagedKeys], parallelism: int = 1) -> list[BuildTask]:
        """The tasks that make index files of these keys. Their files are behind all others, and not registered.

        Many keys become several files, up to `parallelism` of them: the rest of a wave waits for its index.
        """
        items = sum(each.count for each in staged)
        files = max(1, min(parallelism, items // SHARED_ITEMS_MIN))
        items_max = min(self._items_max, max(1, -(-items // files)))
        base, begin_ms, tasks = self.files.end, self.held.clock.now_ms(), list[BuildTask]()
        coverage = self.record.encode()
        for group in grouped(staged, items_max):
            while is_merged(begin_ms) or not self.files.is_free(begin_ms):
                begin_ms += 1
            slots = self._slots_for(sum(each.count for each in group))
            key = self.held.home.index.segment(SegmentType.INDEX, base)
            few = slots != self.slots
            tasks.append(BuildTask(self.tier, key, begin_ms, slots, group, coverage, has_few_slots=few))
            base, begin_ms = base + tasks[-1].size, begin_ms + 1
        return tasks

    def _slots_for(self, item_count: int) -> int:
        """About a slot for each item: 5,000,000 slots have 40 MB, also in a file of one item."""
        if not self._few_slots or item_count << LEVEL_BITS >= self.slots:
            return self.slots
        return min(self.slots, max(SLOTS_MIN, 1 << (item_count - 1).bit_length()))

    def register(
        self, built: Sequence[BuiltIndex], staged: Sequence[StagedKeys], *, trust_doubtful: bool = False
    ) -> None:
        """Let the new files count, and with them the ranges whose keys they have, which are committed.

        Raises StaleWriter, TierError; then `open` again.
        """
        held = self.held
        held.check()
        for each in built:
            self._require(each.key, each.size)
        covered = with_queues(self.record, self._covered(staged, trust_doubtful))
        if covered == self.record and not built:
            return
        self._step("unmark")
        for each in built[:-1]:
            earlier = replace(self.record, files=(each.facts,))
            replace_companion(held.driver, each.key, each.size, earlier, has_few_slots=each.has_few_slots)
        self._step("cover")
        self._cover(covered, built)
        self._step("rows")
        now_ms = held.clock.now_ms()
        with held.metadata.transaction():
            for each in built:
                file = _file_of(each)
                held.metadata.put_segment(file.row(now_ms, each.crc32))
                self.files.whole.append(file)
        self.record, self.coverage = covered, covered.coverage().queues
        write_index_manifest(held)
        for name in sorted({each.name for each in staged if each.name}):
            held.driver.delete_object(name)

    def _require(self, key: SegmentKey, size: int) -> None:
        found = self.held.driver.size(key)
        if found != size or not self.held.driver.is_sealed(key):
            raise TierError(f"{key}: expected {size} sealed bytes, found {found}; run the job again")

    def _covered(self, staged: Iterable[StagedKeys], trust_doubtful: bool) -> Mapping[QueueName, QueueCoverage]:
        done: dict[QueueKey, list[LogRange]] = {}
        for each in staged:
            done.setdefault(each.queue, []).append((each.start, each.stop))
        changed = {}
        for queue, ranges in done.items():
            topic, log = self._topic_and_log(queue)
            if topic is not None and log is not None:
                known = self.coverage.get(queue.name)
                changed[queue.name] = covered_more(known, topic.id, log, ranges, trust_doubtful=trust_doubtful)
        return changed

    def _cover(self, record: CoverageRecord, built: Sequence[BuiltIndex]) -> None:
        """Write the coverage to the newest file's companion: one atomic put. Without files only jobs read it."""
        driver = self.held.driver
        if built:
            last = built[-1]
            record = replace(record, files=(last.facts,))
            replace_companion(driver, last.key, last.size, record, has_few_slots=last.has_few_slots)
        elif self.files.registered:
            file = self.files.registered[-1]
            old = read_companion(driver, file.key)
            record = replace(record, files=() if old is None else old.record.files)
            replace_companion(driver, file.key, file.size, record, has_few_slots=file.has_few_slots)
        elif self.files.end == 0:
            replace_companion(driver, self.files.first, 0, record)

    # Fewer files

    def merge_tasks(self, groups: Sequence[Sequence[IndexFile]], *, all_slots: bool = False) -> list[MergeTask]:
        """The tasks that make one file of each group. Each is placed behind the one before.

        `all_slots`: none of them gets few slots.
        """
        coverage, base, taken, tasks = self.record.encode(), self.files.end, set[int](), list[MergeTask]()
        for group in groups:
            begin_ms = merged_begin_ms(min(file.begin_ms for file in group))
            while begin_ms in taken or not self.files.is_free(begin_ms):
                begin_ms -= MINUTE_MS
            taken.add(begin_ms)
            key = self.held.home.index.segment(SegmentType.INDEX, base)
            slots = max(file.slots for file in group)
            if all(file.has_few_slots for file in group):
                slots = self.slots if all_slots else self._slots_for(sum(file.item_count for file in group))
            few = all(file.has_few_slots for file in group) and slots != self.slots
            tasks.append(MergeTask(self.tier, tuple(group), key, begin_ms, slots, coverage, has_few_slots=few))
            base += tasks[-1].size
        return tasks

    def swap(self, task: MergeTask, made: MadeIndex) -> None:
        """Let a merged file count and remove its sources. Raises StaleWriter, TierError; then `open` again."""
        held = self.held
        held.check()
        if made.file.size != task.size:
            raise TierError(f"{task.key.path}: expected {task.size} bytes, made {made.file.size}; nothing was removed")
        self._require(task.key, task.size)
        self._step("row")
        with held.metadata.transaction():
            held.metadata.put_segment(made.file.row(held.clock.now_ms(), made.crc32))
            for source in task.sources:
                if held.metadata.segment(source.key) is not None:
                    held.metadata.mark_deleted(source.key)
        self.files.whole.append(made.file)
        write_index_manifest(held)  # Brokers that follow query the merged file before its sources go.
        for source in task.sources:
            self._step("remove")
            remove_index_file(held, source.key)
            self.files.whole.remove(source)
        write_index_manifest(held)

    def crowded(self) -> list[Sequence[IndexFile]]:
        """Small files of which there are too many: a group that should become one file, or none."""
        files = [file for file in self.files.registered if file.item_count < max(2, self._items_max // 2)]
        return plan_level(files, self._items_max)

    def unfit(self) -> list[Sequence[IndexFile]]:
        """Files with few slots, in groups that should become a file each."""
        few = [file for file in self.files.registered if file.has_few_slots]
        groups, count = list[list[IndexFile]](), 0
        for file in few:
            if not groups or count + file.item_count > self._items_max:
                groups.append([])
                count = 0
            groups[-1].append(file)
            count += file.item_count
        return list(groups)

    # The store directory

    def write_local(self) -> None:
        """The store's own record, if it has one: what uploaded files cover is not to be read back again."""
        record, root = self.files.local_record, self.held.root
        if record is None or root is None or not record.is_base_known:
            return
        local, changed = record.coverage().queues, {}
        for name, known in self.coverage.items():
            joint = either(known, local.get(name))
            if joint != local.get(name):
                changed[name] = joint
        if changed:
            self._step("record")
            self.files.local_record = with_queues(record, changed)
            path = os.path.join(root, INDEX_DIRECTORY, RECORD_NAME)
            OsFileAccess().write_bytes(path, sealed_text(self.files.local_record))


def plan_level(files: Sequence[IndexFile], items_max: int) -> list[Sequence[IndexFile]]:
    """The smallest size class with too many files, together with all smaller files; up to `items_max` items. Pure."""
    levels: dict[int, int] = {}
    for file in files:
        levels[_level(file)] = levels.get(_level(file), 0) + 1
    for level in sorted(levels):
        if levels[level] > FILES_PER_LEVEL:
            return [list(_first([file for file in files if _level(file) <= level], items_max))]
    return []


def _level(file: IndexFile) -> int:
    return (file.item_count.bit_length() - 1) // LEVEL_BITS


def _first(files: Sequence[IndexFile], items_max: int) -> Iterator[IndexFile]:
    count = 0
    for file in files:
        count += file.item_count
        if count > items_max:
            return
        yield file


def _file_of(built: BuiltIndex) -> IndexFile:
    facts, marks = built.facts, {FEW_SLOTS: True} if built.has_few_slots else {}
    return IndexFile(
        built.key, built.size, facts.slots, facts.item_count, facts.begin_ms, facts.newest_ms, marks
    )  # fmt: skip


def _holds(units: Segment, chunk: LogChunk) -> bool:
    return units.key.base < chunk.to_offset * UNIT_BYTES and units.end > chunk.from_offset * UNIT_BYTES
