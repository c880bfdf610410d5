"""Consistency check of a store directory: commit log, consume queues and key index, every record, both ways.

* every record is intact and stored at its own physical offset; full files end with a blank record
* every record that consumers may see has its unit at its queue offset, with its physical offset, size and tags code
* every unit whose record has not been deleted points to an intact record of that queue and offset
* every key of every record is in the index, every index entry points to a record that has such a key, and the
  hash chains of each index file are complete, so that lookups find every entry

A *problem* is a contradiction that no later start repairs. A *note* is what the next start of the store repairs (a torn
end, records not dispatched yet), or information. After a clean close there is nothing to repair, so a note of a crashed
or running store is then a problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tiermq.consumequeue import ext_unit, unit
from tiermq.errors import CorruptRecord, StoreDamaged
from tiermq.message.client_batch import inner_span
from tiermq.message.java_hash import key_hash, tags_code
from tiermq.message.properties import (
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    KEYS,
    get_text_property,
    index_keys,
)
from tiermq.message.record_head import RecordHead
from tiermq.message.stored_message import StoredMessage
from tiermq.message.system_flag import TransactionType, enters_consume_queue
from tiermq.message.topic_name import LIGHT_QUEUE_PREFIX, SCHEDULE_TOPIC, QueueName, lite_parent
from tiermq.store.readonly.index import IndexEntry
from tiermq.store.readonly.log import ReadOnlyLog, walk_log_file
from tiermq.store.readonly.mapped_run import MappedRun, ReadOnlyMap, RunFile
from tiermq.store.readonly.queue import ReadOnlyQueue
from tiermq.store.readonly.store import ReadOnlyStore

FINDINGS_KEPT_MAX = 1_000

Progress = Callable[[int], None]
Report = Callable[[str, str, str], None]


class Finding(NamedTuple):
    """One problem or note: its kind, location and text."""

    kind: str
    where: str
    text: str


@dataclass
class CheckReport:
    """What a check found. `problem_count` counts all; `problems` keeps the first thousand."""

    directory: str
    ended_cleanly: bool
    counts: dict[str, int]
    problems: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    problem_count: int = 0
    note_count: int = 0

    @property
    def is_clean(self) -> bool:
        return self.problem_count == 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "directory": self.directory,
            "clean": self.is_clean,
            "ended_cleanly": self.ended_cleanly,
            "counts": self.counts,
            "problem_count": self.problem_count,
            "problems": [finding._asdict() for finding in self.problems],
            "note_count": self.note_count,
            "notes": [finding._asdict() for finding in self.notes],
        }


def check_store(
    root: Path,
    *,
    commit_log_paths: Sequence[Path] = (),
    slot_count: int | None = None,
    progress: Progress | None = None,
) -> CheckReport:
    """Check everything. `progress` is called with the bytes of log and queues that were read since its last call.

    Raises StoreError when `root` is no store directory.
    """
    with ReadOnlyStore.open(root, commit_log_paths=commit_log_paths) as store:
        checking = _Check(store, slot_count, progress or (lambda _: None))
        try:
            return checking.run()
        finally:
            checking.release()


class _Check:
    """One check. The log and the index are read in step: both are in the order of physical offsets."""

    def __init__(self, store: ReadOnlyStore, slot_count: int | None, progress: Progress) -> None:
        self._store = store
        self._log = store.log_files
        self._log_maps = self._log.maps()  # All files are mapped first: what a running store deletes stays readable.
        self._queues = _mapped_queues(store)
        self._ext_queues: dict[QueueName, MappedRun] = {}
        self._progress = progress
        self._slot_count = slot_count
        names = (
            "log_files",
            "records",
            "record_bytes",
            "queues",
            "units",
            "units_expired",
            "index_files",
            "index_entries",
        )
        self._counts = dict.fromkeys(names, 0)
        self._report = CheckReport(str(store.root), store.ended_cleanly, self._counts)
        self._log_end = self._log.min_offset
        self._log_damaged = False
        self._units_end = max((_last_end(queue) for queue in self._queues.values()), default=-1)
        self._index = _IndexCursor(self._all_index_entries(), self._log, self._problem, self._repairable)
        self._batch_records: dict[QueueName, set[int]] = {}

    def release(self) -> None:
        """Drop every map now: the cursor and this object refer to each other; the directory may be unmounted next."""
        del self._index, self._log_maps, self._queues, self._ext_queues

    def run(self) -> CheckReport:
        self._check_layout()
        self._walk_log()
        for key, queue in sorted(self._queues.items()):
            self._walk_queue(key, queue)
        return self._report

    def _problem(self, kind: str, where: str, text: str) -> None:
        self._report.problem_count += 1
        if len(self._report.problems) < FINDINGS_KEPT_MAX:
            self._report.problems.append(Finding(kind, where, text))

    def _note(self, kind: str, where: str, text: str) -> None:
        self._report.note_count += 1
        if len(self._report.notes) < FINDINGS_KEPT_MAX:
            self._report.notes.append(Finding(kind, where, text))

    def _repairable(self, kind: str, where: str, text: str) -> None:
        """What the next start repairs if the store was not closed in order; a problem if it was."""
        if self._report.ended_cleanly:
            self._problem(kind, where, text)
        else:
            self._note(kind, where, text)

    def _check_layout(self) -> None:
        self._counts["log_files"] = len(self._log_maps)
        self._counts["queues"] = len(self._queues)
        for text in self._log.layout_problems():
            self._problem("layout", "commitlog", text)
        self._check_reach()
        for (topic, queue_id), queue in sorted(self._queues.items()):
            for text in queue.run.layout_problems():
                self._problem("layout", f"queue {topic}/{queue_id}", text)

    def _check_reach(self) -> None:
        """Units that point into a missing log file. The next start would truncate them without a trace."""
        if not self._log_maps:
            return
        last, opened = self._log_maps[-1]
        end = last.base + len(opened.view)
        # A running store may have created the file since the log was listed.
        if self._units_end > end and not last.path.with_name(f"{end:020d}").exists():
            self._problem(
                "log_file_missing",
                "commitlog",
                f"queues lead to records up to {self._units_end}, and the last log file, {last.path.name}, ends at "
                f"{end}: the file behind it is gone, unless the power failed before it came to the disk",
            )

    # The log, and beside it the index -------------------------------------------------------------------------

    def _walk_log(self) -> None:
        """All files in order. A file that ends before its blank record must be the last one with data."""
        open_end: tuple[RunFile, ReadOnlyMap, int] | None = None
        for file, each in self._log_maps:
            if not each.is_zero_from(0):
                if open_end is not None and self._walk_file(*open_end) is not None:
                    # It was walked again, because a running store may have filled it up in the meantime.
                    name = open_end[0].path.name
                    self._problem("log", name, f"ends without a blank record, and {file.path.name} follows")
                stopped = self._walk_file(file, each, 0)
                open_end = None if stopped is None else (file, each, stopped)
            self._progress(len(each.view))
        self._index.finish(self._log_end)

    def _walk_file(self, file: RunFile, opened: ReadOnlyMap, position: int) -> int | None:
        """Check the data from `position` on; returns where it ends, or None after a blank record or damage."""
        for item in walk_log_file(opened, file.base, position):
            position = item.position + item.size
            if item.error:
                self._damaged_place(item.physical_offset, item.error)
                if not item.size:
                    return None
            elif item.message is not None:
                self._record(item.message)
            elif position == len(opened.view):
                return None
        return position

    def _damaged_place(self, physical_offset: int, error: str) -> None:
        where = f"commit log at {physical_offset}"
        self._log_damaged = True
        if physical_offset >= self._units_end:
            # No queue has a unit for this. RocketMQ does not erase what it truncates, so it may also be old data.
            self._note("torn_end", where, f"bytes behind the last dispatched record are no record: {error}")
        else:
            self._problem("log", where, error)

    def _record(self, message: StoredMessage) -> None:
        self._counts["records"] += 1
        self._counts["record_bytes"] += message.size
        self._log_end = message.physical_offset + message.size
        where = f"record at {message.physical_offset}"
        try:
            if enters_consume_queue(message.sys_flag):
                self._check_units(message, where)
            hashes = _key_hashes(message)
        except CorruptRecord as error:
            self._problem("record", where, str(error))
            return
        if self._store.index.names:
            self._index.expect(message.physical_offset, hashes, where)

    def _check_units(self, message: StoredMessage, where: str) -> None:
        queue = self._queues.get((message.topic, message.queue_id))
        place = f"queue {message.topic}/{message.queue_id} offset {message.queue_offset}"
        if queue is None:
            self._repairable("unit_missing", where, f"has no consume queue {message.topic}/{message.queue_id}")
        elif queue.is_batch:  # It has no lookup by offset: the check of the queue finds missing units.
            self._batch_records.setdefault((message.topic, message.queue_id), set()).add(message.physical_offset)
        else:
            found = queue.written_unit_at(message.queue_offset)
            if found is None:
                self._repairable("unit_missing", where, f"has no unit: {place}")
            elif (found.physical_offset, found.size) != (message.physical_offset, message.size):
                self._problem("unit_wrong", where, f"{place} leads to {found.physical_offset}, {found.size} bytes")
            else:
                self._check_tags(message, found, where)
        self._check_light_queues(message, where)

    def _check_tags(self, message: StoredMessage, found: unit.Unit, where: str) -> None:
        expected = tags_code(message.tags)
        if message.topic == SCHEDULE_TOPIC or found.tags_code == expected:
            return
        if unit.is_ext_address(found.tags_code):
            place = self._ext_queue(message.topic, message.queue_id).find(unit.ext_offset(found.tags_code))
            if place is None:
                self._problem("ext", where, f"its ext unit at {unit.ext_offset(found.tags_code)} is not there")
                return
            if ext_unit.decode(*place).tags_code == expected:
                return
        self._problem("tags", where, f"expected tags code {expected} in its unit, found {found.tags_code}")

    def _ext_queue(self, topic: str, queue_id: int) -> MappedRun:
        if (topic, queue_id) not in self._ext_queues:
            self._ext_queues[topic, queue_id] = self._store.ext_queue(topic, queue_id)
        return self._ext_queues[topic, queue_id]

    def _check_light_queues(self, message: StoredMessage, where: str) -> None:
        names = message.get_property(INNER_MULTI_DISPATCH)
        offsets = message.get_property(INNER_MULTI_QUEUE_OFFSET)
        if not names or not offsets:
            return
        for name, offset in zip(names.split(","), offsets.split(","), strict=False):
            if name.startswith(LIGHT_QUEUE_PREFIX) and offset.isdigit():
                queue = self._queues.get((name, 0))
                found = queue.written_unit_at(int(offset)) if queue else None
                has_unit = found is not None and found.physical_offset == message.physical_offset
                if not has_unit and not self._was_dropped(name, queue, message.physical_offset):
                    self._repairable("unit_missing", where, f"has no unit: queue {name}/0 offset {offset}")

    def _was_dropped(self, name: str, queue: ReadOnlyQueue | None, physical_offset: int) -> bool:
        """Whether a lite topic's light queue may have been deleted, as expired, after the record was stored."""
        if lite_parent(name) is None:
            return False
        first = None if queue is None else next(queue.written_units(), None)
        return first is None or physical_offset < first[1].physical_offset

    def _all_index_entries(self) -> Iterator[IndexEntry]:
        """Entries of all index files by physical offset; an entry out of order is reported and skipped."""
        reached = -1
        for file in self._store.index.names:
            name = f"index {file}"
            try:
                index = self._store.index.view(file, self._slot_count)
            except FileNotFoundError:
                continue  # Deleted by a running store.
            except StoreDamaged as error:
                self._problem("index", name, str(error))
                continue
            self._counts["index_files"] += 1
            self._counts["index_entries"] += index.header.entry_count - 1
            for text in index.problems():
                self._repairable("index", name, text)
            first = index.header.begin_physical_offset
            if index.header.entry_count > 1 and first < reached:
                self._problem(
                    "index_order", name, f"begins at {first}, the file before reaches {reached}: indexed twice"
                )
            for entry in index.entries():
                if entry.physical_offset >= reached:
                    reached = entry.physical_offset
                    yield entry

    # Queues -----------------------------------------------------------------------------------------------------

    def _walk_queue(self, key: QueueName, queue: ReadOnlyQueue) -> None:
        before = -1
        without_unit = self._batch_records.get(key, set())
        for queue_offset, physical_offset, size, count in _all_units(queue):
            self._counts["units"] += 1
            without_unit.discard(physical_offset)
            place = f"queue {key[0]}/{key[1]} offset {queue_offset}"
            if physical_offset < before:
                self._problem("unit_order", place, f"physical offset {physical_offset} after {before}")
            before = physical_offset
            if physical_offset < self._log.min_offset:
                self._counts["units_expired"] += 1
            elif physical_offset >= self._log_end and not self._log_damaged:
                self._repairable("unit_beyond", place, f"leads to {physical_offset}, the log ends at {self._log_end}")
            else:
                self._follow_unit(key, queue_offset, physical_offset, size, count)
        for physical_offset in sorted(without_unit):
            self._repairable("unit_missing", f"record at {physical_offset}", f"has no unit in queue {key[0]}/{key[1]}")
        self._progress(sum(file.size for file in queue.run.all_files))

    def _follow_unit(self, key: QueueName, queue_offset: int, physical_offset: int, size: int, count: int) -> None:
        place = f"queue {key[0]}/{key[1]} offset {queue_offset}"
        head = self._log.head_at(physical_offset)
        if head is None:
            self._problem("unit_wrong", place, f"points to {physical_offset}, where there is no valid record")
            return
        try:
            belongs = self._belongs(head, key, queue_offset, size, count)
        except CorruptRecord as error:
            self._problem("record", f"record at {physical_offset}", str(error))
            return
        if not belongs:
            owner = f"{head.topic.decode('utf-8', 'replace')}/{head.queue_id} offset {head.queue_offset}"
            text = f"leads to {physical_offset}, {size} bytes; the record there is {owner}, {head.size} bytes"
            self._problem("unit_wrong", place, text)

    def _belongs(self, head: RecordHead, key: QueueName, queue_offset: int, size: int, count: int) -> bool:
        if head.size != size:
            return False
        if head.topic == key[0].encode() and head.queue_id == key[1]:
            if not count:
                return head.queue_offset == queue_offset
            properties = self._log.properties_of(head.physical_offset, head)
            return inner_span(properties, head.queue_offset) == (queue_offset, count)
        names = get_text_property(self._log.properties_of(head.physical_offset, head), INNER_MULTI_DISPATCH)
        return names is not None and key[0] in names.split(",")


def _mapped_queues(store: ReadOnlyStore) -> dict[QueueName, ReadOnlyQueue]:
    """Every queue that has a file."""
    found = {name: store.queue(*name) for name in (*store.queues(), *store.batch_queues())}
    return {name: queue for name, queue in found.items() if queue is not None and queue.run.maps()}


def _all_units(queue: ReadOnlyQueue) -> Iterator[tuple[int, int, int, int]]:
    """(queue offset, physical offset, size, messages of the batch or 0) of every real unit."""
    if queue.is_batch:
        for batch in queue.written_batch_units():
            yield batch.base_offset, batch.physical_offset, batch.size, batch.batch_size
    else:
        for queue_offset, found in queue.written_units():
            yield queue_offset, found.physical_offset, found.size, 0


def _last_end(queue: ReadOnlyQueue) -> int:
    """The end of the newest record of a queue; offsets ascend, so it is that of the last unit."""
    if queue.is_batch:
        return max((batch.end_physical_offset for batch in queue.written_batch_units()), default=-1)
    return queue.max_physical_offset or -1


def _key_hashes(message: StoredMessage) -> set[int]:
    """The hashes that the index must hold for a record."""
    if message.transaction_type is TransactionType.ROLLBACK:
        return set()
    keys = index_keys(message.unique_key, message.get_property(KEYS))
    return {key_hash(f"{message.topic}#{key}") for key in keys}


class _IndexCursor:
    """Index entries, consumed in step with the log."""

    def __init__(self, entries: Iterator[IndexEntry], log: ReadOnlyLog, problem: Report, repairable: Report) -> None:
        self._entries = entries
        self._log = log
        self._problem = problem
        self._repairable = repairable
        self._next: IndexEntry | None = None
        self._started = False

    def _advance(self) -> None:
        self._started = True
        self._next = next(self._entries, None)

    def expect(self, physical_offset: int, hashes: set[int], where: str) -> None:
        """Compare the entries of one record with the hashes of its keys."""
        if not self._started:
            self._advance()
        while self._next is not None and self._next.physical_offset < physical_offset:
            self._stray(self._next, physical_offset)
            self._advance()
        found = set()
        while self._next is not None and self._next.physical_offset == physical_offset:
            found.add(self._next.key_hash)
            self._advance()
        if found - hashes:
            text = f"{len(found - hashes)} index entries lead here, of keys that it does not have"
            self._problem("index_wrong", where, text)
        if hashes - found:
            text = f"{len(hashes - found)} of its {len(hashes)} keys are not in the index"
            self._repairable("key_missing", where, text)

    def finish(self, log_end: int) -> None:
        """What is left after the last record."""
        if not self._started:
            self._advance()
        while self._next is not None:
            self._stray(self._next, log_end)
            self._advance()

    def _stray(self, entry: IndexEntry, log_end: int) -> None:
        """An entry whose record was not read: it was deleted, is behind damage, or never existed."""
        if entry.physical_offset < self._log.min_offset or self._log.head_at(entry.physical_offset) is not None:
            return
        report = self._repairable if entry.physical_offset >= log_end else self._problem
        report("index_wrong", f"index entry {entry.number}", f"leads to {entry.physical_offset}: no record is there")
