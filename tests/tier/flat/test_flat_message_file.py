"""One queue in the tier: where it begins, what a commit promises, rolling, gaps, giving pending bytes up."""

from __future__ import annotations

from pathlib import Path

import pytest

from servers.faulty_driver import Down, Fault, FaultyDriver, ScriptedFaults
from tier.flat.flat_world import QUEUE, World, batch, record, remove_first
from tiermq.consumequeue.unit import PRE_BLANK, UNIT
from tiermq.errors import IllegalTransition, SegmentMissing, StoreClosed, TierUnavailable
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.flat.flat_segment import AppendStatus
from tiermq.tier.metadata.metadata_values import NEVER_MS, Gap, TimeEntry

ONE = len(record(100))


def test_a_queue_has_no_place_before_it_is_given_one(tmp_path: Path) -> None:
    file = World(tmp_path).file
    assert (file.initialised, file.recovered) == (False, True)
    assert (file.min_offset, file.commit_offset, file.append_offset, file.begin_ms) == (-1, -1, -1, -1)
    assert file.topic.id >= 0


def test_offsets_and_times_of_a_queue_that_begins_at_100(tmp_path: Path) -> None:
    world = World(tmp_path)
    file = world.file
    file.init(100)
    assert file.append(world.batch(5)) is AppendStatus.SUCCESS
    assert (file.log.first_queue_offset(), file.min_offset, file.commit_offset, file.append_offset) == (
        -1,
        100,
        100,
        105,
    )
    assert file.pending_bytes == 5 * (ONE + 20)
    assert file.commit()
    assert (file.log.first_queue_offset(), file.min_offset, file.commit_offset) == (100, 100, 105)
    assert (file.begin_ms, file.log.end_ms, file.pending_bytes) == (1100, 1104, 0)
    assert world.messages() == [100, 101, 102, 103, 104]
    row = world.metadata.queue(QUEUE)
    assert row is not None
    assert (row.min_offset, row.max_offset) == (100, 105)
    with pytest.raises(IllegalTransition, match="begins at 100"):
        file.init(0)


def test_a_batch_for_another_place_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.file.init(0)
    world.write(2)
    with pytest.raises(IllegalTransition, match="expected records for offset"):
        world.file.write(batch(2, 1, 7))
    with pytest.raises(IllegalTransition, match="from queue offset 2"):
        world.file.write(batch(5, 1, world.file.log.append_offset))
    assert world.messages() == [0, 1]


def test_an_empty_batch_changes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.file.init(0)
    assert world.write(0)
    assert world.file.append(world.batch(0)) is AppendStatus.SUCCESS
    assert world.file.commit_offset == 0


def test_units_are_not_written_before_their_records_are_durable(tmp_path: Path) -> None:
    driver = FaultyDriver(MemoryDriver(), ScriptedFaults("write", [Fault.BEFORE, None, Fault.BEFORE]))
    world = World(tmp_path, driver)
    file = world.file
    file.init(0)
    assert not world.write(3)
    assert (file.log.commit_offset, file.units.commit_offset, file.append_offset) == (0, 0, 3)
    assert not file.commit(), "now the records land and the units fail"
    assert (file.log.commit_offset, file.units.commit_offset) == (3 * ONE, 0)
    assert file.commit()
    assert world.messages() == [0, 1, 2]
    assert [found.first_offset for found in file.committed] == [0]


@pytest.mark.parametrize("log_bytes", [ONE - 10, ONE, 2 * ONE + 5, 3 * ONE, 5 * ONE])
@pytest.mark.parametrize("units", [1, 2, 3, 7])
def test_one_batch_fills_as_many_segments_as_it_takes(tmp_path: Path, log_bytes: int, units: int) -> None:
    world = World(tmp_path, log_bytes=log_bytes, unit_bytes=units * 20)
    world.file.init(50)
    assert world.write(10)
    assert world.write(3)
    assert world.messages() == list(range(50, 63))
    log = world.file.log
    fitting = max(1, log_bytes // ONE)
    assert max(segment.commit_position for segment in log.segments) <= max(log_bytes, ONE)
    assert len(log.segments) >= 13 // fitting
    assert max(segment.commit_position for segment in world.file.units.segments) <= units * 20
    assert [(s.begin_offset, s.begin_ms) for s in log.segments] == [
        (s.begin_offset, 1000 + s.begin_offset) for s in log.segments
    ]
    world.reopen()
    assert world.messages() == list(range(50, 63))


def test_a_record_larger_than_a_segment_still_goes(tmp_path: Path) -> None:
    world = World(tmp_path, log_bytes=1000)
    world.file.init(0)
    assert world.write(2)
    assert world.write(1, size=5000)
    assert world.write(2)
    assert world.messages() == [0, 1, 2, 3, 4]
    assert [segment.commit_position > 1000 for segment in world.file.log.segments] == [False, True, False]


def test_a_batch_that_passes_a_segment_s_end_is_not_appended_in_part(tmp_path: Path) -> None:
    world = World(tmp_path, log_bytes=3 * ONE)
    world.file.init(0)
    assert world.file.append(world.batch(4)) is AppendStatus.FILE_FULL
    assert (world.file.append_offset, world.file.pending_bytes) == (0, 0)
    assert world.file.append(world.batch(3)) is AppendStatus.SUCCESS


def test_an_outage_in_the_middle_of_a_large_batch_keeps_what_was_taken_and_needs_the_rest_again(tmp_path: Path) -> None:
    driver = FaultyDriver(MemoryDriver(), ScriptedFaults("write", [None, None, Fault.AFTER]))
    world = World(tmp_path, driver, log_bytes=2 * ONE)
    file = world.file
    file.init(0)
    assert not world.write(10)
    assert (file.commit_offset, file.append_offset) == (2, 4)
    assert file.commit()
    assert world.write(6)
    assert world.messages() == list(range(10))


def test_what_was_committed_is_handed_to_the_index_once_and_in_order(tmp_path: Path) -> None:
    world = World(tmp_path, log_bytes=2 * ONE)
    world.file.init(0)
    world.write(5)
    world.write(1)
    handed = [number for found in world.file.committed for number in range(found.first_offset, found.next_offset)]
    assert handed == list(range(6))
    world.file.committed.clear()
    assert world.file.commit()
    assert not world.file.committed


def test_one_commit_is_one_transaction(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.file.init(0)
    statements: list[str] = []
    world.metadata._database._writer.set_trace_callback(statements.append)
    world.write(5)
    assert statements.count("COMMIT") == 1
    statements.clear()
    assert world.file.commit()
    assert statements == []


def test_the_time_index_has_an_entry_for_the_first_message_and_then_one_for_each_chunk(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.file.init(7)
    world.write(5)
    world.write(5)
    assert world.file.time_entries() == [TimeEntry(7, 1007, 0)]
    world.write(4096)
    place = UNIT.unpack(world.file.units.read_units(17, 1))[0]
    assert world.file.time_entries() == [TimeEntry(7, 1007, 0), TimeEntry(17, 1017, place)]


def test_a_gap_is_recorded_and_older_history_stays(tmp_path: Path) -> None:
    world = World(tmp_path, unit_bytes=20 * 8)
    file = world.file
    file.init(0)
    world.write(5)
    gap = file.skip_to(40, "gone")
    assert gap == Gap(5, 40, "gone", world.clock.now_ms())
    assert (file.min_offset, file.commit_offset, file.append_offset) == (0, 40, 40)
    assert bytes(file.units.read_units(5, 35)) == PRE_BLANK * 35
    assert world.write(3)
    assert world.messages() == [0, 1, 2, 3, 4, 40, 41, 42]
    assert world.reopen().gaps() == [gap]
    assert world.messages() == [0, 1, 2, 3, 4, 40, 41, 42]
    with pytest.raises(IllegalTransition, match="behind 43"):
        world.file.skip_to(43, "nothing is missing")


def test_a_gap_that_an_outage_interrupted_is_finished_as_one_gap(tmp_path: Path) -> None:
    driver = FaultyDriver(MemoryDriver())
    world = World(tmp_path, driver, unit_bytes=20 * 8)
    world.file.init(0)
    world.write(5)
    driver.plan = ScriptedFaults("write", [None, None, Fault.BEFORE])
    assert world.file.skip_to(40, "gone") is None
    file = world.reopen()
    file.recover()
    assert 5 < file.append_offset < 40
    assert file.skip_to(41, "gone") == Gap(5, 41, "gone", world.clock.now_ms())
    assert file.gaps() == [Gap(5, 41, "gone", world.clock.now_ms())]
    assert file.append_offset == 41


def test_pending_bytes_can_be_given_up_and_nothing_is_doubled_even_if_they_had_landed(tmp_path: Path) -> None:
    driver = FaultyDriver(MemoryDriver(), ScriptedFaults("write", [None, None, Fault.AFTER]))
    world = World(tmp_path, driver)
    file = world.file
    file.init(0)
    world.write(2)
    file.committed.clear()
    assert not world.write(3)
    assert file.discard_pending() > 0
    assert (file.recovered, file.append_offset, file.pending_bytes) == (False, 2, 0)
    file.recover()
    assert file.append_offset == 5, "they had landed"
    assert [(found.first_offset, found.count) for found in file.committed] == [(2, 3)]
    world.write(2)
    assert world.messages() == list(range(7))


def test_the_minimum_offset_is_the_end_when_every_record_expired(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.file.init(3)
    world.write(4)
    remove_first(world.file.log, world.file.log.segments[0])
    assert (world.file.min_offset, world.file.commit_offset) == (7, 7)
    world.write(2)
    assert world.file.min_offset == 7


def test_bug_17_a_record_whose_object_is_missing_is_an_error(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.file.init(0)
    world.write(2)
    world.driver.delete(world.file.log.last.key)
    with pytest.raises(SegmentMissing):
        world.file.log.read(0, 10)


def test_a_closed_file_takes_nothing_and_reports_so(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.file.init(0)
    world.write(2)
    assert world.file.close()
    with pytest.raises(StoreClosed):
        world.write(1)
    assert world.messages() == [0, 1]


def test_a_destroyed_queue_leaves_nothing_and_may_begin_again_when_it_is_gone(tmp_path: Path) -> None:
    driver = FaultyDriver(MemoryDriver())
    world = World(tmp_path, driver)
    world.file.init(0)
    world.write(5)
    driver.plan = Down()
    with pytest.raises(TierUnavailable):
        world.files.destroy(QUEUE.topic, QUEUE.queue_id)
    with pytest.raises(IllegalTransition, match="being deleted"):
        world.file.init(0)
    driver.plan = None
    assert world.files.destroy(QUEUE.topic, QUEUE.queue_id)
    assert not world.files.destroy(QUEUE.topic, QUEUE.queue_id)
    assert list(driver.list_segments()) == []
    assert world.metadata.segment_count() == 0
    file = world.files.find_or_create(QUEUE.topic, QUEUE.queue_id)
    file.init(0)
    world.file = file
    world.write(2)
    assert world.messages() == [0, 1]


def test_a_queue_whose_deletion_was_cut_short_by_a_crash_finishes_it_before_it_begins_again(tmp_path: Path) -> None:
    driver = FaultyDriver(MemoryDriver())
    world = World(tmp_path, driver)
    world.file.init(0)
    world.write(5)
    driver.plan = Down()
    with pytest.raises(TierUnavailable):
        world.file.destroy()
    driver.plan = None
    file = world.reopen()
    assert not file.initialised
    file.init(0)
    world.write(3)
    assert world.messages() == [0, 1, 2]
    assert file.log.begin_ms != NEVER_MS


def test_a_commit_of_several_chunks_has_a_time_entry_for_each(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.file.init(7)
    world.write(9_000)
    found = world.file.time_entries()
    assert [entry.queue_offset for entry in found] == [7, 7 + 4096, 7 + 8192]
    for entry in found:
        place = UNIT.unpack(world.file.units.read_units(entry.queue_offset, 1))[0]
        assert (entry.store_ms, entry.log_offset) == (1000 + entry.queue_offset, place)
