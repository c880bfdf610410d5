"""CheckedSegment: a segment read from its first byte to its last, once, with its checksum on the way."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tiermq.errors import CorruptSegment, IllegalRange, SegmentMissing
from tiermq.message.crc import crc32
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.verify_report import Note, Problem, VerifyReport

CHUNK_BYTES = 8 * 1024 * 1024


class CheckedSegment:
    """`rows` are what manifest and metadata know of it: a checksum covers as many bytes as there were at its time."""

    def __init__(
        self,
        driver: TierDriver,
        info: SegmentInfo,
        rows: Collection[Segment],
        report: VerifyReport,
        progress: Callable[[int], None],
    ) -> None:
        self.info = info
        self.is_broken = False
        self._driver = driver
        self._report = report
        self._progress = progress
        self._expected = {row.size: row.crc32 for row in rows if row.crc32 is not None and 0 < row.size <= info.size}
        self._position = 0
        self._crc = 0

    @property
    def left(self) -> int:
        """Bytes that were not read yet; none once reading failed."""
        return 0 if self.is_broken else self.info.size - self._position

    def read(self, length: int) -> memoryview:
        """The next bytes, up to `length`; none at the end, or where the tier does not give them, which is reported."""
        length = min(length, self.left)
        if length <= 0:
            return memoryview(b"")
        try:
            data = memoryview(self._driver.read(self.info.key, self._position, length))
        except (SegmentMissing, IllegalRange, CorruptSegment) as error:
            self._broken(error)
            return memoryview(b"")
        self._take(data)
        self._report.count("bytes", len(data))
        self._progress(len(data))
        return data

    def _take(self, data: memoryview) -> None:
        """Move the checksum on, and compare it at each place where one is known."""
        end = self._position + len(data)
        start = self._position
        for size in sorted(size for size in self._expected if start < size <= end):
            self._crc = crc32(data[self._position - start : size - start], self._crc)
            self._position = size
            if self._crc != self._expected[size]:
                self._report.problem(
                    Problem.CHECKSUM,
                    self.info.key.path,
                    f"its first {size} bytes: expected {self._expected[size]:#010x}, found {self._crc:#010x}",
                )
        self._crc = crc32(data[self._position - start :], self._crc)
        self._position = end

    def _broken(self, error: Exception) -> None:
        self.is_broken = True
        path = self.info.key.path
        if self._driver.size(self.info.key) < self.info.size:
            self._report.note(Note.CHANGED_MEANWHILE, path, f"deleted or cut while it was read: {error}")
        else:
            self._report.problem(Problem.UNREADABLE, path, f"at {self._position}: {error}")
