"""MappedRun: the files of one log or queue that another process writes, mapped, found by byte offset.

    directories ── listed when their change times differ ──► files ── mapped when read ──► views, kernel.Segments

Maps hold no descriptor and are private: what the compiled kernel could write to them by mistake never reaches a file. A
file that its owner deletes stays readable for holders of a view or of Segments; the map goes with the last of them.
Invariant: `files` are equally long, in the order of their offsets; a newer file of another length is one that is being
made at this moment, and is not among them yet. The directory's change time does not show when it has got its length.
`all_files` has those too, for tools that report them. Not safe to share between threads.
"""

from __future__ import annotations

import bisect
import errno
import mmap
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Self

from tiermq.files.system_calls import map_file
from tiermq.kernel import Segments, WriteCursor

_NAME = re.compile(r"[0-9]{20}")
_ZERO_CHUNK = bytes(1 << 20)
_REPORTS_NO_HOLES = frozenset({errno.EINVAL, errno.ENOTTY, errno.EOPNOTSUPP, errno.ENOTSUP})
CLOCK_TICK_NS = 1_000_000_000
"""A directory that changed less than this before it was listed may have changed again with the same change time."""


class ReadOnlyMap:
    """The bytes of a file, read-only; changes that another process writes show in them.

    Holds no descriptor, so that thousands of files can be mapped at a time. Raises FileNotFoundError. Dropping it
    unmaps the file once no view of it is left; `close` does so at once, and needs that.
    """

    __slots__ = ("_map", "_path", "view")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: mmap.mmap | None = None
        self.view = memoryview(b"")
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            if size:  # A file without bytes cannot be mapped.
                self._map = map_file(descriptor, size, shared=False)
                self.view = memoryview(self._map).toreadonly()
        finally:
            os.close(descriptor)

    def cursor(self, base: int, size: int) -> WriteCursor:
        """The first `size` bytes, at offset `base` of their run, as the kernel reads them."""
        made = WriteCursor(self._map, base, size)
        made.position = size
        return made

    def is_zero_from(self, position: int) -> bool:
        """Whether there are only zeros from `position` on.

        Blocks that were never written are not read: a log file is made at full size, and touching all of its empty
        rest would fill the machine's memory with zeros.
        """
        with self._path.open("rb") as stream:
            while position < len(self.view):
                try:
                    position = os.lseek(stream.fileno(), position, os.SEEK_DATA)
                except OSError as error:
                    if error.errno == errno.ENXIO:  # No data from here to the end of the file.
                        return True
                    if error.errno not in _REPORTS_NO_HOLES:
                        raise
                end = min(position + len(_ZERO_CHUNK), len(self.view))
                if not is_zero(self.view, position, end):
                    return False
                position = end
        return True

    def close(self) -> None:
        self.view.release()
        if self._map is not None:
            self._map.close()
            self._map = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_zero(view: memoryview, start: int, end: int) -> bool:
    """Whether every byte of a range is zero."""
    step = len(_ZERO_CHUNK)
    return all(view[at : min(at + step, end)] == _ZERO_CHUNK[: min(step, end - at)] for at in range(start, end, step))


@dataclass(frozen=True, slots=True)
class RunFile:
    """One file; `base` is the byte offset of its first byte."""

    base: int
    path: Path
    size: int


class Listing:
    """The entries of some directories, read again only when they can have changed."""

    __slots__ = ("_directories", "_stamps", "_unsure")

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = tuple(directories)
        self._stamps: tuple[int, ...] | None = None
        self._unsure = True

    def changed(self) -> list[os.DirEntry[str]] | None:
        """Every entry, or None when they are those of the last call. A directory that does not exist is empty."""
        now_ns = time.time_ns()
        stamps = tuple(_changed_ns(directory) for directory in self._directories)
        if stamps == self._stamps and not self._unsure:
            return None
        self._stamps = stamps
        self._unsure = any(stamp > now_ns - CLOCK_TICK_NS for stamp in stamps)
        found: list[os.DirEntry[str]] = []
        for directory in self._directories:
            try:
                with os.scandir(directory) as entries:
                    found.extend(entries)
            except FileNotFoundError:
                continue
        return found

    def doubt(self) -> None:
        """Read the entries again next time, also if the directories' change times are the same."""
        self._unsure = True


class MappedRun:
    """See the module. `refresh` lists the directories; all other methods use that listing."""

    __slots__ = ("_bases", "_cursors", "_listing", "_maps", "_segments", "all_files", "files")

    def __init__(self, directories: Sequence[Path]) -> None:
        self._listing = Listing(directories)
        self.files: list[RunFile] = []
        self.all_files: list[RunFile] = []
        self._bases: list[int] = []
        self._maps: dict[int, ReadOnlyMap] = {}
        self._cursors: dict[int, WriteCursor] = {}
        self._segments: Segments | None = None

    def refresh(self) -> bool:
        """Whether there are other files than before."""
        entries = self._listing.changed()
        if entries is None:
            return False
        all_files, is_complete = _in_order(entries)
        files = list(all_files)
        while len(files) > 1 and files[-1].size != files[0].size:
            files.pop()
        files = [file for file in files if file.size]
        if not is_complete or len(files) < len(all_files):
            self._listing.doubt()
        if files == self.files and all_files == self.all_files:
            return False
        self.files, self.all_files = files, all_files
        self._bases = [file.base for file in all_files]
        there = set(self._bases)
        self._maps = {base: opened for base, opened in self._maps.items() if base in there}
        self._cursors = {base: cursor for base, cursor in self._cursors.items() if base in there}
        self._segments = None
        return True

    @property
    def file_size(self) -> int:
        return self.files[0].size if self.files else 1

    @property
    def min_offset(self) -> int:
        return self.files[0].base if self.files else 0

    @property
    def size_end(self) -> int:
        """Where the last file ends, written or not."""
        return self.files[-1].base + self.files[-1].size if self.files else 0

    def segments(self) -> Segments:
        """All files, mapped, readable to their ends. One that was deleted meanwhile is left out."""
        if self._segments is None:
            cursors = [self.cursor_of(file) for file in self.files]
            self._segments = Segments([cursor for cursor in cursors if cursor is not None], self.file_size)
        return self._segments

    def map_of(self, file: RunFile) -> ReadOnlyMap | None:
        """The map of one file; None when it was deleted, or replaced by a shorter one, meanwhile."""
        opened = self._maps.get(file.base)
        if opened is None or len(opened.view) < file.size:  # It has got its length since.
            try:
                opened = ReadOnlyMap(file.path)
            except FileNotFoundError:
                return None
            if len(opened.view) < file.size:
                return None
            self._maps[file.base] = opened
        return opened

    def cursor_of(self, file: RunFile) -> WriteCursor | None:
        """The same as the kernel reads it."""
        cursor = self._cursors.get(file.base)
        if cursor is None:
            opened = self.map_of(file)
            if opened is not None:
                cursor = self._cursors[file.base] = opened.cursor(file.base, file.size)
        return cursor

    def maps(self) -> list[tuple[RunFile, ReadOnlyMap]]:
        """Every file of `all_files` that is still there, with its bytes."""
        opened = ((file, self.map_of(file)) for file in self.all_files)
        return [(file, each) for file, each in opened if each is not None]

    def find(self, offset: int) -> tuple[memoryview, int] | None:
        """The bytes of the file that covers `offset`, written or not, and the position in them; None without a file."""
        at = bisect.bisect_right(self._bases, offset) - 1
        if at < 0 or offset - self._bases[at] >= self.all_files[at].size:
            return None
        opened = self.map_of(self.all_files[at])
        return None if opened is None else (opened.view, offset - self._bases[at])

    def layout_problems(self) -> list[str]:
        """Files of another size than the first one, and gaps between files."""
        files = [file for file, _ in self.maps()]
        found = [
            f"{file.path.name}: expected {files[0].size} bytes like the first file, found {file.size}"
            for file in files
            if file.size != files[0].size
        ]
        for before, after in pairwise(files):
            end = before.base + files[0].size
            if after.base != end:
                found.append(f"after {before.base:020d}: expected a file that starts at {end}, found {after.base}")
        return found

    def forget_maps(self) -> None:
        """Drop the maps; they are made again on the next read."""
        self._maps.clear()
        self._cursors.clear()
        self._segments = None


def _changed_ns(directory: Path) -> int:
    try:
        return os.stat(directory).st_mtime_ns
    except FileNotFoundError:
        return 0


def _in_order(entries: Sequence[os.DirEntry[str]]) -> tuple[list[RunFile], bool]:
    """The files named like one of a run, in order, and whether these are all: an empty last one is not there yet."""
    found: dict[int, RunFile] = {}
    for entry in entries:
        if _NAME.fullmatch(entry.name):
            try:
                size = entry.stat().st_size
            except FileNotFoundError:
                continue  # Deleted since the directory was listed.
            found[int(entry.name)] = RunFile(int(entry.name), Path(entry.path), size)
    files = [found[base] for base in sorted(found)]
    is_complete = not files or files[-1].size > 0
    while files and not files[-1].size:
        files.pop()
    return files, is_complete
