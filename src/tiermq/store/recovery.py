"""Recovery: from loading the files to accepting the first put.

    valid clean marker        positions come from the marker; the log is not read
    clean stop, no marker     queues are scanned, the log is scanned from the newest file that the queues refer to
    unclean stop              queues drop what may not have reached the disk, and the log is scanned, checked and
                              dispatched again from the newest file that the checkpoint covers

Invariants when it is done: the log ends behind its last valid record and is zero beyond; every record has its unit and
its index entries; no queue has a unit and the index no entry for anything beyond the end; the next queue offsets follow
the last units.
If the scan finds damage that cannot be an unfinished write (records that were known to be on disk follow it), recovery
fails, because truncation would destroy them; log and queues are left unchanged.
Runs on the thread that opens the store, before any other thread exists; bodies are checked on a second one where that
helps (see `check_ahead`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace

from tiermq.commitlog.commit_log import CommitLog
from tiermq.commitlog.recovery import (
    FindTorn,
    LogEnd,
    crc_mode_of,
    first_record,
    first_torn_record,
    start_file,
    verify_log,
    walk_log,
)
from tiermq.config import BrokerRole, StoreConfig
from tiermq.consumequeue.consume_queue import ConsumeQueue
from tiermq.consumequeue.queue_table import Queue, QueueTable, flush_whole
from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import StoreDamaged, StoreError
from tiermq.files.mapped_file import MappedFile
from tiermq.files.system_calls import processor_count
from tiermq.kernel import KERNEL, Stop, WriteCursor, scan
from tiermq.message.record_head import read_head
from tiermq.message.topic_name import QueueName
from tiermq.store.checkpoint import CLEAN_MARKER, SAFETY_MS, Checkpoint, CleanMarker
from tiermq.store.dispatch import Dispatch

_log = logging.getLogger(__name__)

SYNCED_AT_ONCE_MIN = 1024
"""With fewer queues it would wait longer for what other programs have written."""
FLUSH_THREADS = 8
FLUSHED_TOGETHER = 64
"""Queues that one of these threads takes at once."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What recovery did, for the log and for `store stat`."""

    mode: str
    log_end: int
    started_at: int
    records_dispatched: int
    truncated: bool
    lost_durable: bool = False
    """Whether the checkpoint covers records that are newer than any that was found: a file or sectors are missing, or
    the clock was set back."""


class Recovery:
    """See the module."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: QueueTable,
        dispatch: Dispatch,
        checkpoint: Checkpoint,
        index_rebuild_from: int | None,
        threads: bool = True,
    ) -> None:
        """`threads`: whether a second thread may check what this one dispatches."""
        self._config = config
        self._log = log
        self._queues = queues
        self._dispatch = dispatch
        self._checkpoint = checkpoint
        self._index_from = index_rebuild_from
        self._threads = threads
        self._crc_mode = crc_mode_of(config.check_crc_on_recover, config.force_verify_prop_crc)
        # The pure kernel keeps the interpreter lock: two threads would alternate.
        self._checks_ahead = threads and KERNEL == "compiled" and processor_count() > 1

    def run(
        self, clean: bool, marker: CleanMarker | None, before_changes: Callable[[], None] = lambda: None
    ) -> Recovered:
        """`before_changes`: called when the marker is not used: it is invalid from then on."""
        files = self._log.files.files
        if not files:
            for queue in self._queues.all_queues():
                queue.destroy()
            # Its entries are of deleted records, and its end is above all future records.
            self._dispatch.destroy_index()
            return Recovered("empty", 0, 0, 0, False)
        lost_units = False
        if clean and marker is not None and self._unused_since(marker):
            self._refuse_a_shorter_log(files, marker)
            lost_units = not self._has_queues_of(marker)
            if not lost_units and self._index_from is None and self._ends_as(marker) and self._resume(marker):
                return Recovered("marker", marker.log_end, marker.log_end, 0, False)
        before_changes()
        hole_at = 0 if lost_units else None
        with self._index_prepared_beside() if self._threads and not clean else nullcontext():
            lossy_from = self._queues.recover_all(clean)
        if hole_at is None:
            hole_at = lossy_from
        done = self._normal(files) if clean and hole_at is None else self._abnormal(files, hole_at)
        self._settle_queues()
        return done

    @contextmanager
    def _index_prepared_beside(self) -> Iterator[None]:
        """A second thread reserves the blocks of the index, which the scan needs first."""

        def prepare() -> None:
            # If it fails, the scan tries again and raises.
            with suppress(StoreError):
                self._dispatch.prepare_index()

        thread = threading.Thread(target=prepare, name="prepare-index", daemon=True)
        thread.start()
        try:
            yield
        finally:
            thread.join()

    # Nothing happened since the store was closed

    def _unused_since(self, marker: CleanMarker) -> bool:
        """Whether no RocketMQ broker used the directory since: it ignores the marker and rewrites the checkpoint."""
        return marker.checkpoint_hex == self._checkpoint.encoded().hex()

    def _has_queues_of(self, marker: CleanMarker) -> bool:
        """Whether the files of every queue exist, up to its last one."""
        on_disk = {
            (queue.topic, queue.queue_id): queue for queue in self._queues.all_queues() if queue.files.file_count
        }
        if on_disk.keys() != {(end.topic, end.queue_id) for end in marker.queues}:
            return False
        for end in marker.queues:
            queue = on_disk[end.topic, end.queue_id]
            span = queue.files.span
            if isinstance(queue, ConsumeQueue) and span is not None:
                if not span[1] - queue.files.file_size <= end.max_offset * UNIT_BYTES <= span[1]:
                    return False
                if span[0] > end.min_offset * UNIT_BYTES:
                    return False
        return True

    def _refuse_a_shorter_log(self, files: Sequence[MappedFile], marker: CleanMarker) -> None:
        found = files[-1].from_offset + files[-1].size
        if found < marker.log_end:
            raise StoreDamaged(
                f"the commit log was closed at physical offset {marker.log_end}, and its files end at {found}: files "
                f"behind {files[-1].path} are missing. Restore them; or, to continue without their messages, remove "
                f"{CLEAN_MARKER} from the store's directory."
            )

    def _ends_as(self, marker: CleanMarker) -> bool:
        """Whether the log can end at the marker's offset: the file exists and nothing was written behind."""
        file = self._log.files.find(marker.log_end)
        last = self._log.files.last()
        if last is None or (file is None and marker.log_end != last.from_offset + last.size):
            return False
        position = marker.log_end - (file or last).from_offset
        ahead = None if file is None else file.read(position, min(8, file.size - position))
        return ahead is None or not any(ahead)

    def _resume(self, marker: CleanMarker) -> bool:
        """Resume where the store was closed; False, with nothing changed, when a queue does not end there."""
        for end in marker.queues:
            queue = self._queues.find(end.topic, end.queue_id)
            if queue is None:
                return False
            if isinstance(queue, ConsumeQueue) and queue.ext is None:
                queue.resume(end.min_offset, end.max_offset, end.max_physical_offset)
                continue
            queue.recover(last_exit_ok=True)
            if queue.max_offset != end.max_offset:
                return False
        self._end_log_at(marker.log_end, erase=False)
        if max(0, self._log.files.min_offset) != marker.log_begin:
            self._settle_queues()
        return True

    # A clean stop without a marker: RocketMQ's

    def _normal(self, files: Sequence[MappedFile]) -> Recovered:
        known = self._queues.max_physical_offset()
        start = start_file(files, lambda physical, _: physical <= known and self._index_vouches(physical))
        return self._walk_until_whole("normal", files, start, cut_queues=False)

    # An unclean stop

    def _abnormal(self, files: Sequence[MappedFile], hole_at: int | None) -> Recovered:
        vouched_ms = self._checkpoint.min_timestamp_ms
        known, end = self._queues.max_physical_offset(), files[-1].from_offset + files[-1].size
        if known > end:
            _log.error(
                "queues lead to records up to physical offset %d, and the last log file, %s, ends at %d: the file "
                "behind it is gone, unless the power failed before it came to the disk. Look for it before new "
                "messages take its place.",
                known,
                files[-1].path,
                end,
            )

        def vouched(physical: int, store_ms: int) -> bool:
            whole = hole_at is None or physical <= hole_at
            return store_ms <= vouched_ms and whole and self._index_vouches(physical)

        start = start_file(files, vouched)
        if self._config.broker_role is BrokerRole.SLAVE:
            self._look_before_changing(files, start)
            self._drop_unfinished_record(files, start)
        # A unit may be torn (its page came to the disk only in part), so units that the log can rebuild are dropped.
        return self._walk_until_whole("abnormal", files, start, cut_queues=True)

    def _drop_unfinished_record(self, files: Sequence[MappedFile], start: int) -> None:
        """A slave receives records in parts, and topic and properties have no checksum: the last record may lack its
        last bytes, and look whole. What it lacks is zero, and no topic or property has a NUL byte. Its master sends it
        again; a record that is whole may be acknowledged, and stays.
        """
        end, _ = verify_log(files, start, self._crc_mode, self._find_torn)
        file = self._log.files.find(end.offset)
        if file is None:
            return
        last = scan(file.view, 0, end.offset - file.from_offset, 0)[3]
        if last < 0:
            return
        selected = file.select(last, end.offset - file.from_offset - last)
        assert selected is not None, "it was scanned"
        with selected:
            head = read_head(selected.data)
            properties = selected.data[head.properties_position : head.properties_position + head.properties_length]
            is_whole = 0 not in head.topic and 0 not in bytes(properties)
        if not is_whole:
            file.zero_from(last)

    def _index_vouches(self, physical: int) -> bool:
        """Whether a scan from `physical` on rebuilds everything that the index lacks."""
        return self._index_from is None or physical <= self._index_from

    # Both

    def _walk_until_whole(self, mode: str, files: Sequence[MappedFile], start: int, cut_queues: bool) -> Recovered:
        """Scan from file number `start`, and again from an earlier one when queues or index lack more."""
        truncated = False
        while True:
            self._look_before_changing(files, start)
            if cut_queues:
                self._cut_queues(files[start].from_offset)
            begun = {(queue.topic, queue.queue_id) for queue in self._queues.all_queues() if queue.max_offset > 0}
            misfits = self._misfits()
            done = self._walk_and_end(mode, files, start)
            truncated = truncated or done.truncated
            files = self._log.files.files
            if start > 0 and (self._misfits() > misfits or self._begin_late(begun)):
                # The checkpoint was ahead of the disk, or queue files were removed.
                _log.warning("queues lack units from before %d; walking the whole log", files[start].from_offset)
                start, cut_queues = 0, True
                continue
            indexed_to = self._dispatch.drop_index_from(done.log_end)
            if indexed_to is None:
                return replace(done, truncated=truncated)
            start = max((at for at, file in enumerate(files) if file.from_offset <= indexed_to), default=0)
            cut_queues = False

    def _misfits(self) -> int:
        return self._dispatch.gap_count + self._dispatch.conflict_count

    def _begin_late(self, begun: set[QueueName]) -> bool:
        """Whether a queue that had no unit before the scan got its first one for a later message than its first."""
        return any(
            queue.min_offset > 0 for queue in self._queues.all_queues() if (queue.topic, queue.queue_id) not in begun
        )

    def _cut_queues(self, physical_offset: int) -> None:
        """Drop all units of records from there on, of every queue: the scan rebuilds those whose records are valid.

        A queue whose files a power cut left empty cannot be distinguished from one that needs no cut.
        """
        for queue in self._queues.all_queues():
            if not queue.files.files:
                continue
            if isinstance(queue, ConsumeQueue):
                queue.rewind(physical_offset)
                self._dispatch.adopt(queue)
            else:
                queue.truncate_dirty(physical_offset)

    def _walk_and_end(self, mode: str, files: Sequence[MappedFile], start: int) -> Recovered:
        before = self._dispatch.records
        self._dispatch.recovering = True

        def walk(view: WriteCursor, position: int, size: int, crc_mode: int = 0) -> tuple[int, Stop]:
            position, stop = self._dispatch.walk(view, position, size, crc_mode)
            if stop is Stop.BLANK:
                self._dispatch.require_own_blank(view, position)
            return position, stop

        def step(view: WriteCursor, position: int, size: int) -> tuple[int, Stop]:
            return walk(view, position, size, self._crc_mode)

        end = walk_log(files, start, step, self._find_torn, walk if self._checks_ahead else None)
        self._refuse_to_destroy(files, end)
        truncated = end.damaged or any(
            file.from_offset > end.offset and first_record(file) is not None for file in files
        )
        self._end_log_at(end.offset, erase=True)
        for file in self._log.files.files[start:]:
            # What a killed process wrote may be in the page cache only; from here on it counts as flushed, and
            # acknowledged puts follow it.
            file.sync_whole()
        for queue in self._queues.all_queues():
            if isinstance(queue, ConsumeQueue):
                queue.end_rewind()
        self._queues.truncate_dirty_all(end.offset)
        self._flush_queues()
        newest_ms, durable_ms = self._dispatch.last_store_timestamp_ms, self._checkpoint.physic_msg_timestamp_ms
        if newest_ms < durable_ms:
            _log.error(
                "by the checkpoint, records of up to %d ms were on disk, but the log ends at physical offset %d with "
                "one of %d ms: what came behind it is gone, unless the clock was set back. Look for files and sectors "
                "that are missing before new messages take their place.",
                durable_ms,
                end.offset,
                newest_ms,
            )
        self._note_durable(newest_ms)
        count = self._dispatch.records - before
        return Recovered(mode, end.offset, files[start].from_offset, count, truncated, newest_ms < durable_ms)

    def _flush_queues(self) -> None:
        """Each waits for the disk, which takes many of them together: so several threads do it, or one call does."""
        queues = self._queues.all_queues()
        if len(queues) >= SYNCED_AT_ONCE_MIN and self._queues.sync_all():
            return
        parts = [queues[at : at + FLUSHED_TOGETHER] for at in range(0, len(queues), FLUSHED_TOGETHER)]
        if not self._threads or len(parts) < 2:
            for part in parts:
                _flush_each(part)
            return
        with ThreadPoolExecutor(min(FLUSH_THREADS, len(parts)), thread_name_prefix="recovery-flush") as pool:
            for _ in pool.map(_flush_each, parts):
                pass

    def _note_durable(self, store_ms: int) -> None:
        """Log and queues are on disk up to here: the next unclean start need not scan this part again."""
        checkpoint = self._checkpoint
        checkpoint.physic_msg_timestamp_ms = max(checkpoint.physic_msg_timestamp_ms, store_ms)
        checkpoint.logics_msg_timestamp_ms = max(checkpoint.logics_msg_timestamp_ms, store_ms)
        checkpoint.flush()

    @property
    def _find_torn(self) -> FindTorn | None:
        return self._first_torn if self._crc_mode == 1 else None  # 2 checks every byte; 0 checks none.

    def _first_torn(self, file: MappedFile, start: int) -> int | None:
        # A clock that was set back a little must not let old times cover new records.
        return first_torn_record(file, self._checkpoint.physic_msg_timestamp_ms - SAFETY_MS, start)

    def _look_before_changing(self, files: Sequence[MappedFile], start: int) -> None:
        """Find damage that must be refused before anything is truncated. Reads only if such damage is possible."""
        if any(map(self._holds_durable_records, files[start + 1 :])):
            end, _ = verify_log(files, start, self._crc_mode, self._find_torn)
            self._refuse_to_destroy(files, end)

    def _holds_durable_records(self, file: MappedFile) -> bool:
        """Whether a file begins with a record that was durable."""
        found = first_record(file)
        return found is not None and found[0] == file.from_offset and found[1] <= self._checkpoint.min_timestamp_ms

    def _refuse_to_destroy(self, files: Sequence[MappedFile], end: LogEnd) -> None:
        """Raise when records behind the end were safely stored. Zeros count as damage too: a disk may lose a block."""
        for file in files:
            if file.from_offset > end.offset and self._holds_durable_records(file):
                raise StoreDamaged(
                    f"the commit log is damaged at physical offset {end.offset}, and file {file.path} behind it holds "
                    "records that were safely stored: truncating there would destroy them. Restore the damaged file "
                    "from a copy, or move the files from there on away; `tiermq store check` shows more."
                )

    def _end_log_at(self, offset: int, erase: bool) -> None:
        """Make `offset` the end of the log."""
        files = self._log.files
        files.truncate_dirty(offset)
        files.flushed_where = files.committed_where = offset
        last = files.last()
        if last is not None and offset == last.from_offset + last.size:
            last.set_positions(last.size)
        elif last is not None and erase:
            last.zero_from(offset - last.from_offset)
        self._dispatch.offset = offset
        self._dispatch.recovering = False
        self._checkpoint.confirm_offset = offset

    def _settle_queues(self) -> None:
        min_physical = max(0, self._log.files.min_offset)
        for queue in self._queues.all_queues():
            queue.correct_min_offset(min_physical)


def _flush_each(queues: Sequence[Queue]) -> None:
    for queue in queues:
        flush_whole(queue)
