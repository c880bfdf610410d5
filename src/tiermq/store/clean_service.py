"""Cleaning: which commit-log files are deleted, and the queue and index files that only they needed.

When: at an hour of `delete_when`, when the disk is too full, or when asked to. What:

    disk above warning      refuse puts (DISK_FULL), delete without regard to age
    disk above force        delete without regard to age
    disk above max used     delete what is older than `file_reserved_time`
    hour or by hand         delete what is older than `file_reserved_time`

Invariants: oldest first, never the last file, at most `delete_file_batch_max` per round, and never a file that a veto
holds back: a tier vetoes until its copy is verified, also on a full disk (which is reported). A veto answers from
memory and never blocks the housekeeping thread. Its owner calls `LocalStore.clean_soon` once a file may be deleted.
A file is deleted only when its records were dispatched and their units are durable: when a queue's last records are
deleted, only its units give the next queue offset, and after a power cut the queue would begin again at 0.
Threads: `run` is called by the housekeeping thread alone.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tiermq.clock import HOUR_MS, Clock
from tiermq.commitlog.commit_log import CommitLog
from tiermq.config import StoreConfig
from tiermq.consumequeue.queue_table import QueueTable, flush_whole
from tiermq.errors import DiskFull
from tiermq.files.file_access import FileAccess
from tiermq.files.mapped_file import MappedFile
from tiermq.index.index_service import IndexService
from tiermq.store.running_flags import Flag, RunningFlags

_log = logging.getLogger(__name__)

MANUAL_RUNS = 20
FULL_LOG_REST_MS = 60_000
"""A full disk is logged so often, not for each put: the log may be on that disk."""

RetentionGuard = Callable[[int, int], bool]
"""(first physical offset, end) of a commit-log file -> True when it must stay."""


class Urgency(enum.Enum):
    """How urgently the disk needs cleaning."""

    NOTHING = 0
    EXPIRED = 1
    IMMEDIATE = 2


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What one round deleted. `vetoed` is True when a file was due and a veto held it back."""

    log_files: int
    queue_files: int
    index_files: int
    vetoed: bool

    def and_then(self, later: Cleaned) -> Cleaned:
        """Both rounds as one."""
        return Cleaned(
            self.log_files + later.log_files,
            self.queue_files + later.queue_files,
            self.index_files + later.index_files,
            later.vetoed,
        )


def urgency_of(ratio: float, config: StoreConfig) -> Urgency:
    """What a disk that is full to `ratio` (0 to 1, negative when unknown) needs."""
    if ratio > config.disk_clean_forcibly_fraction:
        return Urgency.IMMEDIATE
    if ratio < 0 or ratio > config.disk_max_used_fraction:
        return Urgency.EXPIRED
    return Urgency.NOTHING


class CleanService:
    """See the module."""

    def __init__(
        self,
        config: StoreConfig,
        access: FileAccess,
        log: CommitLog,
        queues: QueueTable,
        index: IndexService | None,
        flags: RunningFlags,
        clock: Clock,
    ) -> None:
        self.vetoes: list[RetentionGuard] = []
        self._config = config
        self._access = access
        self._log = log
        self._queues = queues
        self._index = index
        self._flags = flags
        self._clock = clock
        self._manual_runs = 0
        self._is_by_hand = False
        self._run_lock = threading.Lock()
        self._last_min_offset = -1
        self._last_redelete_ms = 0
        self._full_logged_ms = 0
        self._vetoed = False
        self._held_from = -1  # First offset of the file that a veto held back in the last round.
        self._queues_flushed = False

    def request(self) -> None:
        """Delete expired files in the next rounds, at any hour."""
        self._manual_runs = MANUAL_RUNS

    def go_on(self) -> None:
        """A file that was held back may be deleted now: the round that it stopped does not count as a requested one."""
        if self._is_by_hand:
            self._manual_runs += 1

    def full_paths(self) -> set[str]:
        """Commit-log paths that are too full for new files."""
        limit = self._config.disk_clean_forcibly_fraction
        return {str(path) for path in self._config.commit_log_paths if self._access.disk_usage_ratio(str(path)) > limit}

    def run(self) -> Cleaned:
        """One round. Serializes the housekeeping thread and callers of `clean_now`."""
        with self._run_lock:
            return self._run()

    def _run(self) -> Cleaned:
        self._vetoed = False
        self._queues_flushed = False
        log_files = self._clean_log()
        self._redelete_hanged()
        queue_files = index_files = 0
        min_offset = self._log.min_offset
        if min_offset > self._last_min_offset:
            self._last_min_offset = min_offset
            for queue in self._queues.all_queues():
                queue_files += queue.delete_expired(min_offset)
            if self._index is not None:
                index_files = self._index.delete_expired(min_offset)
        return Cleaned(log_files, queue_files, index_files, self._vetoed)

    def _clean_log(self) -> int:
        urgency = self._judge_disks()
        self._is_by_hand = by_hand = self._manual_runs > 0
        if by_hand:
            self._manual_runs -= 1
        hour = time.localtime(self._clock.now_ms() / 1000).tm_hour
        if urgency is Urgency.NOTHING and not by_hand and hour not in self._config.delete_hours:
            return 0
        return self._log.files.delete_expired_by_time(
            self._config.file_reserved_time * HOUR_MS,
            self._config.delete_commit_log_files_interval,
            self._config.destroy_maped_file_interval_forcibly,
            urgency is Urgency.IMMEDIATE and self._config.clean_file_forcibly_enable,
            self._config.delete_file_batch_max,
            self._must_stay,
        )

    def _must_stay(self, file: MappedFile) -> bool:
        held = any(veto(file.from_offset, file.from_offset + file.size) for veto in self.vetoes)
        if held and not self._vetoed:
            self._vetoed = True
            level = logging.WARNING if file.from_offset == self._held_from else logging.INFO  # Proof takes a moment.
            _log.log(level, "%s is due to be deleted, but a reader or an upload still needs it", file.path)
            self._held_from = file.from_offset
        if not held and not self._queues_flushed:
            self._queues_flushed = True
            for queue in self._queues.all_queues():
                flush_whole(queue)
        return held

    def _judge_disks(self) -> Urgency:
        """The most pressing of: the emptiest commit-log disk, the disk of the queues. Sets and clears DISK_FULL."""
        config = self._config
        log_ratio = min(self._access.disk_usage_ratio(str(path)) for path in config.commit_log_paths)
        queue_ratio = self._access.disk_usage_ratio(str(config.root_path))
        worst = max(log_ratio, queue_ratio)
        if worst > config.disk_warning_fraction:
            if self._flags.set(Flag.DISK_FULL):
                _log.error("the disk is %.0f %% full: puts are refused until there is room", worst * 100)
        elif worst <= config.disk_clean_forcibly_fraction and self._flags.clear(Flag.DISK_FULL):
            _log.warning("the disk has room again: puts are accepted")
        urgency = max(urgency_of(log_ratio, config), urgency_of(queue_ratio, config), key=lambda u: u.value)
        if config.replicas_per_disk_partition > 1:
            urgency = max(urgency, self._share_of_partition(), key=lambda u: u.value)
        return urgency

    def _share_of_partition(self) -> Urgency:
        """Several brokers share the partition: measure this broker's share of it instead."""
        path = str(self._config.commit_log_paths[0])
        used = self._log.files.total_mapped_bytes
        free = self._access.free_bytes(path)
        ratio = self._access.disk_usage_ratio(path)
        if free < 0 or not 0 <= ratio < 1:
            return Urgency.NOTHING
        ours = used / (free / (1 - ratio) / self._config.replicas_per_disk_partition)
        if ours > self._config.logical_disk_space_clean_forcibly_threshold:
            return Urgency.IMMEDIATE
        return Urgency.EXPIRED if ours > self._config.disk_max_used_fraction else Urgency.NOTHING

    def _redelete_hanged(self) -> None:
        now_ms = self._clock.now_ms()
        if now_ms - self._last_redelete_ms >= self._config.redelete_hanged_file_interval:
            self._last_redelete_ms = now_ms
            self._log.files.retry_delete_first(self._config.destroy_maped_file_interval_forcibly)

    def note_disk_full(self, error: DiskFull) -> None:
        """A put found the disk full. Later puts are not refused in advance: each tries again, to use freed space."""
        now_ms = self._clock.now_ms()
        if now_ms - self._full_logged_ms >= FULL_LOG_REST_MS:
            self._full_logged_ms = now_ms
            _log.error("a put found the disk full: %s", error)
        self.request()
