"""The contract of a tier driver: position-addressed, append-only segments, and small named objects with versions.

Segments. A segment is a run of bytes 0..size. A write lands whole or not at all, and what it has acknowledged is
durable. Every write says where it begins, so repeating one is harmless:

    position == end                          the bytes are appended
    position <  end, same bytes are there    nothing happens; bytes beyond the end are appended (resuming a torn write)
    position <  end, other bytes are there   SegmentConflict: someone else writes this segment
    position >  end                          IllegalRange: no holes
    segment is sealed                        SegmentSealed

Small objects. `put_object` replaces only what it expects: `expected=None` means absent, a version means exactly that
one, ANY means whatever. A put that finds its own bytes already there counts as done, since that is what the answer to
a repeated put after a lost answer looks like; so content that takes part in a race must name its writer.

Invariants every driver keeps, and `tests/tier/driver/conformance.py` checks: a refused or failed call changes nothing
that a later call can see, except that a write, seal, delete or put whose answer was lost may have happened as a whole;
every method may be called from any thread; nothing is retried inside (that is `RetryingDriver`'s work).
Every method may raise TierUnavailable and TierCredentials.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, TypeAlias

from tiermq.errors import BadTierName, IllegalRange
from tiermq.tier.names import SegmentKey

Buffer: TypeAlias = bytes | bytearray | memoryview


class Anything(Enum):
    """The type of ANY, so that a type checker tells it from a version."""

    ANY = "any"


ANY: Final = Anything.ANY
Expected: TypeAlias = str | Anything | None


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """What a listing says about a segment."""

    key: SegmentKey
    size: int
    sealed: bool  # No write will ever be accepted again.
    part_count: int  # Objects that still wait to be merged; sealed with parts left means: call `seal` again.
    modified_ms: int
    damage: str | None = None  # Why `size` stops where it stops, when objects lie beyond that do not fit.


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A small object as it was read."""

    data: bytes
    version: str  # Opaque; changes whenever the content changes.


class TierDriver(Protocol):
    """One back end. Implementations say in their docstrings how they keep each promise."""

    @property
    def url(self) -> str:
        """Where this is, without anything secret in it."""
        ...

    def write(self, key: SegmentKey, position: int, data: Sequence[Buffer]) -> bool:
        """Append the buffers, joined, at `position`; durable when it returns. No bytes at all is no request.

        Returns whether the back end confirmed the bytes by a checksum of its own that equals ours. False says nothing
        against them: it has no such checksum, or not in this answer; `reread` compares then.
        Raises SegmentConflict, IllegalRange, SegmentSealed as the table above says; CorruptSegment when the segment
        is found damaged.
        """
        ...

    def read(self, key: SegmentKey, position: int, length: int) -> memoryview:
        """Exactly `length` bytes, read-only. Raises SegmentMissing, IllegalRange (also for length <= 0)."""
        ...

    def reread(self, key: SegmentKey, position: int, length: int) -> memoryview:
        """As `read`, from where the bytes are stored and not from a cache that this process can drop."""
        ...

    def rewrite(self, key: SegmentKey, position: int, data: Buffer) -> None:
        """Store bytes again that the segment has already, open or sealed: the repair of a damaged range.

        The caller must be the segment's one writer. The bytes outside of the range, the size and the seal stay as they
        are. Raises SegmentMissing, and IllegalRange when the range is not within the segment.
        """
        ...

    def size(self, key: SegmentKey) -> int:
        """The true end, asked from the back end and not from memory; 0 when absent. What it counts is durable."""
        ...

    def trim(self, key: SegmentKey, size: int) -> None:
        """Drop the bytes from `size` on: the torn tail that a crash left behind a record boundary.

        The only way in which bytes of a living segment disappear; the caller must be the segment's one writer.
        Raises SegmentSealed, and IllegalRange when `size` lies beyond the end or (object stores, whose parts are
        never torn) inside of a part.
        """
        ...

    def seal(self, key: SegmentKey, *, crc32: int | None = None) -> None:
        """End the segment for ever: no more writes, one canonical object. Idempotent; again after a crash: goes on.

        Where sealing copies bytes, the copy is compared (with `crc32`, the checksum of all bytes, where the caller
        knows it) before the original goes. Raises SegmentMissing when there are no bytes, CorruptSegment when the
        copy is not equal; the original is untouched then.
        """
        ...

    def is_sealed(self, key: SegmentKey) -> bool:
        """Whether writes are refused for ever; false when absent."""
        ...

    def delete(self, key: SegmentKey) -> None:
        """Remove everything under the segment's name. Idempotent."""
        ...

    def replace(self, key: SegmentKey, pieces: Iterable[Buffer], aside: str) -> str | None:
        """Give a damaged segment other bytes; what it had is kept as `<path>.<aside>`, which no listing shows.

        The new bytes are staged whole before anything changes, so `pieces` may read the segment itself; it may be gone
        through more than once. A sealed segment stays sealed, an open one open, one that is not there is made. A sealed
        one, and any one in a directory, has the old bytes or the new ones at every moment; an open one in an object
        store loses its parts before it gets its new one. The caller must be the segment's one writer. Returns the path
        of what was kept; None when there was nothing. Raises IllegalRange when there are no bytes.
        """
        ...

    def list_segments(self, prefix: str = "") -> Iterator[SegmentInfo]:
        """Segments whose path begins with `prefix`, sorted by path. Foreign files are passed over in silence."""
        ...

    def get_object(self, name: str) -> StoredObject | None:
        """A small object, or None. Names end with `.tiermq.json`, or `.tiermq.timers` for megabytes of timers."""
        ...

    def put_object(self, name: str, data: bytes, *, expected: Expected = ANY) -> str:
        """Store it and return its version; durable when it returns. Raises ManifestConflict."""
        ...

    def delete_object(self, name: str) -> None:
        """Idempotent."""
        ...

    def list_objects(self, prefix: str = "") -> list[str]:
        """Names of small objects that begin with `prefix`, sorted; none where no name can begin so (`..`, NUL)."""
        ...

    def close(self) -> None:
        """Give back threads and connections; calls that wait give up. Idempotent."""
        ...


def joined(data: Sequence[Buffer]) -> bytes:
    """The buffers as one; a single `bytes` is passed on as it is."""
    if len(data) == 1 and isinstance(data[0], bytes):
        return data[0]
    return b"".join(data)


def check_read(key: SegmentKey, position: int, length: int) -> None:
    """Refuse what cannot be a range before anyone is asked for it."""
    if position < 0 or length <= 0:
        raise IllegalRange(f"{key}: expected a position >= 0 and a length > 0, found {position} and {length}")


def check_aside(aside: str) -> str:
    """What is kept aside must not look like a segment, a part, a mark or a small object."""
    if not re.fullmatch(r"damaged-[0-9]+", aside):
        raise BadTierName(f"expected a name such as damaged-1700000000000 to keep a segment under, found {aside!r}")
    return aside


def no_bytes(key: SegmentKey) -> IllegalRange:
    return IllegalRange(f"{key}: expected bytes to replace it with, found none. To remove a segment, delete it.")


def past_the_end(key: SegmentKey, position: int, length: int, size: int) -> IllegalRange:
    return IllegalRange(
        f"{key}: expected a range within its {size} bytes, found {position}..{position + length}. "
        "Read only what has been committed."
    )
