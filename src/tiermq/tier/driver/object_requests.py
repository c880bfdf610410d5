"""ObjectRequests: every request to an object store, counted, with the client's errors translated to ours.

The client's peculiarities are handled here only: a missing object is a builtin FileNotFoundError; a range that is too
long is shortened without an error, one that begins past the end is an error; deleting nothing is an error on a local
directory only; versions hold None values that must not be sent back; an iterator that is uploaded may not send requests
of its own, so a merge goes through a writer.

Errors contain no secrets: the client's text may hold signed addresses and whole responses of the server, so it is never
passed on unchanged, nor chained (a traceback would print it). Query strings and the values of secret environment
variables are removed; of an XML response only the code and the message are kept.
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

if TYPE_CHECKING:
    from obstore import PutMode, UpdateVersion
    from obstore.store import AzureStore, GCSStore, LocalStore, MemoryStore, S3Store

    Store: TypeAlias = AzureStore | GCSStore | LocalStore | MemoryStore | S3Store
import os
import re

from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)

from tiermq.errors import BadTierName, BadTierUrl, TierCredentials, TierError

SHOWN_CHARACTERS_MAX = 300
_QUERY = re.compile(r"\?[^\s\"'<>)]*")
_USER_INFO = re.compile(r"//[^/\s@]+@")
_XML = re.compile(r"<\?xml.*", re.DOTALL)
_CODE = re.compile(r"<Code>([^<]*)</Code>(?:.*?<Message>([^<]*)</Message>)?", re.DOTALL)
_SECRET_NAME = re.compile(r"^(AWS|GOOGLE|AZURE)_.*(KEY|SECRET|TOKEN|PASSWORD|SAS|CREDENTIAL)", re.IGNORECASE)
_PUBLIC_NAME = re.compile(r"_(ACCESS_KEY_ID|URI|URL|FILE|PATH)$", re.IGNORECASE)
_REFUSED = re.compile(r"\b40[13] (?:Forbidden|Unauthorized)|SignatureDoesNotMatch|InvalidAccessKeyId|AccessDenied")
_NO_CREDENTIALS = re.compile(r"169\.254\.169\.254|instance ?metadata|credential", re.IGNORECASE)
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)
_PAST_END = re.compile(r"\b416 (?:Requested )?Range Not|InvalidRange|StartTooLarge|range was invalid", re.IGNORECASE)
_SHORT_SECRET = 4  # Shorter values ("1", "true") are not secrets, and occur everywhere.


class PastTheEnd(Exception):
    """A range began beyond the end of its object. Used only within this package."""


@contextmanager
def translated(action: str, url: str, path: str) -> Iterator[None]:
    """Translate failures. Responses (object missing, already there, another version) pass unchanged."""
    try:
        yield
    except (AlreadyExistsError, PreconditionError):
        raise
    except FileNotFoundError as error:
        if _NO_BUCKET.search(str(error)):
            raise no_bucket(url) from None
        raise
    except (BaseError, OSError, NotImplementedError) as error:
        raise our_error(error, action, url, path) from None
    except TierError:
        raise
    except ValueError as error:  # The client refuses the path without a request.
        raise BadTierName(f"{url}: expected a name that an object may have: {cleaned(str(error))}") from None


def our_error(error: Exception, action: str, url: str, path: str) -> Exception:
    text = str(error)
    where = f"{url}/{path}" if path else url
    if _PAST_END.search(text):
        return PastTheEnd(where)
    if _NO_BUCKET.search(text):
        return no_bucket(url)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or _REFUSED.search(text):
        return TierCredentials(
            f"{where}: expected permission to {action}, found a refusal: {cleaned(text)}. Check the credentials in the "
            "environment (AWS_*, GOOGLE_*, AZURE_*) and what they may do in this bucket."
        )
    if isinstance(error, InvalidPathError):
        return BadTierName(f"{where}: expected a name that an object may have: {cleaned(text)}")
    if isinstance(error, NotSupportedError | NotImplementedError | UnknownConfigurationKeyError):
        return TierError(f"{where}: this object store cannot {action}: {cleaned(text)}")
    if _NO_CREDENTIALS.search(text):
        return TierCredentials(
            f"{where}: expected credentials in the environment to {action}, found none that work: {cleaned(text)}. "
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the variables of your cloud."
        )
    return TierUnavailable(f"{where}: could not {action}: {cleaned(text)}. The object store may be down; try again.")


def no_bucket(url: str) -> BadTierUrl:
    return BadTierUrl(f"{url}: expected this bucket to exist, found none. Create it, or correct the tier's URL.")


def cleaned(text: str) -> str:
    """One line: the server's code and message, or else the client's text, without query strings."""
    text = text.split("Debug source")[0]
    code = _CODE.search(text)
    if code is not None:
        text = f"{code[1]}: {code[2]}" if code[2] else code[1]
    text = _USER_INFO.sub("//", _QUERY.sub("", _XML.sub("", text)))
    for name, value in os.environ.items():
        if len(value) >= _SHORT_SECRET and _SECRET_NAME.search(name) and not _PUBLIC_NAME.search(name):
            text = text.replace(value, "***")
    text = " ".join(text.split()).rstrip(".: ")
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "…"


LIST_PAGE = 1_000  # Objects per response in every cloud; each page is a request.
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
    """Used from any thread. `exclusive` is a lock over all writers, for stores without compare-and-set."""

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

    def create(self, path: str, data: bytes | memoryview) -> str | None:
        """Create an object; its entity tag, or None when one exists."""
        try:
            with self._request("put", "create an object", path):
                result = self._store.put(path, data, mode="create", use_multipart=False)
            return result["e_tag"] or ""
        except (AlreadyExistsError, PreconditionError):
            return None
        except FileNotFoundError:
            raise no_bucket(self._url) from None

    def put(self, path: str, data: bytes, expected: str | None, *, check: bool) -> str | None:
        """Put a small object; the new version, or None when the current one is not the expected one."""
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
            # Updating a missing object is a conflict; creating one in a missing bucket is an error.
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
                f"{self._url}/{path}: expected {expected} bytes, found {len(data)}: the response was cut"
            )
        return Fetched(data, meta["size"], _version(meta["e_tag"], meta["version"]))

    def fetch_range(self, path: str, start: int, length: int) -> memoryview | None:
        """Exactly that range; None when there is no object; PastTheEnd when the object is shorter.

        One call of the client: `fetch` takes two, with a wait for the interpreter in between.
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
        """Delete all, in any order; missing ones are no error."""
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
        """Upload all chunks as one object, visible only when complete; nothing when an error ends the chunks early."""
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

    A tag of another form (encryption with a key of the store, Azure) is no checksum: false.
    """
    digits = e_tag.strip('"')
    if len(digits) != MD5_DIGITS or not set(digits) <= HEX_DIGITS:
        return False
    return digits == hashlib.md5(data, usedforsecurity=False).hexdigest()


class MultipartTag:
    """S3's entity tag of a multipart object: the MD5 of the parts' MD5s, and the number of parts."""

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
