"""What happens between loading the files and accepting the first put.

    clean marker believed     positions come from the marker; the log is not read
    clean stop, no marker     queues are scanned, the log is walked from the newest file that the queues know
    unclean stop              queues forget what may not have reached the disk, and the log is walked, checked and
                              dispatched again from the newest file that the checkpoint vouches for

Invariants when it is done: the log ends behind its last valid record and is zero beyond; every record has its unit and
its index entries; no queue has a unit for anything beyond the end; the next queue offsets follow the last units.
If the walk meets damage that cannot be an unfinished write (records that were known to be on disk follow it), it
refuses to go on, because the truncation would destroy them.
Runs on the thread that opens the store, before any other thread exists.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from tiermq.commitlog.commit_log import CommitLog
from tiermq.commitlog.recovery import LogEnd, crc_mode_of, first_record, start_file, walk_log
from tiermq.config import StoreConfig
from tiermq.consumequeue.consume_queue import ConsumeQueue
from tiermq.consumequeue.queue_table import QueueTable
from tiermq.errors import StoreDamaged
from tiermq.files.mapped_file import MappedFile
from tiermq.kernel import Stop, Tail
from tiermq.store.checkpoint import Checkpoint
from tiermq.store.clean_marker import CleanMarker
from tiermq.store.dispatching import Dispatch

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What recovery did, for the log and for `store stat`."""

    mode: str
    log_end: int
    started_at: int
    records_dispatched: int
    truncated: bool


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
    ) -> None:
        self._config = config
        self._log = log
        self._queues = queues
        self._dispatch = dispatch
        self._checkpoint = checkpoint
        self._index_from = index_rebuild_from
        self._crc_mode = crc_mode_of(config.check_crc_on_recover, config.force_verify_prop_crc)

    def run(self, clean: bool, marker: CleanMarker | None) -> Recovered:
        files = self._log.files.files
        if not files:
            for queue in self._queues.all_queues():
                queue.destroy()
            return Recovered("empty", 0, 0, 0, False)
        if clean and marker is not None and self._believable(marker):
            return self._resume(marker)
        hole_at = self._queues.recover_all(clean)
        done = self._normal(files) if clean and hole_at is None else self._abnormal(files, hole_at)
        self._settle_queues()
        return done

    # Nothing happened since the store was closed

    def _believable(self, marker: CleanMarker) -> bool:
        if marker.checkpoint_hex != self._checkpoint.encoded().hex():
            return False
        file = self._log.files.find(marker.log_end)
        last = self._log.files.last()
        if last is None or (file is None and marker.log_end != last.from_offset + last.size):
            return False
        position = marker.log_end - (file or last).from_offset
        ahead = None if file is None else file.read(position, min(8, file.size - position))
        if ahead is not None and any(ahead):
            return False
        on_disk = {(queue.topic, queue.queue_id) for queue in self._queues.all_queues()}
        return on_disk == {(end.topic, end.queue_id) for end in marker.queues}

    def _resume(self, marker: CleanMarker) -> Recovered:
        for end in marker.queues:
            queue = self._queues.find(end.topic, end.queue_id)
            if isinstance(queue, ConsumeQueue) and queue.ext is None:
                queue.resume(end.min_offset, end.max_offset)
            elif queue is not None:
                queue.recover(last_exit_ok=True)
        self._end_log_at(marker.log_end, erase=False)
        self._settle_queues()
        return Recovered("marker", marker.log_end, marker.log_end, 0, False)

    # A clean stop by someone who leaves no marker: RocketMQ

    def _normal(self, files: Sequence[MappedFile]) -> Recovered:
        known = self._queues.max_physical_offset()
        start = start_file(files, lambda physical, _: physical <= known and self._index_vouches(physical))
        return self._walk_and_end("normal", files, start)

    # An unclean stop

    def _abnormal(self, files: Sequence[MappedFile], hole_at: int | None) -> Recovered:
        vouched_ms = self._checkpoint.min_timestamp_ms

        def vouched(physical: int, store_ms: int) -> bool:
            whole = hole_at is None or physical <= hole_at
            return store_ms <= vouched_ms and whole and self._index_vouches(physical)

        start = start_file(files, vouched)
        while True:
            # A unit may be torn (its page came to the disk only in part), so the ones that the log can give again go.
            self._queues.truncate_dirty_all(files[start].from_offset)
            gaps = self._dispatch.gap_count
            done = self._walk_and_end("abnormal", files, start)
            if self._dispatch.gap_count == gaps or start == 0:
                break
            # A queue lacks units from before the start: the checkpoint promised more than the disk had.
            _log.warning("queues have holes before %d; walking the whole log", files[start].from_offset)
            start = 0
            files = self._log.files.files
        return done

    def _index_vouches(self, physical: int) -> bool:
        """Whether a walk that begins at `physical` gives the index everything that it lacks."""
        return self._index_from is None or physical <= self._index_from

    # Both

    def _walk_and_end(self, mode: str, files: Sequence[MappedFile], start: int) -> Recovered:
        before = self._dispatch.records

        def step(view: Tail, position: int, size: int) -> tuple[int, Stop]:
            return self._dispatch.walk(view, position, size, self._crc_mode)

        end = walk_log(files, start, step)
        self._refuse_to_destroy(files, end)
        truncated = self._end_log_at(end.offset, erase=True)
        self._queues.truncate_dirty_all(end.offset)
        for queue in self._queues.all_queues():
            while not queue.flush(0):
                pass
        return Recovered(mode, end.offset, files[start].from_offset, self._dispatch.records - before, truncated)

    def _refuse_to_destroy(self, files: Sequence[MappedFile], end: LogEnd) -> None:
        """Raise when a file behind the damage begins with a record that was on disk for certain."""
        if not end.damaged:
            return
        for file in files:
            if file.from_offset <= end.offset:
                continue
            found = first_record(file)
            if found is not None and found[0] == file.from_offset and found[1] <= self._checkpoint.min_timestamp_ms:
                raise StoreDamaged(
                    f"the commit log is damaged at physical offset {end.offset}, and file {file.path} behind it holds "
                    "records that were safely stored: truncating there would destroy them. Restore the damaged file "
                    "from a copy, or move the files from there on out of the way; `tiermq store check` tells more."
                )

    def _end_log_at(self, offset: int, erase: bool) -> bool:
        """Make `offset` the end of the log; True when anything but zeros lay behind it."""
        files = self._log.files
        last = files.last()
        behind = last is not None and last.from_offset > offset
        files.truncate_dirty(offset)
        files.flushed_where = files.committed_where = offset
        last = files.last()
        if last is not None and offset == last.from_offset + last.size:
            last.set_positions(last.size)
        elif last is not None and erase:
            last.zero_from(offset - last.from_offset)
        self._dispatch.offset = offset
        self._checkpoint.confirm_offset = offset
        return behind

    def _settle_queues(self) -> None:
        min_physical = max(0, self._log.files.min_offset)
        for queue in self._queues.all_queues():
            queue.correct_min_offset(min_physical)
