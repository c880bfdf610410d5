"""Which files at the front of a queue may go. Pure decisions, taken one file at a time while the caller deletes.

By time: oldest first, never the last file, while `now >= modified + reserved` or cleaning is immediate; the first file
that must stay ends the run, also when later files look older. Age is the file's modification time, as in RocketMQ:
copying a store makes its files young again, and a clock that jumps forward makes all of them old. A veto ("not yet",
for instance because the cold copy is not proven) ends the run whatever the age.

By offset: leading full files whose last unit points below the smallest offset that still exists.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from tiermq.clock import Clock
from tiermq.files.mapped_file import MappedFile

Sleep = Callable[[float], None]


def sleep_seconds(seconds: float) -> None:
    """The real pause between two deletions, which keeps unlinking large files from starving other disk work."""
    time.sleep(seconds)


def expired_by_time(
    files: Sequence[MappedFile],
    clock: Clock,
    expired_ms: int,
    immediately: bool,
    veto: Callable[[MappedFile], bool] | None,
) -> Iterator[MappedFile]:
    """The leading run of `files` that may be deleted now."""
    for file in files:
        old = clock.now_ms() >= file.last_modified_ms + expired_ms
        if not (old or immediately) or (veto is not None and veto(file)):
            return
        yield file


def expired_by_offset(
    files: Sequence[MappedFile],
    min_physical_offset: int,
    unit_size: int,
    last_unit_physical_offset: Callable[[MappedFile], int],
) -> Iterator[MappedFile]:
    """The leading run of `files` that hold nothing at or above `min_physical_offset`, or are on their way out."""
    for file in files:
        if file.available:
            if file.size < unit_size or file.read_position < file.size:
                return
            newest = last_unit_physical_offset(file)
            if not 0 <= newest < min_physical_offset:
                return
        yield file
