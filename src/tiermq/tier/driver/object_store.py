"""ObjectStoreDriver: segments in stores without append: S3, GCS, Azure, and a directory or memory for tests.

    <path>                  the canonical object: a sealed segment, whole
    <path>.parts/<position> the parts of an open segment (see `part_log`), and the seal mark, which stays
    <path>.parts/<position>-<end>   merged parts: the bytes of many small parts in one object
    <path>.parts/bundled    the segment has, or had, ranges in bundles: they count as parts (see `bundle`)
    <path>.damaged-N        what a repair has replaced, or `<path>.damaged-N.parts/<position>`

One write is one object, created only where none exists: the name is the fence. The listing defines the tail; a writer
lists once, then keeps track of its own writes, and lists again after a failed request. After a lost response the object
is read and compared.

Sealing; a crash after any step is safe:
    1. create the mark at the end: from here on every writer fails, also one that was suspended for a day
    2. merge the parts into the canonical object, which appears only when it is complete
    3. delete the parts; as soon as the canonical object exists, they are garbage
The mark stays until the segment is deleted. Without it a stale writer could append a part to a sealed segment.

Merging parts of an open segment; a crash after any step is safe, and a repetition makes the same objects:
    1. create the merged part and compare it with its parts; from here on they are superseded
    2. list, and delete what is superseded: merged parts at once, parts when they are SUPERSEDED_KEPT_MS old
A part's name is what stops a stale writer. So a name stays for twice as long as a writer relies on what it knows about
the end of a segment (VIEW_TRUSTED_MS): later it lists first, and also after a request that took so long. `write` merges
when a segment ends with PARTS_RUN_MAX small parts, `merge` on demand.

A reader that misses a part lists again: another process has sealed or merged. Reads try the canonical object first, so
a range of a sealed segment costs one request even when nothing is known about it.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

from tiermq.clock import HOUR_MS, Clock, SystemClock
from tiermq.errors import (
    CorruptSegment,
    IllegalRange,
    ManifestConflict,
    SegmentConflict,
    SegmentMissing,
    TierError,
    TierUnavailable,
)
from tiermq.message.crc import crc32
from tiermq.tier.driver import contract, part_log
from tiermq.tier.driver.bundle import BundledRange, BundleObject, Directory, Writing
from tiermq.tier.driver.bundle_store import BundleStore
from tiermq.tier.driver.contract import (
    ANY,
    Buffer,
    BundleUpkeep,
    ChunkRange,
    Expected,
    SegmentInfo,
    SegmentWrite,
    StoredObject,
    check_aside,
    check_read,
    joined,
    no_bytes,
    past_the_end,
)
from tiermq.tier.driver.object_requests import Fetched, MultipartTag, ObjectRequests, ObjectStat, PastTheEnd, is_md5_of
from tiermq.tier.driver.part_log import (
    PARTS_SUFFIX,
    BundledWrite,
    PartLog,
    PartObject,
    Piece,
    bundled_path,
    merge_groups,
    own_groups,
    part_object,
    part_path,
    parts_directory,
    sound_prefix,
    with_merged,
    with_ranges,
)
from tiermq.tier.names import (
    OBJECT_SUFFIXES,
    SegmentKey,
    broker_directory,
    check_object_name,
    may_begin_a_name,
    segment_at,
)

_log = logging.getLogger(__name__)

# From a listing of objects to segments. Pure: rows in, `SegmentInfo`s out; foreign objects are skipped.


@dataclass(slots=True)
class _Found:
    key: SegmentKey
    canonical: ObjectStat | None = None
    is_bundled: bool = False
    parts: list[PartObject] = field(default_factory=list)  # The mark included.
    modified_ms: int = 0


def segments_of(
    objects: Iterable[ObjectStat],
    prefix: str = "",
    bundled: Callable[[SegmentKey], _Bundled] | None = None,
    note_open: Callable[[SegmentKey, PartLog], object] = lambda _key, _log: None,
) -> list[SegmentInfo]:
    """Sorted by path; `prefix` is compared with the segment's path. `bundled` returns what is in bundles. `note_open`
    is called with each segment that has no seal, no damage and no superseded part, and what a look at it would find.
    """
    found: dict[str, _Found] = {}
    for stat in objects:
        path, separator, _ = stat.path.partition(PARTS_SUFFIX + "/")
        if not path.startswith(prefix):
            continue
        segment = found.get(path)
        if segment is None:
            key = segment_at(path)
            if key is None:
                continue
            segment = found[path] = _Found(key)
        if not separator:
            segment.canonical = stat
        elif stat.path == bundled_path(path):
            segment.is_bundled = True
            continue
        else:
            part = part_object(path, stat.path, stat.size)
            if part is None:
                continue
            segment.parts.append(part)
        segment.modified_ms = max(segment.modified_ms, stat.modified_ms)
    infos = []
    for _, segment in sorted(found.items()):
        in_bundles = _Bundled((), None, 0)
        if segment.is_bundled and bundled is not None and segment.canonical is None:
            in_bundles = bundled(segment.key)
        if segment.canonical or segment.parts or in_bundles.ranges or in_bundles.damage:
            infos.append(_info(segment, in_bundles, note_open))
    return infos


class _Bundled(NamedTuple):
    """The ranges of a segment in bundles."""

    ranges: Sequence[PartObject]
    damage: str | None  # Why there may be more.
    modified_ms: int


def _info(segment: _Found, bundled: _Bundled, note_open: Callable[[SegmentKey, PartLog], object]) -> SegmentInfo:
    part_count = sum(1 for part in segment.parts if part.length)
    if segment.canonical is not None:
        return SegmentInfo(segment.key, segment.canonical.size, True, part_count, segment.modified_ms)
    sound = sound_prefix([*segment.parts, *bundled.ranges])
    live_count = sum(1 for part in sound.log.objects if not part.bundle)
    merge_count = part_count - live_count + sum(map(len, own_groups(sound.log.objects)))
    if not (sound.log.marked or sound.damage or bundled.damage) and live_count == part_count:
        sound.log.is_bundled = segment.is_bundled
        note_open(segment.key, sound.log)
    return SegmentInfo(
        segment.key,
        sound.log.end,
        sound.log.marked,
        part_count + len(bundled.ranges),
        max(segment.modified_ms, bundled.modified_ms),
        bundled.damage or sound.damage,
        0 if sound.log.marked or sound.damage or bundled.damage else merge_count,
    )


READ_CHUNK_BYTES = 8 << 20  # Ranges of more than 1.5 times this are read in parallel chunks.
VIEWS_MAX = 65_536  # Cached views of segments, two for each queue; a miss costs a listing.
STAGED_SUFFIX = ".replacing"
PARTS_RUN_MAX = 32  # Small parts at the end of a segment that `write` merges.
VIEW_TRUSTED_MS = 3 * HOUR_MS
SUPERSEDED_KEPT_MS = 2 * VIEW_TRUSTED_MS
UNPACKED_BYTES = 64 << 10  # A segment that has so much in bundles gets it as a merged part of its own.
_LOCKS = 512
_TRIES_MAX = 3


@dataclass(frozen=True, slots=True)
class Sealed:
    """The canonical object is there."""

    size: int


View: TypeAlias = Sealed | PartLog


@dataclass(frozen=True, slots=True)
class _Look:
    """The store's current state: the view (None: no objects), and all parts, superseded ones too, without the mark."""

    view: View | None
    parts: dict[PartObject, int]  # The segment's own, and when each was created, in ms.
    is_bundled: bool = False

    def part_paths(self, key: SegmentKey) -> list[str]:
        return [part.path(key.path) for part in self.parts]


class ObjectStoreDriver:
    """Used from any thread. A segment's lock, one of a fixed number, is held while it changes, not while it is read.

    Cached views are hints: an outdated one costs another listing, never a wrong byte.
    """

    def __init__(self, requests: ObjectRequests, url: str, *, workers: int = 8, clock: Clock | None = None) -> None:
        self.url = url
        self.requests = requests
        self._closed = False
        self._clock = clock or SystemClock()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="tier-get")
        self._views: OrderedDict[SegmentKey, View] = OrderedDict()
        self._views_lock = threading.Lock()
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._bundles: dict[str, BundleStore] = {}

    # -- writing -------------------------------------------------------------------------------------------------------

    def write(self, key: SegmentKey, position: int, data: Sequence[Buffer]) -> bool:
        body = joined(data)
        if not body:
            return False
        with self._lock(key):
            log = self._log_to_append(key, position)
            if log.last_bundled is not None and _is_repeated(log.last_bundled, position, body):
                return log.last_bundled.is_confirmed
            missing = contract.missing_suffix(
                key, position, body, log.end, lambda at, length: self.read(key, at, length)
            )
            is_confirmed = self._create_part(key, log, missing) and len(missing) == len(body)
            if missing and log.small_run and log.small_run % PARTS_RUN_MAX == 0:
                self._merge_in_passing(key, log)
            return is_confirmed

    def _create_part(self, key: SegmentKey, log: PartLog, body: memoryview) -> bool:
        """Whether the checksum in the store's response equals ours."""
        is_confirmed = True
        while body:
            # After any error from here on the cached view may be wrong.
            self._forget(key)
            path = part_path(key.path, log.end)
            length = len(body)
            e_tag = self.requests.create(path, body)  # Not copied: nothing changes what waits to be committed.
            is_confirmed = is_confirmed and e_tag is not None and is_md5_of(e_tag, body)
            if e_tag is None:
                length = self._settle(key, log.end, path, body)
            if self._is_outdated(log):
                self._check_created(key, PartObject(log.end, length))
            log.append(length)
            log.checked_ms = self._clock.now_ms()
            self._remember(key, log)
            body = body[length:]
        return is_confirmed

    def _is_outdated(self, log: PartLog) -> bool:
        return self._clock.now_ms() - log.checked_ms > VIEW_TRUSTED_MS

    def _check_created(self, key: SegmentKey, part: PartObject) -> None:
        """The request took hours: the name may have been free only because the part of another writer was merged."""
        view = self._look(key).view
        self._forget(key)
        if isinstance(view, Sealed):
            raise contract.sealed(key)
        if view is None or part not in view.objects:
            raise contract.conflict(key, part.position)

    def _settle(self, key: SegmentKey, position: int, path: str, body: memoryview) -> int:
        """The part exists: ours, if a response was lost or the listing was outdated. Returns its length."""
        present = self.requests.fetch(path)
        if present is None:
            raise TierUnavailable(f"{self.url}/{path}: another write is under way at this position. Try again.")
        if not present.data:
            raise contract.sealed(key)
        common = min(len(present.data), len(body))
        if present.data[:common] != body[:common]:
            raise contract.conflict(key, position)
        return len(present.data)

    def rewrite(self, key: SegmentKey, position: int, data: Buffer) -> None:
        """A part is overwritten as a whole. A sealed segment is staged with the new bytes, and copied over the old
        object atomically.
        """
        check_read(key, position, len(data))
        with self._lock(key):
            look = self._look(key)
            view = look.view
            if view is None:
                raise SegmentMissing(f"{self.url}/{key}: expected a segment, found neither object nor parts")
            end = view.size if isinstance(view, Sealed) else view.end
            if position + len(data) > end:
                raise past_the_end(key, position, len(data), end)
            if isinstance(view, Sealed):
                self._rewrite_canonical(key, end, position, memoryview(data))
                return
            for piece in view.pieces(position, len(data)):
                if piece.part.bundle:
                    at = piece.part.position + piece.start - position
                    patched = memoryview(data)[at : at + piece.length]
                    self._bundles_of(key).patch(piece.part, piece.start, patched)
                    continue
                path = piece.part.path(key.path)
                answer = self.requests.fetch(path)
                if answer is None:
                    raise TierUnavailable(f"{self.url}/{path}: it was deleted while it was rewritten. Try again.")
                at = piece.part.position + piece.start - position
                body = bytearray(answer.data)
                body[piece.start : piece.start + piece.length] = memoryview(data)[at : at + piece.length]
                self.requests.put(path, bytes(body), None, check=False)

    def _rewrite_canonical(self, key: SegmentKey, size: int, position: int, data: memoryview) -> None:
        path, stop = key.path, position + len(data)

        def chunks() -> Iterator[memoryview]:
            for low, high in ((0, position), (stop, size)):
                if low == stop:
                    yield data
                for at in range(low, high, READ_CHUNK_BYTES):
                    chunk = self._read_canonical(key, at, min(READ_CHUNK_BYTES, high - at))
                    if chunk is None:
                        raise TierUnavailable(f"{self.url}/{path}: it was deleted while it was rewritten.")
                    yield chunk

        staged = path + STAGED_SUFFIX
        self.requests.upload(staged, chunks())
        made = self.requests.head(staged)
        if made is None or made.size != size or not self.requests.copy(staged, path):
            raise TierUnavailable(f"{self.url}/{staged}: expected {size} bytes to replace it with. Try again.")
        self.requests.delete([staged])

    def trim(self, key: SegmentKey, size: int) -> None:
        with self._lock(key):
            look = self._look(key)
            if isinstance(look.view, Sealed) or (look.view is not None and look.view.marked):
                raise contract.sealed(key)
            log = look.view or PartLog()
            cut_part = log.pieces(size, 1)[0].part if 0 <= size < log.end and not log.boundary(size) else None
            if not 0 <= size <= log.end or (cut_part is not None and not cut_part.is_merged):
                raise IllegalRange(
                    f"{key}: expected the beginning of one of its {len(log)} parts to trim to, or its end {log.end}; "
                    f"found {size}. Parts are never torn, so there is no tail to cut inside of one."
                )
            if cut_part is not None:
                # What is left of a merged part gets its own name, which counts as soon as the longer one is gone.
                left = PartObject(cut_part.position, size - cut_part.position, is_merged=True)
                self.requests.create(left.path(key.path), bytes(self.read(key, left.position, left.length)))
            self._forget(key)
            live = set(log.objects)
            self.requests.delete([part.path(key.path) for part in look.parts if part.end > size and part not in live])
            # The last one first: a crash in between leaves a shorter segment, not one with a hole.
            for part in reversed(log.objects):
                if part.end > size and part.bundle:
                    self._bundles_of(key).cut(self._segment_in_bundles(key), max(part.position, size))
                elif part.end > size:
                    self.requests.delete([part.path(key.path)])

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, key: SegmentKey, position: int, length: int) -> memoryview:
        check_read(key, position, length)
        view = self._known(key)
        if view is None:
            # Most reads are of sealed segments, so the canonical object is tried first.
            data = self._read_canonical(key, position, length)
            if data is not None:
                return data
        elif isinstance(view, Sealed) or position + length <= view.end:
            data = self._read_view(key, view, position, length)
            if data is not None:
                return data
        for _ in range(_TRIES_MAX):
            view = self._look(key).view
            if view is None:
                raise SegmentMissing(f"{self.url}/{key}: expected a segment, found neither object nor parts")
            end = view.size if isinstance(view, Sealed) else view.end
            if position + length > end:
                raise past_the_end(key, position, length, end)
            data = self._read_view(key, view, position, length)
            if data is not None:
                return data
        raise TierUnavailable(
            f"{self.url}/{key}: its objects were replaced {_TRIES_MAX} times while it was read. Try again."
        )

    def _read_view(self, key: SegmentKey, view: View, position: int, length: int) -> memoryview | None:
        """None when the objects of the view no longer exist."""
        if isinstance(view, Sealed):
            return self._read_canonical(key, position, length)
        path = key.path
        pieces = view.pieces(position, length)
        return self._gather(_ranges_of(path, pieces))

    def _read_canonical(self, key: SegmentKey, position: int, length: int) -> memoryview | None:
        path = key.path
        try:
            if length <= READ_CHUNK_BYTES * 3 // 2:
                return self.requests.fetch_range(path, position, length)
            stop = position + length
            chunks = range(position, stop, READ_CHUNK_BYTES)
            return self._gather([(path, start, min(READ_CHUNK_BYTES, stop - start)) for start in chunks])
        except (PastTheEnd, CorruptSegment):
            found = self.requests.head(path)
            if found is None:
                return None
            if position + length <= found.size:
                raise TierUnavailable(
                    f"{self.url}/{path}: expected {length} bytes at {position} of {found.size}, found fewer: "
                    "the response was cut. Try again."
                ) from None
            raise past_the_end(key, position, length, found.size) from None

    def _gather(self, ranges: list[tuple[str, int, int]]) -> memoryview | None:
        """All ranges, joined; several are read in parallel. None when an object is missing."""
        if len(ranges) == 1:
            # Else `fetch` reports what there is instead.
            with suppress(PastTheEnd):
                return self.requests.fetch_range(*ranges[0])
        answers = [self.requests.fetch(*ranges[0])] if len(ranges) == 1 else self._fetch_at_once(ranges)
        datas: list[memoryview] = []
        for (path, start, length), answer in zip(ranges, answers, strict=True):
            if answer is None:
                return None
            datas.append(_exactly(f"{self.url}/{path}", answer, start, length))
        return datas[0] if len(datas) == 1 else memoryview(b"".join(datas))

    def _fetch_at_once(self, ranges: list[tuple[str, int, int]]) -> list[Fetched | None]:
        if self._closed:
            raise TierUnavailable(f"{self.url}: the driver is closed")
        try:
            return list(self._pool.map(lambda part: self.requests.fetch(*part), ranges))
        except CancelledError:
            raise TierUnavailable(f"{self.url}: the driver was closed while it read") from None

    def reread(self, key: SegmentKey, position: int, length: int) -> memoryview:
        return self.read(key, position, length)

    def size(self, key: SegmentKey) -> int:
        view = self._look(key).view
        return 0 if view is None else view.size if isinstance(view, Sealed) else view.end

    def is_sealed(self, key: SegmentKey) -> bool:
        view = self._known(key)
        if view is None or (isinstance(view, PartLog) and not view.marked):
            view = self._look(key).view
        return isinstance(view, Sealed) or (view is not None and view.marked)

    def list_segments(self, prefix: str = "") -> Iterator[SegmentInfo]:
        """What is open is known from then on, as by a look at each: one listing for many segments."""
        loaded: set[BundleStore] = set()
        began_ms = self._clock.now_ms()

        def note_open(key: SegmentKey, log: PartLog) -> None:
            log.checked_ms = began_ms
            with self._views_lock:
                if len(self._views) < VIEWS_MAX:
                    self._views.setdefault(key, log)

        def bundled(key: SegmentKey) -> _Bundled:
            store = self._bundles_of(key)
            if store not in loaded:
                store.load()
                loaded.add(store)
            segment = self._segment_in_bundles(key)
            damage = next((f"{path}: {text}" for path, text in store.damage.items()), None) or store.lost(segment)
            return _Bundled(store.ranges(segment), damage, store.modified_ms)

        return iter(segments_of(self._below(prefix), prefix, bundled, note_open))

    # -- sealing and deleting ------------------------------------------------------------------------------------------

    def seal(self, key: SegmentKey, *, crc32: int | None = None) -> None:
        with self._lock(key):
            for _ in range(_TRIES_MAX):
                look = self._look(key)
                if look.view is None or (isinstance(look.view, PartLog) and look.view.end == 0):
                    raise SegmentMissing(f"{self.url}/{key}: expected bytes to seal, found none")
                if isinstance(look.view, Sealed):
                    if look.parts:
                        self._check_left(key, look.view.size, crc32)
                        self.requests.delete(look.part_paths(key))
                    return
                if self._mark(key, look.view) and self._merge_all(key, look.view, crc32):
                    self._remember(key, Sealed(look.view.end))
                    self.requests.delete(look.part_paths(key))
                    if look.is_bundled:
                        self._bundles_of(key).note_floor(self._segment_in_bundles(key), look.view.end)
                    return
            raise TierUnavailable(
                f"{self.url}/{key}: other writers changed it {_TRIES_MAX} times while it was sealed. Try again."
            )

    def _mark(self, key: SegmentKey, log: PartLog) -> bool:
        """Create the mark. False when another process has written data or a mark there: list again."""
        if log.marked:
            return True
        self._forget(key)
        log.marked = self.requests.create(part_path(key.path, log.end), b"") is not None
        return log.marked

    def _merge_all(self, key: SegmentKey, log: PartLog, known_crc: int | None) -> bool:
        """Create the canonical object, and compare it. False when parts are missing: another sealer was faster."""
        path = key.path
        tag, crc = MultipartTag(), 0
        part: memoryview | None = None

        def passed_on() -> Iterator[memoryview]:
            nonlocal crc
            for chunk in self._all_parts(key, log):
                tag.add(chunk)
                crc = crc32(chunk, crc)
                yield chunk

        try:
            if len(log) == 1 and not log.objects[0].bundle:
                part = next(self._all_parts(key, log))
                crc = crc32(part)
                if not self.requests.copy(log.objects[0].path(path), path):
                    return False
            else:
                self.requests.upload(path, passed_on())
        except _PartGone:
            return False
        made = self.requests.head(path)
        if made is None:
            return False
        if made.size != log.end:
            self.requests.delete([path])
            raise CorruptSegment(
                f"{self.url}/{path}: expected {log.end} bytes after the merge, found {made.size}. "
                "The parts are untouched, the object was removed; seal it again."
            )
        is_confirmed = is_md5_of(made.e_tag, part) if part is not None else tag.matches(made.e_tag)
        expected = crc if known_crc is None else known_crc
        found = crc if is_confirmed else self._crc_of(key, made.size)
        if found != expected:
            self.requests.delete([path])
            raise _unlike(f"{self.url}/{path}", expected, found)
        return True

    def _check_left(self, key: SegmentKey, size: int, known_crc: int | None) -> None:
        """An interrupted seal may not have compared: its parts are deleted only when the object is correct."""
        found = None if known_crc is None else self._crc_of(key, size)
        if known_crc is not None and found is not None and found != known_crc:
            if part_log.sound_prefix(self._stats(key)[0]).log.end == size:
                self._forget(key)
                self.requests.delete([key.path])  # All parts exist: the object can be created again.
            raise _unlike(f"{self.url}/{key.path}", known_crc, found)

    def _crc_of(self, key: SegmentKey, size: int) -> int:
        """The checksum of the canonical object, read back."""
        crc = 0
        for at in range(0, size, READ_CHUNK_BYTES):
            chunk = self._read_canonical(key, at, min(READ_CHUNK_BYTES, size - at))
            if chunk is None:
                raise TierUnavailable(f"{self.url}/{key}: it was deleted while it was compared. Try again.")
            crc = crc32(chunk, crc)
        return crc

    def _all_parts(self, key: SegmentKey, log: PartLog) -> Iterator[memoryview]:
        path = key.path
        for piece in log.pieces(0, log.end):
            part = piece.part
            name = part.path(path)
            answer = self.requests.fetch(name, part.offset, part.length) if part.bundle else self.requests.fetch(name)
            if answer is None:
                raise _PartGone
            yield _exactly(f"{self.url}/{name}", answer, part.offset, part.length)[piece.start :]

    # -- merging parts of an open segment ------------------------------------------------------------------------------

    def merge(self, key: SegmentKey) -> int:
        with self._lock(key):
            view = self._look(key).view
            if not isinstance(view, PartLog) or view.marked:
                return 0
            merged_count = self._merge_parts(key, view, own_groups(view.objects))
            if merged_count or view.superseded_ms is not None:
                self._delete_superseded(key)
            return merged_count

    def _merge_in_passing(self, key: SegmentKey, log: PartLog) -> None:
        """The write is acknowledged whether this succeeds or not; it is tried again after as many parts."""
        since_ms = log.superseded_ms
        try:
            self._merge_parts(key, log, merge_groups(log.objects))
            if since_ms is not None and self._clock.now_ms() - since_ms > SUPERSEDED_KEPT_MS:
                self._delete_superseded(key)
        except TierError as error:
            _log.warning("%s/%s: its small parts are merged later: %s", self.url, key, error)

    def _merge_parts(self, key: SegmentKey, log: PartLog, groups: Sequence[tuple[PartObject, ...]]) -> int:
        """Merge small parts; the number of objects that are superseded now."""
        done = [group for group in groups if self._merge_group(key, log, group)]
        if done:
            self._remember(key, with_merged(log, map(_merged, done), self._clock.now_ms()))
            if any(part.bundle for group in done for part in group):
                floor = max(group[-1].end for group in done)
                self._bundles_of(key).note_floor(self._segment_in_bundles(key), floor)
        return sum(map(len, done))

    def _delete_superseded(self, key: SegmentKey) -> None:
        look = self._look(key)
        log = look.view
        if not isinstance(log, PartLog) or log.marked:
            return
        live, kept_from_ms = set(log.objects), self._clock.now_ms() - SUPERSEDED_KEPT_MS
        superseded = {part: created_ms for part, created_ms in look.parts.items() if part not in live}
        kept = {part: ms for part, ms in superseded.items() if not part.is_merged and ms >= kept_from_ms}
        self.requests.delete([part.path(key.path) for part in superseded if part not in kept])
        log.superseded_ms = min(kept.values(), default=None)

    def _merge_group(self, key: SegmentKey, log: PartLog, group: Sequence[PartObject]) -> bool:
        """Create the merged part of a run of parts, and compare it. False when one of them is gone."""
        made = _merged(group)
        path = made.path(key.path)
        data = self._gather(_ranges_of(key.path, log.pieces(made.position, made.length)))
        if data is None:
            return False
        e_tag = self.requests.create(path, bytes(data))
        if e_tag is None or not is_md5_of(e_tag, data):
            stored = self.requests.fetch(path)
            if stored is None or stored.data != data:
                if e_tag is not None:
                    self.requests.delete([path])
                raise _unlike(f"{self.url}/{path}", crc32(data), 0 if stored is None else crc32(stored.data))
        return True

    def delete(self, key: SegmentKey) -> None:
        with self._lock(key):
            self._forget(key)
            path = key.path
            found, is_bundled = self._stats(key)
            parts = sorted(found, reverse=True)
            if is_bundled:
                self._bundles_of(key).cut(self._segment_in_bundles(key), 0)
            data = [part.path(path) for part in parts if part.length]
            marks = [part.path(path) for part in parts if not part.length]
            # Parts before the mark, the mark before the object: a crash in between never makes old parts live again.
            self.requests.delete(data)
            self.requests.delete(marks)
            self.requests.delete([path])
            self.requests.delete([bundled_path(path)] if is_bundled else [])

    def replace(
        self, key: SegmentKey, pieces: Iterable[Buffer], aside: str, *, old_size: int | None = None
    ) -> str | None:
        path = key.path
        kept, staged = f"{path}.{check_aside(aside)}", path + STAGED_SUFFIX
        with self._lock(key):
            size = self._stage(key, staged, pieces)
            self._forget(key)
            if old_size is not None:
                sizes = (info.size for info in self.list_segments(path) if info.key == key)
                try:
                    contract.require_size(key, next(sizes, 0), old_size)
                except SegmentConflict:
                    self.requests.delete([staged])
                    raise
            found_rows, is_bundled = self._stats(key)
            rows = sorted(found_rows, reverse=True)
            in_bundles = self._keep_ranges(key, kept) if is_bundled else False
            canonical = self.requests.head(path)
            if canonical is not None or any(part.length == 0 for part in rows):
                found = canonical is not None and (
                    self.requests.head(kept) is not None or self.requests.copy(path, kept)
                )
                self._keep_parts(path, kept, rows)
                self.requests.copy(staged, path)
                self.requests.delete([part.path(path) for part in rows if part.length])
                if in_bundles:
                    self._bundles_of(key).cut(self._segment_in_bundles(key), 0)
            elif self._is_whole(key, rows, size):
                found = False
                self._keep_parts(path, kept, rows)
                made = PartObject(0, size, is_merged=True).path(path)
                self.requests.copy(staged, made)  # From here on all others are superseded.
                self.requests.delete([part.path(path) for part in rows if part.path(path) != made])
                if in_bundles:
                    self._bundles_of(key).note_floor(self._segment_in_bundles(key), size)
            else:
                found = False
                self._keep_parts(path, kept, rows)
                self.requests.delete([part.path(path) for part in rows])
                if in_bundles:
                    self._bundles_of(key).cut(self._segment_in_bundles(key), 0)
                self.requests.copy(staged, part_path(path, 0))
            self._forget(key)
            self.requests.delete([staged])
        return kept if found else parts_directory(kept) if rows or in_bundles else None

    def _is_whole(self, key: SegmentKey, rows: Iterable[PartObject], size: int) -> bool:
        """Whether these parts, and ranges in bundles, are an open segment of that size."""
        ranges = self._bundles_of(key).ranges(self._segment_in_bundles(key))
        sound = sound_prefix([*rows, *ranges])
        return sound.damage is None and sound.log.end == size

    def _stage(self, key: SegmentKey, staged: str, pieces: Iterable[Buffer]) -> int:
        self.requests.upload(staged, (memoryview(piece) for piece in pieces if piece))
        made = self.requests.head(staged)
        if made is None or made.size == 0:
            self.requests.delete([staged])
            raise no_bytes(key)
        return made.size

    def _keep_parts(self, path: str, kept: str, rows: Sequence[PartObject]) -> None:
        """Copy each part separately: they may be inconsistent, and none may be lost."""
        for part in rows:
            if part.length and self.requests.head(part.path(kept)) is None:
                self.requests.copy(part.path(path), part.path(kept))

    def _keep_ranges(self, key: SegmentKey, kept: str) -> bool:
        """Copy the ranges in bundles as parts; whether there are any."""
        store = self._bundles_of(key)
        store.load()
        ranges = store.ranges(self._segment_in_bundles(key))
        for part in ranges:
            answer = self.requests.fetch(part.bundle, part.offset, part.length)
            if answer is not None:
                self.requests.create(part_path(kept, part.position), bytes(answer.data))
        return store.has_ranges(self._segment_in_bundles(key))

    # -- bundles -------------------------------------------------------------------------------------------------------

    def fence_bundles(self, directory: str, *, create: bool) -> None:
        self._bundle_store(directory).fence(create=create)

    def write_bundle(self, writes: Sequence[SegmentWrite]) -> list[bool]:
        """One object for all. Raises BundlesFenced unless `fence_bundles` was called."""
        if not writes:
            return []
        bodies = [joined(write.data) for write in writes]
        store = self._bundles_of(writes[0].key)
        with ExitStack() as locks:
            for lock in sorted({hash(write.key) % _LOCKS for write in writes}):
                locks.enter_context(self._locks[lock])
            logs = [self._log_to_append(write.key, write.position) for write in writes]
            missing = [
                contract.missing_suffix(write.key, write.position, body, log.end, partial(self.read, write.key))
                for write, body, log in zip(writes, bodies, logs, strict=True)
            ]
            wanted = [number for number, body in enumerate(missing) if body]
            unmarked = [writes[number].key.path for number in wanted if not logs[number].is_bundled]
            for number in wanted:
                self._forget(writes[number].key)  # After any error from here on the cached view may be wrong.
            list(self._pool.map(lambda path: self.requests.put(bundled_path(path), b"", None, check=False), unmarked))
            parts, is_confirmed = store.append(
                [
                    Writing(self._segment_in_bundles(writes[number].key), logs[number].end, missing[number])
                    for number in wanted
                ]
            )
            confirmed = [False] * len(writes)
            for number, part in zip(wanted, parts, strict=True):
                log, body = logs[number], bodies[number]
                log.add(part)
                log.is_bundled, log.checked_ms = True, self._clock.now_ms()
                confirmed[number] = is_confirmed and part.length == len(body)
                digest = hashlib.md5(body, usedforsecurity=False).digest()
                log.last_bundled = BundledWrite(writes[number].position, len(body), digest, confirmed[number])
                self._remember(writes[number].key, log)
                if log.bundled_bytes >= UNPACKED_BYTES:
                    self._merge_in_passing(writes[number].key, log)
            self._merge_bundles(store)
            return confirmed

    @property
    def packs_chunks(self) -> bool:
        return True

    def put_chunk(self, directory: str, data: bytes) -> str:
        return self._bundle_store(directory).put_chunk(data)

    def commit_chunks(self, directory: str, ranges: Sequence[ChunkRange], notes: Mapping[str, str]) -> None:
        """One object, and a mark for each segment that is in no bundle, as far as this process knows."""
        store = self._bundle_store(directory)
        entries = [
            BundledRange(self._segment_in_bundles(each.key), each.position, each.length, each.offset, False, each.chunk)
            for each in ranges
        ]
        unmarked = [
            each.key.path for each, entry in zip(ranges, entries, strict=True) if not store.has_ranges(entry.segment)
        ]
        list(self._pool.map(lambda path: self.requests.put(bundled_path(path), b"", None, check=False), unmarked))
        try:
            store.commit_chunks(entries, notes)
        finally:
            for each in ranges:
                self._forget(each.key)

    def bundle_notes(self, directory: str) -> Mapping[str, str]:
        store = self._bundle_store(directory)
        store.load()
        return store.notes()

    def bundle_upkeep(self, directory: str) -> BundleUpkeep | None:
        numbers, segments = self._bundle_store(directory).due(UNPACKED_BYTES)
        keys = [key for segment in segments if (key := segment_at(f"{directory}/{segment}")) is not None]
        return BundleUpkeep(numbers, tuple(keys)) if numbers or keys else None

    def tend_bundles(self, directory: str, upkeep: BundleUpkeep) -> dict[SegmentKey, int]:
        floors = {key: floor for key in upkeep.segments if (floor := self._unpack(key))}
        if upkeep.numbers is not None:
            self._merge_bundles(self._bundle_store(directory), upkeep.numbers)
        return floors

    def _unpack(self, key: SegmentKey) -> int:
        """Store ranges of a segment as objects of its own; up to where it has no range any more."""
        with self._lock(key):
            view = self._look(key).view
            if isinstance(view, PartLog) and not view.marked:
                self._merge_parts(key, view, merge_groups(view.objects))
                view = self._known(key)
            if view is None or isinstance(view, Sealed):
                return 0 if view is None else view.size
            return next((part.position for part in view.objects if part.bundle), view.end)

    def bundles_tended(self, directory: str, floors: Mapping[SegmentKey, int]) -> None:
        store = self._bundle_store(directory)
        for key, floor in floors.items():
            store.note_floor(self._segment_in_bundles(key), floor)
        store.forget()

    def _log_to_append(self, key: SegmentKey, position: int) -> PartLog:
        """The log of an open segment, listed if it is not known. The caller holds the segment's lock."""
        log = self._known(key)
        if log is None or (isinstance(log, PartLog) and (position > log.end or self._is_outdated(log))):
            log = self._look(key).view  # Unknown, or another process may have appended since.
        if isinstance(log, Sealed) or (log is not None and log.marked):
            raise contract.sealed(key)
        if log is None:
            log = PartLog()
            log.checked_ms = self._clock.now_ms()
        return log

    def _merge_bundles(self, store: BundleStore, numbers: tuple[int, int] | None = None) -> None:
        """The write is acknowledged whether this succeeds or not; it is tried again with the next one."""
        try:
            moved = set(store.merge(SUPERSEDED_KEPT_MS, numbers))
        except TierError as error:
            _log.warning("%s/%s: its bundles are merged later: %s", self.url, store.broker_directory, error)
            return
        if not moved:
            return
        with self._views_lock:
            for key, view in list(self._views.items()):
                segment = self._segment_in_bundles(key)
                if isinstance(view, PartLog) and view.bundled_bytes and segment in moved:
                    self._views[key] = with_ranges(view, store.ranges(segment))

    def repair_bundles(self, directory: str, aside: str) -> list[str]:
        made = self._bundle_store(directory).repair(check_aside(aside))
        with self._views_lock:
            self._views.clear()
        return made

    def _bundles_of(self, key: SegmentKey) -> BundleStore:
        return self._bundle_store(broker_directory(key.cluster, key.broker))

    def _bundle_store(self, directory: str) -> BundleStore:
        with self._views_lock:
            store = self._bundles.get(directory)
            if store is None:
                store = BundleStore(self.requests, self.url, directory, self._map_at_once, self._clock, VIEW_TRUSTED_MS)
                self._bundles[directory] = store
            return store

    def _map_at_once(self, read: Callable[[BundleObject], Directory], bundles: list[BundleObject]) -> list[Directory]:
        return [read(bundle) for bundle in bundles] if len(bundles) < 2 else list(self._pool.map(read, bundles))

    @staticmethod
    def _segment_in_bundles(key: SegmentKey) -> str:
        """The segment's path below its broker's directory."""
        return key.path.split("/", 2)[2]

    # -- small objects -------------------------------------------------------------------------------------------------

    def get_object(self, name: str) -> StoredObject | None:
        found = self.requests.fetch(check_object_name(name))
        return None if found is None else StoredObject(bytes(found.data), found.version)

    def put_object(self, name: str, data: bytes, *, expected: Expected = ANY) -> str:
        check_object_name(name)
        if expected is ANY:
            version = self.requests.put(name, data, None, check=False)
        else:
            version = self.requests.put(name, data, expected, check=True)
        if version is not None:
            return version
        current = self.get_object(name)
        if current is not None and current.data == data:
            return current.version  # Ours: the response to an earlier try was lost.
        raise ManifestConflict(
            f"{self.url}/{name}: expected version {expected!r}, found {current.version if current else None!r}. "
            "Read it again and retry."
        )

    def delete_object(self, name: str) -> None:
        self.requests.delete([check_object_name(name)])

    def list_objects(self, prefix: str = "") -> list[str]:
        return sorted(
            stat.path
            for stat in self._below(prefix)
            if stat.path.endswith(OBJECT_SUFFIXES) and stat.path.startswith(prefix)
        )

    def _below(self, prefix: str) -> list[ObjectStat]:
        """All objects of the directory of `prefix`; none for a prefix with '..', which the client would follow."""
        return self.requests.list(prefix.rpartition("/")[0]) if may_begin_a_name(prefix) else []

    def close(self) -> None:
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- what is known -------------------------------------------------------------------------------------------------

    def _stats(self, key: SegmentKey) -> tuple[dict[PartObject, int], bool]:
        """Every part, the mark included, and when it was created, in ms; whether the segment is in bundles."""
        found, is_bundled = {}, False
        for stat in self.requests.list(parts_directory(key.path)):
            part = part_object(key.path, stat.path, stat.size)
            if part is not None:
                found[part] = stat.modified_ms
            is_bundled = is_bundled or stat.path == bundled_path(key.path)
        return found, is_bundled

    def _look(self, key: SegmentKey) -> _Look:
        """List the segment's objects. A damaged listing is read twice before it counts."""
        for last in (False, True):
            stats, is_bundled = self._stats(key)
            parts = {part: created_ms for part, created_ms in stats.items() if part.length}
            canonical: ObjectStat | None = None
            if len(parts) < len(stats) or not stats:
                # Parts that are being deleted leave holes in the listing, so the object is checked first.
                canonical = self.requests.head(key.path)
            rows = list(stats)
            if is_bundled and canonical is None:
                store = self._bundles_of(key)
                store.load()
                store.require_whole()
                lost = store.lost(self._segment_in_bundles(key))
                if lost is not None and last:
                    raise _lost(f"{self.url}/{lost}")
                if lost is not None:
                    continue
                rows += store.ranges(self._segment_in_bundles(key))
            sound = part_log.sound_prefix(rows)
            if canonical is not None or sound.damage is None or last:
                break
        if canonical is not None:
            return _Look(self._remember(key, Sealed(canonical.size)), parts, is_bundled)
        if not rows:
            self._forget(key)
            return _Look(None, {}, is_bundled)
        log = part_log.from_listing(f"{self.url}/{key}", rows)
        log.checked_ms = self._clock.now_ms()
        log.is_bundled = is_bundled
        log.superseded_ms = min((parts[part] for part in parts.keys() - set(log.objects)), default=None)
        return _Look(self._remember(key, log), parts, is_bundled)

    def _known(self, key: SegmentKey) -> View | None:
        with self._views_lock:
            view = self._views.get(key)
            if view is not None:
                self._views.move_to_end(key)
            return view

    def _remember(self, key: SegmentKey, view: View) -> View:
        with self._views_lock:
            self._views[key] = view
            self._views.move_to_end(key)
            while len(self._views) > VIEWS_MAX:
                self._views.popitem(last=False)
        return view

    def _forget(self, key: SegmentKey) -> None:
        with self._views_lock:
            self._views.pop(key, None)

    def _lock(self, key: SegmentKey) -> threading.Lock:
        return self._locks[hash(key) % _LOCKS]


def _unlike(where: str, expected: int, found: int) -> CorruptSegment:
    return CorruptSegment(
        f"{where}: expected one object with the bytes that were written, checksum {expected:#010x}, found "
        f"{found:#010x}. No part was deleted; `tiermq tier verify` lists what is damaged."
    )


def _lost(text: str) -> CorruptSegment:
    return CorruptSegment(f"{text}. `tiermq tier repair --store` restores what it had from the local store.")


def _merged(group: Sequence[PartObject]) -> PartObject:
    return PartObject(group[0].position, group[-1].end - group[0].position, is_merged=True)


def _is_repeated(last: BundledWrite, position: int, body: bytes) -> bool:
    if (last.position, last.length) != (position, len(body)):
        return False
    return last.digest == hashlib.md5(body, usedforsecurity=False).digest()


def _ranges_of(path: str, pieces: Sequence[Piece]) -> list[tuple[str, int, int]]:
    """What to read; neighbours in one bundle with one request."""
    found: list[tuple[str, int, int]] = []
    for piece in pieces:
        name, start, length = piece.part.path(path), piece.part.offset + piece.start, piece.length
        if found and found[-1][0] == name and found[-1][1] + found[-1][2] == start:
            start, length = found[-1][1], found[-1][2] + length
            found.pop()
        found.append((name, start, length))
    return found


class _PartGone(Exception):
    """A part of the log no longer exists."""


def _exactly(where: str, answer: Fetched, start: int, length: int) -> memoryview:
    if len(answer.data) != length:
        raise CorruptSegment(
            f"{where}: expected {length} bytes at {start}, found an object of {answer.object_size} bytes. "
            "It was cut or replaced since it was listed; 'tiermq tier verify' lists what is lost."
        )
    return answer.data
