"""Segments end to end: rolling, reading over any number of them, recording, sealing, expiring, deleting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servers.faulty_driver import Down, Fault, FaultyDriver, ScriptedFaults
from simulation.manual_clock import ManualClock
from tier.flat.flat_world import QUEUE, remove_first
from tiermq.errors import CorruptSegment, DiskFull, IllegalRange, IllegalTransition, SegmentMissing, TierUnavailable
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.flat.flat_file import FlatAppendFile
from tiermq.tier.flat.flat_segment import AppendStatus
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import NEVER_MS, SegmentStatus
from tiermq.tier.names import SegmentType


@pytest.fixture
def metadata(tmp_path: Path, manual_clock: ManualClock) -> Iterator[MetadataStore]:
    with MetadataStore(tmp_path / "tier.db", clock=manual_clock) as store:
        store.add_queue(QUEUE)
        yield store


def file_of(metadata: MetadataStore, driver: TierDriver | None = None, max_size: int = 2000) -> FlatAppendFile:
    return FlatAppendFile(driver or MemoryDriver(), metadata, QUEUE, SegmentType.COMMIT_LOG, max_size, ManualClock())


def test_nothing_can_be_written_without_a_segment_but_a_commit_is_fine(metadata: MetadataStore) -> None:
    file = file_of(metadata)
    assert file.commit()
    assert (file.is_empty, file.min_offset, file.commit_offset) == (True, -1, 0)
    with pytest.raises(IllegalTransition, match="create it"):
        file.append(b"x", 1)


def test_the_third_thousand_bytes_open_a_second_segment_of_two_thousand(metadata: MetadataStore) -> None:
    file = file_of(metadata)
    file.create_segment(0)
    for number in range(3):
        assert file.append(b"%d" % number * 1000, number) is AppendStatus.SUCCESS
    assert [segment.base for segment in file.segments] == [0, 2000]
    assert (file.commit_offset, file.append_offset) == (2000, 3000)
    assert (file.begin_ms, file.end_ms) == (0, 2)


def test_what_is_not_committed_cannot_be_read(metadata: MetadataStore) -> None:
    file = file_of(metadata)
    file.create_segment(0)
    file.append(b"x" * 100, 1)
    with pytest.raises(IllegalRange):
        file.read(0, 10)
    file.commit()
    assert file.read(0, 1000) == b"x" * 100


def test_bug_14_one_read_goes_over_as_many_segments_as_there_are(metadata: MetadataStore) -> None:
    file = file_of(metadata, max_size=7)
    file.create_segment(0)
    data = bytes(range(100))
    for at in range(0, 100, 5):
        file.append(data[at : at + 5], 1)
    file.commit()
    assert len(file.segments) == 20
    assert bytes(file.read(3, 91)) == data[3:94]
    assert bytes(file.read(0, 1000)) == data


@settings(max_examples=20)
@given(pieces=st.lists(st.binary(min_size=1, max_size=12), min_size=1, max_size=20), data=st.data())
def test_any_range_reads_what_was_appended_there(
    pieces: list[bytes], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with MetadataStore(tmp_path_factory.mktemp("any") / "tier.db") as metadata:
        file = file_of(metadata, max_size=16)
        file.create_segment(40)
        for piece in pieces:
            assert file.append(piece, 1) is AppendStatus.SUCCESS
        file.commit()
        whole = b"".join(pieces)
        offset = data.draw(st.integers(0, len(whole) - 1))
        length = data.draw(st.integers(1, len(whole) + 5))
        assert bytes(file.read(40 + offset, length)) == whole[offset : offset + length]


@pytest.mark.parametrize(("offset", "length"), [(-1, 5), (100, 1), (5, 0), (5, -1), (200, 5)])
def test_a_range_outside_is_refused(metadata: MetadataStore, offset: int, length: int) -> None:
    file = file_of(metadata)
    file.create_segment(0)
    file.append(b"x" * 100, 1)
    file.commit()
    with pytest.raises(IllegalRange):
        file.read(offset, length)


def test_bug_17_a_missing_object_is_an_error_and_never_zeros(metadata: MetadataStore) -> None:
    driver = MemoryDriver()
    file = file_of(metadata, driver)
    key = file.create_segment(0).key
    file.append(b"here", 1)
    file.commit()
    driver.delete(key)
    with pytest.raises(SegmentMissing):
        file.read(0, 4)
    assert driver.size(key) == 0


def test_the_metadata_knows_every_commit_and_a_new_process_finds_it(metadata: MetadataStore) -> None:
    driver = MemoryDriver()
    file = file_of(metadata, driver, 1000)
    file.create_segment(0)
    file.append(b"a" * 1000, 3, 5, begin_offset=10, end_offset=20)
    file.append(b"b" * 200, 6, 7, begin_offset=20, end_offset=22)
    file.commit()
    rows = metadata.segments(QUEUE)
    assert [(row.key.base, row.size, row.begin_ms, row.end_ms) for row in rows] == [(0, 1000, 3, 5), (1000, 200, 6, 7)]
    assert [(row.begin_offset, row.end_offset) for row in rows] == [(10, 20), (20, 22)]
    again = file_of(metadata, driver, 1000)
    assert [segment.commit_position for segment in again.segments] == [1000, 200]
    assert bytes(again.read(990, 20)) == b"a" * 10 + b"b" * 10


def test_a_row_that_could_not_be_written_is_written_with_the_next_commit(
    metadata: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_of(metadata)
    file.create_segment(0)
    file.append(b"x" * 10, 1)
    with monkeypatch.context() as patch:
        patch.setattr(metadata, "record_commit", lambda *_a, **_k: (_ for _ in ()).throw(DiskFull("full")))
        with pytest.raises(DiskFull):
            file.commit()
    assert metadata.segments(QUEUE)[0].size == 0
    assert file.commit()
    assert metadata.segments(QUEUE)[0].size == 10


def test_a_roll_waits_for_the_commit_of_what_came_before(metadata: MetadataStore) -> None:
    driver = FaultyDriver(MemoryDriver())
    file = file_of(metadata, driver, 10)
    file.create_segment(0)
    file.append(b"x" * 8, 1)
    driver.plan = Down()
    assert file.append(b"y" * 8, 1) is AppendStatus.FILE_FULL
    assert (len(file.segments), file.append_offset) == (1, 8)
    driver.plan = None
    assert file.append(b"y" * 8, 1) is AppendStatus.SUCCESS
    assert len(file.segments) == 2


def test_an_empty_segment_is_not_rolled(metadata: MetadataStore) -> None:
    file = file_of(metadata)
    file.create_segment(0)
    assert file.roll()
    assert len(file.segments) == 1


def test_segments_that_do_not_meet_are_damage(metadata: MetadataStore) -> None:
    for base, size in ((0, 10), (12, 5)):
        key = QUEUE.segment(SegmentType.COMMIT_LOG, base)
        metadata.add_segment(key)
        metadata.update_size(key, size, 1, 1)
    with pytest.raises(CorruptSegment, match="begin at 10"):
        file_of(metadata)


def test_rolled_segments_are_sealed_later_and_only_once(metadata: MetadataStore) -> None:
    driver = MemoryDriver()
    file = file_of(metadata, driver, 10)
    file.create_segment(0)
    for _ in range(3):
        file.append(b"x" * 10, 1)
    file.commit()
    waiting = file.unsealed()
    assert [segment.base for segment in waiting] == [0, 10]
    for segment in waiting:
        file.seal(segment)
    assert file.unsealed() == []
    assert [row.status for row in metadata.segments(QUEUE)] == [SegmentStatus.SEALED] * 2 + [SegmentStatus.NEW]
    assert file_of(metadata, driver, 10).unsealed() == []


def test_only_what_is_older_than_the_threshold_expires(metadata: MetadataStore) -> None:
    file = file_of(metadata, max_size=10)
    file.create_segment(0)
    assert file.expired(100) == []
    for ms in (5, 7, 9):
        file.append(b"x" * 10, ms)
    file.commit()
    assert [segment.base for segment in file.expired(7)] == [0]
    assert [segment.base for segment in file.expired(8)] == [0, 10]
    assert [segment.base for segment in file.expired(10)] == [0, 10, 20]


def test_the_last_segment_leaves_an_empty_one_so_that_numbering_goes_on(metadata: MetadataStore) -> None:
    driver = MemoryDriver()
    file = file_of(metadata, driver, 10)
    file.create_segment(0)
    file.append(b"x" * 10, 5)
    file.commit()
    remove_first(file, file.segments[0])
    assert (file.min_offset, file.commit_offset, file.append_offset) == (10, 10, 10)
    assert file.begin_ms == NEVER_MS
    assert file.expired(1 << 60) == []
    assert list(driver.list_segments()) == []
    with pytest.raises(IllegalTransition):
        remove_first(file, file_of(metadata, driver).segments[0])


def test_bug_17_a_deletion_that_was_interrupted_is_finished_by_the_next_attempt(metadata: MetadataStore) -> None:
    inner = MemoryDriver()
    driver = FaultyDriver(inner, ScriptedFaults("delete", [None, Fault.BEFORE]))
    file = file_of(metadata, driver, 10)
    file.create_segment(0)
    for _ in range(3):
        file.append(b"x" * 10, 1)
    file.commit()
    with pytest.raises(TierUnavailable):
        file.destroy()
    assert file.is_empty
    assert len(metadata.segments_being_deleted()) == 2
    file.destroy()
    assert list(inner.list_segments()) == []
    assert metadata.segments_being_deleted() == []
