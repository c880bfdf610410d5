"""A whole store directory, read-only: the log by physical offset, queues by queue offset, index entries in order.

For offline tools. Nothing is locked or written; files that a running store deletes meanwhile stay readable here,
because they stay mapped. Not safe to share between threads.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tiermq.consumequeue import batch_unit, unit
from tiermq.message.record_head import HeadKind, RecordHead, read_head
from tiermq.store.index_walk import IndexView
from tiermq.store.log_walk import end_of_data
from tiermq.store.store_files import FileKind, ReadOnlyMap, StoreFile, is_zero, list_store

QueueKey = tuple[str, int]


class FileRun:
    """Files of one log or queue, in order, found by byte offset."""

    def __init__(self, files: Sequence[StoreFile]) -> None:
        self.files: list[StoreFile] = []
        self.maps: list[ReadOnlyMap] = []
        for file in files:
            try:
                self.maps.append(ReadOnlyMap(file.path))
            except FileNotFoundError:
                continue  # Deleted by a running store since the directory was listed.
            self.files.append(file)
        if self.maps and len(self.maps[-1].view) == 0:
            # A running store is making it this moment, or a crash left it: the next start removes it.
            self.maps.pop().close()
            self.files.pop()
        self._bases = [file.base_offset for file in self.files]

    @property
    def min_offset(self) -> int:
        return self._bases[0] if self._bases else 0

    def find(self, offset: int) -> tuple[memoryview, int] | None:
        """The file that covers `offset` and the position in it; None when there is none."""
        at = bisect.bisect_right(self._bases, offset) - 1
        if at < 0 or offset - self._bases[at] >= len(self.maps[at].view):
            return None
        return self.maps[at].view, offset - self._bases[at]

    def layout_problems(self) -> list[str]:
        """Files of another size than the first one, and gaps between files."""
        found = []
        sizes = [len(each.view) for each in self.maps]
        for file, size in zip(self.files, sizes, strict=True):
            if size != sizes[0]:
                found.append(f"{file.path.name}: expected {sizes[0]} bytes like the first file, found {size}")
        for before, after in zip(self._bases, self._bases[1:], strict=False):
            if after != before + sizes[0]:
                found.append(f"after {before:020d}: expected a file that starts at {before + sizes[0]}, found {after}")
        return found

    def close(self) -> None:
        for each in self.maps:
            each.close()


class LogView(FileRun):
    """The commit log."""

    def head_at(self, physical_offset: int) -> RecordHead | None:
        """The head of the record at `physical_offset`; None when no sound record lies there."""
        place = self.find(physical_offset)
        if place is None:
            return None
        head = read_head(*place)
        return head if head.kind is HeadKind.OK and head.physical_offset == physical_offset else None

    def properties_of(self, physical_offset: int, head: RecordHead) -> bytes:
        place = self.find(physical_offset)
        if place is None:
            return b""
        return bytes(place[0][head.properties_position : head.properties_position + head.properties_length])

    def end_offset(self) -> int:
        """The end of the last record, judged by structure alone. Looks at the last file that has data."""
        for file, each in zip(reversed(self.files), reversed(self.maps), strict=True):
            if len(each.view) and not is_zero(each.view, 0, min(8, len(each.view))):
                return file.base_offset + end_of_data(each.view)
        return self.min_offset


class QueueView(FileRun):
    """One consume queue, simple or batch."""

    def __init__(self, files: Sequence[StoreFile]) -> None:
        super().__init__(files)
        self.is_batch = bool(files) and files[0].kind is FileKind.BATCH_CONSUME_QUEUE
        self.unit_bytes = batch_unit.BATCH_UNIT_BYTES if self.is_batch else unit.UNIT_BYTES

    def unit_at(self, queue_offset: int) -> unit.Unit | None:
        """The unit of a simple queue; None when it is not there, unwritten or only keeps a place."""
        place = self.find(queue_offset * unit.UNIT_BYTES) if queue_offset >= 0 else None
        if place is None or place[1] + unit.UNIT_BYTES > len(place[0]):
            return None
        found = unit.Unit._make(unit.UNIT.unpack_from(*place))
        return found if unit.is_real(found.physical_offset, found.size) else None

    def units(self) -> Iterator[tuple[int, unit.Unit]]:
        """Queue offset and unit of a simple queue, up to the first that was never written."""
        for file, each in zip(self.files, self.maps, strict=True):
            for position in range(0, len(each.view) - unit.UNIT_BYTES + 1, unit.UNIT_BYTES):
                found = unit.Unit._make(unit.UNIT.unpack_from(each.view, position))
                if not unit.is_valid(found.physical_offset, found.size):
                    return
                if unit.is_real(found.physical_offset, found.size):
                    yield (file.base_offset + position) // unit.UNIT_BYTES, found

    def batch_units(self) -> Iterator[batch_unit.BatchUnit]:
        """Units of a batch queue, up to the first that was never written."""
        for each in self.maps:
            for position in range(0, len(each.view) - self.unit_bytes + 1, self.unit_bytes):
                found = batch_unit.BatchUnit._make(batch_unit.BATCH_UNIT.unpack_from(each.view, position)[:6])
                if not batch_unit.is_valid(found):
                    return
                yield found

    def bounds(self, log_min_offset: int) -> tuple[int, int]:
        """Min and max queue offset as a consumer sees them: units whose records were deleted do not count."""
        if self.is_batch:
            spans = [
                (each.base_offset, each.end_offset)
                for each in self.batch_units()
                if each.physical_offset >= log_min_offset
            ]
            return (spans[0][0], spans[-1][1]) if spans else (0, 0)
        end = self.end_bytes() // unit.UNIT_BYTES
        low, high = self.min_offset // unit.UNIT_BYTES, end
        while low < high:
            middle = (low + high) // 2
            found = self.unit_at(middle)
            if found is None or found.physical_offset < log_min_offset:
                low = middle + 1
            else:
                high = middle
        return low, end

    def end_bytes(self) -> int:
        """The byte offset after the last written unit: units are written in order, so halving finds it."""
        for file, each in zip(reversed(self.files), reversed(self.maps), strict=True):
            low, high = 0, len(each.view) // unit.UNIT_BYTES
            while low < high:
                middle = (low + high) // 2
                offset, size, _ = unit.UNIT.unpack_from(each.view, middle * unit.UNIT_BYTES)
                low, high = (middle + 1, high) if unit.is_valid(offset, size) else (low, middle)
            if low:
                return file.base_offset + low * unit.UNIT_BYTES
        return self.min_offset


@dataclass
class StoreView:
    """Everything that a store directory holds. Close it after use."""

    root: Path
    log: LogView
    queues: dict[QueueKey, QueueView]
    ext_queues: dict[QueueKey, FileRun]
    indexes: list[StoreFile]
    files: list[StoreFile]
    _index_maps: list[ReadOnlyMap] = field(default_factory=list)

    @classmethod
    def open(cls, root: Path, commit_log_paths: Sequence[Path] = ()) -> StoreView:
        files = list_store(root, commit_log_paths)
        by_kind = {kind: [file for file in files if file.kind is kind] for kind in FileKind}
        queues = {**_grouped(by_kind[FileKind.CONSUME_QUEUE]), **_grouped(by_kind[FileKind.BATCH_CONSUME_QUEUE])}
        return cls(
            root,
            LogView(by_kind[FileKind.COMMIT_LOG]),
            {key: QueueView(group) for key, group in queues.items()},
            {key: FileRun(group) for key, group in _grouped(by_kind[FileKind.CONSUME_QUEUE_EXT]).items()},
            by_kind[FileKind.INDEX],
            files,
        )

    @property
    def ended_cleanly(self) -> bool:
        """Whether the store was closed in order; a running one was not."""
        return not (self.root / "abort").exists()

    def open_index(self, file: StoreFile, slot_count: int | None) -> IndexView:
        """Raises StoreDamaged when the file cannot be an index file."""
        opened = ReadOnlyMap(file.path)
        self._index_maps.append(opened)
        return IndexView(opened.view, slot_count)

    def close(self) -> None:
        for run in (self.log, *self.queues.values(), *self.ext_queues.values()):
            run.close()
        for each in self._index_maps:
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _grouped(files: Sequence[StoreFile]) -> dict[QueueKey, list[StoreFile]]:
    groups: dict[QueueKey, list[StoreFile]] = {}
    for file in files:
        groups.setdefault((file.topic, file.queue_id), []).append(file)
    return groups
