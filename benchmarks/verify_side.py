"""The sides of the verification benchmark: a tier in files with manifests, a verification of it, a plain read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from isal.isal_zlib import crc32

from benchmarks import coldread_side
from benchmarks.harness import timed
from benchmarks.report import Round
from tiermq.store.local_store import LocalStore
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.metadata.manifest_store import ManifestStore, snapshot_manifest
from tiermq.tier.verify.verify import verify_tier

READ_BYTES = 1 << 20
"""What a plain reader reads at a time: it fits the cache, so the checksum finds the bytes there."""


class Verifying:
    """One tier in a directory, read again and again."""

    def __init__(self, driver: TierDriver, root: Path, messages: int) -> None:
        self._driver, self._messages = driver, messages
        self._paths = [root / info.key.path for info in driver.list_segments()]
        self._buffer = bytearray(READ_BYTES)
        self.size = sum(path.stat().st_size for path in self._paths)

    def verified(self) -> Round:
        return timed(self._verify)

    def read_plainly(self) -> Round:
        return timed(self._read)

    def _verify(self) -> tuple[int, int]:
        report = verify_tier(self._driver, threads=1)
        found = report.counts["records"], report.counts["bytes"]
        if not report.is_clean or found != (self._messages, self.size):
            raise RuntimeError(f"expected {self._messages} sound messages in {self.size} bytes, found {report}")
        return found

    def _read(self) -> tuple[int, int]:
        """Every byte once, into memory that is used again, and through the fastest CRC-32 there is."""
        view = memoryview(self._buffer)
        size = 0
        for path in self._paths:
            crc = 0
            descriptor = os.open(path, os.O_RDONLY)
            try:
                while length := os.readv(descriptor, [view]):
                    crc = crc32(view[:length], crc)
                    size += length
            finally:
                os.close(descriptor)
        return self._messages, size


@contextlib.contextmanager
def one_queue(directory: Path, log_size: int) -> Iterator[Verifying]:
    """A tier of one long queue, as history is."""
    with coldread_side.one_long_queue(directory / "store", log_size) as (store, length):
        yield from _tier(store, directory, length, 1)


@contextlib.contextmanager
def many_queues(directory: Path, log_size: int) -> Iterator[Verifying]:
    """The same bytes in the workload's 64 queues."""
    with coldread_side.filled_store(directory / "store", log_size) as (store, per_queue):
        yield from _tier(store, directory, per_queue, len(coldread_side.QUEUES))


def _tier(store: LocalStore, directory: Path, per_queue: int, queues: int) -> Iterator[Verifying]:
    """Sealed segments, with the checksums of all of them in manifests."""
    driver = coldread_side.posix_driver(directory / "tier")
    with coldread_side.tier_of(store, directory, driver, per_queue, queues) as files:
        _write_manifests(driver, files)
        yield Verifying(driver, directory / "tier", per_queue * queues)


def _write_manifests(driver: TierDriver, files: FlatFileStore) -> None:
    manifests = ManifestStore(driver, "a benchmark")
    for file in files:
        manifests.write(snapshot_manifest(files.metadata, file.queue))
