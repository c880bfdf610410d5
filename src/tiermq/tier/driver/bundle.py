"""Bundle: one object with ranges of many segments, so that many quiet queues cost one PUT.

    <cluster dir>/<broker>/bundles.tiermq/<20 digits: number>             what was written in one step
    <cluster dir>/<broker>/bundles.tiermq/<20 digits>-<20 digits>         merged: the bundles from first to last again
    <cluster dir>/<broker>/bundles.tiermq/chunk-<32 hex digits>           bytes of a task, for a bundle that names them

    +----------------------------+--------------------------+--------+--------------+-----------+
    | bytes of the ranges        | directory: JSON, zlib    | magic  | CRC-32 of it | length    |
    +----------------------------+--------------------------+--------+--------------+-----------+
                                                              8 bytes  u32            u32           big-endian

The directory names, for each range, its segment (path below the broker's directory), its position there, its length and
where it begins in the bundle, or in the *chunk* that has its bytes. Tasks of a job write chunks, each under a new
name; no reader sees those before the job's driver has created a bundle that names them, for all of its tasks at once. A
chunk that no bundle names is garbage. *Notes* of queues are the driver's, for brokers that follow it.
A *cut* drops ranges of earlier bundles: all that end behind a position (a trim, a
deletion), or (`is_floor`) all that end at it or before (they are stored in the segment's own objects now).

Bundles are applied in the order of their numbers, in each the cuts before the ranges. A number is created only once: of
two writers one gets it. A *fence* is a bundle by which a process takes over: earlier writers get no number behind it.

Invariants: the ranges of a segment follow each other or begin where objects of its own end; numbers begin at 0 and have
no holes; a merged bundle supersedes every bundle whose numbers are within its own, and is a fence if one of them was.
An object far behind all numbers that can be is no bundle. Pure: no requests here.
"""

from __future__ import annotations

import json
import re
import struct
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tiermq.errors import CorruptSegment
from tiermq.message.crc import crc32
from tiermq.tier.driver.part_log import PartObject
from tiermq.tier.names import BASE_DIGITS, BUNDLES_DIRECTORY

MAGIC = b"TMQBNDL1"
FOOTER = struct.Struct(
    ">"
    "8s"  # magic
    "I"  # CRC-32 of the compressed directory
    "I"  # its length
)
DIRECTORY_VERSION = 2  # That of bundles with chunks or notes; all others have 1.
MERGE_RUN = 32  # Bundles at the end that are merged into one.
MERGE_RATIO = 4  # A merged bundle is rewritten only with a quarter of its bytes or more.
MERGE_BYTES_MAX = 64 << 20
DIRECTORY_BYTES_MAX = 256 << 20
NUMBERS_MAX = 1 << 40  # From one bundle to the next, and in a merged one: 30,000 years of one in each second.
_OFFSET_END = 1 << 62  # Offsets and lengths are below, so that their sums fit 64 bits.
SUPERSEDED_BYTES = 1 << 20  # Of two bundles that were never merged: less is left to the next run of them.
_NAME = re.compile(rf"([0-9]{{{BASE_DIGITS}}})(?:-([0-9]{{{BASE_DIGITS}}}))?", re.ASCII)
_CHUNK_NAME = re.compile(r"chunk-[0-9a-f]{32}", re.ASCII)


class Cut(NamedTuple):
    """Ranges of a segment that count no more."""

    segment: str
    position: int
    is_floor: bool = False

    def drops(self, part: PartObject) -> bool:
        return part.end <= self.position if self.is_floor else part.end > self.position


class BundledRange(NamedTuple):
    """Bytes of a segment in a bundle. `is_joined`: of several writes, so that a trim may cut inside of it."""

    segment: str
    position: int
    length: int
    offset: int
    is_joined: bool = False
    chunk: str = ""  # The name of the chunk that has the bytes; empty: the bundle has.


@dataclass(frozen=True, slots=True)
class Directory:
    """What a bundle has."""

    session: str  # Of the process that wrote it.
    is_fence: bool = False
    cuts: tuple[Cut, ...] = ()
    ranges: tuple[BundledRange, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)  # By queue; the driver knows nothing about them.

    @property
    def chunks(self) -> set[str]:
        return {entry.chunk for entry in self.ranges if entry.chunk}

    @property
    def bytes(self) -> int:
        """Of its ranges."""
        return sum(entry.length for entry in self.ranges)


class BundleObject(NamedTuple):
    """A bundle in a listing. The numbers include the last one."""

    first: int
    last: int
    size: int
    created_ms: int = 0

    @property
    def is_merged(self) -> bool:
        return self.last > self.first

    @property
    def name(self) -> str:
        number = f"{self.first:0{BASE_DIGITS}d}"
        return f"{number}-{self.last:0{BASE_DIGITS}d}" if self.is_merged else number


def bundles_directory(broker_directory: str) -> str:
    return f"{broker_directory}/{BUNDLES_DIRECTORY}"


def new_chunk_name() -> str:
    return f"chunk-{uuid.uuid4().hex}"


def is_chunk_name(name: str) -> bool:
    return _CHUNK_NAME.fullmatch(name) is not None


def bundle_object(name: str, size: int, created_ms: int) -> BundleObject | None:
    """The bundle of this name, without its directory; None when it is another object."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    first, last = int(found[1]), int(found[2] or found[1])
    is_merged = found[2] is not None
    return BundleObject(first, last, size, created_ms) if is_merged <= last - first < NUMBERS_MAX else None


class Writing(NamedTuple):
    """Bytes for a bundle."""

    segment: str
    position: int
    data: bytes | memoryview
    is_joined: bool = False


def encode_bundle(
    session: str,
    writings: Sequence[Writing],
    cuts: Sequence[Cut] = (),
    *,
    is_fence: bool = False,
    in_chunks: Sequence[BundledRange] = (),
    notes: Mapping[str, str] | None = None,
) -> tuple[bytes, Directory]:
    """The object, and its directory."""
    ranges, offset = list(in_chunks), 0
    for writing in writings:
        length = len(writing.data)
        ranges.append(BundledRange(writing.segment, writing.position, length, offset, writing.is_joined))
        offset += length
    directory = Directory(session, is_fence, tuple(cuts), tuple(ranges), notes or {})
    body: dict[str, Any] = {
        "version": 1,
        "session": session,
        "fence": is_fence,
        "cuts": [list(cut) for cut in cuts],
        "ranges": [list(entry) if entry.chunk else list(entry[:5]) for entry in ranges],
    }
    if in_chunks or notes:
        body |= {"version": DIRECTORY_VERSION, "notes": notes or {}}
    packed = zlib.compress(json.dumps(body, separators=(",", ":")).encode(), 1)
    footer = FOOTER.pack(MAGIC, crc32(packed), len(packed))
    return b"".join([*(writing.data for writing in writings), packed, footer]), directory


def directory_bytes(tail: bytes | memoryview, where: str) -> int:
    """How many bytes of the end of a bundle are directory and footer. Raises CorruptSegment."""
    if len(tail) < FOOTER.size:
        raise _damaged(where, f"{len(tail)} bytes")
    magic, _, length = FOOTER.unpack(tail[-FOOTER.size :])
    if magic != MAGIC:
        raise _damaged(where, f"the footer {bytes(magic)!r}")
    return int(length) + FOOTER.size


def decode_directory(tail: bytes | memoryview, where: str, data_bytes: int | None = None) -> Directory:
    """The directory in the last bytes of a bundle, `directory_bytes` at least; `data_bytes` are before it in the object
    (None: not known). Raises CorruptSegment, whatever the bytes are, and no other error.
    """
    length = directory_bytes(tail, where)
    _, checksum, _ = FOOTER.unpack(tail[-FOOTER.size :])
    packed = bytes(tail[-length : -FOOTER.size])
    if len(packed) != length - FOOTER.size or crc32(packed) != checksum:
        raise _damaged(where, "a directory with another checksum")
    try:
        body = json.loads(_unpacked(packed))
        version = body["version"]
        if type(version) is not int:
            raise TypeError(f"a version that is {version!r:.40}")
        if version > DIRECTORY_VERSION:
            raise CorruptSegment(
                f"{where}: expected a bundle of version {DIRECTORY_VERSION}, found {version}: a newer TierMQ wrote it. "
                "Update this one."
            )
        notes = body.get("notes", {})
        directory = Directory(
            body["session"],
            body["fence"],
            tuple(Cut(*cut) for cut in body["cuts"]),
            tuple(BundledRange(*entry) for entry in body["ranges"]),
            notes,
        )
        _require_valid(directory, data_bytes)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, zlib.error) as error:
        raise _damaged(where, f"a directory that is none ({type(error).__name__}: {error!s:.200})") from error
    return directory


def _unpacked(packed: bytes) -> bytes:
    """Raises ValueError, zlib.error."""
    stream = zlib.decompressobj()
    data = stream.decompress(packed, DIRECTORY_BYTES_MAX)
    if not stream.eof:
        raise ValueError(f"its end is missing, or it has more than {DIRECTORY_BYTES_MAX} bytes")
    return data


def _require_valid(directory: Directory, data_bytes: int | None) -> None:
    """Anybody who may write to the bucket makes such objects. Raises ValueError, TypeError."""
    texts = [directory.session, *directory.notes, *directory.notes.values()]
    flags: list[object] = [directory.is_fence]
    for cut in directory.cuts:
        texts.append(cut.segment)
        flags.append(cut.is_floor)
        _require_natural(cut.position)
    for entry in directory.ranges:
        texts += [entry.segment, entry.chunk]
        flags.append(entry.is_joined)
        for number in (entry.position, entry.length, entry.offset):
            _require_natural(number)
        if entry.chunk and not is_chunk_name(entry.chunk):
            raise ValueError(f"a chunk that is named {entry.chunk!r:.60}")
        if not entry.chunk and data_bytes is not None and entry.offset + entry.length > data_bytes:
            raise ValueError(f"a range up to byte {entry.offset + entry.length} of {data_bytes}")
    if not all(isinstance(text, str) for text in texts) or not all(isinstance(flag, bool) for flag in flags):
        raise TypeError("a field of another type")


def _require_natural(number: object) -> None:
    if type(number) is not int or not 0 <= number < _OFFSET_END:
        raise ValueError(f"an offset that is {number!r:.40}")


def _damaged(where: str, found: str) -> CorruptSegment:
    return CorruptSegment(
        f"{where}: expected a bundle of ranges with its directory, found {found}. Run `tiermq tier verify`, then "
        "`tiermq tier repair --store`."
    )


class BundleSequence(NamedTuple):
    """The bundles of a listing that count, in order, those that do not, and why the sequence is damaged."""

    live: list[BundleObject]
    superseded: list[BundleObject]
    damage: str | None


def bundle_sequence(objects: Iterable[BundleObject]) -> BundleSequence:
    """Two processes may have merged groups that overlap: of the sequences without a hole one of long bundles counts."""
    found = list(_near(sorted(objects, key=lambda bundle: (bundle.first, -bundle.last))))
    end = max((bundle.last + 1 for bundle in found), default=0)
    ways: dict[int, BundleObject] = {}  # By the first number: a bundle behind which the rest follows without a hole.
    for bundle in reversed(found):
        if bundle.last + 1 == end or bundle.last + 1 in ways:
            ways[bundle.first] = bundle
    if 0 in ways:
        live, at = [], 0
        while at < end:
            live.append(ways[at])
            at = ways[at].last + 1
        chosen = set(live)
        return BundleSequence(live, [bundle for bundle in found if bundle not in chosen], None)
    live, superseded, damage, end = [], [], None, 0
    for bundle in found:
        if bundle.last < end:
            superseded.append(bundle)
            continue
        if bundle.first != end and damage is None:
            damage = f"expected bundle {end}, found {bundle.first}"
        live.append(bundle)
        end = bundle.last + 1
    return BundleSequence(live, superseded, damage)


def _near(objects: Iterable[BundleObject]) -> Iterator[BundleObject]:
    """Those up to the first that is so far behind that no writer can have given it its number."""
    end = 0
    for bundle in objects:
        if bundle.first - end >= NUMBERS_MAX:
            return
        end = max(end, bundle.last + 1)
        yield bundle


class BundleIndex:
    """The ranges of each segment by the bundles so far. Changed under its owner's lock."""

    def __init__(self) -> None:
        self.ranges: dict[str, list[PartObject]] = {}

    def apply(self, directory: Directory, path: str) -> None:
        """The next bundle, whose object has that path."""
        folder = path.rpartition("/")[0]
        for cut in directory.cuts:
            parts = self.ranges.get(cut.segment)
            if parts is not None:
                left = [part for part in parts if not cut.drops(part)]
                if left:
                    self.ranges[cut.segment] = left
                else:
                    del self.ranges[cut.segment]
        for entry in directory.ranges:
            where = f"{folder}/{entry.chunk}" if entry.chunk else path
            part = PartObject(entry.position, entry.length, entry.is_joined, where, entry.offset)
            self.ranges.setdefault(entry.segment, []).append(part)

    def live_bytes(self) -> dict[str, int]:
        """Bytes that count, by the path of the bundle or chunk that has them."""
        found: dict[str, int] = {}
        for parts in self.ranges.values():
            for part in parts:
                found[part.bundle] = found.get(part.bundle, 0) + part.length
        return found


def merge_group(
    live: Sequence[BundleObject], live_bytes: Sequence[int], stored_bytes: Sequence[int]
) -> list[BundleObject]:
    """The neighbours that are worth one object; none when there are too few. Pure. `stored_bytes` have chunks, too.

    The last ones, as soon as there are MERGE_RUN of them, with the merged ones before that have no more than
    MERGE_RATIO times their bytes; or two neighbours of which more than half is superseded, if that is worth it.
    """
    run = len(live)
    while run and not live[run - 1].is_merged:
        run -= 1
    if len(live) - run >= MERGE_RUN:
        total = sum(live_bytes[run:])
        while run and live_bytes[run - 1] <= MERGE_RATIO * total and total + live_bytes[run - 1] <= MERGE_BYTES_MAX:
            run -= 1
            total += live_bytes[run]
        return list(live[run:])
    for at in range(len(live) - 1):
        left, size = sum(live_bytes[at : at + 2]), sum(stored_bytes[at : at + 2])
        is_worth_it = at < run - 1 or size - left >= SUPERSEDED_BYTES
        if left <= MERGE_BYTES_MAX and left * 2 < size and is_worth_it:
            return list(live[at : at + 2])
    return []


def merged_cuts(directories: Iterable[Directory]) -> list[Cut]:
    """What the merged bundle of these has to cut in those before it."""
    cuts: dict[tuple[str, bool], int] = {}
    for cut in (cut for directory in directories for cut in directory.cuts):
        known = cuts.get((cut.segment, cut.is_floor), cut.position)
        cuts[cut.segment, cut.is_floor] = max(known, cut.position) if cut.is_floor else min(known, cut.position)
    return [Cut(segment, position, is_floor) for (segment, is_floor), position in sorted(cuts.items())]


def merged_notes(directories: Iterable[Directory]) -> dict[str, str]:
    """The newest of each queue; they are given in the order of their numbers."""
    notes: dict[str, str] = {}
    for directory in directories:
        notes |= directory.notes
    return notes


def joined_runs(parts: Sequence[PartObject]) -> list[list[PartObject]]:
    """Ranges of one segment that follow each other."""
    runs: list[list[PartObject]] = []
    for part in parts:
        if runs and runs[-1][-1].end == part.position:
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs
