"""BundleStore: the bundles of one broker in an object store: their index, the next number, merges, damage.

A process writes ranges only after `fence`: it creates the next bundle, empty, so that an earlier writer whose request
is still under way either has its bundle seen by the load that follows, or finds its number taken. A writer that finds
its number taken by another process' fence or ranges gets BundlesFenced and writes no more ranges before it has fenced
again. Cuts need no fence: their caller is the only writer of the segment, or its deleter.

The index is loaded with one LIST and a GET for the directory of each bundle that is new to this process. A chunk that
the LIST lacks is damage of the segments that have ranges in it, and of no others.
Threads: any; `lock` is held while bundles are written or listed.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tiermq.clock import Clock
from tiermq.errors import BundlesFenced, CorruptSegment, SegmentMissing, TierUnavailable
from tiermq.tier.driver.bundle import (
    BundledRange,
    BundleIndex,
    BundleObject,
    Cut,
    Directory,
    Writing,
    bundle_object,
    bundle_sequence,
    bundles_directory,
    decode_directory,
    directory_bytes,
    encode_bundle,
    is_chunk_name,
    joined_runs,
    merge_group,
    merged_cuts,
    merged_notes,
    new_chunk_name,
)
from tiermq.tier.driver.object_requests import ObjectRequests, is_md5_of
from tiermq.tier.driver.part_log import PartObject

TAIL_BYTES = 64 << 10  # Read from the end of a bundle: mostly all of its directory.
_TRIES_MAX = 5


class BundleStore:
    """See the module."""

    def __init__(
        self,
        requests: ObjectRequests,
        url: str,
        broker_directory: str,
        at_once: Callable[[Callable[[BundleObject], Directory], list[BundleObject]], list[Directory]],
        clock: Clock,
        trusted_ms: int,
    ) -> None:
        """`trusted_ms`: how long this process relies on what it knows about the last number."""
        self._trusted_ms = trusted_ms
        self._checked_ms = 0
        self.broker_directory = broker_directory
        self.lock = threading.RLock()
        self._requests = requests
        self._url = url
        self._at_once = at_once
        self._clock = clock
        self._session = uuid.uuid4().hex
        self._is_fenced = False
        self._directory = bundles_directory(broker_directory)
        self._live: list[BundleObject] = []
        self._directories: dict[BundleObject, Directory] = {}
        self._superseded: list[BundleObject] = []
        self._chunks: dict[str, int] = {}  # Those of the last load, and when each was created, in ms.
        self._missing: set[str] = set()  # The paths of chunks that a live bundle names and the listing lacks.
        self._index = BundleIndex()
        self._is_loaded = False
        self._floors: dict[str, Cut] = {}
        self.damage: dict[str, str] = {}
        """Why bundles cannot be used, by the path of each."""

    # Reading

    def ranges(self, segment: str) -> list[PartObject]:
        """The ranges of a segment, as of the last load."""
        with self.lock:
            return list(self._index.ranges.get(segment, ()))

    def lost(self, segment: str) -> str | None:
        """Why ranges of the segment cannot be read; None: they can, as of the last load."""
        with self.lock:
            gone = next((part for part in self._index.ranges.get(segment, ()) if part.bundle in self._missing), None)
            return (
                None
                if gone is None
                else f"{gone.bundle}: expected {gone.length} bytes of {segment}, found no such object, or a shorter one"
            )

    def has_ranges(self, segment: str) -> bool:
        """Whether the segment is in the index, as far as this process knows: its mark exists then."""
        return segment in self._index.ranges

    def notes(self) -> dict[str, str]:
        """The newest note of each queue, as of the last load."""
        with self.lock:
            return merged_notes(self._directories[bundle] for bundle in self._live)

    @property
    def modified_ms(self) -> int:
        """When the last bundle was created."""
        return self._live[-1].created_ms if self._live else 0

    def load(self) -> None:
        """Read what is new in the bucket."""
        with self.lock:
            prefix = self._directory + "/"
            stats = {stat.path.removeprefix(prefix): stat for stat in self._requests.list(self._directory)}
            rows = [bundle_object(name, stat.size, stat.modified_ms) for name, stat in stats.items()]
            found = [bundle for bundle in rows if bundle is not None]
            self._chunks = {name: stat.modified_ms for name, stat in stats.items() if is_chunk_name(name)}
            sequence = bundle_sequence(found)
            known = {
                (bundle.name, bundle.size): bundle
                for bundle in self._directories
                if self._path(bundle) not in self.damage
            }
            last = self._live[-1].last if self._live else -1
            self.damage = {} if sequence.damage is None else {self._directory: sequence.damage}
            missing = [bundle for bundle in sequence.live if (bundle.name, bundle.size) not in known]
            for bundle, directory in zip(missing, self._at_once(self._read_directory, missing), strict=True):
                self._directories[bundle] = directory
                if bundle.last > last and directory.session != self._session:
                    # Cuts of another process do no harm to this one's ranges.
                    self._is_fenced = self._is_fenced and not (directory.is_fence or directory.ranges)
            live = [known.get((bundle.name, bundle.size), bundle) for bundle in sequence.live]
            self._directories = {bundle: self._directories[bundle] for bundle in live}
            self._replay(live)
            sizes = {stat.path: stat.size for stat in stats.values()}
            self._missing = {
                part.bundle
                for parts in self._index.ranges.values()
                for part in parts
                if part.offset + part.length > sizes.get(part.bundle, -1)
            }
            self._superseded = sequence.superseded
            self._is_loaded = True
            self._checked_ms = self._clock.now_ms()

    def _replay(self, live: list[BundleObject]) -> None:
        before = len(self._live)
        if live[:before] != self._live:
            self._index, before = BundleIndex(), 0
        for bundle in live[before:]:
            self._index.apply(self._directories[bundle], self._path(bundle))
        self._live = live

    def _named_chunks(self) -> set[str]:
        return {name for bundle in self._live for name in self._directories[bundle].chunks}

    def _read_directory(self, bundle: BundleObject) -> Directory:
        """The directory; an empty one, noted as damage, when the object has none."""
        path = self._path(bundle)
        where = f"{self._url}/{path}"
        try:
            tail = self._tail(path, bundle.size, TAIL_BYTES)
            length = directory_bytes(tail, where)
            if length > len(tail):
                tail = self._tail(path, bundle.size, length)
            return decode_directory(tail, where, bundle.size - length)
        except CorruptSegment as error:
            self.damage[path] = str(error)
            return Directory("")

    def _tail(self, path: str, size: int, length: int) -> memoryview:
        length = min(length, size)
        answer = self._requests.fetch(path, size - length, length) if length else None
        if answer is None or answer.object_size != size:
            raise TierUnavailable(f"{self._url}/{path}: it was replaced while it was read. Try again.")
        return answer.data

    def _path(self, bundle: BundleObject) -> str:
        return f"{self._directory}/{bundle.name}"

    def _paths(self, bundle: BundleObject) -> list[str]:
        """The bundle, and its chunks."""
        return [self._path(bundle), *(f"{self._directory}/{name}" for name in self._directories[bundle].chunks)]

    def require_whole(self) -> None:
        """Raises CorruptSegment when a bundle is missing or damaged: what it had is not known."""
        if self.damage:
            path, text = next(iter(self.damage.items()))
            raise CorruptSegment(
                f"{self._url}/{path}: {text}. Which queues it has is not known: `tiermq tier repair --store` takes it "
                "out of the sequence and restores what it had from the local store."
            )

    # Writing

    def fence(self, *, create: bool) -> None:
        """Keep earlier writers out; without `create` only where there are bundles already."""
        with self.lock:
            self.load()
            if self._live or create:
                self._append([], [], is_fence=True)
                self._is_fenced = True

    def append(self, writings: Sequence[Writing]) -> tuple[list[PartObject], bool]:
        """Write ranges as one bundle; where each is, and whether the store's checksum equals ours.

        Raises BundlesFenced.
        """
        with self.lock:
            self._require_fence()
            return self._append(writings, [])

    def put_chunk(self, data: bytes) -> str:
        """Store bytes for a bundle that names them later; the name. Needs no fence: it counts for no reader."""
        name = new_chunk_name()
        if self._requests.create(f"{self._directory}/{name}", data) is None:
            raise TierUnavailable(f"{self._url}/{self._directory}/{name}: it exists already. Try again.")
        return name

    def commit_chunks(self, ranges: Sequence[BundledRange], notes: Mapping[str, str]) -> None:
        """Make ranges of chunks count, all at once, with one bundle. Raises BundlesFenced."""
        with self.lock:
            if self._is_loaded:
                self._require_fence()
            self._append([], [], in_chunks=ranges, notes=notes)

    def cut(self, segment: str, position: int) -> None:
        """Drop the ranges of a segment that end behind a position."""
        with self.lock:
            self._floors.pop(segment, None)
            self.load()
            if any(part.end > position for part in self._index.ranges.get(segment, ())):
                self._append([], [Cut(segment, position)])

    def note_floor(self, segment: str, position: int) -> None:
        """The segment's own objects have its bytes up to there: a later bundle drops the ranges."""
        with self.lock:
            self._floors[segment] = Cut(segment, position, True)

    def forget(self) -> None:
        """Another process has merged: load before the next bundle."""
        with self.lock:
            self._is_loaded = False

    def _require_fence(self) -> None:
        if not self._is_fenced:
            raise BundlesFenced(
                f"{self._url}/{self._directory}: expected to be the only writer of bundles, found a bundle of another "
                "process. Another writer owns this broker's tier: check its lease."
            )

    def _append(
        self,
        writings: Sequence[Writing],
        cuts: Sequence[Cut],
        *,
        is_fence: bool = False,
        in_chunks: Sequence[BundledRange] = (),
        notes: Mapping[str, str] | None = None,
    ) -> tuple[list[PartObject], bool]:
        for _ in range(_TRIES_MAX):
            if not self._is_loaded or self._is_outdated():
                self.load()
                if any(f"{self._directory}/{entry.chunk}" in self._index.live_bytes() for entry in in_chunks[:1]):
                    return [], False  # An earlier try, whose response was lost.
                self._require_chunks(in_chunks)
                if writings or in_chunks:
                    self._require_fence()
            floors = [floor for floor in self._floors.values() if floor.segment in self._index.ranges]
            data, directory = encode_bundle(
                self._session, writings, [*cuts, *floors], is_fence=is_fence, in_chunks=in_chunks, notes=notes
            )
            number = self._live[-1].last + 1 if self._live else 0
            bundle = BundleObject(number, number, len(data), self._clock.now_ms())
            path = self._path(bundle)
            self._is_loaded = False  # After any error from here on.
            e_tag = self._requests.create(path, data)
            if e_tag is None:
                present = self._requests.fetch(path)
                if present is None or present.data != data:
                    continue
            if self._is_outdated():
                self._check_created(bundle)
            else:
                self._directories[bundle] = directory
                self._replay([*self._live, bundle])
            self._floors.clear()
            self._is_loaded, self._checked_ms = True, self._clock.now_ms()
            parts = [
                PartObject(entry.position, entry.length, entry.is_joined, path, entry.offset)
                for entry in directory.ranges
            ]
            return parts, e_tag is not None and is_md5_of(e_tag, data)
        raise TierUnavailable(f"{self._url}/{self._directory}: other processes took {_TRIES_MAX} numbers. Try again.")

    def _require_chunks(self, ranges: Sequence[BundledRange]) -> None:
        """Raises SegmentMissing when a chunk that is to be named has gone: this process stood still for hours."""
        gone = sorted({entry.chunk for entry in ranges} - self._chunks.keys())
        if gone:
            self._is_loaded = False
            raise SegmentMissing(
                f"{self._url}/{self._directory}: expected the chunk {gone[0]} that a task wrote, found that it was "
                "deleted, as chunks are that are in no bundle for hours. Nothing was committed: run the job again."
            )

    def _is_outdated(self) -> bool:
        return self._clock.now_ms() - self._checked_ms > self._trusted_ms

    def _check_created(self, made: BundleObject) -> None:
        """The request took hours: the number may have been free only because the bundle of another one was merged."""
        self.load()
        if not self._live or self._live[-1].name != made.name:
            self._is_fenced = False
            self._require_fence()

    def patch(self, part: PartObject, start: int, data: bytes | memoryview) -> None:
        """Overwrite bytes of a range in place: the repair of damaged bytes."""
        with self.lock:
            answer = self._requests.fetch(part.bundle)
            if answer is None:
                raise TierUnavailable(f"{self._url}/{part.bundle}: it was deleted while it was rewritten. Try again.")
            body = bytearray(answer.data)
            body[part.offset + start : part.offset + start + len(data)] = data
            self._requests.put(part.bundle, bytes(body), None, check=False)

    # Upkeep

    def due(self, unpacked_bytes: int) -> tuple[tuple[int, int] | None, list[str]]:
        """What upkeep has to do, as of what is known: the first and last number that are to be merged, and the segments
        that have so many bytes in bundles.
        """
        with self.lock:
            if not self._is_loaded:
                return None, []
            group = self._due_group()
            large = [
                segment
                for segment, parts in self._index.ranges.items()
                if sum(part.length for part in parts) >= unpacked_bytes and segment not in self._floors
            ]
            return (group[0].first, group[-1].last) if group else None, large

    def _due_group(self) -> list[BundleObject]:
        if self.damage or self._missing:
            return []
        sizes, live, stored = self._index.live_bytes(), [], []
        for bundle in self._live:
            directory = self._directories[bundle]
            live.append(sum(sizes.get(path, 0) for path in self._paths(bundle)))
            stored.append(bundle.size + sum(entry.length for entry in directory.ranges if entry.chunk))
        return merge_group(self._live, live, stored)

    def merge(self, kept_ms: int, numbers: tuple[int, int] | None = None) -> list[str]:
        """Put bundles into fewer ones, if it is time, and delete what has been superseded for `kept_ms`.

        `numbers`: those from the first to the last, if they are still there, whatever the time; two that do so at once
        make the same object. Returns the segments whose ranges have moved.
        """
        with self.lock:
            if not self._is_loaded or numbers is not None:
                self.load()
            if self.damage or self._missing:
                return []
            group = self._due_group()
            if numbers is not None:
                group = [bundle for bundle in self._live if numbers[0] <= bundle.first and bundle.last <= numbers[1]]
                if len(group) < 2 or (group[0].first, group[-1].last) != numbers:
                    return []
            if not group:
                return []
            moved = self._merge_group(group)
            self._delete_superseded(kept_ms)
            return moved

    def _merge_group(self, group: Sequence[BundleObject]) -> list[str]:
        paths = {path for bundle in group for path in self._paths(bundle)}
        paths &= self._index.live_bytes().keys()
        bodies = {path: self._whole(path) for path in paths}
        writings, segments = [], []
        for segment, parts in sorted(self._index.ranges.items()):
            for run in joined_runs([part for part in parts if part.bundle in paths]):
                chunks = [bodies[part.bundle][part.offset : part.offset + part.length] for part in run]
                is_joined = len(run) > 1 or run[0].is_merged
                writings.append(Writing(segment, run[0].position, b"".join(chunks), is_joined))
                segments.append(segment)
        cuts = [] if group[0].first == 0 else merged_cuts(self._directories[bundle] for bundle in group)
        notes = merged_notes(self._directories[bundle] for bundle in group)
        is_fence = any(self._directories[bundle].is_fence for bundle in group)
        data, directory = encode_bundle(self._session, writings, cuts, is_fence=is_fence, notes=notes)
        made = BundleObject(group[0].first, group[-1].last, len(data), self._clock.now_ms())
        path = self._path(made)
        e_tag = self._requests.create(path, data)
        if e_tag is None or not is_md5_of(e_tag, data):
            stored = self._requests.fetch(path)
            if e_tag is None:
                self._is_loaded = False  # Another process has merged: its object counts.
                return []
            if stored is None or stored.data != data:
                self._requests.delete([path])
                raise CorruptSegment(f"{self._url}/{path}: expected the bytes that were written, found others.")
        at = self._live.index(group[0])
        self._superseded += group
        for bundle in group:
            del self._directories[bundle]
        self._directories[made] = directory
        self._replay([*self._live[:at], made, *self._live[at + len(group) :]])
        return segments

    def _whole(self, path: str) -> memoryview:
        answer = self._requests.fetch(path)
        if answer is None:
            raise TierUnavailable(f"{self._url}/{path}: it was deleted while it was merged. Try again.")
        return answer.data

    def _delete_superseded(self, kept_ms: int) -> None:
        """Bundles that were superseded `kept_ms` ago, and chunks without a name as old: a reader or merger that began
        before that has ended. By a new listing, so that two that merge at once agree about what is superseded.
        """
        old_ms = self._clock.now_ms() - kept_ms
        if not self._superseded_before(old_ms) and not self._unnamed_before(old_ms):
            return
        self.load()
        old = self._superseded_before(old_ms)
        self._requests.delete([self._path(bundle) for bundle in old])
        self._superseded = [bundle for bundle in self._superseded if bundle not in old]
        # Those that only superseded bundles name, and those of tasks that failed or were repeated.
        chunks = self._unnamed_before(old_ms)
        self._requests.delete([f"{self._directory}/{name}" for name in chunks])
        for name in chunks:
            del self._chunks[name]

    def _superseded_before(self, old_ms: int) -> set[BundleObject]:
        """By the sequence as it was then: nothing of it has been deleted since."""
        then = bundle_sequence(each for each in (*self._live, *self._superseded) if each.created_ms < old_ms)
        return set() if then.damage is not None or self.damage else set(then.superseded).difference(self._live)

    def _unnamed_before(self, old_ms: int) -> list[str]:
        named = self._named_chunks()
        return [name for name, created_ms in self._chunks.items() if created_ms < old_ms and name not in named]

    def repair(self, aside: str) -> list[str]:
        """Replace missing and damaged bundles by empty ones; the paths of those, or of the damaged ones kept aside.

        The segments that had ranges there end before them, or have holes, and are repaired by themselves.
        """
        with self.lock:
            self.load()
            made = []
            for path in self.damage.keys() - {self._directory}:
                self._requests.copy(path, f"{path}.{aside}")
                made.append(self._put_empty(path))
            for bundle in self._live:
                made += self._without_missing(bundle)
            made += [self._put_empty(self._path(hole)) for hole in _holes(self._live)]
            self._live, self._directories, self._index = [], {}, BundleIndex()
            self.load()
            return made

    def _without_missing(self, bundle: BundleObject) -> list[str]:
        """Take ranges in lost chunks out of a bundle; the paths of those chunks."""
        directory = self._directories[bundle]
        gone = [name for name in sorted(directory.chunks) if f"{self._directory}/{name}" in self._missing]
        if gone:
            left = [entry for entry in directory.ranges if entry.chunk not in gone]
            data, _ = encode_bundle(
                directory.session,
                [],
                directory.cuts,
                is_fence=directory.is_fence,
                in_chunks=left,
                notes=directory.notes,
            )
            self._requests.put(self._path(bundle), data, None, check=False)
        return [f"{self._directory}/{name}" for name in gone]

    def _put_empty(self, path: str) -> str:
        data, _ = encode_bundle(self._session, [])
        self._requests.put(path, data, None, check=False)
        return path


def _holes(live: Iterable[BundleObject]) -> Iterator[BundleObject]:
    """A bundle for each run of numbers that no bundle has."""
    end = 0
    for bundle in live:
        if bundle.first > end:
            yield BundleObject(end, bundle.first - 1, 0)
        end = max(end, bundle.last + 1)
