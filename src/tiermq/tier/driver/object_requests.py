"""ObjectRequests: every request that goes to an object store, each counted, each failure in our own words.

The traps of the client are handled here and nowhere else: a missing object is a builtin FileNotFoundError; a range
that is too long is shortened in silence, one that begins past the end is an error; deleting nothing is an error on a
local directory only; versions hold None values that must not be sent back; a Python iterator that is uploaded may not
itself send requests, so a merge goes through a writer.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError

from tiermq.errors import TierUnavailable
from tiermq.tier.driver.object_errors import PastTheEnd, no_bucket, translated

if TYPE_CHECKING:
    from obstore import PutMode, UpdateVersion
    from obstore.store import AzureStore, GCSStore, LocalStore, MemoryStore, S3Store

    Store: TypeAlias = AzureStore | GCSStore | LocalStore | MemoryStore | S3Store

LIST_PAGE = 1_000  # Objects in one answer of every cloud; each page is a request.
UPLOAD_CHUNK_BYTES = 8 << 20
UPLOADS_AT_ONCE = 4
MD5_DIGITS = 32
HEX_DIGITS = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class ObjectStat:
    path: str
    size: int
    modified_ms: int
    e_tag: str = ""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Bytes of an object, and how large the whole object is."""

    data: memoryview
    object_size: int
    version: str


class ObjectRequests:
    """Used from any thread. `exclusive` is given for stores that cannot compare and set: a lock over all writers."""

    def __init__(
        self, store: Store, url: str, *, exclusive: Callable[[], AbstractContextManager[object]] | None = None
    ) -> None:
        self._store = store
        self._url = url
        self._exclusive = exclusive
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def counts(self) -> dict[str, int]:
        """Requests sent so far, by kind: get, head, put, list, delete, copy, upload."""
        with self._lock:
            return dict(self._counts)

    def create(self, path: str, data: bytes) -> str | None:
        """Only where nothing is; the new object's entity tag, None when something is there."""
        try:
            with self._request("put", "create an object", path):
                result = self._store.put(path, data, mode="create", use_multipart=False)
            return result["e_tag"] or ""
        except (AlreadyExistsError, PreconditionError):
            return None
        except FileNotFoundError:
            raise no_bucket(self._url) from None

    def put(self, path: str, data: bytes, expected: str | None, *, check: bool) -> str | None:
        """A small object; the new version, or None when what is there is not what was expected."""
        if not check:
            return self._put(path, data, "overwrite")
        if expected is None:
            return self._put(path, data, "create")
        if self._exclusive is None:
            return self._put(path, data, _update_version(expected))
        with self._exclusive():
            current = self.stat_version(path)
            return self._put(path, data, "overwrite") if current == expected else None

    def _put(self, path: str, data: bytes, mode: PutMode) -> str | None:
        try:
            with self._request("put", "replace an object", path):
                result = self._store.put(path, data, mode=mode, use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return None
        except FileNotFoundError:
            # To update what is not there is a conflict; to create in a bucket that is not there is another matter.
            if isinstance(mode, dict):
                return None
            raise no_bucket(self._url) from None
        return _version(result["e_tag"], result["version"])

    def fetch(self, path: str, start: int = 0, length: int | None = None) -> Fetched | None:
        """A range (cut where the object ends) or all of it; None when there is no object; PastTheEnd."""
        try:
            with self._request("get", "read an object", path):
                options = {} if length is None else {"range": (start, start + length)}
                answer = self._store.get(path, options=options)  # type: ignore[arg-type]
                meta, data = answer.meta, memoryview(answer.bytes())
        except FileNotFoundError:
            return None
        expected = (meta["size"] if length is None else min(meta["size"], start + length)) - start
        if len(data) != expected:
            raise TierUnavailable(
                f"{self._url}/{path}: expected {expected} bytes, found {len(data)}: the answer was cut"
            )
        return Fetched(data, meta["size"], _version(meta["e_tag"], meta["version"]))

    def fetch_range(self, path: str, start: int, length: int) -> memoryview | None:
        """Exactly that range; None when there is no object; PastTheEnd when it does not reach that far.

        In one call of the client: `fetch` takes two, between which the answer waits for the interpreter.
        """
        try:
            with self._request("get", "read an object", path):
                data = memoryview(self._store.get_range(path, start=start, length=length))
        except FileNotFoundError:
            return None
        if len(data) != length:
            raise PastTheEnd
        return data

    def head(self, path: str) -> ObjectStat | None:
        try:
            with self._request("head", "look at an object", path):
                meta = self._store.head(path)
        except FileNotFoundError:
            return None
        modified_ms = int(meta["last_modified"].timestamp() * 1000)
        return ObjectStat(meta["path"], meta["size"], modified_ms, meta["e_tag"] or "")

    def stat_version(self, path: str) -> str | None:
        try:
            with self._request("head", "look at an object", path):
                meta = self._store.head(path)
        except FileNotFoundError:
            return None
        return _version(meta["e_tag"], meta["version"])

    def list(self, directory: str) -> list[ObjectStat]:
        """Everything below a directory ("" is everything), in no order."""
        found: list[ObjectStat] = []
        try:
            with self._request("list", "list objects", directory):
                for batch in self._store.list(directory or None):
                    found += [
                        ObjectStat(meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000))
                        for meta in batch
                    ]
        except FileNotFoundError:
            return []
        self._count("list", max(0, (len(found) - 1) // LIST_PAGE))
        return found

    def delete(self, paths: Sequence[str]) -> None:
        """All of them, in no order; those that are gone already are no error."""
        if not paths:
            return
        try:
            with self._request("delete", "delete objects", paths[0]):
                self._store.delete(list(paths))
        except FileNotFoundError:
            for path in paths if len(paths) > 1 else ():
                self.delete([path])

    def copy(self, source: str, target: str) -> bool:
        """Inside the store; false when the source is gone."""
        try:
            with self._request("copy", "copy an object", source):
                self._store.copy(source, target)
            return True
        except FileNotFoundError:
            return False

    def upload(self, path: str, chunks: Iterable[memoryview]) -> None:
        """One object of all chunks, visible only when complete; nothing when an error ends the chunks early."""
        with (
            self._request("upload", "merge parts into an object", path),
            obstore.open_writer(
                self._store, path, buffer_size=UPLOAD_CHUNK_BYTES, max_concurrency=UPLOADS_AT_ONCE
            ) as writer,
        ):
            for chunk in chunks:
                writer.write(chunk)

    @contextmanager
    def _request(self, kind: str, action: str, path: str) -> Iterator[None]:
        self._count(kind, 1)
        with translated(action, self._url, path):
            yield

    def _count(self, kind: str, count: int) -> None:
        with self._lock:
            self._counts[kind] += count


def is_md5_of(e_tag: str, data: bytes | memoryview) -> bool:
    """Whether an entity tag is the MD5 of these bytes, as S3's and GCS's are for one plain PUT.

    A tag of another form (encryption by a key of the store's, Azure) or of other bytes is no checksum: false.
    """
    digits = e_tag.strip('"')
    if len(digits) != MD5_DIGITS or not set(digits) <= HEX_DIGITS:
        return False
    return digits == hashlib.md5(data, usedforsecurity=False).hexdigest()


class MultipartTag:
    """The entity tag that S3 gives an object of several parts: the MD5 of the parts' MD5s, and how many there are."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._part = hashlib.md5(usedforsecurity=False)
        self._length = 0

    def add(self, chunk: memoryview) -> None:
        while chunk:
            taken = chunk[: UPLOAD_CHUNK_BYTES - self._length]
            self._part.update(taken)
            self._length += len(taken)
            chunk = chunk[len(taken) :]
            if self._length == UPLOAD_CHUNK_BYTES:
                self._end_part()

    def _end_part(self) -> None:
        self._parts.append(self._part.digest())
        self._part, self._length = hashlib.md5(usedforsecurity=False), 0

    def matches(self, e_tag: str) -> bool:
        """Call once, at the end."""
        if self._length:
            self._end_part()
        joined = hashlib.md5(b"".join(self._parts), usedforsecurity=False).hexdigest()
        return e_tag.strip('"') == f"{joined}-{len(self._parts)}"


def _version(e_tag: str | None, version: str | None) -> str:
    """Both in one string: S3 and Azure compare the tag, GCS the version."""
    return f"{e_tag or ''}\n{version or ''}"


def _update_version(text: str) -> UpdateVersion:
    e_tag, _, version = text.partition("\n")
    update: UpdateVersion = {}
    if e_tag:
        update["e_tag"] = e_tag
    if version:
        update["version"] = version
    return update
