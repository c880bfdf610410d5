"""CountedTier: a tier that can only be read, and that counts what is asked of it. History never writes.

Counts are calls of the driver: an object store may need more than one request for a call whose range is long or whose
segment still consists of parts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

from tiermq.errors import TierError
from tiermq.tier.driver.contract import ANY, Buffer, Expected, SegmentInfo, StoredObject, TierDriver
from tiermq.tier.names import SegmentKey


class CountedTier:
    """A driver around a driver. Any thread may ask; `requests` and `bytes_read` only grow."""

    def __init__(self, inner: TierDriver) -> None:
        self.inner = inner
        self.url = inner.url
        self._lock = threading.Lock()
        self.requests = 0
        self.bytes_read = 0

    def _count(self, size: int = 0) -> None:
        with self._lock:
            self.requests += 1
            self.bytes_read += size

    def read(self, key: SegmentKey, position: int, length: int) -> memoryview:
        data = self.inner.read(key, position, length)
        self._count(length)
        return data

    def reread(self, key: SegmentKey, position: int, length: int) -> memoryview:
        data = self.inner.reread(key, position, length)
        self._count(length)
        return data

    def size(self, key: SegmentKey) -> int:
        self._count()
        return self.inner.size(key)

    def is_sealed(self, key: SegmentKey) -> bool:
        self._count()
        return self.inner.is_sealed(key)

    def list_segments(self, prefix: str = "") -> Iterator[SegmentInfo]:
        self._count()
        return self.inner.list_segments(prefix)

    def get_object(self, name: str) -> StoredObject | None:
        found = self.inner.get_object(name)
        self._count(0 if found is None else len(found.data))
        return found

    def list_objects(self, prefix: str = "") -> list[str]:
        self._count()
        return self.inner.list_objects(prefix)

    def close(self) -> None:
        self.inner.close()

    # What changes a tier

    def write(self, key: SegmentKey, position: int, data: Sequence[Buffer]) -> bool:  # noqa: ARG002
        self._refuse(f"write {key}")

    def rewrite(self, key: SegmentKey, position: int, data: Buffer) -> None:  # noqa: ARG002
        self._refuse(f"rewrite {key}")

    def trim(self, key: SegmentKey, size: int) -> None:  # noqa: ARG002
        self._refuse(f"trim {key}")

    def seal(self, key: SegmentKey, *, crc32: int | None = None) -> None:  # noqa: ARG002
        self._refuse(f"seal {key}")

    def delete(self, key: SegmentKey) -> None:
        self._refuse(f"delete {key}")

    def replace(self, key: SegmentKey, pieces: Iterable[Buffer], aside: str) -> str | None:  # noqa: ARG002
        self._refuse(f"replace {key}")

    def put_object(self, name: str, data: bytes, *, expected: Expected = ANY) -> str:  # noqa: ARG002
        self._refuse(f"put {name}")

    def delete_object(self, name: str) -> None:
        self._refuse(f"delete {name}")

    def _refuse(self, what: str) -> NoReturn:
        raise TierError(
            f"{self.url}: expected only reads of a history, found an attempt to {what}; use the tier's driver"
        )
