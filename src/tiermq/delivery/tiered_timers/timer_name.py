"""Names of timer objects. A name describes the contents, so that a listing is enough to know the timers.

    <cluster dir>/<broker>/timers.tiermq/manifest.tiermq.json
                                         new/<facts>.tiermq.timers               a flush, of any days, not yet sorted
                                         2027-01-02/all_<facts>.tiermq.timers    a day; parts: 15_, 15.04_, 15.04.05_
    <facts>   <serial, 12 digits>_<timers>_<bytes>_<first due, ms>_<last due, ms>

The directory has a dot in its name, so it is no topic's. Serial numbers grow over all objects of a broker; two objects
with one number come from two writers, of which one was refused.
Invariant: `parse(name.path) == name`.

Buckets of tiered timers: a day, and where a day has too many for one object its hours, minutes and seconds, in UTC.

    2027-01-02            a day
    2027-01-02 15         an hour of it, 15.04 a minute, 15.04.05 a second

Pure. Times beyond the year 9999 belong to its last day: buckets only group, exact times are in the objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import IntEnum
from typing import Any

from tiermq.delivery.tiered_timers.timer_object import encoded_bytes
from tiermq.delivery.timer.timer_record import TieredTimer
from tiermq.tier.metadata.document import (
    items_field,
    natural_field,
    open_document,
    refuse_document,
    seal_document,
    text_field,
)
from tiermq.tier.names import OBJECT_SUFFIX, TIMERS_DIRECTORY, TIMERS_SUFFIX, broker_directory

NEW = "new"
SERIAL_DIGITS = 12


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
    """The bucket of that level that contains a time."""
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
    timers: Sequence[TieredTimer], coarsest: Level, object_bytes: int
) -> Iterator[tuple[Bucket, Sequence[TieredTimer]]]:
    """Timers, sorted by time, in objects: each in the coarsest bucket, from `coarsest` on, that fits into one object.

    A second with too many is several objects; a timer that is larger than an object gets a separate one.
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


def chunks(timers: Sequence[TieredTimer], object_bytes: int) -> Iterator[Sequence[TieredTimer]]:
    """Timers in their order, in chunks of at most this number of bytes, or of one timer."""
    begin, size = 0, 0
    for index, timer in enumerate(timers):
        if index > begin and size + encoded_bytes(timer) > object_bytes:
            yield timers[begin:index]
            begin, size = index, 0
        size += encoded_bytes(timer)
    if begin < len(timers):
        yield timers[begin:]


def timers_directory(cluster: str, broker: str) -> str:
    """The prefix of a broker's tiered timers."""
    return f"{broker_directory(cluster, broker)}/{TIMERS_DIRECTORY}"


def manifest_name(cluster: str, broker: str) -> str:
    """The name of the manifest."""
    return f"{timers_directory(cluster, broker)}/manifest{OBJECT_SUFFIX}"


@dataclass(frozen=True, slots=True)
class TimerName:
    """One timer object. `bucket` is None for a flush that was not sorted into buckets yet."""

    serial: int
    count: int
    size_bytes: int
    first_ms: int
    last_ms: int
    bucket: Bucket | None = None

    @property
    def text(self) -> str:
        """The name within the broker's directory of timers, without the suffix."""
        facts = f"{self.serial:0{SERIAL_DIGITS}d}_{self.count}_{self.size_bytes}_{self.first_ms}_{self.last_ms}"
        return f"{NEW}/{facts}" if self.bucket is None else f"{self.bucket.text}_{facts}"

    def path(self, directory: str) -> str:
        """The name in the tier."""
        return f"{directory}/{self.text}{TIMERS_SUFFIX}"

    def overlaps(self, from_ms: int, until_ms: int) -> bool:
        """Whether one of its timers can be due in [from, until)."""
        return self.first_ms < until_ms and self.last_ms >= from_ms


def parse_timer_name(text: str) -> TimerName | None:
    """The object whose text this is, or None when it is no timer object's."""
    where, _, file = text.rpartition("/")
    bucket = None
    if where != NEW:
        time, _, file = file.partition("_")
        bucket = parse_bucket(f"{where}/{time}")
        if bucket is None:
            return None
    facts = file.split("_")
    if len(facts) != 5 or not all(fact.isascii() and fact.isdigit() for fact in facts):
        return None
    serial, count, size_bytes, first_ms, last_ms = map(int, facts)
    name = TimerName(serial, count, size_bytes, first_ms, last_ms, bucket)
    # Written out again it must be the same: that refuses other spellings of a number.
    return name if name.text == text else None


def timer_name_at(path: str, directory: str) -> TimerName | None:
    """The object at a path of the tier, or None."""
    if not (path.startswith(f"{directory}/") and path.endswith(TIMERS_SUFFIX)):
        return None
    return parse_timer_name(path[len(directory) + 1 : -len(TIMERS_SUFFIX)])


TIMER_MANIFEST_VERSION = 1


@dataclass(frozen=True, slots=True)
class TimerManifest:
    """The manifest of a broker's tiered timers: which timer objects count.

    One document (`tier.metadata.document`), replaced by compare-and-set only, so that two writers never both succeed.

        objects       those that count, besides flushes with a serial number above `settled`
        settled       flushes up to this number are in `objects` by now, or deleted
        forgottenMs   everything due before was delivered
        damaged       objects whose timers were due and could not all be read: kept for an operator

    What is listed and in neither is left over from a writer that died, and the owner removes it.
    """

    objects: frozenset[TimerName] = frozenset()
    damaged: frozenset[TimerName] = frozenset()
    settled: int = 0
    forgotten_ms: int = 0
    epoch: int = 0
    writer: str = ""

    def live(self, listed: Iterable[TimerName]) -> frozenset[TimerName]:
        """What counts, given what is listed."""
        new = (name for name in listed if name.bucket is None and name.serial > self.settled)
        return self.objects.union(new) - self.damaged


def encode_timer_manifest(manifest: TimerManifest) -> bytes:
    """Equal manifests are equal bytes."""
    body = {
        "damaged": sorted(name.text for name in manifest.damaged),
        "epoch": manifest.epoch,
        "forgottenMs": manifest.forgotten_ms,
        "objects": sorted(name.text for name in manifest.objects),
        "settled": manifest.settled,
        "writer": manifest.writer,
    }
    return seal_document(body, TIMER_MANIFEST_VERSION)


def decode_timer_manifest(data: bytes, where: str) -> TimerManifest:
    """Raises FutureManifest or CorruptManifest."""
    body = open_document(data, where, TIMER_MANIFEST_VERSION)
    try:
        return TimerManifest(
            _names(body, "objects"),
            _names(body, "damaged"),
            natural_field(body, "settled"),
            natural_field(body, "forgottenMs"),
            natural_field(body, "epoch"),
            text_field(body, "writer"),
        )
    except (ValueError, TypeError, LookupError) as error:
        refuse_document(where, f"a body that is no manifest of timers ({error})")


def _names(body: Any, field: str) -> frozenset[TimerName]:
    found = set()
    for text in items_field(body, field):
        name = parse_timer_name(text) if isinstance(text, str) else None
        if name is None:
            raise ValueError(f"{field} holds names of timer objects, found {text!r}")
        found.add(name)
    return frozenset(found)
