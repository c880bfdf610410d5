"""MappedFile: one pre-sized, memory-mapped file of a queue, and the positions within it.

    0          flushed        committed        wrote          limit            size
    +-------------+---------------+---------------+--------------+----------------+
    |  durable    |  in the file  | transient     | blocks, free | no blocks yet  |
    +-------------+---------------+---------------+--------------+----------------+

flushed <= committed <= wrote <= limit <= size, except that a loaded file has limit 0 until somebody writes again.
Without a transient buffer committed == wrote, and `tail` and `view` are one object. With one, writers fill the buffer
through `tail`, `commit` copies it into the file and moves `view.position`, and readers see committed bytes only.

Threads: one writer appends; one committer commits; any thread flushes, reads, holds and releases; positions are set
only while nobody writes. A destroyed file is unlinked but never unmapped under a reader: the map goes away with the
last reference to it, be it a SelectedBuffer, or a `Segments` snapshot that still lists the view.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Self

from tiermq.clock import Clock
from tiermq.errors import DiskFull, StoreClosed
from tiermq.files.file_access import PAGE_BYTES, FileAccess, Region
from tiermq.files.file_names import offset_of_path
from tiermq.files.new_names import NewNames
from tiermq.files.references import References, ReferenceState
from tiermq.files.selected_buffer import SelectedBuffer
from tiermq.files.transient_pool import TransientPool
from tiermq.kernel import Tail

RESERVE_BYTES = 1 << 20
_WARM_STEP_BYTES = 16 << 20


def is_due(start: int, end: int, least_pages: int, full: bool) -> bool:
    """Whether [start, end) is worth moving now: a full file always, else `least_pages` pages, or anything for 0."""
    if end <= start:
        return False
    return full or least_pages <= 0 or end // PAGE_BYTES - start // PAGE_BYTES >= least_pages


class MappedFile:
    """See the module. `store_timestamp_ms` is the time of the newest message, kept by the owner of the queue.

    A file that does not keep its descriptor opens one for the few calls that need it; append, read and flush need none.
    """

    __slots__ = (
        "_access",
        "_clock",
        "_commit_lock",
        "_doomed",
        "_flushed",
        "_keep_descriptor",
        "_names",
        "_pool",
        "_references",
        "_region",
        "_reserve_bytes",
        "_transient",
        "_unlink_lock",
        "_unlinked",
        "from_offset",
        "name_is_due",
        "path",
        "size",
        "store_timestamp_ms",
        "tail",
        "view",
    )

    def __init__(
        self,
        access: FileAccess,
        region: Region,
        *,
        clock: Clock,
        reserve_bytes: int = RESERVE_BYTES,
        keep_descriptor: bool = True,
        loaded: bool = False,
        names: NewNames | None = None,
    ) -> None:
        """`names`: who makes the file's name durable when it is due."""
        self._access = access
        self._region = region
        self._clock = clock
        self._reserve_bytes = max(1, reserve_bytes)
        self._keep_descriptor = keep_descriptor
        self._names = names
        self.name_is_due = names is not None and not loaded
        self._references = References()
        self._commit_lock = threading.RLock()  # Re-entered when a commit's release is the last one.
        self._unlink_lock = threading.Lock()
        self._doomed = False
        self._unlinked = False
        self._transient: Any = None
        self._pool: TransientPool | None = None
        self._flushed = 0
        self.path = region.path
        self.size = region.size
        self.from_offset = offset_of_path(region.path)
        self.store_timestamp_ms = 0
        self.view = Tail(region.buffer, self.from_offset, self.size)
        self.tail = self.view
        if loaded:
            self.view.position = self._flushed = self.size
        if loaded or not keep_descriptor:
            region.close_descriptor()

    @classmethod
    def create(
        cls,
        access: FileAccess,
        path: str,
        size: int,
        *,
        clock: Clock,
        reserve_bytes: int = RESERVE_BYTES,
        keep_descriptor: bool = True,
        names: NewNames | None = None,
    ) -> Self:
        """A new file, empty, durable in its directory; with `names` it is so after the first flush."""
        offset_of_path(path)  # Refuse a wrong name before anything is created.
        region = access.create(path, size) if names is None else names.create(path, size)
        return cls(
            access, region, clock=clock, reserve_bytes=reserve_bytes, keep_descriptor=keep_descriptor, names=names
        )

    @classmethod
    def load(
        cls,
        access: FileAccess,
        path: str,
        size: int,
        *,
        clock: Clock,
        reserve_bytes: int = RESERVE_BYTES,
        keep_descriptor: bool = True,
        writable: bool = True,
        names: NewNames | None = None,
    ) -> Self:
        """An existing file. It counts as full, committed and flushed until recovery sets its positions."""
        offset_of_path(path)
        region = access.open(path, size, writable)
        return cls(
            access,
            region,
            clock=clock,
            reserve_bytes=reserve_bytes,
            keep_descriptor=keep_descriptor,
            loaded=True,
            names=names,
        )

    # Positions

    @property
    def wrote_position(self) -> int:
        return self.tail.position

    @property
    def committed_position(self) -> int:
        return self.view.position

    @property
    def flushed_position(self) -> int:
        return self._flushed

    @property
    def read_position(self) -> int:
        """Readers may read below: committed bytes, which without a transient buffer are all the bytes."""
        return self.view.position

    @property
    def is_full(self) -> bool:
        return self.tail.position == self.size

    @property
    def last_modified_ms(self) -> int:
        """Modification time of the file, 0 when it is gone."""
        info = self._access.file_info(self.path)
        return 0 if info is None else info.modified_ms

    def set_positions(self, position: int) -> None:
        """wrote = committed = flushed = `position`, after recovery or truncation, while nobody writes.

        A transient buffer is committed and given back first. Blocks are reserved anew by the next append.
        """
        if not 0 <= position <= self.size:
            raise ValueError(f"{self.path}: expected a position between 0 and {self.size}, found {position}")
        self.commit(0)
        with self._commit_lock:
            self._give_back_transient()
            self.view.limit = 0
            self.view.position = position
            self._flushed = position

    # Writing

    def append(self, data: bytes | bytearray | memoryview) -> bool:
        """Write `data` at the wrote position and publish it; False, and nothing written, when the file has no room.

        Raises DiskFull, and writes nothing, when the file has room but the disk has not.
        """
        if self.tail.append(data):
            return True
        end = self.tail.position + len(data)
        if end > self.size or not self.available:
            return False
        self.reserve(end)
        return self.tail.append(data)

    def reserve(self, up_to: int) -> None:
        """Make sure that bytes below `up_to` have disk blocks, and move `tail.limit`; a no-op when they have.

        Reserves whole chunks, or just the pages needed when the disk has no room for a chunk. The blocks are the
        file's also when a transient buffer is in between, so that a commit never meets a full disk.
        """
        tail = self.tail
        if up_to <= tail.limit:
            return
        if up_to > self.size:
            raise ValueError(f"{self.path}: expected to reserve at most {self.size} bytes, found {up_to}")
        if not self.available:
            raise StoreClosed(f"{self.path}: expected a file in use to reserve blocks in, found it being removed.")
        start = max(tail.limit, tail.position)
        try:
            tail.limit = self._reserve_chunk_or_pages(start, up_to)
        finally:
            self._spare_descriptor()

    def _reserve_chunk_or_pages(self, start: int, up_to: int) -> int:
        end = min(self.size, _round_up(up_to, self._reserve_bytes))
        try:
            self._region.reserve(start, end - start)
        except DiskFull:
            least = min(self.size, _round_up(up_to, PAGE_BYTES))
            if least >= end:
                raise
            self._region.reserve(start, least - start)
            return least
        return end

    def _spare_descriptor(self) -> None:
        """Small files are many, and none of them needs its descriptor often enough to keep it."""
        if not self._keep_descriptor:
            self._region.close_descriptor()

    def zero_from(self, position: int) -> None:
        """Make every byte from `position` to the end of the file zero, durably. Only while nobody writes."""
        self.tail.limit = 0  # The blocks may be gone; the next append reserves them again.
        self._region.zero(position, self.size - position)
        self._region.sync()
        self._spare_descriptor()

    # Transient buffer, commit, flush

    def attach_transient(self, buffer: Any, pool: TransientPool) -> None:
        """Let writers write into `buffer`, borrowed from `pool`; it goes back when the whole file is committed."""
        with self._commit_lock:
            if self._transient is not None:
                raise ValueError(f"{self.path}: expected no transient buffer, found one attached already.")
            tail = Tail(buffer, self.from_offset, self.size)
            tail.position = self.view.position
            tail.limit, self.view.limit = self.view.limit, 0
            self._transient, self._pool, self.tail = buffer, pool, tail

    def commit(self, least_pages: int) -> int:
        """Copy what is due from the transient buffer to the file; the committed position afterwards.

        Committed bytes survive the process but not a power cut: that is `flush`.
        """
        with self._commit_lock:
            if self._transient is None or not self._references.pin():
                return self.wrote_position
            try:
                start, end = self.view.position, self.tail.position
                if is_due(start, end, least_pages, full=end == self.size):
                    with memoryview(self._transient) as whole, whole[start:end] as data:
                        self._region.write(start, data)
                    self.view.position = end
                if self.view.position == self.size:
                    self._give_back_transient()
                    self.view.limit = self.size
                return self.view.position
            finally:
                self.release()

    def flush(self, least_pages: int) -> int:
        """Make what is due durable; the flushed position afterwards. Bytes below it survive a power cut.

        A file that is being removed is still synced while it has a name; without one there is nothing left to keep.
        """
        if self._unlinked or not self._references.pin():
            self._flushed = self.read_position
            return self._flushed
        try:
            end = self.read_position
            if is_due(self._flushed, end, least_pages, full=end == self.size) or (
                self.name_is_due and least_pages <= 0
            ):
                self._sync()
                self._flushed = max(self._flushed, end)
                if self._flushed == self.size:
                    self._region.close_descriptor()
                self._spare_descriptor()
            return self._flushed
        finally:
            self.release()

    def sync_whole(self) -> None:
        """Make the whole file durable, also bytes that a process which died left in the page cache.

        A loaded file counts as flushed, and this is what makes it true.
        """
        self._sync()
        if self.tail.limit == 0:
            self._region.close_descriptor()

    def _sync(self) -> None:
        self._region.sync()
        if self.name_is_due and self._names is not None:
            self._names.sync(self.path)
            self.name_is_due = False

    def doubt_name(self) -> None:
        """A process that died may have left the file without a durable name: the next flush makes it so."""
        if self._names is not None:
            self._names.doubt(self.path)
            self.name_is_due = True

    # Reading

    def read(self, position: int, length: int) -> bytes | None:
        """A copy of `length` bytes at `position` of this file; None when that passes the read position."""
        return self.view.read(position, length)

    def select(self, position: int, length: int | None = None) -> SelectedBuffer | None:
        """The bytes at `position`, `length` of them or all that can be read; None when they are not there.

        Holds the file until the buffer is released.
        """
        end = self.read_position if length is None else position + length
        inside = 0 <= position < end if length is None else 0 <= position <= end and length >= 0
        if not inside or end > self.read_position or not self._references.hold():
            return None
        with memoryview(self._region.buffer) as whole, whole[position:end] as part:
            return SelectedBuffer(self.from_offset + position, part.toreadonly(), self.release)

    def data_ranges(self) -> list[tuple[int, int]]:
        """[start, end) of what may hold other bytes than zeros: a file may have holes."""
        found = self._region.data_ranges()
        self._spare_descriptor()
        return found

    # Memory

    def warm(self, pages_per_sync: int = 0) -> None:
        """Bring the whole file into memory before anybody writes to it: blocks, pages, memory lock, read-ahead.

        Syncs after every `pages_per_sync` pages when that is positive. Raises DiskFull before anything is touched.
        """
        self.reserve(self.size)
        step = pages_per_sync * PAGE_BYTES if pages_per_sync > 0 else _WARM_STEP_BYTES
        for start in range(0, self.size, step):
            length = min(step, self.size - start)
            if not self._region.populate(start, length) and self.wrote_position == 0:
                self._region.write(start, bytes(length))
            if pages_per_sync > 0:
                self._region.sync()
        self.lock_memory()
        self._region.advise_will_need()

    def populate(self, up_to: int) -> bool:
        """Bring reserved pages below `up_to` into memory; False when the kernel cannot."""
        return self._region.populate(0, min(up_to, self.tail.limit))

    def release_pages(self, start: int, end: int) -> bool:
        """Let go of the pages in [start, end), whose bytes stay as they are; False when the kernel keeps them."""
        return self._region.release_pages(start, end - start)

    def lock_memory(self) -> bool:
        return self._region.lock_memory()

    def unlock_memory(self) -> bool:
        return self._region.unlock_memory()

    # References and the way out

    @property
    def available(self) -> bool:
        return self._references.state is ReferenceState.AVAILABLE

    @property
    def reference_count(self) -> int:
        return self._references.count

    def hold(self) -> bool:
        """Keep the file from being unmapped; False once it is on its way out. Pair it with `release`."""
        return self._references.hold()

    def release(self) -> None:
        """Give back what `hold` took. The last release of a file on its way out unmaps it, and unlinks it if doomed."""
        if self._references.release():
            self._unmap()
            if self._doomed:
                self._unlink()

    def shutdown(self, interval_ms: int) -> None:
        """Refuse new holders and writers; unmap once nobody holds the file. The file on disk stays."""
        last = self._references.shutdown(self._clock.now_ms(), interval_ms)
        self.tail.limit = 0  # Fast-path writers that still have the tail stop here.
        if last:
            self._unmap()

    def destroy(self, interval_ms: int) -> bool:
        """Shut down and unlink, durably; True when the file's name is gone.

        False while somebody holds the file: its last release unlinks it, or else a call that comes `interval_ms` or
        more after the first one. Holders keep reading valid bytes in both cases.
        """
        self._doomed = True
        self.shutdown(interval_ms)
        if self._references.state in (ReferenceState.DRAINED, ReferenceState.FORCED):
            self._unlink()
        return self._unlinked

    def close(self) -> None:
        """Commit, then unmap and give every handle back; deletes and flushes nothing. No other thread uses it."""
        try:
            self.commit(0)
        finally:
            self._references.shutdown(self._clock.now_ms(), 0)
            self._unmap(detach=True)

    def _unlink(self) -> None:
        with self._unlink_lock:
            if not self._unlinked:  # Once only: a new file may have the name by the time the last holder leaves.
                self._access.remove(self.path)
                self._access.sync_directory(os.path.dirname(self.path) or ".")
                self._unlinked = True

    def _unmap(self, detach: bool = False) -> None:
        with self._commit_lock:
            self._give_back_transient()
            view = self.view
            gone = Tail(bytearray(), self.from_offset, 0)
            gone.detach()
            gone.position = view.position
            self.view = self.tail = gone
            view.limit = 0
            if detach:
                view.detach()
            del view  # The map can be closed only when this, usually the last reference to it, is gone.
            self._region.close()

    def _give_back_transient(self) -> None:
        if self._transient is None or self._pool is None:
            return
        self.tail.detach()
        self.tail = self.view
        self._pool.give_back(self._transient)
        self._transient = self._pool = None


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
