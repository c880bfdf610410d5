"""One segment: what is taken, what is durable, and that a commit is repeated as it was."""

from __future__ import annotations

import threading
import zlib

import pytest

from servers.faulty_driver import Fault, FaultyDriver, ScriptedFaults
from tier.flat.flat_world import QUEUE
from tiermq.errors import SegmentConflict
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.flat.flat_segment import AppendStatus, FlatSegment
from tiermq.tier.metadata.metadata_values import NEVER_MS, Segment
from tiermq.tier.names import SegmentType

KEY = QUEUE.segment(SegmentType.COMMIT_LOG, 1000)


def segment_on(driver: object, max_size: int = 10_000, buffers: int = 10_000) -> FlatSegment:
    return FlatSegment(driver, Segment(KEY), max_size, buffers)  # type: ignore[arg-type]


def test_a_new_segment_begins_at_its_base_and_has_no_times() -> None:
    segment = segment_on(MemoryDriver())
    assert (segment.commit_position, segment.append_position) == (0, 0)
    assert (segment.commit_offset, segment.append_offset) == (1000, 1000)
    assert (segment.begin_ms, segment.end_ms) == (NEVER_MS, NEVER_MS)


def test_a_commit_of_nothing_succeeds_without_a_request() -> None:
    driver = FaultyDriver(MemoryDriver(), ScriptedFaults("write", [Fault.BEFORE]))
    segment = segment_on(driver)
    assert segment.commit()
    assert segment.append(b"", 5) is AppendStatus.SUCCESS
    assert segment.commit()
    assert (segment.begin_ms, driver.injected) == (NEVER_MS, [])


def test_positions_and_times_follow_appends_and_commits() -> None:
    driver = MemoryDriver()
    segment = segment_on(driver)
    for number, ms in enumerate((7, 0, 9)):
        assert segment.append(b"x" * 123, ms) is AppendStatus.SUCCESS
        assert segment.append_offset == 1000 + 123 * (number + 1)
    assert (segment.begin_ms, segment.end_ms, segment.commit_offset) == (0, 9, 1000)
    assert segment.commit()
    assert segment.commit_offset == segment.append_offset == 1369
    assert driver.read(KEY, 0, 369) == b"x" * 369


def test_what_does_not_fit_is_refused_whole() -> None:
    segment = segment_on(MemoryDriver(), max_size=10, buffers=3)
    assert segment.append(b"12345678", 1) is AppendStatus.SUCCESS
    assert segment.append(b"123", 1) is AppendStatus.FILE_FULL
    assert segment.append(b"1", 1) is AppendStatus.SUCCESS
    assert segment.append(b"", 1) is AppendStatus.SUCCESS
    assert segment.append_position == 9


def test_too_many_buffers_are_refused_until_a_commit() -> None:
    segment = segment_on(MemoryDriver(), buffers=3)
    assert [segment.append(b"1", 1) for _ in range(4)] == [AppendStatus.SUCCESS] * 3 + [AppendStatus.BUFFER_FULL]
    assert segment.commit()
    assert segment.append(b"1", 1) is AppendStatus.SUCCESS


def test_an_empty_segment_takes_a_record_larger_than_itself() -> None:
    segment = segment_on(MemoryDriver(), max_size=10)
    assert segment.append(b"x" * 100, 1) is AppendStatus.SUCCESS
    assert segment.append(b"x", 1) is AppendStatus.FILE_FULL


def test_a_closed_segment_takes_and_commits_nothing() -> None:
    segment = segment_on(MemoryDriver())
    segment.append(b"1", 1)
    assert segment.close()
    assert segment.append(b"1", 1) is AppendStatus.FILE_CLOSED
    assert not segment.commit()


def test_bug_05_a_commit_that_landed_although_it_failed_is_not_sent_again() -> None:
    inner = MemoryDriver()
    segment = segment_on(FaultyDriver(inner, ScriptedFaults("write", [Fault.AFTER])))
    segment.append(b"first", 1)
    segment.append(b"second", 2)
    assert not segment.commit()
    segment.append(b"third", 3)
    assert segment.commit()
    assert bytes(inner.read(KEY, 0, 16)) == b"firstsecondthird"
    assert segment.commit_position == inner.size(KEY) == 16


@pytest.mark.parametrize("landed", range(17))
def test_bug_05_only_the_missing_suffix_is_sent_whatever_part_landed(landed: int) -> None:
    inner = MemoryDriver()
    faulty = FaultyDriver(inner, ScriptedFaults("write", [Fault.BEFORE]))
    segment = segment_on(faulty)
    segment.append(b"0123456789abcdef", 1)
    assert not segment.commit()
    inner.write(KEY, 0, [b"0123456789abcdef"[:landed]])
    assert segment.commit()
    assert bytes(inner.read(KEY, 0, 16)) == b"0123456789abcdef"
    assert inner.size(KEY) == segment.commit_position == 16


def test_repeated_failures_leave_the_commit_position_where_it_was() -> None:
    faulty = FaultyDriver(MemoryDriver(), ScriptedFaults("write", [Fault.BEFORE] * 3))
    segment = segment_on(faulty)
    segment.append(b"12", 1)
    assert [segment.commit() for _ in range(3)] == [False] * 3
    assert (segment.commit_position, segment.pending_bytes) == (0, 2)
    assert segment.last_error is not None
    assert segment.commit()
    assert segment.last_error is None


def test_another_writer_s_bytes_are_an_error_and_not_a_reason_to_try_again() -> None:
    driver = MemoryDriver()
    segment = segment_on(driver)
    segment.append(b"mine", 1)
    driver.write(KEY, 0, [b"theirs"])
    with pytest.raises(SegmentConflict):
        segment.commit()
    assert segment.commit_position == 0


class SlowDriver(MemoryDriver):
    """A driver whose writes wait until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go_on = threading.Event(), threading.Event()

    def write(self, *arguments: object) -> None:  # type: ignore[override]
        self.entered.set()
        self.go_on.wait()
        super().write(*arguments)  # type: ignore[arg-type]


def test_bug_27_closing_waits_for_the_commit_under_way_but_not_for_ever() -> None:
    driver = SlowDriver()
    segment = segment_on(driver)
    segment.append(b"data", 1)
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(segment.commit()))
    thread.start()
    driver.entered.wait()
    assert not segment.commit(), "a second commit learns that one is under way"
    assert not segment.close(timeout_s=0.001)
    driver.go_on.set()
    assert segment.close()
    thread.join()
    assert results == [True]
    assert driver.size(KEY) == 4


def test_the_checksum_covers_exactly_the_committed_bytes() -> None:
    segment = segment_on(MemoryDriver())
    segment.append(b"one", 1)
    segment.commit()
    segment.append(b"two", 1)
    assert segment.crc32 == zlib.crc32(b"one")
    segment.commit()
    assert segment.crc32 == zlib.crc32(b"onetwo")


def test_what_is_discarded_leaves_no_trace() -> None:
    segment = segment_on(MemoryDriver())
    segment.append(b"one", 5, 6, begin_offset=10, end_offset=11)
    segment.commit()
    segment.append(b"two", 1, 9, begin_offset=11, end_offset=12)
    assert segment.discard_pending() == 3
    assert (segment.begin_ms, segment.end_ms, segment.begin_offset, segment.end_offset) == (5, 6, 10, 11)
    assert segment.append_position == segment.commit_position == 3
