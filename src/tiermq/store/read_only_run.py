"""ReadOnlyRun: the files of one log or queue that another process writes, as the kernel reads them.

    directories ── listed when their change times say so ──► files ── mapped when read ──► kernel.Segments

Maps hold no descriptor and are private: what the compiled kernel could write to them by mistake never reaches a file. A
file that its owner deletes stays readable for whoever still has its Segments; the map goes with the last of them.
Invariant: files are equally long, in the order of their offsets, and end to end; a newer file of another length is one
that is being made this moment, and is not there yet. Its directory's time does not tell when it has got its length.
Not safe to share between threads.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tiermq.files.system_calls import map_file
from tiermq.kernel import Segments, Tail

_NAME = re.compile(r"[0-9]{20}")
CLOCK_TICK_NS = 1_000_000_000
"""A directory that changed so short a time before it was listed may have changed again without showing it."""


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
        """Every entry, or None when they are those of the last call. A directory that is not there is empty."""
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
        """Read the entries again next time, whatever the directories say."""
        self._unsure = True


class ReadOnlyRun:
    """See the module. `refresh` looks at the directories; everything else answers from what it saw."""

    __slots__ = ("_listing", "_segments", "_tails", "files")

    def __init__(self, directories: Sequence[Path]) -> None:
        self._listing = Listing(directories)
        self.files: list[RunFile] = []
        self._tails: dict[int, Tail] = {}
        self._segments: Segments | None = None

    def refresh(self) -> bool:
        """Whether there are other files than before."""
        entries = self._listing.changed()
        if entries is None:
            return False
        files, being_made = _in_order(entries)
        if being_made:
            self._listing.doubt()
        if files == self.files:
            return False
        self.files = files
        bases = {file.base for file in files}
        self._tails = {base: tail for base, tail in self._tails.items() if base in bases}
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
        """Where the last file ends, whatever of it is written."""
        return self.files[-1].base + self.files[-1].size if self.files else 0

    def segments(self) -> Segments:
        """All files, mapped, readable to their ends. One that is gone by now is left out."""
        if self._segments is None:
            tails = [self.tail_of(file) for file in self.files]
            self._segments = Segments([tail for tail in tails if tail is not None], self.file_size)
        return self._segments

    def tail_of(self, file: RunFile) -> Tail | None:
        """The map of one file; None when it was deleted meanwhile."""
        tail = self._tails.get(file.base)
        if tail is None:
            tail = map_read_only(file)
            if tail is not None:
                self._tails[file.base] = tail
        return tail

    def forget_maps(self) -> None:
        """Let go of the maps; they are made again when something is read."""
        self._tails.clear()
        self._segments = None


def map_read_only(file: RunFile) -> Tail | None:
    """A file's bytes, all of them readable and none writable; None when there is no such file any more."""
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if os.fstat(descriptor).st_size < file.size:
            return None  # Another file by now; a look at the directory will tell.
        tail = Tail(map_file(descriptor, file.size, shared=False), file.base, file.size)
    finally:
        os.close(descriptor)
    tail.position = file.size
    return tail


def _changed_ns(directory: Path) -> int:
    try:
        return os.stat(directory).st_mtime_ns
    except FileNotFoundError:
        return 0


def _in_order(entries: Sequence[os.DirEntry[str]]) -> tuple[list[RunFile], bool]:
    """The files of a run: those named like one, as long as the oldest, without a hole before the newest ones; and
    whether there are others that may become so without their directory's telling.
    """
    found: dict[int, RunFile] = {}
    being_made = False
    for entry in entries:
        if _NAME.fullmatch(entry.name):
            try:
                size = entry.stat().st_size
            except FileNotFoundError:
                continue  # Deleted since the directory was listed.
            if size:
                found[int(entry.name)] = RunFile(int(entry.name), Path(entry.path), size)
            else:
                being_made = True
    files = [found[base] for base in sorted(found)]
    while len(files) > 1 and files[-1].size != files[0].size:
        files.pop()
        being_made = True
    return files, being_made
