"""SecondFlush: a flush of the commit log beside the one that is under way.

A disk answers a flush after a while, and two that overlap in little more than that while. One flush after the other
leaves the disk idle while producers put, and producers while it flushes.

It has an open file of its own, because the kernel tells of a write that failed once to each open file: of two flushes
through one of them, one would hear of it, and the other would promise bytes that are lost.

Invariant: it is trusted with a file only after a first flush that was begun when the second open file was there
succeeded. That flush vouches for everything before; of everything that fails later the second hears itself.
Threads: `prepare` and `trust` are called under the first flush's lock; `flush` by any thread, one at a time, under
`_lock`.
"""

from __future__ import annotations

import logging
import threading

from tiermq.errors import StoreError
from tiermq.files.file_access import Region
from tiermq.files.mapped_file import MappedFile
from tiermq.files.mapped_file_queue import MappedFileQueue

_log = logging.getLogger(__name__)


class SecondFlush:
    """See the module. It flushes only the file in which `flushed_where` lies, and never a file's end."""

    def __init__(self, files: MappedFileQueue) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._file: MappedFile | None = None
        self._region: Region | None = None
        self._trusted = False

    @property
    def is_ready(self) -> bool:
        return self._trusted

    def prepare(self) -> None:
        """Open the file that is to be flushed next. One that cannot be opened a second time has no second flush."""
        file = self._files.find(self._files.flushed_where)
        if file is None or file is self._file:
            return
        with self._lock:
            self._let_go()
            self._file = file
            if file.tail is not file.view:  # Its newest bytes are in a transient buffer.
                return
            try:
                self._region = file.open_again()
            except (OSError, StoreError) as error:  # Such as too many open files. The first flush does without it.
                _log.warning("%s: flushes will not overlap: %s", file.path, error)

    def trust(self) -> None:
        """The first flush succeeded, and was begun after `prepare`."""
        self._trusted = self._region is not None

    def flush(self) -> bool:
        """Make everything durable that was put before the call; True when nothing moved, or when it is not for it.

        Raises as `Region.sync` does.
        """
        with self._lock:
            file, region = self._file, self._region
            if not self._trusted or file is None or region is None:
                return True
            end = file.read_position  # Before the flush: what comes during it may not be durable.
            if end >= file.size or file.name_is_due:
                return True
            region.sync()
            return not self._files.note_flushed(file.from_offset + end)

    def close(self) -> None:
        """Give the open file back."""
        with self._lock:
            self._let_go()
            self._file = None

    def _let_go(self) -> None:
        region, self._region = self._region, None
        self._trusted = False
        if region is not None:
            region.close()
