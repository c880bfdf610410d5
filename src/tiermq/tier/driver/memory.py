"""MemoryDriver: a tier in the memory of the process. For tests and trials.

Two drivers of the same name share their bytes, as two processes share a bucket.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tiermq.clock import Clock, SystemClock
from tiermq.errors import IllegalRange, ManifestConflict, SegmentMissing
from tiermq.tier.driver import contract
from tiermq.tier.driver.contract import (
    ANY,
    Buffer,
    Expected,
    NoBundles,
    SegmentInfo,
    SegmentWrite,
    StoredObject,
    check_aside,
    check_read,
    joined,
    no_bytes,
    past_the_end,
)
from tiermq.tier.names import SegmentKey, check_object_name


@dataclass(slots=True)
class _Segment:
    data: bytearray
    sealed: bool = False
    modified_ms: int = 0


@dataclass(slots=True)
class _Place:
    """Everything stored under one name. Its lock guards all of it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    segments: dict[SegmentKey, _Segment] = field(default_factory=dict)
    objects: dict[str, StoredObject] = field(default_factory=dict)
    asides: dict[str, bytes] = field(default_factory=dict)
    version: int = 0


_places: dict[str, _Place] = {}
_places_lock = threading.Lock()


class MemoryDriver(NoBundles):
    """`name=""` shares nothing; any other name is shared within the process until `forget(name)`."""

    def __init__(self, name: str = "", *, clock: Clock | None = None) -> None:
        self.url = f"memory://{name}"
        self._clock = clock or SystemClock()
        if name:
            with _places_lock:
                self._place = _places.setdefault(name, _Place())
        else:
            self._place = _Place()

    def write(self, key: SegmentKey, position: int, data: Sequence[Buffer]) -> bool:
        body = joined(data)
        if not body:
            return False
        with self._place.lock:
            segment = self._place.segments.get(key)
            if segment is not None and segment.sealed:
                raise contract.sealed(key)
            stored = segment.data if segment is not None else bytearray()
            # Slices, not views: a view would forbid the bytearray to grow.
            missing = contract.missing_suffix(key, position, body, len(stored), lambda at, n: stored[at : at + n])
            if segment is None:
                segment = self._place.segments[key] = _Segment(stored)
            segment.data += missing
            segment.modified_ms = self._clock.now_ms()
        return False

    def write_bundle(self, writes: Sequence[SegmentWrite]) -> list[bool]:
        return [self.write(write.key, write.position, write.data) for write in writes]

    def read(self, key: SegmentKey, position: int, length: int) -> memoryview:
        check_read(key, position, length)
        with self._place.lock:
            segment = self._place.segments.get(key)
            if segment is None:
                raise SegmentMissing(f"{self.url}/{key}: expected a segment, found nothing")
            if position + length > len(segment.data):
                raise past_the_end(key, position, length, len(segment.data))
            return memoryview(bytes(segment.data[position : position + length]))

    def reread(self, key: SegmentKey, position: int, length: int) -> memoryview:
        return self.read(key, position, length)

    def rewrite(self, key: SegmentKey, position: int, data: Buffer) -> None:
        self.read(key, position, len(data))  # Raises if the range does not exist.
        with self._place.lock:
            self._place.segments[key].data[position : position + len(data)] = data

    def size(self, key: SegmentKey) -> int:
        with self._place.lock:
            segment = self._place.segments.get(key)
            return 0 if segment is None else len(segment.data)

    def trim(self, key: SegmentKey, size: int) -> None:
        with self._place.lock:
            segment = self._place.segments.get(key)
            end = 0 if segment is None else len(segment.data)
            if not 0 <= size <= end:
                raise IllegalRange(f"{key}: expected a size of 0 to {end} to trim to, found {size}")
            if segment is None:
                return
            if segment.sealed:
                raise contract.sealed(key)
            del segment.data[size:]

    def seal(self, key: SegmentKey, *, crc32: int | None = None) -> None:  # noqa: ARG002 - nothing is copied
        with self._place.lock:
            segment = self._place.segments.get(key)
            if segment is None or not segment.data:
                raise SegmentMissing(f"{self.url}/{key}: expected bytes to seal, found none")
            segment.sealed = True

    def merge(self, key: SegmentKey) -> int:  # noqa: ARG002 - a segment has no parts here
        return 0

    def is_sealed(self, key: SegmentKey) -> bool:
        with self._place.lock:
            segment = self._place.segments.get(key)
            return segment is not None and segment.sealed

    def delete(self, key: SegmentKey) -> None:
        with self._place.lock:
            self._place.segments.pop(key, None)

    def replace(
        self, key: SegmentKey, pieces: Iterable[Buffer], aside: str, *, old_size: int | None = None
    ) -> str | None:
        path = f"{key.path}.{check_aside(aside)}"
        data = bytearray().join(pieces)
        if not data:
            raise no_bytes(key)
        with self._place.lock:
            old = self._place.segments.get(key)
            contract.require_size(key, 0 if old is None else len(old.data), old_size)
            self._place.segments[key] = _Segment(data, old is not None and old.sealed, self._clock.now_ms())
            if old is None:
                return None
            self._place.asides.setdefault(path, bytes(old.data))
            return path

    def list_segments(self, prefix: str = "") -> Iterator[SegmentInfo]:
        with self._place.lock:
            found = [
                (key.path, SegmentInfo(key, len(segment.data), segment.sealed, 0, segment.modified_ms))
                for key, segment in self._place.segments.items()
                if segment.data
            ]
        return iter([info for path, info in sorted(found, key=lambda row: row[0]) if path.startswith(prefix)])

    def get_object(self, name: str) -> StoredObject | None:
        check_object_name(name)
        with self._place.lock:
            return self._place.objects.get(name)

    def put_object(self, name: str, data: bytes, *, expected: Expected = ANY) -> str:
        check_object_name(name)
        with self._place.lock:
            current = self._place.objects.get(name)
            if expected is not ANY and expected != (current.version if current else None):
                if current is not None and current.data == data:
                    return current.version
                raise ManifestConflict(
                    f"{self.url}/{name}: expected version {expected}, found {current.version if current else None}. "
                    "Read it again and retry."
                )
            self._place.version += 1
            self._place.objects[name] = StoredObject(bytes(data), str(self._place.version))
            return str(self._place.version)

    def delete_object(self, name: str) -> None:
        check_object_name(name)
        with self._place.lock:
            self._place.objects.pop(name, None)

    def list_objects(self, prefix: str = "") -> list[str]:
        with self._place.lock:
            return sorted(name for name in self._place.objects if name.startswith(prefix))

    def close(self) -> None:
        """Nothing to release."""


def forget(name: str) -> None:
    """Drop what is shared under a name; drivers that are open keep their view of it."""
    with _places_lock:
        _places.pop(name, None)
