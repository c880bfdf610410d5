"""PartLog: the parts of an open segment in an object store, in the order of their positions. Pure bookkeeping.

    <path>.parts/00000000000000000000     bytes    0 ..  100
    <path>.parts/00000000000000000100     bytes  100 ..  250
    <path>.parts/00000000000000000000-00000000000000000250     a merged part: bytes 0 .. 250 again, in one object
    <path>.parts/00000000000000000250     no bytes: the seal mark; the segment ends at 250 for ever

The name of a part is its position and nothing else, and objects are only created where none exists: of all writers that
append at 250, a sealer included, one succeeds. The length comes from the listing.
A merged part has the bytes of several parts. It supersedes every object that begins inside of it; those are garbage,
and stay for a while only because a name that exists stops a stale writer. Writers never append at a merged name.

Invariants: part n + 1 begins where part n ends, the first one at 0; only the mark is empty; the mark is last.
A listing that breaks them raises CorruptSegment (`from_listing`) or is cut where it still holds (`sound_prefix`).
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tiermq.errors import CorruptSegment
from tiermq.tier.names import BASE_DIGITS

PARTS_SUFFIX = ".parts"
BUNDLED_NAME = "bundled"  # An empty object beside the parts: the segment has, or had, ranges in bundles.
PART_NAME = re.compile(rf"([0-9]{{{BASE_DIGITS}}})(?:-([0-9]{{{BASE_DIGITS}}}))?", re.ASCII)
SMALL_PART_BYTES = 1 << 20  # A part of this size or more is never merged again before the seal.
MERGED_BYTES_MAX = 8 << 20  # One PUT writes it, and one GET reads it.
MERGED_RATIO = 4  # A merged part is rewritten only with a quarter of its bytes or more: few times in its life.


class PartObject(NamedTuple):
    """One object of an open segment: a part, a merged part, or (length 0) the seal mark."""

    position: int
    length: int
    is_merged: bool = False
    bundle: str = ""  # The path of the bundle that has these bytes; empty: an object of the segment's own.
    offset: int = 0  # Where they begin in the object.

    @property
    def end(self) -> int:
        return self.position + self.length

    def path(self, segment: str) -> str:
        if self.bundle:
            return self.bundle
        name = part_path(segment, self.position)
        return f"{name}-{self.end:0{BASE_DIGITS}d}" if self.is_merged else name


class BundledWrite(NamedTuple):
    """The last write of a segment that went into a bundle: a repetition is recognised without a request."""

    position: int
    length: int
    digest: bytes
    is_confirmed: bool


class Piece(NamedTuple):
    """A range within one object."""

    part: PartObject
    start: int  # Where the range begins inside the object.
    length: int


def parts_directory(path: str) -> str:
    return path + PARTS_SUFFIX


def part_path(path: str, position: int) -> str:
    return f"{path}{PARTS_SUFFIX}/{position:0{BASE_DIGITS}d}"


def bundled_path(path: str) -> str:
    return f"{path}{PARTS_SUFFIX}/{BUNDLED_NAME}"


def part_object(path: str, name: str, length: int) -> PartObject | None:
    """The object of this name and length; None when it is not a part of this segment.

    A merged part that is shorter or longer than its name promises is none.
    """
    found = PART_NAME.fullmatch(name.removeprefix(parts_directory(path) + "/"))
    if found is None:
        return None
    position = int(found[1])
    if found[2] is None:
        return PartObject(position, length)
    return PartObject(position, length, True) if 0 < length == int(found[2]) - position else None


class PartLog:
    """Changed by the thread that holds the segment's lock; read by any.

    Between the steps of `append` a reader sees a last part of length 0, which no range includes.
    """

    __slots__ = (
        "_objects",
        "_positions",
        "bundled_bytes",
        "checked_ms",
        "end",
        "is_bundled",
        "last_bundled",
        "marked",
        "small_run",
        "superseded_ms",
    )

    def __init__(self) -> None:
        self._objects: list[PartObject] = []
        self._positions: list[int] = []  # Where the bytes begin that are read from each object.
        self.end = 0
        self.marked = False
        self.small_run = 0  # Small parts at the end that were never merged.
        self.checked_ms = 0  # When the store confirmed that the segment ends here.
        self.superseded_ms: int | None = None  # Since when there are superseded parts; None: there are none.
        self.is_bundled = False  # Whether the segment has its mark of bundles.
        self.bundled_bytes = 0  # In bundles.
        self.last_bundled: BundledWrite | None = None

    def append(self, length: int) -> None:
        """Note a part that was written at the end."""
        self.add(PartObject(self.end, length))

    def add(self, part: PartObject) -> None:
        """Continue with an object that begins at the end or, if it is a merged part, before it."""
        self._objects.append(part)
        self._positions.append(self.end)
        self.end = part.end
        self.small_run = 0 if part.is_merged or part.length >= SMALL_PART_BYTES else self.small_run + 1
        if part.bundle:
            self.bundled_bytes += part.length

    @property
    def objects(self) -> list[PartObject]:
        """The objects that have the segment's bytes, without the mark."""
        return list(self._objects)

    def __len__(self) -> int:
        return len(self._objects)

    def pieces(self, position: int, length: int) -> list[Piece]:
        """The parts of a range, which must end at `end` at the latest."""
        stop = position + length
        if not 0 <= position < stop <= self.end:
            raise ValueError(f"expected a range within {self.end} bytes, found {position}..{stop}")
        positions, found = self._positions, []
        at = bisect.bisect_right(positions, position) - 1
        while position < stop:
            after = positions[at + 1] if at + 1 < len(positions) else self.end
            length = min(stop, after) - position
            part = self._objects[at]
            found.append(Piece(part, position - part.position, length))
            position += length
            at += 1
        return found

    def boundary(self, position: int) -> bool:
        """Whether a part begins or the segment ends there."""
        at = bisect.bisect_left(self._positions, position)
        return position == self.end or (at < len(self._positions) and self._positions[at] == position)


def with_merged(log: PartLog, made: Iterable[PartObject], now_ms: int) -> PartLog:
    """The log after merges: another object, because readers may use this one."""
    new = sound_prefix([*log.objects, *made]).log
    new.checked_ms = log.checked_ms
    new.is_bundled, new.last_bundled = log.is_bundled, log.last_bundled
    new.superseded_ms = now_ms if log.superseded_ms is None else log.superseded_ms
    return new


def with_ranges(log: PartLog, ranges: Iterable[PartObject]) -> PartLog:
    """The log after its ranges have moved to other bundles: another object, because readers may use this one."""
    new = sound_prefix([*(part for part in log.objects if not part.bundle), *ranges]).log
    new.checked_ms, new.superseded_ms = log.checked_ms, log.superseded_ms
    new.is_bundled, new.last_bundled = log.is_bundled, log.last_bundled
    return new


def merge_groups(parts: Sequence[PartObject]) -> list[tuple[PartObject, ...]]:
    """The runs of small parts that are worth one object each, the last run first. Pure.

    The last part stays as it is: a recovery may have to trim it. A merged part joins younger ones only when they have
    a quarter of its bytes, so that a byte is rewritten a few times, however many parts follow.
    """
    groups: list[tuple[PartObject, ...]] = []
    group: list[PartObject] = []
    total = 0
    for part in [*reversed(parts[:-1]), None]:
        is_small = part is not None and part.length < SMALL_PART_BYTES
        if part is not None and is_small:
            is_due = not part.is_merged or bool(part.bundle) or part.length <= MERGED_RATIO * total
            if (is_due or not group) and total + part.length <= MERGED_BYTES_MAX:
                group.append(part)
                total += part.length
                continue
        if len(group) > 1:
            groups.append(tuple(reversed(group)))
        group, total = ([part], part.length) if part is not None and is_small else ([], 0)
    return groups


def own_groups(parts: Sequence[PartObject]) -> list[tuple[PartObject, ...]]:
    """Those groups that are not wholly in bundles: there small ranges cost no object, and are left to their writer."""
    return [group for group in merge_groups(parts) if not all(part.bundle for part in group)]


@dataclass(frozen=True, slots=True)
class Sound:
    """The consistent part of a listing, and why the rest does not count."""

    log: PartLog
    damage: str | None


def sound_prefix(rows: Iterable[PartObject]) -> Sound:
    """The log of objects in any order, up to the first that does not fit."""
    log = PartLog()
    merged_end = bundled_end = stale_end = 0
    for row in sorted(rows, key=_row_order):
        if row.position < merged_end and (not (row.is_merged or row.bundle) or row.end <= log.end):
            continue  # Superseded.
        is_part = not (row.is_merged or row.bundle)
        if is_part and (row.position < bundled_end or row.position == stale_end != log.end):
            stale_end = row.end  # Of a stale writer, and what it wrote behind: the writer of bundles had taken over.
            continue
        if log.marked:
            return Sound(log, f"expected nothing after the seal mark at {log.end}, found a part at {row.position}")
        overlaps = row.position < log.end < row.end and (row.position < merged_end if row.bundle else row.is_merged)
        if row.position != log.end and not overlaps:
            what = "an overlap" if row.position < log.end else "a hole"
            return Sound(log, f"expected a part at {log.end}, found {what}: the next part is at {row.position}")
        if row.length == 0:
            log.marked = True
        else:
            log.add(row)
            if row.bundle:
                bundled_end = log.end
            elif row.is_merged:
                merged_end = log.end
    return Sound(log, None)


def _row_order(row: PartObject) -> tuple[int, int, int]:
    """Of objects at one position the longest merged part is first, then a range in a bundle."""
    is_merged = row.is_merged and not row.bundle
    return row.position, -row.length if is_merged else 0 if row.bundle else 1, row.length


def from_listing(path: str, rows: Iterable[PartObject]) -> PartLog:
    """The log of a listing that must be whole."""
    sound = sound_prefix(rows)
    if sound.damage is not None:
        raise CorruptSegment(
            f"{path}{PARTS_SUFFIX}: {sound.damage}. Bytes up to {sound.log.end} are sound; "
            "'tiermq tier verify' lists what is lost."
        )
    return sound.log
