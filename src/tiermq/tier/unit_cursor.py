"""UnitCursor: all units of a queue in order, over any number of segments, for whoever walks the records beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from tiermq.consumequeue.unit import PRE_BLANK, UNIT, UNIT_BYTES
from tiermq.tier.checked_segment import CHUNK_BYTES, CheckedSegment


class UnitRow(NamedTuple):
    """One unit and the queue offset at which it stands."""

    queue_offset: int
    place: int
    size: int
    tags_code: int

    @property
    def end(self) -> int:
        return self.place + self.size


class UnitCursor:
    """Stands before a unit, or at the end. Blank units are passed over and told to `on_blank`.

    `then` is the unit behind the end, when somebody else goes on there: it can be seen and not passed.
    """

    def __init__(
        self, segments: Iterable[CheckedSegment], on_blank: Callable[[int], None], then: UnitRow | None = None
    ) -> None:
        self._segments = iter(segments)
        self._segment: CheckedSegment | None = None
        self._on_blank = on_blank
        self._rest = memoryview(b"")  # Units of the chunk that were not passed yet.
        self._next_offset = 0
        self.then = then
        self.passed = 0

    def peek(self) -> UnitRow | None:
        """The next unit that stands for a message; None, or `then`, at the end."""
        while True:
            if len(self._rest) < UNIT_BYTES and not self._load():
                return self.then
            if self._rest[:UNIT_BYTES] != PRE_BLANK:
                return UnitRow(self._next_offset, *UNIT.unpack_from(self._rest))
            self._on_blank(self._next_offset)
            self.advance(1)

    @property
    def window(self) -> memoryview:
        """Whole units from the next one on, as many as are at hand; after a `peek` that found one, it is the first."""
        return self._rest[: len(self._rest) // UNIT_BYTES * UNIT_BYTES]

    def advance(self, count: int) -> None:
        self._rest = self._rest[count * UNIT_BYTES :]
        self._next_offset += count
        self.passed += count

    def _load(self) -> bool:
        """The next chunk; a torn unit at the end of a segment is dropped, its segment's size tells of it."""
        while len(self._rest) < UNIT_BYTES:
            if self._segment is None or self._segment.left <= 0:
                self._rest = memoryview(b"")
                self._segment = next(self._segments, None)
                if self._segment is None:
                    return False
                self._next_offset = -(-(self._segment.info.key.base + self._segment.start) // UNIT_BYTES)
                continue
            more = self._segment.read(CHUNK_BYTES // UNIT_BYTES * UNIT_BYTES)
            self._rest = memoryview(bytes(self._rest) + bytes(more)) if len(self._rest) else more
        return True
