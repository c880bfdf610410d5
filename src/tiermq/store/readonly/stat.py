"""Totals of a store directory. Fast, since almost everything is known from the ends of files.

Reads only. The numbers of a running store are not taken at the same moment for all files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tiermq.errors import StoreDamaged
from tiermq.store.readonly.directory import FileKind, StoreFile, list_store
from tiermq.store.readonly.dump import decode_checkpoint
from tiermq.store.readonly.store import ReadOnlyStore


@dataclass(frozen=True, slots=True)
class QueueStat:
    """One queue. `messages` counts what consumers can still read."""

    topic: str
    queue_id: int
    kind: str
    min_offset: int
    max_offset: int

    @property
    def messages(self) -> int:
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class StoreStat:
    """One store directory. File sizes are logical; `disk_bytes` is the allocated space."""

    directory: str
    ended_cleanly: bool
    log_files: int
    log_file_bytes: int
    log_min_offset: int
    log_max_offset: int
    queues: tuple[QueueStat, ...]
    index_files: int
    index_entries: int
    index_begin_ms: int
    index_end_ms: int
    checkpoint: dict[str, int]
    disk_bytes: dict[str, int]

    @property
    def messages(self) -> int:
        return sum(queue.messages for queue in self.queues)

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        values["queues"] = [{**asdict(queue), "messages": queue.messages} for queue in self.queues]
        return {**values, "messages": self.messages, "disk_bytes_total": sum(self.disk_bytes.values())}


def stat_store(root: Path, *, commit_log_paths: Sequence[Path] = (), slot_count: int | None = None) -> StoreStat:
    """Raises StoreError when `root` is no store. A damaged small file counts as absent here: `check` reports it."""
    with ReadOnlyStore.open(root, commit_log_paths=commit_log_paths) as store:
        queues = []
        for topic, queue_id in sorted((*store.queues(), *store.batch_queues())):
            queue = store.queue(topic, queue_id)
            if queue is not None and queue.run.files:
                low, high = store.bounds(topic, queue_id)
                queues.append(QueueStat(topic, queue_id, "batch" if queue.is_batch else "simple", low, high))
        entries, begin_ms, end_ms = _index_numbers(store, slot_count)
        files = list_store(root, commit_log_paths)
        log = store.log_files
        return StoreStat(
            directory=str(root),
            ended_cleanly=store.ended_cleanly,
            log_files=len(log.all_files),
            log_file_bytes=log.file_size if log.files else 0,
            log_min_offset=log.min_offset,
            log_max_offset=log.end_offset(),
            queues=tuple(queues),
            index_files=len(store.index.names),
            index_entries=entries,
            index_begin_ms=begin_ms,
            index_end_ms=end_ms,
            checkpoint=_checkpoint(files),
            disk_bytes=_disk_bytes(files),
        )


def _index_numbers(store: ReadOnlyStore, slot_count: int | None) -> tuple[int, int, int]:
    """Entries, and the store times of the oldest and the newest."""
    entries, begins, ends = 0, [], []
    for name in store.index.names:
        try:
            header = store.index.view(name, slot_count).header
        except (StoreDamaged, FileNotFoundError):
            continue
        if header.entry_count > 1:
            entries += header.entry_count - 1
            begins.append(header.begin_timestamp_ms)
            ends.append(header.end_timestamp_ms)
    return entries, min(begins, default=0), max(ends, default=0)


def _checkpoint(files: Sequence[StoreFile]) -> dict[str, int]:
    for file in files:
        if file.kind is FileKind.CHECKPOINT:
            try:
                return decode_checkpoint(file.path.read_bytes())
            except (StoreDamaged, FileNotFoundError):
                return {}
    return {}


def _disk_bytes(files: Sequence[StoreFile]) -> dict[str, int]:
    """Allocated bytes of the files, by kind: files are created at full size, but have blocks only where data is."""
    taken: dict[str, int] = {}
    for file in files:
        try:
            blocks = file.path.stat().st_blocks
        except FileNotFoundError:
            continue
        taken[file.kind.value] = taken.get(file.kind.value, 0) + blocks * 512
    return taken
