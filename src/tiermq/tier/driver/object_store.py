"""ObjectStoreDriver: segments where nothing can be appended to. S3, GCS, Azure, and a directory or memory for tests.

    <path>                  the canonical object: a sealed segment, whole
    <path>.parts/<position> the parts of an open one (see `part_log`), and the seal mark, which stays
    <path>.damaged-N        what a repair has replaced, or `<path>.damaged-N.parts/<position>`

One write is one object, created only where none is: the name is the fence. The listing is the truth about the tail; a
writer lists once and then knows its own writes, and forgets what it knows whenever a request fails. An answer that was
lost is settled by reading what is there and comparing.

Sealing, each step safe to die after:
    1. create the mark at the end: from here on every writer loses, also one that has slept for a day
    2. merge the parts into the canonical object, which appears only when it is complete
    3. delete the parts; as soon as the canonical object exists, they are garbage, and `<path>` is what counts
The mark stays until the segment is deleted. Without it a stale writer could create a part behind a sealed segment and
believe in it.

A reader that finds a part gone looks again: another process has sealed. It asks for the canonical object first, so a
range of a sealed segment costs one request even when nothing is known about it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from tiermq.errors import CorruptSegment, IllegalRange, ManifestConflict, SegmentMissing, TierUnavailable
from tiermq.message.crc import crc32
from tiermq.tier.driver import append_rule, part_log
from tiermq.tier.driver.contract import (
    ANY,
    Buffer,
    Expected,
    SegmentInfo,
    StoredObject,
    check_aside,
    check_read,
    joined,
    no_bytes,
    past_the_end,
)
from tiermq.tier.driver.object_errors import PastTheEnd
from tiermq.tier.driver.object_listing import segments_of
from tiermq.tier.driver.object_requests import Fetched, MultipartTag, ObjectRequests, ObjectStat, is_md5_of
from tiermq.tier.driver.part_log import PartLog, part_path, part_position, parts_directory
from tiermq.tier.names import OBJECT_SUFFIXES, SegmentKey, check_object_name, may_begin_a_name

READ_CHUNK_BYTES = 8 << 20  # Ranges of more than one and a half of this are asked for in pieces, at the same time.
VIEWS_MAX = 16_384  # Segments whose shape is remembered; forgetting one costs a listing.
STAGED_SUFFIX = ".replacing"
_LOCKS = 512
_LOOKS_MAX = 3


@dataclass(frozen=True, slots=True)
class Sealed:
    """The canonical object is there."""

    size: int


View: TypeAlias = Sealed | PartLog


@dataclass(frozen=True, slots=True)
class _Look:
    """What the store says now: the view (None: nothing there), and the paths of parts, without the mark."""

    view: View | None
    part_paths: list[str]


class ObjectStoreDriver:
    """Used from any thread. A segment's lock, one of a fixed number, is held while it changes, not while it is read.

    What is remembered about segments is only ever a hint: a view that is behind costs another look, never a wrong byte.
    """

    def __init__(self, requests: ObjectRequests, url: str, *, workers: int = 8) -> None:
        self.url = url
        self.requests = requests
        self._closed = False
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="tier-get")
        self._views: OrderedDict[SegmentKey, View] = OrderedDict()
        self._views_lock = threading.Lock()
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    # -- writing -------------------------------------------------------------------------------------------------------

    def write(self, key: SegmentKey, position: int, data: Sequence[Buffer]) -> bool:
        body = joined(data)
        if not body:
            return False
        with self._lock(key):
            log = self._known(key)
            if log is None or (isinstance(log, PartLog) and position > log.end):
                log = self._look(key).view  # Unknown, or someone else has appended since.
            if isinstance(log, Sealed) or (log is not None and log.marked):
                raise append_rule.sealed(key)
            log = PartLog() if log is None else log
            missing = append_rule.missing_suffix(
                key, position, body, log.end, lambda at, length: self.read(key, at, length)
            )
            return self._create_part(key, log, missing) and len(missing) == len(body)

    def _create_part(self, key: SegmentKey, log: PartLog, body: memoryview) -> bool:
        """Whether the store's checksum of all of it, which comes with the answer, is ours."""
        is_confirmed = True
        while body:
            # Whatever goes wrong from here on, what we know may be wrong as well.
            self._forget(key)
            path = part_path(key.path, log.end)
            length = len(body)
            e_tag = self.requests.create(path, bytes(body))
            is_confirmed = is_confirmed and e_tag is not None and is_md5_of(e_tag, body)
            if e_tag is None:
                length = self._settle(key, log.end, path, body)
            log.append(length)
            self._remember(key, log)
            body = body[length:]
        return is_confirmed

    def _settle(self, key: SegmentKey, position: int, path: str, body: memoryview) -> int:
        """There is a part already: ours, if an answer was lost or the listing was behind. Returns its length."""
        present = self.requests.fetch(path)
        if present is None:
            raise TierUnavailable(f"{self.url}/{path}: another write is under way at this position. Try again.")
        if not present.data:
            raise append_rule.sealed(key)
        common = min(len(present.data), len(body))
        if present.data[:common] != body[:common]:
            raise append_rule.conflict(key, position)
        return len(present.data)

    def rewrite(self, key: SegmentKey, position: int, data: Buffer) -> None:
        """A part is put again as a whole, over the old one. A sealed segment is staged with the new bytes in it, and
        copied over the old object: it has all of the old bytes or all of the new ones at every moment.
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
                path = part_path(key.path, piece.part)
                answer = self.requests.fetch(path)
                if answer is None:
                    raise TierUnavailable(f"{self.url}/{path}: it went away while it was written again. Try again.")
                at = piece.part + piece.start - position
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
                        raise TierUnavailable(f"{self.url}/{path}: it went away while it was written again.")
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
                raise append_rule.sealed(key)
            log = look.view or PartLog()
            if not 0 <= size <= log.end or not log.boundary(size):
                raise IllegalRange(
                    f"{key}: expected the beginning of one of its {len(log)} parts to trim to, or its end {log.end}; "
                    f"found {size}. Parts are never torn, so there is no tail to cut inside of one."
                )
            self._forget(key)
            # The last one first: dying in between leaves a shorter segment, not one with a hole.
            for position in reversed(log.positions):
                if position >= size:
                    self.requests.delete([part_path(key.path, position)])

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, key: SegmentKey, position: int, length: int) -> memoryview:
        check_read(key, position, length)
        view = self._known(key)
        if view is None:
            # Most of what is read is sealed, so that is tried before anything is asked about the segment.
            data = self._read_canonical(key, position, length)
            if data is not None:
                return data
        elif isinstance(view, Sealed) or position + length <= view.end:
            data = self._read_view(key, view, position, length)
            if data is not None:
                return data
        for _ in range(_LOOKS_MAX):
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
            f"{self.url}/{key}: its objects went away {_LOOKS_MAX} times while it was read. Try again."
        )

    def _read_view(self, key: SegmentKey, view: View, position: int, length: int) -> memoryview | None:
        """None when what the view names is not there any more."""
        if isinstance(view, Sealed):
            return self._read_canonical(key, position, length)
        path = key.path
        pieces = view.pieces(position, length)
        ranges = [(part_path(path, piece.part), piece.start, piece.length) for piece in pieces]
        return self._gather(ranges)

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
                    "the answer was cut. Try again."
                ) from None
            raise past_the_end(key, position, length, found.size) from None

    def _gather(self, ranges: list[tuple[str, int, int]]) -> memoryview | None:
        """All ranges, joined; at the same time when there are several. None when an object is missing."""
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
        return iter(segments_of(self._below(prefix), prefix))

    # -- sealing and deleting ------------------------------------------------------------------------------------------

    def seal(self, key: SegmentKey, *, crc32: int | None = None) -> None:
        with self._lock(key):
            for _ in range(_LOOKS_MAX):
                look = self._look(key)
                if look.view is None or (isinstance(look.view, PartLog) and look.view.end == 0):
                    raise SegmentMissing(f"{self.url}/{key}: expected bytes to seal, found none")
                if isinstance(look.view, Sealed):
                    if look.part_paths:
                        self._check_left(key, look.view.size, crc32)
                        self.requests.delete(look.part_paths)
                    return
                if self._mark(key, look.view) and self._merge(key, look.view, crc32):
                    self._remember(key, Sealed(look.view.end))
                    self.requests.delete(look.part_paths)
                    return
            raise TierUnavailable(
                f"{self.url}/{key}: others changed it {_LOOKS_MAX} times while it was sealed. Try again."
            )

    def _mark(self, key: SegmentKey, log: PartLog) -> bool:
        """Fence the end. False when someone else has written there, data or a mark of their own: look again."""
        if log.marked:
            return True
        self._forget(key)
        log.marked = self.requests.create(part_path(key.path, log.end), b"") is not None
        return log.marked

    def _merge(self, key: SegmentKey, log: PartLog, known_crc: int | None) -> bool:
        """Make the canonical object, and compare it. False when parts went away: another sealer was faster."""
        path = key.path
        tag, crc = MultipartTag(), 0

        def passed_on() -> Iterator[memoryview]:
            nonlocal crc
            for part in self._all_parts(key, log):
                tag.add(part)
                crc = crc32(part, crc)
                yield part

        try:
            if len(log) == 1:
                part = next(self._all_parts(key, log))
                crc = crc32(part)
                if not self.requests.copy(part_path(path, 0), path):
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
        is_confirmed = is_md5_of(made.e_tag, part) if len(log) == 1 else tag.matches(made.e_tag)
        expected = crc if known_crc is None else known_crc
        found = crc if is_confirmed else self._crc_of(key, made.size)
        if found != expected:
            self.requests.delete([path])
            raise _unlike(f"{self.url}/{path}", expected, found)
        return True

    def _check_left(self, key: SegmentKey, size: int, known_crc: int | None) -> None:
        """A seal that died may have died before it compared: its parts go only when the object is right."""
        found = None if known_crc is None else self._crc_of(key, size)
        if known_crc is not None and found is not None and found != known_crc:
            if part_log.sound_prefix(self._rows(key)).log.end == size:
                self._forget(key)
                self.requests.delete([key.path])  # All parts are there: it can be made from them again.
            raise _unlike(f"{self.url}/{key.path}", known_crc, found)

    def _crc_of(self, key: SegmentKey, size: int) -> int:
        """The checksum of the canonical object, read back."""
        crc = 0
        for at in range(0, size, READ_CHUNK_BYTES):
            chunk = self._read_canonical(key, at, min(READ_CHUNK_BYTES, size - at))
            if chunk is None:
                raise TierUnavailable(f"{self.url}/{key}: it went away while it was compared. Try again.")
            crc = crc32(chunk, crc)
        return crc

    def _all_parts(self, key: SegmentKey, log: PartLog) -> Iterator[memoryview]:
        path = key.path
        for piece in log.pieces(0, log.end):
            name = part_path(path, piece.part)
            answer = self.requests.fetch(name)
            if answer is None:
                raise _PartGone
            yield _exactly(f"{self.url}/{name}", answer, 0, piece.length)

    def delete(self, key: SegmentKey) -> None:
        with self._lock(key):
            self._forget(key)
            path = key.path
            parts = sorted(self._rows(key), reverse=True)
            data = [part_path(path, position) for position, length in parts if length]
            marks = [part_path(path, position) for position, length in parts if not length]
            # Parts before the mark, the mark before the object: dying in between never brings old parts to life.
            self.requests.delete(data)
            self.requests.delete(marks)
            self.requests.delete([path])

    def replace(self, key: SegmentKey, pieces: Iterable[Buffer], aside: str) -> str | None:
        path = key.path
        kept, staged = f"{path}.{check_aside(aside)}", path + STAGED_SUFFIX
        with self._lock(key):
            self._stage(key, staged, pieces)
            self._forget(key)
            rows = sorted(self._rows(key), reverse=True)
            canonical = self.requests.head(path)
            if canonical is not None or any(length == 0 for _, length in rows):
                found = canonical is not None and (
                    self.requests.head(kept) is not None or self.requests.copy(path, kept)
                )
                self._keep_parts(path, kept, rows)
                self.requests.copy(staged, path)
                self.requests.delete([part_path(path, position) for position, length in rows if length])
            else:
                found = False
                self._keep_parts(path, kept, rows)
                self.requests.delete([part_path(path, position) for position, _ in rows])
                self.requests.copy(staged, part_path(path, 0))
            self._forget(key)
            self.requests.delete([staged])
        return kept if found else parts_directory(kept) if rows else None

    def _stage(self, key: SegmentKey, staged: str, pieces: Iterable[Buffer]) -> None:
        self.requests.upload(staged, (memoryview(piece) for piece in pieces if piece))
        made = self.requests.head(staged)
        if made is None or made.size == 0:
            self.requests.delete([staged])
            raise no_bytes(key)

    def _keep_parts(self, path: str, kept: str, rows: Sequence[tuple[int, int]]) -> None:
        """Each part by itself: they may not fit together any more, and nothing of them shall be lost."""
        for position, length in rows:
            if length and self.requests.head(part_path(kept, position)) is None:
                self.requests.copy(part_path(path, position), part_path(kept, position))

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
            return current.version  # Ours: the answer to an earlier try was lost on its way.
        raise ManifestConflict(
            f"{self.url}/{name}: expected version {expected!r}, found {current.version if current else None!r}. "
            "Read it again and decide anew."
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
        """Everything of the directory in which names begin with `prefix`; the client would follow '..', or refuse."""
        return self.requests.list(prefix.rpartition("/")[0]) if may_begin_a_name(prefix) else []

    def close(self) -> None:
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- what is known -------------------------------------------------------------------------------------------------

    def _rows(self, key: SegmentKey) -> list[tuple[int, int]]:
        """(position, length) of every part, the mark included."""
        path = key.path
        rows = [(part_position(path, stat.path), stat.size) for stat in self.requests.list(parts_directory(path))]
        return [(position, size) for position, size in rows if position is not None]

    def _look(self, key: SegmentKey) -> _Look:
        """Ask the store. A damaged listing is asked for twice before it is believed."""
        for last in (False, True):
            rows = self._rows(key)
            paths = [part_path(key.path, position) for position, length in rows if length]
            marked = any(length == 0 for _, length in rows)
            canonical: ObjectStat | None = None
            if marked or not rows:
                # Parts that are being deleted leave holes in the listing, so the object is looked for first.
                canonical = self.requests.head(key.path)
            sound = part_log.sound_prefix(rows)
            if canonical is not None or sound.damage is None or last:
                break
        if canonical is not None:
            return _Look(self._remember(key, Sealed(canonical.size)), paths)
        if not rows:
            self._forget(key)
            return _Look(None, [])
        return _Look(self._remember(key, part_log.from_listing(f"{self.url}/{key}", rows)), paths)

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
        f"{found:#010x}. No part was deleted; `tiermq tier verify` tells what is damaged."
    )


class _PartGone(Exception):
    """A part that the log names is not there any more."""


def _exactly(where: str, answer: Fetched, start: int, length: int) -> memoryview:
    if len(answer.data) != length:
        raise CorruptSegment(
            f"{where}: expected {length} bytes at {start}, found an object of {answer.object_size} bytes. "
            "It was cut or replaced since it was listed; 'tiermq tier verify' tells what is lost."
        )
    return answer.data
