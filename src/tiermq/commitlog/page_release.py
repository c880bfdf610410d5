"""PageRelease: gives back pages of the mapped log that nobody is about to need.

What is written or read through a map counts as this process' memory until the kernel runs short, so a broker seems to
grow with its log. The kernel keeps the bytes in its own cache either way; a page that was given back and is touched
again costs a fault, and the kernel then brings its neighbours along.

Only when more than `residentLogBytesMax` of all mapped files is resident, the log is given back up to where it is
flushed and dispatched, less the last pages, which consumers at the end of their queues read. What was written since the
last time goes at once; what was read again goes with every tenth turn, since whoever reads a long stretch by eight
queues in turn needs each of its pages eight times.
Threads: `run` is called by the housekeeping thread alone.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path

from tiermq.files.mapped_file_queue import MappedFileQueue

KEPT_BYTES = 8 << 20
WHOLE_TURNS = 10
_STATM = Path("/proc/self/statm")


def resident_file_bytes() -> int:
    """Resident pages of files that this process maps; 0 where the system does not tell."""
    try:
        return int(_STATM.read_text(encoding="ascii").split()[2]) * mmap.PAGESIZE
    except FileNotFoundError:
        return 0


class PageRelease:
    """See the module."""

    def __init__(
        self,
        files: MappedFileQueue,
        resident_bytes_max: int,
        dispatched_where: Callable[[], int],
        resident: Callable[[], int] = resident_file_bytes,
    ) -> None:
        """`resident_bytes_max` of 0 gives nothing back."""
        self._files = files
        self._dispatched_where = dispatched_where
        self._resident_bytes_max = resident_bytes_max
        self._resident = resident
        self._released_where = 0
        self.release_count = 0

    def run(self) -> None:
        """Look, and give back what is due."""
        if not 0 < self._resident_bytes_max < self._resident():
            return
        end = min(self._files.flushed_where, self._dispatched_where()) - KEPT_BYTES
        start = 0 if self.release_count % WHOLE_TURNS == 0 else self._released_where
        for file in self._files.files:
            first, last = max(0, start - file.from_offset), min(file.size, end - file.from_offset)
            if first < last:
                file.release_pages(first, last)
        self._released_where = max(0, end)
        self.release_count += 1
