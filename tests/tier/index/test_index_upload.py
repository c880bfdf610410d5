"""Uploading one index file: byte for byte, in steps that can be repeated, past whatever lies in the way."""

from __future__ import annotations

import random
import zlib

import pytest

from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from tier.index.chain_walk import rearrange_by_chain
from tier.index.index_world import BROKER, CLUSTER, NOW_MS, HookedDriver, MemoryRows, index_key
from tiermq.errors import TierUnavailable
from tiermq.tier.block_sums import BlockSums, summed
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.driver.posix import PosixDriver
from tiermq.tier.index.compacted_index import CompactedIndex, companion_name
from tiermq.tier.index.index_upkeep import IndexUploader, UploadStopped
from tiermq.tier.index.index_write_file import IndexWriteFile
from tiermq.tier.metadata.metadata_values import SegmentStatus
from tiermq.tier.names import index_queue

DIRECTORY = "/index"
COMPANION = b'{"a":"companion"}'


class Upload:
    """A file with items, and everything that an upload touches."""

    def __init__(self, driver: MemoryDriver | PosixDriver | None = None, capacity_bytes: int | None = None) -> None:
        self.access = SimulatedFileAccess()
        self.driver = HookedDriver(driver or MemoryDriver())  # type: ignore[arg-type]
        self.rows = MemoryRows()
        self.stop = False
        self.file = IndexWriteFile.create(self.access, DIRECTORY, NOW_MS, 5, 50)
        for n in range(30):
            self.file.put([n * 7 % 11], 1, 2, n, 100, NOW_MS + n)
        self.access.capacity_bytes = capacity_bytes
        self.wanted = rearrange_by_chain(self.file._buffer, 5)
        self.uploader = self.new_uploader()

    def new_uploader(self) -> IndexUploader:
        return IndexUploader(
            self.access, DIRECTORY, self.driver, self.rows, index_queue(CLUSTER, BROKER), ManualClock(NOW_MS + 5000),
            should_stop=lambda: self.stop, chunk_bytes=100,
        )  # fmt: skip

    def run(self, base: int = 0) -> CompactedIndex:
        return self.uploader.upload(self.file, self.file.facts(), base, COMPANION)

    def stored(self, base: int = 0) -> bytes:
        return bytes(self.driver.inner.read(index_key(base), 0, self.driver.inner.size(index_key(base))))

    @property
    def temporary(self) -> list[str]:
        return [info.name for info in self.access.list_files(DIRECTORY + "/compacting")]


def test_the_object_is_byte_for_byte_what_rocketmq_would_have_written() -> None:
    upload = Upload()
    remote = upload.run()
    assert upload.stored() == upload.wanted
    assert upload.driver.inner.is_sealed(index_key())
    row = upload.rows.rows[index_key()]
    assert remote.segment == row
    assert (row.size, row.begin_ms, row.end_ms) == (len(upload.wanted), NOW_MS, NOW_MS + 29)
    assert (row.status, row.crc32) == (SegmentStatus.SEALED, zlib.crc32(upload.wanted))
    stored = upload.driver.inner.get_object(companion_name(index_key()))
    assert stored is not None
    assert stored.data == summed(COMPANION, BlockSums.of(upload.wanted))
    assert upload.temporary == []


def test_an_upload_that_fails_at_any_call_succeeds_when_it_is_repeated_and_keeps_what_it_had() -> None:
    for when in ("before", "after"):
        for at in range(30):
            upload = Upload()
            calls = [at]

            def fail(now: str, name: str, when: str = when, calls: list[int] = calls) -> None:
                if now == when:
                    calls[0] -= 1
                    if calls[0] == -1:
                        raise TierUnavailable(f"{name} {when}")

            upload.driver.hook = fail
            try:
                upload.run()
            except TierUnavailable:
                assert upload.temporary == [str(NOW_MS)]
                if at % 2:
                    upload.uploader = upload.new_uploader()  # As after a crash: the copy is not trusted.
                upload.run()
            assert upload.stored() == upload.wanted
            assert list(upload.rows.rows) == [index_key()]
            assert upload.temporary == []


def test_an_upload_goes_on_where_the_last_one_stopped() -> None:
    upload = Upload()
    upload.driver.inner.write(index_key(), 0, [upload.wanted[:250]])
    upload.run()
    assert upload.stored() == upload.wanted
    assert upload.driver.calls["write"] == -(-(len(upload.wanted) - 250) // 100)


def test_a_sealed_object_with_our_bytes_is_our_upload() -> None:
    upload = Upload()
    upload.driver.inner.write(index_key(), 0, [upload.wanted])
    upload.driver.inner.seal(index_key())
    upload.run()
    assert upload.driver.calls["write"] == 0
    assert list(upload.rows.rows) == [index_key()]


def test_an_index_file_that_is_in_the_way_is_kept_and_the_upload_goes_behind_it() -> None:
    other = Upload()
    other.file.put([1], 1, 2, 99, 100, NOW_MS + 99)
    other.run()
    upload = Upload(other.driver.inner)
    remote = upload.run()
    size = len(other.stored())
    assert remote.key == index_key(size)
    assert upload.stored(size) == upload.wanted
    assert [(key.base, row.end_ms) for key, row in upload.rows.rows.items()] == [(0, NOW_MS + 99), (size, NOW_MS + 29)]


@pytest.mark.parametrize("length", [5, 28, 400, 2000])
def test_bytes_in_the_way_that_are_no_index_file_are_replaced(length: int) -> None:
    upload = Upload()
    upload.driver.inner.write(index_key(), 0, [random.Random(length).randbytes(length)])
    upload.driver.inner.seal(index_key())
    assert upload.run().key == index_key()
    assert upload.stored() == upload.wanted


def test_an_upload_stops_between_its_steps_and_leaves_no_row() -> None:
    upload = Upload()
    calls = 0

    def stop_at_third(when: str, name: str) -> None:
        nonlocal calls
        calls += when == "after"
        upload.stop = calls >= 3

    upload.driver.hook = stop_at_third
    with pytest.raises(UploadStopped):
        upload.run()
    assert upload.rows.rows == {}
    upload.driver.hook, upload.stop = None, False
    upload.run()
    assert upload.stored() == upload.wanted


def test_a_full_disk_does_not_stop_uploads() -> None:
    upload = Upload(capacity_bytes=0)
    upload.run()
    assert upload.stored() == upload.wanted
    assert upload.temporary == []


def test_the_posix_driver_holds_the_same_bytes(tmp_path) -> None:  # type: ignore[no-untyped-def]
    upload = Upload(PosixDriver(tmp_path))
    upload.run()
    assert (tmp_path / index_key().path).read_bytes() == upload.wanted
