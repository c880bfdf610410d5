"""A record whose topic or properties never came to the disk is found, and nothing else is taken for one."""

from __future__ import annotations

import pytest

from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from tiermq import Message
from tiermq.commitlog.recovery import DISK_PAGE_BYTES, first_torn_record
from tiermq.files.mapped_file import MappedFile
from tiermq.status import GetStatus
from tiermq.store.local_store import LocalStore

LOG_FILE = "/store/commitlog/00000000000000000000"
NOW_MS = 1_700_000_000_000


class Log:
    """The only file of a commit log; pages can be erased from it as if they had never come to the disk."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW_MS)
        self.access = SimulatedFileAccess(clock=self.clock)
        self.store = self.opened()

    def opened(self) -> LocalStore:
        return LocalStore.open(
            "/store", access=self.access, clock=self.access.clock, background=False, flush_disk_type="SYNC_FLUSH",
            mapped_file_size_commit_log=16_384, mapped_file_size_consume_queue=2_000, max_hash_slot_num=10,
            max_index_num=20,
        )  # fmt: skip

    def put(self, body: bytes = b"x" * 40, value: str = "v") -> tuple[int, int]:
        """Where the record begins and ends."""
        result = self.store.put(Message("orders", body, properties={"name": value}))
        return result.physical_offset, result.end_offset

    def erase_page_at(self, position: int) -> None:
        start = position - position % DISK_PAGE_BYTES
        self.access._entries[LOG_FILE].current[start : start + DISK_PAGE_BYTES] = bytes(DISK_PAGE_BYTES)

    def first_torn(self, vouched_before_ms: int = 0) -> int | None:
        file = MappedFile.load(self.access, LOG_FILE, 16_384, clock=self.access.clock)
        return first_torn_record(file, vouched_before_ms)


@pytest.fixture
def log() -> Log:
    return Log()


def test_whole_records_are_not_torn_also_when_bodies_are_zeros(log: Log) -> None:
    for body in (b"x" * 3000, bytes(3000), b"x", b"x" * 700):
        log.put(body, "v" * 600)
    assert log.first_torn() is None


def test_a_record_whose_last_page_is_missing_is_torn(log: Log) -> None:
    log.put()
    start, end = log.put(value="v" * 700)
    log.erase_page_at(end - 1)
    assert log.first_torn() == start


def test_a_record_is_torn_when_a_page_in_the_middle_of_its_properties_is_missing(log: Log) -> None:
    start, _ = log.put(value="v" * 2000)
    log.put()
    log.erase_page_at(1024)
    assert log.first_torn() == start


def test_a_record_that_was_vouched_for_is_not_torn_whatever_its_properties_hold(log: Log) -> None:
    # RocketMQ lets properties hold runs of zeros, which look like a page that is missing.
    start, end = log.put(value="v" * 2000)
    log.erase_page_at(end - 600)
    assert log.first_torn() == start
    assert log.first_torn(vouched_before_ms=NOW_MS + 1) is None


def test_a_page_missing_from_a_body_is_left_to_its_checksum(log: Log) -> None:
    log.put(b"x" * 3000)
    log.erase_page_at(1024)
    assert log.first_torn() is None


def test_recovery_ends_the_log_before_a_torn_record(log: Log) -> None:
    log.put()
    start, end = log.put(value="v" * 700)
    log.erase_page_at(end - 1)
    log.access._locked.clear()
    again = log.opened()
    assert again.max_physical_offset == start
    assert again.get("orders", 0, 0).status is GetStatus.FOUND
    assert again.max_offset("orders", 0) == 1


def test_a_clock_that_was_set_back_a_little_vouches_for_no_torn_record(log: Log) -> None:
    log.put()
    log.store.close()  # The checkpoint says that everything of now is on the disk.
    log.clock.advance_ms(-2_500)
    log.store = log.opened()
    start, end = log.put(value="v" * 700)
    log.erase_page_at(end - 1)
    log.access._locked.clear()
    again = log.opened()
    assert again.max_physical_offset == start
    assert again.max_offset("orders", 0) == 1
