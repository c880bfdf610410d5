"""The contract of a tier driver: position-addressed, append-only segments, and small named objects with versions.

Segments. A segment is a run of bytes 0..size. A write lands whole or not at all, and what it has acknowledged is
durable. Every write carries its position, so repeating one is harmless:

    position == end                          the bytes are appended
    position <  end, same bytes are there    nothing happens; bytes beyond the end are appended (resuming a torn write)
    position <  end, other bytes are there   SegmentConflict: another process writes this segment
    position >  end                          IllegalRange: no holes
    segment is sealed                        SegmentSealed

Small objects. `put_object` replaces only what it expects: `expected=None` means absent, a version means exactly that
one, ANY means any. A put that finds its own bytes already stored succeeds: it may be the repetition of a put whose
response was lost. So content that several writers may put must name its writer.

Invariants every driver keeps, and `tests/tier/driver/conformance.py` checks: a refused or failed call changes nothing
that a later call can see, except that a write, seal, delete or put whose response was lost may have been applied as a
whole; every method may be called from any thread; a driver retries nothing (`RetryingDriver` does).
Every method may raise TierUnavailable and TierCredentials.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from tiermq.errors import BadTierName, IllegalRange, IllegalTransition, SegmentConflict, SegmentSealed, StaleWriter
from tiermq.tier.names import SegmentKey

Buffer: TypeAlias = bytes | bytearray | memoryview


class Anything(Enum):
    """The type of ANY, so that a type checker distinguishes it from a version."""

    ANY = "any"


ANY: Final = Anything.ANY
Expected: TypeAlias = str | Anything | None


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment in a listing."""

    key: SegmentKey
    size: int
    sealed: bool  # No more writes are accepted.
    part_count: int  # Objects that are not the canonical one; a sealed segment with parts needs another `seal`.
    modified_ms: int
    damage: str | None = None  # Why objects behind `size` do not count.
    merge_count: int = 0  # Of an open segment: parts that `merge` would put into fewer objects, or would delete.


@dataclass(frozen=True, slots=True)
class SegmentWrite:
    """One of the writes of `write_bundle`."""

    key: SegmentKey
    position: int
    data: Sequence[Buffer]


class ChunkRange(NamedTuple):
    """Bytes of a segment in a chunk."""

    key: SegmentKey
    position: int
    length: int
    chunk: str
    offset: int


class BundleUpkeep(NamedTuple):
    """Bundles that are to be merged, by their numbers, and segments that have enough in bundles for own objects."""

    numbers: tuple[int, int] | None
    segments: tuple[SegmentKey, ...]


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A small object as it was read."""

    data: bytes
    version: str  # Opaque; changes whenever the content changes.


class TierDriver(Protocol):
    """One back end. The docstrings of implementations explain how they keep each promise."""

    @property
    def url(self) -> str:
        """The location, without secrets."""
        ...

    def write(self, key: SegmentKey, position: int, data: Sequence[Buffer]) -> bool:
        """Append the buffers, joined, at `position`; durable when it returns. Without bytes no request is sent.

        Returns whether the back end's checksum of the bytes equals ours. False is no error: the back end has no such
        checksum, or not in this response; the caller compares with `reread`.
        Raises SegmentConflict, IllegalRange, SegmentSealed as in the table above; CorruptSegment when the segment is
        damaged.
        """
        ...

    def write_bundle(self, writes: Sequence[SegmentWrite]) -> list[bool]:
        """As `write` for each, of different segments of one broker: all of them or none, in one object where bytes are
        stored in objects. A `write` that repeats one of them costs no request.

        The caller holds the broker's lease and has called `fence_bundles` since it has. Raises BundlesFenced when
        another process has called it later.
        """
        ...

    def fence_bundles(self, directory: str, *, create: bool) -> None:
        """Take over the bundles of the broker with that directory: `write_bundle` of earlier callers fails from now on.

        To be called by each new owner of the broker's lease before it writes. Without `create` nothing is written where
        the broker has no bundles.
        """
        ...

    @property
    def packs_chunks(self) -> bool:
        """Whether bytes are stored in objects, so that `put_chunk` and what follows it are of use."""
        ...

    def put_chunk(self, directory: str, data: bytes) -> str:
        """Store bytes of many segments of a broker under a name of their own, which is returned.

        They count for no reader before `commit_chunks`; a chunk that is never committed is garbage.
        """
        ...

    def commit_chunks(self, directory: str, ranges: Sequence[ChunkRange], notes: Mapping[str, str]) -> None:
        """Append ranges of chunks to their segments, all or none, with one object. Each begins at its segment's end.

        The caller is as that of `write_bundle`. The notes, one for each queue and the newest only, are kept with it.
        """
        ...

    def bundle_notes(self, directory: str) -> Mapping[str, str]:
        """The newest note of each queue. One LIST, and a GET for each bundle that is new to this process."""
        ...

    def bundle_upkeep(self, directory: str) -> BundleUpkeep | None:
        """What is to be done to the broker's bundles, by what this process knows; None: nothing. Sends no request."""
        ...

    def tend_bundles(self, directory: str, upkeep: BundleUpkeep) -> dict[SegmentKey, int]:
        """Do it; up to where each of the segments has objects of its own then. Any process may, also twice at once."""
        ...

    def bundles_tended(self, directory: str, floors: Mapping[SegmentKey, int]) -> None:
        """`tend_bundles` was done: the next bundle drops the ranges of segments up to there. Sends no request."""
        ...

    def repair_bundles(self, directory: str, aside: str) -> list[str]:
        """Take bundles that are missing or damaged out of the broker's sequence; their paths.

        What they had is missing in its segments then, which are to be repaired. Damaged ones are kept as
        `<path>.<aside>`. The caller must be the broker's only writer.
        """
        ...

    def read(self, key: SegmentKey, position: int, length: int) -> memoryview:
        """Exactly `length` bytes, read-only. Raises SegmentMissing, IllegalRange (also for length <= 0)."""
        ...

    def reread(self, key: SegmentKey, position: int, length: int) -> memoryview:
        """As `read`, but from the disk or server, bypassing caches that this process can drop."""
        ...

    def rewrite(self, key: SegmentKey, position: int, data: Buffer) -> None:
        """Overwrite a damaged range of a segment, open or sealed, with the bytes that it should have.

        The caller must be the segment's only writer. The bytes outside the range, the size and the seal do not change.
        Raises SegmentMissing, and IllegalRange when the range is not within the segment.
        """
        ...

    def size(self, key: SegmentKey) -> int:
        """The size according to the back end, not to memory; 0 when absent. These bytes are durable."""
        ...

    def trim(self, key: SegmentKey, size: int) -> None:
        """Drop the bytes from `size` on: the torn tail that a crash left behind a record boundary.

        Nothing else removes bytes of a live segment; the caller must be the segment's only writer. Raises
        SegmentSealed, and IllegalRange when `size` is beyond the end or (object stores, whose parts are never torn)
        inside a part that was never merged.
        """
        ...

    def seal(self, key: SegmentKey, *, crc32: int | None = None) -> None:
        """Close the segment for writes and store it as one canonical object. Idempotent; resumes after a crash.

        Where sealing copies bytes, the copy is compared (with `crc32`, the checksum of all bytes, if given) before the
        original is deleted. Raises SegmentMissing when there are no bytes, CorruptSegment when the copy differs; then
        the original stays.
        """
        ...

    def merge(self, key: SegmentKey) -> int:
        """Store small parts of an open segment in fewer objects; how many there are no more. Idempotent.

        Bytes, size and seal do not change; writers and readers may continue meanwhile. Nothing happens where a segment
        has no parts, is sealed or absent. Raises CorruptSegment when a copy differs; then the parts stay.
        """
        ...

    def is_sealed(self, key: SegmentKey) -> bool:
        """Whether the segment is sealed; false when absent."""
        ...

    def delete(self, key: SegmentKey) -> None:
        """Delete all objects of the segment. Idempotent."""
        ...

    def replace(
        self, key: SegmentKey, pieces: Iterable[Buffer], aside: str, *, old_size: int | None = None
    ) -> str | None:
        """Replace the bytes of a damaged segment; the old ones are kept as `<path>.<aside>`, which no listing shows.

        All new bytes are staged before anything changes, so `pieces` may read the same segment; it may be iterated
        more than once. A sealed segment stays sealed, an open one open, a missing one is created. The replacement is
        atomic, but for an open segment in an object store that is damaged or gets another size: it loses its parts
        before it gets the new one. The caller must be the segment's only writer. `old_size`: what a listing said when
        the caller made its pieces; a segment of another size belongs to another writer by now, and stays as it is.
        Returns the path of the old bytes, or None if there were none. Raises SegmentConflict, and IllegalRange when
        `pieces` is empty.
        """
        ...

    def list_segments(self, prefix: str = "") -> Iterator[SegmentInfo]:
        """Segments whose path begins with `prefix`, sorted by path. Foreign files are skipped."""
        ...

    def get_object(self, name: str) -> StoredObject | None:
        """A small object, or None. Names end with `.tiermq.json`, or `.tiermq.timers` for megabytes of timers."""
        ...

    def put_object(self, name: str, data: bytes, *, expected: Expected = ANY) -> str:
        """Store the object and return its version; durable when it returns. Raises ManifestConflict."""
        ...

    def delete_object(self, name: str) -> None:
        """Idempotent."""
        ...

    def list_objects(self, prefix: str = "") -> list[str]:
        """Names of small objects that begin with `prefix`, sorted; none for an impossible prefix (`..`, NUL)."""
        ...

    def close(self) -> None:
        """Release threads and connections; waiting calls fail. Idempotent."""
        ...


def joined(data: Sequence[Buffer]) -> bytes:
    """The buffers as one; a single `bytes` is returned unchanged."""
    if len(data) == 1 and isinstance(data[0], bytes):
        return data[0]
    return b"".join(data)


def check_read(key: SegmentKey, position: int, length: int) -> None:
    """Refuse an invalid range before a request is sent."""
    if position < 0 or length <= 0:
        raise IllegalRange(f"{key}: expected a position >= 0 and a length > 0, found {position} and {length}")


ASIDE = re.compile(r"damaged-[0-9]+")
"""The end of a name under which a repair keeps what it has replaced."""


def check_aside(aside: str) -> str:
    """Refuse a name that could be that of a segment, a part, a mark or a small object."""
    if not ASIDE.fullmatch(aside):
        raise BadTierName(f"expected a name such as damaged-1700000000000 to keep a segment under, found {aside!r}")
    return aside


def no_bytes(key: SegmentKey) -> IllegalRange:
    return IllegalRange(f"{key}: expected bytes to replace it with, found none. To remove a segment, delete it.")


def past_the_end(key: SegmentKey, position: int, length: int, size: int) -> IllegalRange:
    return IllegalRange(
        f"{key}: expected a range within its {size} bytes, found {position}..{position + length}. "
        "Read only what has been committed."
    )


# The append rule of the module docstring, for all drivers. Pure.


def missing_suffix(
    key: SegmentKey, position: int, data: bytes, end: int, read: Callable[[int, int], Buffer]
) -> memoryview:
    """The part of `data` that is not stored yet and belongs at `end`; empty when all of it is stored.

    `read(position, length)` returns stored bytes; it is called only for ranges below `end`.
    """
    if position < 0:
        raise IllegalRange(f"{key}: expected a position >= 0, found {position}")
    if position > end:
        raise IllegalRange(
            f"{key}: expected a write at its end {end}, found position {position}. "
            "Bytes in between are missing: ask for the size and send from there."
        )
    overlap = min(end - position, len(data))
    if overlap and memoryview(read(position, overlap)) != memoryview(data)[:overlap]:
        raise conflict(key, position)
    return memoryview(data)[overlap:]


def conflict(key: SegmentKey, position: int) -> SegmentConflict:
    return SegmentConflict(
        f"{key}: expected nothing or the same bytes at position {position}, found other bytes. "
        "Another writer owns this segment: check the epoch in its manifest before writing on."
    )


def require_size(key: SegmentKey, found: int, expected: int | None) -> None:
    """Raises SegmentConflict for a segment that has changed since its replacement was made."""
    if expected is not None and found != expected:
        raise SegmentConflict(
            f"{key}: expected {expected} bytes to replace, found {found}: another writer owns this segment by now. "
            "Nothing was changed: run the repair again"
        )


def sealed(key: SegmentKey) -> SegmentSealed:
    return SegmentSealed(f"{key}: expected an open segment, found a sealed one. Roll, and write to the next segment.")


class NoBundles:
    """Base of drivers whose segments are appended in place: nothing is bundled."""

    @property
    def packs_chunks(self) -> bool:
        return False

    def fence_bundles(self, directory: str, *, create: bool) -> None:
        """There are none."""

    def repair_bundles(self, directory: str, aside: str) -> list[str]:  # noqa: ARG002 - there are none
        return []

    def put_chunk(self, directory: str, data: bytes) -> str:  # noqa: ARG002 - refused
        raise _no_chunks(directory)

    def commit_chunks(self, directory: str, ranges: Sequence[ChunkRange], notes: Mapping[str, str]) -> None:  # noqa: ARG002
        raise _no_chunks(directory)

    def bundle_notes(self, directory: str) -> Mapping[str, str]:  # noqa: ARG002 - there are none
        return {}

    def bundle_upkeep(self, directory: str) -> BundleUpkeep | None:  # noqa: ARG002 - there is none
        return None

    def tend_bundles(self, directory: str, upkeep: BundleUpkeep) -> dict[SegmentKey, int]:  # noqa: ARG002
        raise _no_chunks(directory)

    def bundles_tended(self, directory: str, floors: Mapping[SegmentKey, int]) -> None:
        """There are none."""


def _no_chunks(directory: str) -> IllegalTransition:
    return IllegalTransition(f"{directory}: expected a tier of objects, found one of files, where nothing is bundled")


Result = TypeVar("Result")


class ForwardingDriver:
    """Base of a driver that wraps another one. Every call of the contract goes through `forward`.

    A wrapper overrides `forward`, and the methods that need more. Listings are read completely within the call, so
    that `forward` covers all of their requests. Used from any thread.
    """

    def __init__(self, inner: TierDriver) -> None:
        self.inner = inner

    @property
    def url(self) -> str:
        return self.inner.url

    def forward(self, _operation: str, _key: SegmentKey | None, call: Callable[[], Result]) -> Result:
        """Make one call; `key` is None for calls that concern no segment."""
        return call()

    def write(self, key: SegmentKey, position: int, data: Sequence[Buffer]) -> bool:
        return self.forward("write", key, lambda: self.inner.write(key, position, data))

    def write_bundle(self, writes: Sequence[SegmentWrite]) -> list[bool]:
        return self.forward("write_bundle", None, lambda: self.inner.write_bundle(writes))

    def fence_bundles(self, directory: str, *, create: bool) -> None:
        self.forward("fence_bundles", None, lambda: self.inner.fence_bundles(directory, create=create))

    @property
    def packs_chunks(self) -> bool:
        return self.inner.packs_chunks

    def put_chunk(self, directory: str, data: bytes) -> str:
        return self.forward("put_chunk", None, lambda: self.inner.put_chunk(directory, data))

    def commit_chunks(self, directory: str, ranges: Sequence[ChunkRange], notes: Mapping[str, str]) -> None:
        self.forward("commit_chunks", None, lambda: self.inner.commit_chunks(directory, ranges, notes))

    def bundle_notes(self, directory: str) -> Mapping[str, str]:
        return self.forward("bundle_notes", None, lambda: self.inner.bundle_notes(directory))

    def bundle_upkeep(self, directory: str) -> BundleUpkeep | None:
        return self.inner.bundle_upkeep(directory)

    def tend_bundles(self, directory: str, upkeep: BundleUpkeep) -> dict[SegmentKey, int]:
        return self.forward("tend_bundles", None, lambda: self.inner.tend_bundles(directory, upkeep))

    def bundles_tended(self, directory: str, floors: Mapping[SegmentKey, int]) -> None:
        self.inner.bundles_tended(directory, floors)

    def repair_bundles(self, directory: str, aside: str) -> list[str]:
        return self.forward("repair_bundles", None, lambda: self.inner.repair_bundles(directory, aside))

    def read(self, key: SegmentKey, position: int, length: int) -> memoryview:
        return self.forward("read", key, lambda: self.inner.read(key, position, length))

    def reread(self, key: SegmentKey, position: int, length: int) -> memoryview:
        return self.forward("reread", key, lambda: self.inner.reread(key, position, length))

    def rewrite(self, key: SegmentKey, position: int, data: Buffer) -> None:
        self.forward("rewrite", key, lambda: self.inner.rewrite(key, position, data))

    def size(self, key: SegmentKey) -> int:
        return self.forward("size", key, lambda: self.inner.size(key))

    def trim(self, key: SegmentKey, size: int) -> None:
        self.forward("trim", key, lambda: self.inner.trim(key, size))

    def seal(self, key: SegmentKey, *, crc32: int | None = None) -> None:
        self.forward("seal", key, lambda: self.inner.seal(key, crc32=crc32))

    def merge(self, key: SegmentKey) -> int:
        return self.forward("merge", key, lambda: self.inner.merge(key))

    def is_sealed(self, key: SegmentKey) -> bool:
        return self.forward("is_sealed", key, lambda: self.inner.is_sealed(key))

    def delete(self, key: SegmentKey) -> None:
        self.forward("delete", key, lambda: self.inner.delete(key))

    def replace(
        self, key: SegmentKey, pieces: Iterable[Buffer], aside: str, *, old_size: int | None = None
    ) -> str | None:
        return self.forward("replace", key, lambda: self.inner.replace(key, pieces, aside, old_size=old_size))

    def list_segments(self, prefix: str = "") -> Iterator[SegmentInfo]:
        return iter(self.forward("list_segments", None, lambda: list(self.inner.list_segments(prefix))))

    def get_object(self, name: str) -> StoredObject | None:
        return self.forward("get_object", None, lambda: self.inner.get_object(name))

    def put_object(self, name: str, data: bytes, *, expected: Expected = ANY) -> str:
        return self.forward("put_object", None, lambda: self.inner.put_object(name, data, expected=expected))

    def delete_object(self, name: str) -> None:
        self.forward("delete_object", None, lambda: self.inner.delete_object(name))

    def list_objects(self, prefix: str = "") -> list[str]:
        return self.forward("list_objects", None, lambda: self.inner.list_objects(prefix))

    def close(self) -> None:
        self.inner.close()


class ReadOnlyDriver(ForwardingDriver):
    """Refuses every call that could change the back end, without a request."""

    def forward(self, operation: str, key: SegmentKey | None, call: Callable[[], Result]) -> Result:
        if operation not in READS:
            raise StaleWriter(f"{self.url}: expected a process that may write it, found a reader: {operation}")
        return super().forward(operation, key, call)


READS = frozenset(
    {"read", "reread", "size", "is_sealed", "list_segments", "get_object", "list_objects", "bundle_notes"}
)
