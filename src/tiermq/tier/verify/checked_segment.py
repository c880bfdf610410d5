"""CheckedSegment: a segment, or a range of one, read from its first byte to its last, with its checksum on the way.

A known checksum covers a segment from its first byte to its size at that time. A range that begins there is compared
directly; the checksums of other ranges are kept as pieces, which end wherever a known one ends, and are combined once
all ranges were read (`compare_pieces`). Bytes behind the last known checksum
are not summed up: it would be compared with nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from tiermq.errors import CorruptSegment, IllegalRange, SegmentMissing
from tiermq.message.crc import crc32
from tiermq.tier.block_sums import joined_crc
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.names import SegmentKey
from tiermq.tier.verify.verify_report import Note, Problem, VerifyReport

VERIFY_READ_BYTES = 2 * 1024 * 1024


class CrcPiece(NamedTuple):
    """The checksum of bytes [start, stop) of a segment."""

    key: SegmentKey
    start: int
    stop: int
    crc: int


def known_checksums(rows: Iterable[Segment], size: int) -> dict[int, int]:
    """Checksums by the number of leading bytes that they cover, up to `size`.

    Where a row has no checksum of all its bytes, those of its blocks are combined.
    """
    found = {}
    for row in rows:
        if row.crc32 is not None and 0 < row.size <= size:
            found[row.size] = row.crc32
        elif row.sums is not None and 0 < row.sums.size <= size:
            found[row.sums.size] = row.sums.whole()
    return found


class CheckedSegment:
    """`rows` are what manifest and metadata know of it; `start` and `stop` the range, by default all of it."""

    def __init__(
        self,
        driver: TierDriver,
        info: SegmentInfo,
        rows: Collection[Segment],
        report: VerifyReport,
        progress: Callable[[int], None],
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        self.info = info
        self.start = start
        self.is_broken = False
        self.pieces: list[CrcPiece] = []
        self._driver = driver
        self._report = report
        self._progress = progress
        self._stop = info.size if stop is None else stop
        self._expected = known_checksums(rows, info.size)
        self._summed_to = max(self._expected, default=0)
        self._position = start
        self._piece_start = start
        self._crc = 0

    @property
    def first_byte(self) -> int:
        """The offset in its file at which reading begins."""
        return self.info.key.base + self.start

    @property
    def left(self) -> int:
        """Bytes that were not read yet; none once reading failed."""
        return 0 if self.is_broken else self._stop - self._position

    def read(self, length: int) -> memoryview:
        """The next bytes, up to `length`; none at the end, or where the tier does not give them, which is reported."""
        return self.window(self._position, length)

    def read_log(self, offset: int, length: int) -> memoryview:
        """The window at an offset of the segment's file."""
        return self.window(offset - self.info.key.base, length)

    def window(self, position: int, length: int) -> memoryview:
        """Bytes from `position` on, which was read before or comes next: up to `length`, always some that are new.

        What was read before is read again and not counted again: joining windows would copy far more than that.
        """
        length = min(length, self._stop - position)
        if self.is_broken or position + length <= self._position:
            return memoryview(b"")
        try:
            data = memoryview(self._driver.read(self.info.key, position, length))
        except (SegmentMissing, IllegalRange, CorruptSegment) as error:
            self._broken(error)
            return memoryview(b"")
        new = data[self._position - position :]
        self._take(new)
        self._report.count("bytes", len(new))
        self._progress(len(new))
        return data

    def _take(self, data: memoryview) -> None:
        """Move the checksum on, and compare it at each place where one is known."""
        start, end = self._position, self._position + len(data)
        for size in sorted(size for size in self._expected if start < size <= end):
            self._crc = crc32(data[self._position - start : size - start], self._crc)
            self._position = size
            if self.start == 0:
                compare(self._expected, self.info.key, size, self._crc, self._report)
            else:
                self._end_piece()
        if self._position < self._summed_to:
            self._crc = crc32(data[self._position - start :], self._crc)
        self._position = end
        if end == self._stop and self._summed_to > end > self._piece_start:
            self._end_piece()

    def _end_piece(self) -> None:
        self.pieces.append(CrcPiece(self.info.key, self._piece_start, self._position, self._crc))
        self._piece_start, self._crc = self._position, 0

    def _broken(self, error: Exception) -> None:
        self.is_broken = True
        path = self.info.key.path
        if self._is_shorter():
            self._report.note(Note.CHANGED_MEANWHILE, path, f"deleted or cut while it was read: {error}")
        else:
            self._report.problem(Problem.UNREADABLE, path, f"at {self._position}: {error}")

    def _is_shorter(self) -> bool:
        """Whether bytes went since the listing; not, when its objects do not fit together."""
        try:
            return self._driver.size(self.info.key) < self.info.size
        except CorruptSegment:
            return False


def compare_pieces(pieces: Iterable[CrcPiece], expected: Mapping[int, int], report: VerifyReport) -> None:
    """Put the pieces of one segment together and compare where a checksum is known.

    What the first piece covers was compared when it was read. Where a piece is missing, reading failed there, and that
    was reported; nothing behind it can be compared.
    """
    end = crc = 0
    for piece in sorted(pieces, key=lambda piece: piece.start):
        if piece.start != end:
            return
        crc = joined_crc(crc, piece.crc, piece.stop - piece.start)
        end = piece.stop
        if end in expected and piece.start > 0:
            compare(expected, piece.key, end, crc, report)


def compare(expected: Mapping[int, int], key: SegmentKey, size: int, found: int, report: VerifyReport) -> None:
    if found != expected[size]:
        text = f"its first {size} bytes: expected {expected[size]:#010x}, found {found:#010x}"
        report.problem(Problem.CHECKSUM, key.path, text)
