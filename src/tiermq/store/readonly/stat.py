"""What a store directory holds, in numbers: quick, because almost everything is known from the ends of files.

Reads only. The numbers of a running store are those of one moment for each file, not of one moment for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tiermq.errors import StoreDamaged, StoreError
from tiermq.store.inspect import decode_checkpoint
from tiermq.store.store_files import FileKind, StoreFile, is_store, require_no_rocksdb
from tiermq.store.store_view import StoreView


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
    """One store directory. Sizes of files are what they span; `disk_bytes` is what they take."""

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
    if not is_store(root):
        raise StoreError(f"{root}: expected a store directory (commitlog/, consumequeue/ or checkpoint), found none")
    require_no_rocksdb(str(root))
    with StoreView.open(root, commit_log_paths) as view:
        log_min = view.log.min_offset
        queues = []
        for (topic, queue_id), queue in sorted(view.queues.items()):
            low, high = queue.bounds(log_min)
            queues.append(QueueStat(topic, queue_id, "batch" if queue.is_batch else "simple", low, high))
        entries, begin_ms, end_ms = _index_numbers(view, slot_count)
        return StoreStat(
            directory=str(root),
            ended_cleanly=view.ended_cleanly,
            log_files=len(view.log.files),
            log_file_bytes=len(view.log.maps[0].view) if view.log.maps else 0,
            log_min_offset=log_min,
            log_max_offset=view.log.end_offset(),
            queues=tuple(queues),
            index_files=len(view.indexes),
            index_entries=entries,
            index_begin_ms=begin_ms,
            index_end_ms=end_ms,
            checkpoint=_checkpoint(view.files),
            disk_bytes=_disk_bytes(view.files),
        )


def _index_numbers(view: StoreView, slot_count: int | None) -> tuple[int, int, int]:
    """Entries, and the store times of the oldest and the newest."""
    entries, begins, ends = 0, [], []
    for file in view.indexes:
        try:
            header = view.open_index(file, slot_count).header
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
    """Bytes that the files really take, by kind: files are made at full size, but have blocks only where data is."""
    taken: dict[str, int] = {}
    for file in files:
        try:
            blocks = file.path.stat().st_blocks
        except FileNotFoundError:
            continue
        taken[file.kind.value] = taken.get(file.kind.value, 0) + blocks * 512
    return taken
