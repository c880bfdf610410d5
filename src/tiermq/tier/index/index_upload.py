"""From a sealed local index file to an index segment in the tier, step by step.

    1  compact    the whole file, rearranged, into `compacting/<begin>`         thrown away and made again after a crash
    2  companion  the facts and the coverage; first, so that no whole index file of ours is ever without
    3  write      in chunks, from where an earlier attempt stopped
    4  seal       one canonical object
    5  row        in the metadata: from now on the upload has happened
    6  (caller)   the table answers from the tier, and the local files go

A crash between any two steps is followed by the same steps with the same bytes at the same base: the file is sealed and
synced, rearranging it is deterministic, and the base follows from the rows. So a repeated write finds its own bytes.

If other bytes are found under the name, they are an earlier life's: a whole index file is given a row, since nobody
else would ever find it, and the upload goes behind it; anything else is removed. (Two living writers are kept apart by
the broker's lease, not here.)
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tiermq.clock import Clock
from tiermq.errors import CorruptSegment, DiskFull
from tiermq.files.file_access import FileAccess
from tiermq.tier.block_sums import BlockSums, summed
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.index.compacted_index import CompactedIndex, companion_name
from tiermq.tier.index.index_item import HEADER_BYTES, MAGIC_END, decode_header
from tiermq.tier.index.index_rows import IndexRows
from tiermq.tier.index.index_write_file import FileFacts, IndexWriteFile
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus
from tiermq.tier.names import QueueKey, SegmentKey, SegmentType

log = logging.getLogger(__name__)

COMPACTING_DIRECTORY = "compacting"
CHUNK_BYTES = 32 << 20


class UploadStopped(Exception):
    """The upload was asked to stop between two steps. No error: the store is closing, and it goes on next time."""


class IndexUploader:
    """Uploads one file at a time; belongs to the thread that does the index's upkeep."""

    def __init__(
        self,
        access: FileAccess,
        directory: str,
        driver: TierDriver,
        rows: IndexRows,
        queue: QueueKey,
        clock: Clock,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._access = access
        self._compacting = os.path.join(directory, COMPACTING_DIRECTORY)
        self._driver = driver
        self._rows = rows
        self._queue = queue
        self._clock = clock
        self._should_stop = should_stop
        self._chunk_bytes = chunk_bytes
        self._compacted: dict[int, int] = {}  # begin -> bytes, of the copies that this process made.

    def upload(self, file: IndexWriteFile, facts: FileFacts, base: int, companion: bytes) -> CompactedIndex:
        """Steps 1 to 5. `facts` are the file's, durable; it has items.

        Raises UploadStopped, or what the driver, the disk or the metadata raise; try again with the same arguments.
        """
        with self._compacted_bytes(file) as data:
            sums = BlockSums.of(data)
            key = self._write(base, data, summed(companion, sums))
            self._pause()
            self._driver.seal(key)
            self._pause()
            segment = self._row(key, len(data), facts.begin_ms, facts.newest_ms, zlib.crc32(data))
        self.discard(file.begin_ms)
        return CompactedIndex(self._driver, segment, file.slots, sums)

    def discard(self, begin_ms: int) -> None:
        """Remove the temporary copy of a file."""
        self._compacted.pop(begin_ms, None)
        self._access.remove(self._path(begin_ms))

    @contextmanager
    def _compacted_bytes(self, file: IndexWriteFile) -> Iterator[memoryview]:
        """The compacted file, from the copy on disk, so that attempts that fail keep no memory; else from memory."""
        size = self._compacted.get(file.begin_ms)
        if size is None:
            self._access.remove(self._path(file.begin_ms))
            data = file.compact()
            try:
                self._copy(file.begin_ms, data)
            except DiskFull:
                # A full disk is when uploading matters most: what it takes is in memory already.
                self._access.remove(self._path(file.begin_ms))
                yield memoryview(data)
                return
            size = self._compacted[file.begin_ms] = len(data)
            del data
        region = self._access.open(self._path(file.begin_ms), size, writable=False)
        try:
            with memoryview(region.buffer) as view:
                yield view
        finally:
            region.close()

    def _copy(self, begin_ms: int, data: bytes) -> None:
        region = self._access.create(self._path(begin_ms), len(data))
        try:
            region.reserve(0, len(data))
            region.write(0, data)
        finally:
            region.close()

    def _path(self, begin_ms: int) -> str:
        return os.path.join(self._compacting, str(begin_ms))

    def _write(self, base: int, data: memoryview, companion: bytes) -> SegmentKey:
        """All of `data` in a segment at `base`, or behind whatever index files already lie there."""
        while True:
            key = self._queue.segment(SegmentType.INDEX, base)
            size = self._driver.size(key)
            if self._is_ours(key, size, data) and (size == len(data) or not self._driver.is_sealed(key)):
                self._driver.put_object(companion_name(key), companion)
                for position in range(size, len(data), self._chunk_bytes):
                    self._pause()
                    self._driver.write(key, position, [bytes(data[position : position + self._chunk_bytes])])
                return key
            if self._keep_occupant(key, size):
                base += size
            else:
                log.warning("%s: removing %d bytes that are neither ours nor an index file", key, size)
                self._driver.delete(key)

    def _is_ours(self, key: SegmentKey, size: int, data: memoryview) -> bool:
        """Whether what is stored is the beginning of `data`, as an attempt that was cut short leaves it."""
        if size > len(data):
            return False
        for position in range(0, size, self._chunk_bytes):
            self._pause()
            length = min(self._chunk_bytes, size - position)
            if self._driver.read(key, position, length) != data[position : position + length]:
                return False
        return True

    def keep_occupants(self, base: int) -> None:
        """Give rows to the whole index files that lie from `base` on: uploads whose last step a crash cut off."""
        key = self._queue.segment(SegmentType.INDEX, base)
        while self._keep_occupant(key, size := self._driver.size(key)):
            key = self._queue.segment(SegmentType.INDEX, key.base + size)

    def _keep_occupant(self, key: SegmentKey, size: int) -> bool:
        """Give a row to a whole index file that has none; False when the bytes are no index file."""
        if size <= HEADER_BYTES:
            return False
        try:
            CompactedIndex(self._driver, Segment(key, size)).slots()
        except CorruptSegment:
            return False
        header = decode_header(self._driver.read(key, 0, HEADER_BYTES))
        if header.magic != MAGIC_END:
            return False
        log.warning("%s: an index file that no row knew; it is kept", key)
        self._driver.seal(key)
        self._row(key, size, header.begin_ms, header.end_ms, None)
        return True

    def _row(self, key: SegmentKey, size: int, begin_ms: int, end_ms: int, crc32: int | None) -> Segment:
        now_ms = self._clock.now_ms()
        segment = Segment(key, size, SegmentStatus.SEALED, now_ms, begin_ms, end_ms, now_ms, crc32)
        self._rows.put_segment(segment)
        return segment

    def _pause(self) -> None:
        if self._should_stop():
            raise UploadStopped
