"""MultiPathMappedFileQueue: one queue whose files are spread over several directories, usually one per disk.

File number i = offset / file_size goes to candidates[i % len(candidates)], where the candidates are the configured
paths without the read-only and the full ones, sorted; when all are full, without the read-only ones only. Loading looks
into all paths. The sets may change while the store runs: every new file is placed by what is true at that moment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable

from tiermq.clock import Clock
from tiermq.errors import BadConfig, ReadOnlyStore
from tiermq.files.allocator import FileAllocator
from tiermq.files.expiry import Sleep, sleep_seconds
from tiermq.files.file_access import FileAccess, FileInfo
from tiermq.files.file_names import name_of_offset
from tiermq.files.mapped_file import RESERVE_BYTES, MappedFile
from tiermq.files.mapped_file_queue import MappedFileQueue


def choose_path(
    paths: Collection[str], read_only_paths: Collection[str], full_paths: Collection[str], file_number: int
) -> str:
    """The directory of file `file_number`. Raises BadConfig when every path is read-only."""
    writable = set(paths) - set(read_only_paths)
    candidates = sorted(writable - set(full_paths)) or sorted(writable)
    if not candidates:
        raise BadConfig(
            f"expected a commit-log path that may be written, found paths {sorted(paths)} all read-only. "
            "Add a path that is not in readOnlyCommitLogStorePaths."
        )
    return candidates[file_number % len(candidates)]


class MultiPathMappedFileQueue(MappedFileQueue):
    """`paths` and `read_only_paths` may be assigned at any time; `full_paths` is asked at each creation."""

    def __init__(
        self,
        access: FileAccess,
        paths: Iterable[str],
        file_size: int,
        *,
        clock: Clock,
        read_only_paths: Iterable[str] = (),
        full_paths: Callable[[], Collection[str]] = tuple,
        allocator: FileAllocator | None = None,
        reserve_bytes: int = RESERVE_BYTES,
        writable: bool = True,
        sleep: Sleep = sleep_seconds,
    ) -> None:
        self.paths = tuple(paths)
        self.read_only_paths = tuple(read_only_paths)
        self.full_paths = full_paths
        if not self.paths:
            raise BadConfig("expected at least one commit-log path, found none.")
        super().__init__(
            access,
            self.paths[0],
            file_size,
            clock=clock,
            allocator=allocator,
            reserve_bytes=reserve_bytes,
            writable=writable,
            sleep=sleep,
        )

    def _directories(self) -> Iterable[str]:
        return sorted({*self.paths, *self.read_only_paths})

    def _listed(self) -> list[tuple[str, FileInfo]]:
        return [(path, info) for path in self._directories() for info in self._access.list_files(path)]

    def _path_of(self, offset: int) -> str:
        directory = choose_path(self.paths, self.read_only_paths, self.full_paths(), offset // self.file_size)
        return os.path.join(directory, name_of_offset(offset))

    def _load_file(self, path: str) -> MappedFile:
        try:
            return super()._load_file(path)
        except ReadOnlyStore:
            # "Read-only" in RocketMQ means no new files; the disk behind it may or may not be writable.
            if os.path.dirname(path) not in self.read_only_paths:
                raise
            return MappedFile.load(self._access, path, self.file_size, clock=self._clock, writable=False)
