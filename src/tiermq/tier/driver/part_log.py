"""PartLog: the parts of an open segment in an object store, in the order of their positions. Pure bookkeeping.

    <path>.parts/00000000000000000000     bytes    0 ..  100
    <path>.parts/00000000000000000100     bytes  100 ..  250
    <path>.parts/00000000000000000250     no bytes: the seal mark; the segment ends at 250 for ever

The name is the position and nothing else, and objects are only created where none is: so of all writers that believe
the segment ends at 250, one wins, and a sealer is one of them. The length comes from the listing.

Invariants: part n + 1 begins where part n ends, the first one at 0; no part but the mark is empty; the mark is last.
A listing that breaks them raises CorruptSegment (`from_listing`) or is cut where it still holds (`sound_prefix`).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tiermq.errors import CorruptSegment
from tiermq.tier.names import BASE_DIGITS

PARTS_SUFFIX = ".parts"


class Piece(NamedTuple):
    """A range within one part."""

    part: int  # Position of the part in the segment, which is also its name.
    start: int  # Where the range begins inside of the part.
    length: int


def parts_directory(path: str) -> str:
    return path + PARTS_SUFFIX


def part_path(path: str, position: int) -> str:
    return f"{path}{PARTS_SUFFIX}/{position:0{BASE_DIGITS}d}"


def part_position(path: str, name: str) -> int | None:
    """The position in the name of a part of this segment; None when it is not the name of a part."""
    digits = name.removeprefix(parts_directory(path) + "/")
    if len(digits) != BASE_DIGITS or not digits.isascii() or not digits.isdigit():
        return None
    return int(digits)


class PartLog:
    """Changed by the one thread that holds the segment's lock; read by any.

    A reader that comes between the two steps of `append` finds a last part of no length, and no piece ends there.
    """

    __slots__ = ("_positions", "end", "marked")

    def __init__(self) -> None:
        self._positions: list[int] = []
        self.end = 0
        self.marked = False

    def append(self, length: int) -> None:
        self._positions.append(self.end)
        self.end += length

    @property
    def positions(self) -> list[int]:
        """Where the parts begin, without the mark."""
        return list(self._positions)

    def __len__(self) -> int:
        return len(self._positions)

    def pieces(self, position: int, length: int) -> list[Piece]:
        """The parts that hold a range, which must lie below `end`."""
        stop = position + length
        if not 0 <= position < stop <= self.end:
            raise ValueError(f"expected a range within {self.end} bytes, found {position}..{stop}")
        positions, found = self._positions, []
        at = bisect.bisect_right(positions, position) - 1
        while position < stop:
            after = positions[at + 1] if at + 1 < len(positions) else self.end
            length = min(stop, after) - position
            found.append(Piece(positions[at], position - positions[at], length))
            position += length
            at += 1
        return found

    def boundary(self, position: int) -> bool:
        """Whether a part begins or the segment ends there."""
        at = bisect.bisect_left(self._positions, position)
        return position == self.end or (at < len(self._positions) and self._positions[at] == position)


@dataclass(frozen=True, slots=True)
class Sound:
    """What of a listing makes sense, and why the rest does not."""

    log: PartLog
    damage: str | None


def sound_prefix(rows: Iterable[tuple[int, int]]) -> Sound:
    """The log of (position, length) rows in any order, up to where they stop to fit."""
    log = PartLog()
    for position, length in sorted(rows):
        if log.marked:
            return Sound(log, f"expected nothing after the seal mark at {log.end}, found a part at {position}")
        if position != log.end:
            what = "an overlap" if position < log.end else "a hole"
            return Sound(log, f"expected a part at {log.end}, found {what}: the next part is at {position}")
        if length == 0:
            log.marked = True
        else:
            log.append(length)
    return Sound(log, None)


def from_listing(path: str, rows: Iterable[tuple[int, int]]) -> PartLog:
    """The log of a listing that must be whole."""
    sound = sound_prefix(rows)
    if sound.damage is not None:
        raise CorruptSegment(
            f"{path}{PARTS_SUFFIX}: {sound.damage}. Bytes up to {sound.log.end} are sound; "
            "'tiermq tier verify' tells what is lost."
        )
    return sound.log
