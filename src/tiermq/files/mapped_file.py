"""MappedFile: one pre-sized, memory-mapped file of a queue, and the positions within it.

    0          flushed        committed        wrote          limit            size
    +-------------+---------------+---------------+--------------+----------------+
    |  durable    |  in the file  | transient     | blocks, free | no blocks yet  |
    +-------------+---------------+---------------+--------------+----------------+

flushed <= committed <= wrote <= limit <= size, except that a loaded file has limit 0 until the next write.
Without a transient buffer committed == wrote, and `tail` and `view` are one object. With one, writers fill the buffer
through `tail`, `commit` copies it into the file and moves `view.position`, and readers see committed bytes only.

Threads: one writer appends; one committer commits; any thread flushes, reads, holds and releases; positions are set
only while there is no writer. A destroyed file is unlinked but never unmapped under a reader: the map is freed with the
last reference to it, a SelectedBuffer or a `Segments` snapshot that still lists the view.
"""

from __future__ import annotations

import enum
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tiermq.clock import Clock
from tiermq.errors import DiskFull, IllegalTransition, StoreClosed, StoreDamaged
from tiermq.files.file_access import PAGE_BYTES, DirectorySync, FileAccess, Region
from tiermq.kernel import WriteCursor
from tiermq.settings import LONG_MAX

if TYPE_CHECKING:
    from tiermq.files.allocator import TransientPool


class ReferenceState(enum.Enum):
    AVAILABLE = "available"
    DRAINING = "draining"
    FORCED = "forced"
    DRAINED = "drained"


class References:
    """The reference count and shutdown state of a mapped file.

        AVAILABLE --shutdown--> DRAINING --last release--> DRAINED
            |                      |
            |                      +--shutdown after the interval--> FORCED --last release--> DRAINED
            +--shutdown with no other holder-----------------------------------------------> DRAINED

    The count starts at one, the owner's reference, which the first shutdown drops. FORCED means that the owner no
    longer waits: the file is unlinked now, while its bytes stay mapped for the remaining holders.

    Any thread may call anything; `_lock` guards count and state.
    """

    __slots__ = ("_count", "_lock", "_shut_down_at_ms", "state")

    def __init__(self) -> None:
        self.state = ReferenceState.AVAILABLE
        self._count = 1
        self._shut_down_at_ms = 0
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        return self._count

    def hold(self) -> bool:
        """Take a reference; False once the file is in shutdown."""
        with self._lock:
            if self.state is not ReferenceState.AVAILABLE:
                return False
            self._count += 1
            return True

    def pin(self) -> bool:
        """Take a reference for the owner's work (flush, commit), also in shutdown; False when drained."""
        with self._lock:
            if self.state is ReferenceState.DRAINED:
                return False
            self._count += 1
            return True

    def release(self) -> bool:
        """Drop a reference; True when it was the last one. Raises IllegalTransition for one too many."""
        with self._lock:
            if self._count <= (1 if self.state is ReferenceState.AVAILABLE else 0):
                raise IllegalTransition(
                    f"expected a reference to release, found none held ({self.state.value}, count {self._count}). "
                    "Each hold or select is released exactly once."
                )
            return self._drop_one()

    def shutdown(self, now_ms: int, interval_ms: int) -> bool:
        """Start or continue the shutdown; True when the owner's reference was the last one.

        Only a call `interval_ms` or more after the first one stops waiting for holders.
        """
        with self._lock:
            if self.state is ReferenceState.AVAILABLE:
                self.state = ReferenceState.DRAINING
                self._shut_down_at_ms = now_ms
                return self._drop_one()
            if self.state is ReferenceState.DRAINING and now_ms - self._shut_down_at_ms >= interval_ms:
                self.state = ReferenceState.FORCED
            return False

    def _drop_one(self) -> bool:
        self._count -= 1
        if self._count == 0:
            self.state = ReferenceState.DRAINED
            return True
        return False


class SelectedBuffer:
    """`data` is a read-only view of `size` bytes at absolute offset `start_offset` of their queue.

    Belongs to the thread that selected it. Release it when the bytes are no longer needed; `release` is idempotent.
    """

    __slots__ = ("_on_release", "data", "size", "start_offset")

    def __init__(self, start_offset: int, data: memoryview, on_release: Callable[[], None]) -> None:
        self.start_offset = start_offset
        self.data = data
        self.size = len(data)
        self._on_release: Callable[[], None] | None = on_release

    def release(self) -> None:
        """Release the bytes. `data` cannot be used afterwards."""
        on_release, self._on_release = self._on_release, None
        if on_release is not None:
            self.data.release()
            on_release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


NAME_DIGITS = 20
OFFSET_MAX = LONG_MAX  # Offsets are i64 on disk and on the wire.


def name_of_offset(offset: int) -> str:
    """The name of the file whose first byte is `offset`: twenty decimal ASCII digits.

    Java formats them with the JVM's locale; TierMQ writes and accepts ASCII digits only.
    """
    if not 0 <= offset <= OFFSET_MAX:
        raise ValueError(f"expected an offset between 0 and {OFFSET_MAX}, found {offset}")
    return f"{offset:0{NAME_DIGITS}d}"


def offset_of_path(path: str) -> int:
    """The first offset of the file at `path`. Raises StoreDamaged for an invalid name."""
    name = os.path.basename(path)
    if len(name) == NAME_DIGITS and name.isascii() and name.isdigit() and int(name) <= OFFSET_MAX:
        return int(name)
    raise StoreDamaged(
        f"{path}: expected a file name of {NAME_DIGITS} digits (the offset of its first byte), found {name!r}. "
        "Move the foreign file out of the store directory."
    )


RESERVE_BYTES = 1 << 20
GROWTH_BYTES = 1 << 20
"""The first blocks of a file that grows."""
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
        "_first_bytes",
        "_keep_descriptor",
        "_names",
        "_pool",
        "_region",
        "_reserve_bytes",
        "_transient",
        "_unlink_lock",
        "_unlinked",
        "flushed_position",
        "from_offset",
        "name_is_due",
        "path",
        "references",
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
        names: DirectorySync | None = None,
        grows: bool = False,
    ) -> None:
        """`names`: makes the file's name durable at its first flush. `grows`: blocks for what is written, twice as much
        each time, up to `reserve_bytes`; otherwise that much at once.
        """
        self._access = access
        self._region = region
        self._clock = clock
        self._reserve_bytes = max(1, reserve_bytes)
        self._keep_descriptor = keep_descriptor
        self._names = names
        self._first_bytes = PAGE_BYTES if names is not None else GROWTH_BYTES if grows else self._reserve_bytes
        self.name_is_due = names is not None and not loaded
        self.references = References()
        self._commit_lock = threading.RLock()  # Re-entered when a commit's release is the last one.
        self._unlink_lock = threading.Lock()
        self._doomed = False
        self._unlinked = False
        self._transient: Any = None
        self._pool: TransientPool | None = None
        self.flushed_position = 0
        self.path = region.path
        self.size = region.size
        self.from_offset = offset_of_path(region.path)
        self.store_timestamp_ms = 0
        self.view = WriteCursor(region.buffer, self.from_offset, self.size)
        self.tail = self.view
        if loaded:
            self.view.position = self.flushed_position = self.size
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
        names: DirectorySync | None = None,
        grows: bool = False,
    ) -> Self:
        """A new empty file, durable in its directory; with `names` only after the first flush."""
        offset_of_path(path)  # Refuse a wrong name before anything is created.
        region = access.create(path, size) if names is None else names.create(path, size)
        return cls(
            access,
            region,
            clock=clock,
            reserve_bytes=reserve_bytes,
            keep_descriptor=keep_descriptor,
            names=names,
            grows=grows,
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
        names: DirectorySync | None = None,
        grows: bool = False,
    ) -> Self:
        """An existing file. It counts as full, committed and flushed until recovery sets its positions."""
        offset_of_path(path)
        region = access.open(path, size, writable)
        if names is not None:
            # One of very many files, mostly holes: of each only the first and last pages are read at a start, and
            # read-ahead would fill the page cache with zeros, megabytes for each file.
            region.advise_random()
        return cls(
            access,
            region,
            clock=clock,
            reserve_bytes=reserve_bytes,
            keep_descriptor=keep_descriptor,
            loaded=True,
            names=names,
            grows=grows,
        )

    # Positions

    @property
    def wrote_position(self) -> int:
        return self.tail.position

    @property
    def read_position(self) -> int:
        """Readers may read below: committed bytes, which without a transient buffer are all the bytes."""
        return self.view.position

    @property
    def is_full(self) -> bool:
        return self.tail.position == self.size

    @property
    def last_modified_ms(self) -> int:
        """Modification time of the file, 0 when it is deleted."""
        info = self._access.file_info(self.path)
        return 0 if info is None else info.modified_ms

    def set_positions(self, position: int) -> None:
        """wrote = committed = flushed = `position`, after recovery or truncation, without a writer.

        A transient buffer is committed and returned first. The next append reserves blocks again.
        """
        if not 0 <= position <= self.size:
            raise ValueError(f"{self.path}: expected a position between 0 and {self.size}, found {position}")
        self.commit(0)
        with self._commit_lock:
            self._give_back_transient()
            self.view.limit = 0
            self.view.position = position
            self.flushed_position = position

    # Writing

    def append(self, data: bytes | bytearray | memoryview) -> bool:
        """Write `data` at the wrote position and publish it; False, and nothing written, when the file is full.

        Raises DiskFull, and writes nothing, when the disk is full.
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

        Reserves whole chunks (smaller ones at the begin of a queue's first file), or just the pages needed when the
        disk has no space for a chunk. With a transient buffer the file's blocks are reserved, too, so that a commit
        never finds the disk full.
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

    def note_blocks(self, up_to: int) -> None:
        """Bytes below `up_to` are data, so they have disk blocks: a writer may overwrite them without `reserve`."""
        self.tail.limit = max(self.tail.limit, min(up_to, self.size))

    def _reserve_chunk_or_pages(self, start: int, up_to: int) -> int:
        # Where most files stay small (first files of queues, logs of embedded stores), each gets twice what it has.
        chunk = min(self._reserve_bytes, max(self._first_bytes, start))
        end = min(self.size, _round_up(up_to, chunk))
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
        """Small files are many and rarely need a descriptor."""
        if not self._keep_descriptor:
            self._region.close_descriptor()

    def zero_from(self, position: int) -> None:
        """Make every byte from `position` to the end of the file zero, durably. Only without a writer."""
        self.tail.limit = 0  # The blocks may be freed; the next append reserves them again.
        self._region.zero(position, self.size - position)
        self._region.sync()
        self._spare_descriptor()

    # Transient buffer, commit, flush

    def attach_transient(self, buffer: Any, pool: TransientPool) -> None:
        """Let writers write into `buffer`, borrowed from `pool`; it is returned when the whole file is committed."""
        with self._commit_lock:
            if self._transient is not None:
                raise ValueError(f"{self.path}: expected no transient buffer, found one attached already.")
            tail = WriteCursor(buffer, self.from_offset, self.size)
            tail.position = self.view.position
            tail.limit, self.view.limit = self.view.limit, 0
            self._transient, self._pool, self.tail = buffer, pool, tail

    def commit(self, least_pages: int) -> int:
        """Copy what is due from the transient buffer to the file; the committed position afterwards.

        Committed bytes survive the death of the process; only flushed bytes survive a power cut.
        """
        with self._commit_lock:
            if self._transient is None or not self.references.pin():
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

        A file that is being removed is still synced until it is unlinked.
        """
        if self._unlinked or not self.references.pin():
            self.flushed_position = self.read_position
            return self.flushed_position
        try:
            end = self.read_position
            if is_due(self.flushed_position, end, least_pages, full=end == self.size) or (
                self.name_is_due and least_pages <= 0
            ):
                self._sync()
                self.flushed_position = max(self.flushed_position, end)
                if self.flushed_position == self.size:
                    self._region.close_descriptor()
                self._spare_descriptor()
            return self.flushed_position
        finally:
            self.release()

    def sync_whole(self) -> None:
        """Make the whole file durable, also bytes that a killed process left in the page cache.

        A loaded file counts as flushed; this call makes that true.
        """
        self._sync()
        if self.tail.limit == 0:
            self._region.close_descriptor()

    def note_synced(self) -> None:
        """The file system was synced as a whole, and nothing was written since."""
        self.flushed_position = max(self.flushed_position, self.read_position)
        self.name_is_due = False

    def _sync(self) -> None:
        self._region.sync()
        if self.name_is_due and self._names is not None:
            self._names.sync(self.path)
            self.name_is_due = False

    def doubt_name(self) -> None:
        """A killed process may have left the file without a durable name: the next flush makes it durable."""
        if self._names is not None:
            self._names.doubt(self.path)
            self.name_is_due = True

    # Reading

    def read(self, position: int, length: int) -> bytes | None:
        """A copy of `length` bytes at `position` of this file; None when that passes the read position."""
        return self.view.read(position, length)

    def select(self, position: int, length: int | None = None) -> SelectedBuffer | None:
        """The bytes at `position`, `length` of them or all that can be read; None when they are not readable.

        Holds the file until the buffer is released.
        """
        end = self.read_position if length is None else position + length
        inside = 0 <= position < end if length is None else 0 <= position <= end and length >= 0
        if not inside or end > self.read_position or not self.references.hold():
            return None
        with memoryview(self._region.buffer) as whole, whole[position:end] as part:
            return SelectedBuffer(self.from_offset + position, part.toreadonly(), self.release)

    def data_ranges(self) -> list[tuple[int, int]]:
        """[start, end) of the ranges that may be non-zero: a file may have holes."""
        found = self._region.data_ranges()
        self._spare_descriptor()
        return found

    # Memory

    def warm(self, pages_per_sync: int = 0) -> None:
        """Bring the whole file into memory before the first write: blocks, pages, memory lock, read-ahead.

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
        """Release the pages in [start, end), whose bytes are unchanged; False when the kernel keeps them."""
        return self._region.release_pages(start, end - start)

    def lock_memory(self) -> bool:
        return self._region.lock_memory()

    # References and deletion

    @property
    def available(self) -> bool:
        return self.references.state is ReferenceState.AVAILABLE

    def hold(self) -> bool:
        """Keep the file from being unmapped; False once it is on its way out. Pair it with `release`."""
        return self.references.hold()

    def release(self) -> None:
        """Release a reference of `hold`. The last one after a shutdown unmaps the file, and unlinks it if doomed."""
        if self.references.release():
            self._unmap()
            if self._doomed:
                self._unlink()

    def shutdown(self, interval_ms: int) -> None:
        """Refuse new holders and writers; unmap once there are no holders. The file on disk stays."""
        last = self.references.shutdown(self._clock.now_ms(), interval_ms)
        self.tail.limit = 0  # Fast-path writers that still have the tail stop here.
        if last:
            self._unmap()

    def destroy(self, interval_ms: int) -> bool:
        """Shut down and unlink, durably; True when the file is unlinked.

        False while the file is held: its last release unlinks it, or a call `interval_ms` or more after the first one.
        Holders keep reading valid bytes in both cases.
        """
        self._doomed = True
        self.shutdown(interval_ms)
        if self.references.state in (ReferenceState.DRAINED, ReferenceState.FORCED):
            self._unlink()
        return self._unlinked

    def close(self) -> None:
        """Commit, then unmap and close every handle; deletes and flushes nothing. No other thread may use the file."""
        try:
            self.commit(0)
        finally:
            self.references.shutdown(self._clock.now_ms(), 0)
            self._unmap(detach=True)

    def _unlink(self) -> None:
        with self._unlink_lock:
            if not self._unlinked:  # Once only: a new file may have the name when the last holder releases.
                self._access.remove(self.path)
                self._access.sync_directory(os.path.dirname(self.path) or ".")
                self._unlinked = True

    def _unmap(self, detach: bool = False) -> None:
        with self._commit_lock:
            self._give_back_transient()
            view = self.view
            gone = WriteCursor(bytearray(), self.from_offset, 0)
            gone.detach()
            gone.position = view.position
            self.view = self.tail = gone
            view.limit = 0
            if detach:
                view.detach()
            del view  # The map can be closed only after this reference, usually the last one.
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
