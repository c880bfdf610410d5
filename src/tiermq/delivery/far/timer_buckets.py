"""Buckets of far timers: a day, and where a day has too many for one object its hours, minutes and seconds, in UTC.

    2027-01-02            a day
    2027-01-02 15         an hour of it, 15.04 a minute, 15.04.05 a second

Pure. Times beyond the year 9999 belong to its last day: buckets are drawers, what is due when stands in the objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import IntEnum

from tiermq.delivery.far.timer_object import encoded_bytes
from tiermq.delivery.timer.far_timers import FarTimer


class Level(IntEnum):
    """How long a bucket is; finer ones are greater."""

    DAY = 0
    HOUR = 1
    MINUTE = 2
    SECOND = 3


WIDTH_MS = {Level.DAY: 86_400_000, Level.HOUR: 3_600_000, Level.MINUTE: 60_000, Level.SECOND: 1_000}
LAST_MS = 253_402_300_799_999  # The last millisecond of the year 9999.
NEVER_MS = 1 << 63
EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
WHOLE_DAY = "all"
_FORMATS = {Level.HOUR: "%H", Level.MINUTE: "%H.%M", Level.SECOND: "%H.%M.%S"}


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """The times from `start_ms` on, for as long as its level is wide."""

    start_ms: int
    level: Level

    @property
    def end_ms(self) -> int:
        """The first time behind it; the last bucket of all has none."""
        end_ms = self.start_ms + WIDTH_MS[self.level]
        return end_ms if end_ms <= LAST_MS else NEVER_MS

    @property
    def day(self) -> str:
        return date.fromordinal(EPOCH_ORDINAL + self.start_ms // WIDTH_MS[Level.DAY]).isoformat()

    @property
    def time(self) -> str:
        """The part of the day: `all`, or an hour, a minute, a second."""
        if self.level is Level.DAY:
            return WHOLE_DAY
        return datetime.fromtimestamp(self.start_ms // 1000, tz=UTC).strftime(_FORMATS[self.level])

    @property
    def text(self) -> str:
        return f"{self.day}/{self.time}"


def bucket_of(due_ms: int, level: Level) -> Bucket:
    """The bucket of that level in which a time lies."""
    width = WIDTH_MS[level]
    return Bucket(max(0, min(due_ms, LAST_MS)) // width * width, level)


def parse_bucket(text: str) -> Bucket | None:
    """The bucket whose text this is, or None."""
    day, _, time = text.partition("/")
    parts = [] if time == WHOLE_DAY else time.split(".")
    if len(parts) > Level.SECOND or not all(len(part) == 2 and part.isascii() and part.isdigit() for part in parts):
        return None
    try:
        start_ms = (date.fromisoformat(day).toordinal() - EPOCH_ORDINAL) * WIDTH_MS[Level.DAY]
    except ValueError:
        return None
    start_ms += sum(int(part) * WIDTH_MS[Level(index)] for index, part in enumerate(parts, start=1))
    bucket = Bucket(start_ms, Level(len(parts)))
    # Written out again it must be the same, which refuses an hour of 25 and other spellings of a day.
    return bucket if 0 <= start_ms <= LAST_MS and bucket.text == text else None


def partition(
    timers: Sequence[FarTimer], coarsest: Level, object_bytes: int
) -> Iterator[tuple[Bucket, Sequence[FarTimer]]]:
    """Timers, sorted by time, in objects: each in the coarsest bucket, from `coarsest` on, that fits into one object.

    A second with too many is several objects; a timer that is larger than an object has one of its own.
    """
    begin = 0
    while begin < len(timers):
        bucket = bucket_of(timers[begin].deliver_ms, coarsest)
        end, size = begin, 0
        while end < len(timers) and timers[end].deliver_ms < bucket.end_ms:
            size += encoded_bytes(timers[end])
            end += 1
        group = timers[begin:end]
        if size <= object_bytes or len(group) == 1:
            yield bucket, group
        elif coarsest < Level.SECOND:
            yield from partition(group, Level(coarsest + 1), object_bytes)
        else:
            yield from ((bucket, chunk) for chunk in chunks(group, object_bytes))
        begin = end


def chunks(timers: Sequence[FarTimer], object_bytes: int) -> Iterator[Sequence[FarTimer]]:
    """Timers in their order, in pieces of at most so many bytes, or of one timer."""
    begin, size = 0, 0
    for index, timer in enumerate(timers):
        if index > begin and size + encoded_bytes(timer) > object_bytes:
            yield timers[begin:index]
            begin, size = index, 0
        size += encoded_bytes(timer)
    if begin < len(timers):
        yield timers[begin:]
