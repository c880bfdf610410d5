"""A queue's commit log as it is: runs of sound records with the units that they should have, and what lies between.

Nothing but the log is believed. A record is sound when it is whole, intact, lies where it says and is of this queue.
Behind a damaged place the walk goes on at the next bytes that are a sound record. The mark that ends a sealed segment
is no damage. Memory: one window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from tiermq.consumequeue.unit import UNIT, UNIT_BYTES
from tiermq.errors import CorruptSegment, IllegalRange, SegmentMissing
from tiermq.kernel import check_records
from tiermq.message.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC
from tiermq.message.record_head import HeadKind, read_head
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.flat.segment_recovery import adopt_records
from tiermq.tier.names import QueueKey

WINDOW_BYTES = 8 * 1024 * 1024
RECORD_BYTES_MAX = 64 * 1024 * 1024
"""A size beyond that is not believed: the bytes that say it are damaged."""

CODA_BYTES = 16
MAGIC_AT = 4
_MAGICS = tuple((magic & 0xFFFFFFFF).to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))


class SoundRun(NamedTuple):
    """Records that lie end to end in [start, stop), numbered from `queue_offset` on, and their units."""

    start: int
    stop: int
    queue_offset: int
    units: bytes

    @property
    def next_offset(self) -> int:
        return self.queue_offset + len(self.units) // UNIT_BYTES


class Damage(NamedTuple):
    """Log offsets [start, stop) that hold no sound record; `is_hole`: no segment holds them at all."""

    start: int
    stop: int
    is_hole: bool = False


Stretch: TypeAlias = SoundRun | Damage


def walk_log(driver: TierDriver, queue: QueueKey, logs: Sequence[SegmentInfo]) -> Iterator[Stretch]:
    """All of the log, in order, damage joined where it touches. Raises what the driver raises when it is away."""
    pending: Damage | None = None
    for stretch in _stretches(driver, queue, logs):
        if isinstance(stretch, Damage):
            if pending is not None and pending.stop == stretch.start and pending.is_hole == stretch.is_hole:
                stretch = Damage(pending.start, stretch.stop, stretch.is_hole)
            elif pending is not None:
                yield pending
            pending = stretch
            continue
        if pending is not None:
            yield pending
            pending = None
        yield stretch
    if pending is not None:
        yield pending


def _stretches(driver: TierDriver, queue: QueueKey, logs: Sequence[SegmentInfo]) -> Iterator[Stretch]:
    end = logs[0].key.base if logs else 0
    for info in logs:
        if info.key.base > end:
            yield Damage(end, info.key.base, is_hole=True)
        yield from _Walk(driver, queue, info).run(max(end, info.key.base))
        end = max(end, info.key.base + info.size)


class _Walk:
    """One segment."""

    def __init__(self, driver: TierDriver, queue: QueueKey, info: SegmentInfo) -> None:
        self._driver, self._info = driver, info
        self._topic, self._queue_id = queue.topic.encode(), queue.queue_id

    def run(self, at: int) -> Iterator[Stretch]:
        end = self._info.key.base + self._info.size
        while at < end:
            try:
                window = self._read(at, min(WINDOW_BYTES, end - at))
                head = read_head(window)
                if head.kind is HeadKind.HALF and len(window) < head.size <= min(end - at, RECORD_BYTES_MAX):
                    window = self._read(at, head.size)
            except (SegmentMissing, IllegalRange, CorruptSegment):
                stop = min(at + WINDOW_BYTES, end)
                yield Damage(at, stop)
                at = stop
                continue
            used = 0
            for stretch in self._in_window(window, at, is_end=at + len(window) >= end):
                used = stretch.stop - at
                if not isinstance(stretch, _Passed):
                    yield stretch
            at += used

    def _read(self, at: int, length: int) -> memoryview:
        return memoryview(self._driver.read(self._info.key, at - self._info.key.base, length))

    def _in_window(self, window: memoryview, at: int, *, is_end: bool) -> Iterator[Stretch | _Passed]:
        """Stretches from the window's first byte on; bytes at its end that may begin a record are left for the next."""
        position = 0
        while position < len(window):
            if _is_coda(window, position):
                position += CODA_BYTES
                yield _Passed(at + position)
                continue
            units, queue_offset = self._sound(window, position, at)
            if units:
                place, size, _ = UNIT.unpack_from(units, len(units) - UNIT_BYTES)
                yield SoundRun(at + position, place + size, queue_offset, units)
                position = place + size - at
                continue
            if position and not is_end and self._may_go_on(window, position):
                return
            found = self._next_sound(window, position + 1, at)
            if found < 0:
                # The next record may begin in the last bytes, with its magic in the window that follows.
                found = len(window) if is_end else max(position + 1, len(window) - MAGIC_AT - 3)
            yield Damage(at + position, at + found)
            position = found

    def _sound(self, window: memoryview, position: int, at: int) -> tuple[bytes, int]:
        head = read_head(window, position)
        if head.kind is not HeadKind.OK or head.physical_offset != at + position:
            return b"", 0
        rest = window[position:]
        units = adopt_records(rest, at + position, head.queue_offset)
        count = check_records(units, rest, at + position, head.queue_offset, self._topic, self._queue_id)[0]
        if count == 0 and units and not _is_foreign(head.topic, head.queue_id, self._topic, self._queue_id):
            count = 1  # A tag beyond ASCII, which the kernel leaves to others; the record itself is sound.
        return units[: count * UNIT_BYTES], head.queue_offset

    @staticmethod
    def _may_go_on(window: memoryview, position: int) -> bool:
        head = read_head(window, position)
        return head.kind is HeadKind.HALF and head.size <= RECORD_BYTES_MAX

    def _next_sound(self, window: memoryview, position: int, at: int) -> int:
        """The first position from here on at which a sound record of this queue begins; -1 when there is none."""
        data = bytes(window)
        while True:
            found = [place for magic in _MAGICS if (place := data.find(magic, position + MAGIC_AT)) >= 0]
            if not found:
                return -1
            position = min(found) - MAGIC_AT
            if self._sound(window, position, at)[0]:
                return position
            position += 1


class _Passed(NamedTuple):
    """Bytes up to here are neither records nor damage."""

    stop: int


def _is_coda(window: memoryview, position: int) -> bool:
    if len(window) - position < CODA_BYTES:
        return False
    size, magic = SIZE_AND_MAGIC.unpack_from(window, position)
    return bool(magic == MAGIC_BLANK and size == CODA_BYTES)


def _is_foreign(topic: bytes, queue_id: int, expected: bytes, expected_id: int) -> bool:
    return topic != expected or queue_id != expected_id
