"""DataPlace: a directory for data files, on a disk or in an object store, as a small value that travels to workers.

    file:///lake/orders      /lake/orders      s3://bucket/prefix (AWS_* variables, AWS_ENDPOINT_URL)      gs://…

Credentials come from the environment. Without any, a location in an object store is refused before a request is sent,
and no client of tables uses the cloud's metadata address, neither for credentials nor for a region.
A file that `create` has closed is durable. `move` gives a file its last name; it may be repeated after a crash.
Clients of object stores are created on first use, in the process that uses them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs

from tiermq.errors import BadOption, StagingLost, TierCredentials
from tiermq.tier.driver.tier_url import CREDENTIALS, missing_credentials

SCHEMES = ("file", "s3", "gs")
_CREDENTIALS = {
    "s3": tuple(names for names in CREDENTIALS["s3"] if names != ("AWS_SKIP_SIGNATURE",)),
    "gs": (("GOOGLE_APPLICATION_CREDENTIALS",),),
}
"""Variables that pyarrow, deltalake and pyiceberg all read: fewer than those of tiers."""
NO_METADATA = "AWS_EC2_METADATA_DISABLED"


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of a listing. The name is relative to the root."""

    name: str
    size: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class DataPlace:
    """`url` has no slash at its end. Names of files are relative, with slashes."""

    url: str

    @classmethod
    def of(cls, text: str) -> DataPlace:
        """From a URL or a path. Raises BadOption."""
        if "://" not in text:
            return cls(f"file://{os.path.abspath(os.path.expanduser(text))}")
        parts = urlsplit(text)
        if parts.username or parts.password or parts.query or parts.fragment:
            raise BadOption(
                "expected a plain URL without a user, password or settings: the credentials of tables come from the "
                f"environment, found more in {parts.scheme}://{parts.hostname or ''}{parts.path}"
            )
        if parts.scheme not in SCHEMES or (parts.scheme != "file" and not parts.netloc):
            raise BadOption(f"expected a path, file:///dir, s3://bucket/prefix or gs://bucket/prefix, found {text!r}")
        if parts.scheme == "file" and (parts.netloc not in ("", "localhost") or not parts.path.startswith("/")):
            raise BadOption(f"expected file:///an/absolute/directory (three slashes), found {text!r}")
        path = unquote(parts.path).rstrip("/")
        return cls(f"file://{path}" if parts.scheme == "file" else f"{parts.scheme}://{parts.netloc}{path}")

    @property
    def is_local(self) -> bool:
        return self.url.startswith("file://")

    @property
    def path(self) -> str:
        """The path as the file system knows it: of a disk, or bucket and key."""
        return self.url.split("://", 1)[1]

    def require_credentials(self) -> None:
        """Raises TierCredentials, which lists the variables, before any request is sent."""
        scheme = urlsplit(self.url).scheme
        if scheme == "s3":
            # Otherwise pyarrow asks there for a region that is not in the environment, also with credentials. The
            # variable is how its client, and that of deltalake, are switched; an operator's own value stays.
            os.environ.setdefault(NO_METADATA, "true")
        if ways := missing_credentials(_CREDENTIALS.get(scheme, ((),)), os.environ):
            raise TierCredentials(
                f"{self.url}: expected credentials in the environment, found none. Set {ways}. Tables are not written "
                "with the identity of the machine"
            )

    def child(self, name: str) -> DataPlace:
        return DataPlace(f"{self.url}/{name}")

    def sibling(self, suffix: str) -> DataPlace:
        return DataPlace(f"{self.url}{suffix}")

    @contextmanager
    def create(self, name: str) -> Iterator[Any]:
        """A stream to write a new file; complete and durable after the block. A block that fails leaves no file."""
        system, path = self._system(), f"{self.path}/{name}"
        if self.is_local:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        stream = system.open_output_stream(path)
        try:
            yield stream
        except BaseException:
            # What was sent so far must not become a file; a disk has one already.
            if self.is_local:
                stream.close()
                os.unlink(path)
            else:
                stream.abort() if hasattr(stream, "abort") else stream.close()
            raise
        stream.close()
        if self.is_local:
            _sync(path)
            _sync(os.path.dirname(path))

    def open(self, name: str) -> Any:
        """A file to read, at any position."""
        return self._system().open_input_file(f"{self.path}/{name}")

    def move(self, name: str, target: DataPlace, target_name: str) -> None:
        """Give a file another name; nothing happens when that was done before. Raises StagingLost."""
        source, goal = f"{self.path}/{name}", f"{target.path}/{target_name}"
        if self.is_local:
            os.makedirs(os.path.dirname(goal), exist_ok=True)
            try:
                os.replace(source, goal)
            except FileNotFoundError:
                if not os.path.exists(goal):
                    raise _lost(source, goal) from None
            _sync(os.path.dirname(goal))
            return
        system = self._system()
        if system.get_file_info(source).type == pa.fs.FileType.NotFound:
            if system.get_file_info(goal).type == pa.fs.FileType.NotFound:
                raise _lost(source, goal)
            return
        system.copy_file(source, goal)
        system.delete_file(source)

    def files(self, folder: str = "") -> list[FoundFile]:
        """Every file in a folder, at any depth; none if it does not exist."""
        base = f"{self.path}/{folder}".rstrip("/")
        found = self._system().get_file_info(pa.fs.FileSelector(base, allow_not_found=True, recursive=True))
        cut = len(self.path) + 1
        return [
            FoundFile(info.path[cut:], info.size, (info.mtime_ns or 0) // 1_000_000)
            for info in found
            if info.type == pa.fs.FileType.File
        ]

    def remove(self, name: str) -> None:
        """Idempotent."""
        try:
            self._system().delete_file(f"{self.path}/{name}")
        except FileNotFoundError:
            return

    def _system(self) -> Any:
        self.require_credentials()
        endpoint = os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT")
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        return _file_system(os.getpid(), urlsplit(self.url).scheme, endpoint, region)


@lru_cache(maxsize=8)
def _file_system(_process: int, scheme: str, endpoint: str | None, region: str | None) -> Any:
    if scheme == "file":
        return pa.fs.LocalFileSystem()
    if scheme == "gs":
        return pa.fs.GcsFileSystem()
    settings: dict[str, Any] = {"region": region} if region else {}
    if endpoint:
        parts = urlsplit(endpoint)
        settings |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
        settings.setdefault("region", "us-east-1")
    return pa.fs.S3FileSystem(**settings)


def _lost(source: str, goal: str) -> StagingLost:
    return StagingLost(
        f"expected the committed file {source}, or {goal} that it becomes, found neither; was it deleted?"
    )


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
