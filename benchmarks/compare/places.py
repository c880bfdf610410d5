"""Where works keep their files: fresh directories that are removed afterwards, also those of a run that was killed.

A directory is called `tiermq-compare-PID-…`; one whose process is gone is removed by the next run, because files
left in a memory file system are memory that cannot be used.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import harness, report
from benchmarks.compare.work import Place

PREFIX = "tiermq-compare-"
MEMORY_NEEDED_BYTES = 8 * harness.GIB
QUICK_MEMORY_NEEDED_BYTES = 2 * harness.GIB


@dataclass(frozen=True, slots=True)
class Grounds:
    """The file systems of a run: for mapped files, and for what is flushed."""

    mapped: Path
    disk: Path

    def describe(self) -> dict[str, str]:
        """What they are, without saying where."""
        return {
            "file_system_of_mapped_files": report.file_system(self.mapped),
            "file_system_of_flushed_files": report.file_system(self.disk),
        }


def choose(mapped: Path | None, disk: Path | None, quick: bool) -> Grounds:
    """The directories asked for, else the memory file system if it has room, and the temporary directory."""
    temporary = Path(tempfile.gettempdir())
    for wanted in (mapped, disk):
        if wanted is not None and not wanted.is_dir():
            raise NotADirectoryError(f"expected a directory for the works' files, found {wanted}")
    if mapped is None:
        needed = QUICK_MEMORY_NEEDED_BYTES if quick else MEMORY_NEEDED_BYTES
        memory = harness.MEMORY_DIRECTORY
        has_room = os.access(memory, os.W_OK) and room_bytes(memory) >= needed
        mapped = memory if has_room else temporary
    return Grounds(mapped, disk or temporary)


def room_bytes(directory: Path) -> int:
    """Bytes that files may still take there; in a memory file system no more than there is memory."""
    free = shutil.disk_usage(directory).free
    return min(free, harness.available_memory()) if is_memory(directory) else free


def is_memory(directory: Path) -> bool:
    return report.file_system(directory) in ("tmpfs", "ramfs")


@contextlib.contextmanager
def fresh(grounds: Grounds, scale: int, quick: bool, part: int = 1) -> Iterator[Place]:
    """An empty place, removed afterwards whatever happens."""
    with contextlib.ExitStack() as stack:
        made = [
            tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", dir=parent, ignore_cleanup_errors=True)
            for parent in (grounds.mapped, grounds.disk)
        ]
        mapped, disk = (Path(stack.enter_context(each)) for each in made)
        yield Place(mapped, disk, scale, quick, part)


def remove_left_over(grounds: Grounds) -> int:
    """Remove directories of runs that were killed; how many there were."""
    count = 0
    for parent in {grounds.mapped, grounds.disk}:
        for path in parent.glob(f"{PREFIX}*"):
            pid = re.match(rf"{PREFIX}(\d+)-", path.name)
            if pid is not None and not Path(f"/proc/{pid[1]}").exists():
                shutil.rmtree(path, ignore_errors=True)
                count += 1
    return count


def used_bytes(directory: Path) -> int:
    """Bytes that the files below take, counted in blocks: a file that is mapped ahead of use counts what it has."""
    return sum(blocks * 512 for blocks in _blocks(directory))


def _blocks(directory: Path) -> Iterable[int]:
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # A side may remove a file while it is idle.
                yield os.lstat(os.path.join(parent, name)).st_blocks
