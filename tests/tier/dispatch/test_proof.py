"""Local files go only when everything tiered in them is proven to be in the tier."""

from __future__ import annotations

from pathlib import Path

import pytest

from servers.faulty_driver import Down, Fault, ScriptedFaults
from small_store import LOG_BYTES, overwrite, pause_dispatch, put_all
from tier.dispatch.dispatch_world import UNIT, DispatchWorld
from tiermq import Message
from tiermq.clock import HOUR_MS
from tiermq.errors import CorruptSegment
from tiermq.tier.dispatch.engine import EngineSettings
from tiermq.tier.names import SegmentKey


@pytest.fixture
def world(tmp_path: Path) -> DispatchWorld:
    world = DispatchWorld(tmp_path)
    world.store.add_eviction_veto(world.engine.proof.must_stay)
    return world


def test_an_empty_store_holds_nothing_back(world: DispatchWorld) -> None:
    assert not world.engine.proof.must_stay(0, 0)
    assert world.engine.proof.lag().bytes == 0


def test_a_file_stays_until_its_last_tiered_record_is_committed(world: DispatchWorld) -> None:
    world.put(10, "T", 0, size=1000)
    world.put(1, "late", 0, size=1000)
    world.put(20, "T", 0, size=1000, first=10)
    world.filter.kept_out.add("late")
    assert world.engine.flush()
    world.filter.kept_out.discard("late")
    place = world.store.physical_offset_of("late", 0, 0)
    lag = world.engine.proof.lag()
    assert (lag.copied_to, lag.topic, lag.queue_id) == (place, "late", 0)
    assert lag.bytes == world.store.max_physical_offset - place
    assert world.is_proven(place)
    assert world.engine.proof.must_stay(0, place + 1)
    world.clock.advance_ms(100 * HOUR_MS)
    cleaned = world.clean()
    assert (cleaned.log_files, cleaned.vetoed) == (0, True)
    assert world.engine.flush()
    assert world.engine.proof.lag().bytes == 0
    assert world.clean().log_files > 0
    assert world.tier_offsets() == list(range(30))


def test_filtered_topics_hold_nothing_back(world: DispatchWorld) -> None:
    world.put(20, "TBW102", size=1000)
    assert world.is_proven(LOG_BYTES)


def test_records_that_have_no_unit_yet_are_not_proven(world: DispatchWorld) -> None:
    world.put(5)
    assert world.engine.flush()
    proven = world.engine.proof.lag().copied_to
    pause_dispatch(world.store)
    world.store.put(Message("T", b"later"))
    assert world.engine.proof.lag().copied_to == proven
    assert world.engine.proof.must_stay(0, world.store.max_physical_offset)


def test_after_a_start_nothing_is_proven_before_the_tier_was_asked(world: DispatchWorld) -> None:
    world.put(20, size=1000)
    assert world.engine.flush()
    world.driver.plan = Down()
    world.restart()
    world.go()
    assert world.engine.proof.must_stay(0, LOG_BYTES)
    world.driver.plan = None
    world.go(60_000)
    assert world.is_proven(LOG_BYTES)


def test_a_gap_does_not_hold_files_back_for_ever(world: DispatchWorld) -> None:
    put_all(world.store, 60, size=1000)
    world.store.flush()
    world.store._parts.cleaner.vetoes.clear()
    world.go()
    world.clock.advance_ms(100 * HOUR_MS)
    assert world.clean().log_files > 0
    world.store.add_eviction_veto(world.engine.proof.must_stay)
    assert world.engine.flush()
    assert world.engine.proof.lag().bytes == 0


# What the tier acknowledged is not what it stored


def flip_next_writes(world: DispatchWorld, count: int) -> None:
    world.driver.plan = ScriptedFaults("write", [Fault.FLIPPED] * count)


@pytest.mark.parametrize("flipped", ["records", "units", "both"])
def test_a_back_end_that_stored_a_wrong_bit_and_reported_ok_gets_the_range_again_before_files_go(
    world: DispatchWorld, caplog: pytest.LogCaptureFixture, flipped: str
) -> None:
    world.put(30, size=1000)
    of: dict[str, list[Fault | None]] = {"records": [Fault.FLIPPED], "units": [None, Fault.FLIPPED]}
    faults = of.get(flipped, [Fault.FLIPPED] * 2)
    world.driver.plan = ScriptedFaults("write", faults)
    assert world.engine.flush()
    assert [fault for _, fault in world.driver.injected] == [fault for fault in faults if fault]
    assert world.is_proven(LOG_BYTES)
    assert world.metric("tiermq_tier_proof_failures_total") == 1
    assert world.metric("tiermq_tier_proof_repairs_total") == 1
    assert "other bytes" in caplog.text
    assert world.tier_offsets() == list(range(30))  # Each byte for byte, through the readers' checksums.
    world.clock.advance_ms(100 * HOUR_MS)
    assert world.clean().log_files > 0


def test_a_file_stays_while_its_copy_is_wrong_and_cannot_be_written_again(world: DispatchWorld) -> None:
    world.put(30, size=1000)
    flip_next_writes(world, 1)
    assert world.engine.flush()
    world.driver.plan = ScriptedFaults("rewrite", [Fault.BEFORE] * 100)
    world.clock.advance_ms(100 * HOUR_MS)
    cleaned = world.clean()
    assert (cleaned.log_files, cleaned.vetoed) == (0, True)
    assert "could not be asked" in str(world.engine.status()["unproven"])
    world.driver.plan = None
    assert world.clean().log_files > 0
    assert world.engine.status()["unproven"] == ""


def test_a_file_stays_while_what_is_written_again_is_stored_wrong_again(
    world: DispatchWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.put(30, size=1000)
    flip_next_writes(world, 1)
    assert world.engine.flush()
    world.driver.plan = ScriptedFaults("rewrite", [Fault.FLIPPED] * 100)
    world.clock.advance_ms(100 * HOUR_MS)
    cleaned = world.clean()
    assert (cleaned.log_files, cleaned.vetoed) == (0, True)
    assert "still wrong: the local files stay" in caplog.text
    assert world.metric("tiermq_tier_proof_repairs_total") == 0
    world.driver.plan = None
    assert world.clean().log_files > 0
    assert world.tier_offsets() == list(range(30))


def test_what_a_process_before_uploaded_is_proven_again(world: DispatchWorld) -> None:
    world.put(30, size=1000)
    flip_next_writes(world, 1)
    assert world.engine.flush()
    world.driver.plan = None
    world.restart()
    world.go(60_000)
    assert world.is_proven(LOG_BYTES)
    assert world.metric("tiermq_tier_proof_repairs_total") == 1
    assert world.tier_offsets() == list(range(30))


def test_bytes_that_rot_after_the_upload_are_found_before_files_go(world: DispatchWorld) -> None:
    world.put(30, size=1000)
    assert world.engine.flush()
    file = world.files.find("T", 0)
    assert file is not None
    place, size, _ = UNIT.unpack(file.units.read_units(20, 1))
    world.driver.rewrite(file.log.segments[0].key, place + size - 2, b"?")  # In a property: no CRC of the record's own.
    with pytest.raises(CorruptSegment):
        file.log.read(place, size)
    assert world.is_proven(LOG_BYTES)
    assert world.tier_offsets() == list(range(30))


@pytest.mark.parametrize(("mode", "is_caught"), [("checksum", False), ("readback", True)])
def test_a_checksum_that_agrees_is_believed_only_in_mode_checksum(tmp_path: Path, mode: str, is_caught: bool) -> None:
    world = DispatchWorld(tmp_path, settings=EngineSettings(proof_mode=mode))
    world.put(30, size=1000)
    flip_next_writes(world, 2)
    world.driver.confirms_flipped = True
    assert world.engine.flush()
    assert world.is_proven(LOG_BYTES)
    assert world.metric("tiermq_tier_proof_failures_total") == is_caught
    how = {"checksum": "checksum", "readback": "readback"}[mode]
    assert world.metric("tiermq_tier_proven_bytes_total", how=how) > 0


def test_damage_of_the_local_store_is_not_copied_over_a_good_tier(
    world: DispatchWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.put(30, size=1000)
    assert world.engine.flush()
    place, size = world.store.unit_at("T", 0, 3) or (0, 0)
    overwrite(world.access, "commitlog/00000000000000000000", place + size - 2, b"?")
    file = world.files.find("T", 0)
    assert file is not None
    before = bytes(file.log.reread(0, file.log.commit_offset))
    assert world.is_proven(LOG_BYTES)
    assert bytes(file.log.reread(0, file.log.commit_offset)) == before
    assert world.metric("tiermq_tier_proof_failures_total") == 0
    assert "damaged in the local store" in caplog.text


def rot_in_the_tier(world: DispatchWorld, offset: int) -> bytes:
    """Damage a message's copy, in a property; what the tier's log holds then."""
    file = world.files.find("T", 0)
    assert file is not None
    place, size, _ = UNIT.unpack(file.units.read_units(offset, 1))
    world.driver.rewrite(file.log.segments[0].key, place + size - 2, b"?")
    return bytes(file.log.reread(0, file.log.commit_offset))


def test_where_both_copies_are_damaged_neither_is_written_over_the_other(world: DispatchWorld) -> None:
    world.put(30, size=1000)
    assert world.engine.flush()
    rotten = rot_in_the_tier(world, 20)
    place, size = world.store.unit_at("T", 0, 3) or (0, 0)
    overwrite(world.access, "commitlog/00000000000000000000", place + size - 2, b"?")
    assert not world.is_proven(LOG_BYTES)
    file = world.files.find("T", 0)
    assert file is not None
    assert bytes(file.log.reread(0, file.log.commit_offset)) == rotten
    assert world.metric("tiermq_tier_proof_repairs_total") == 0
    world.clock.advance_ms(100 * HOUR_MS)
    cleaned = world.clean()
    assert (cleaned.log_files, cleaned.vetoed) == (0, True)


def test_without_the_lease_a_wrong_copy_is_not_written_again_and_the_file_stays(tmp_path: Path) -> None:
    world = DispatchWorld(tmp_path, lease=True)
    world.store.add_eviction_veto(world.engine.proof.must_stay)
    world.put(30, size=1000)
    assert world.engine.flush()
    rotten = rot_in_the_tier(world, 20)
    world.clock.advance_ms(HOUR_MS)  # It is not renewed: another process may have it by now.
    assert not world.is_proven(LOG_BYTES)
    file = world.files.find("T", 0)
    assert file is not None
    assert bytes(file.log.reread(0, file.log.commit_offset)) == rotten
    assert world.metric("tiermq_tier_proof_failures_total") > 0
    assert world.metric("tiermq_tier_proof_repairs_total") == 0
    assert "message 0 in the tier is not the local one" in str(world.engine.status()["unproven"])
    world.clock.advance_ms(100 * HOUR_MS)
    cleaned = world.clean()
    assert (cleaned.log_files, cleaned.vetoed) == (0, True)


def test_only_what_is_about_to_go_is_read_back_and_only_once(world: DispatchWorld) -> None:
    world.put(60, size=1000)
    assert world.engine.flush()
    reads: list[int] = []
    inner = world.driver.inner
    original = inner.reread

    def noted(key: SegmentKey, position: int, length: int) -> memoryview:
        reads.append(length)
        read: memoryview = original(key, position, length)
        return read

    inner.reread = noted
    world.engine.status()
    assert reads == []
    assert world.is_proven(LOG_BYTES)
    first = len(reads)
    assert first > 0
    assert world.is_proven(LOG_BYTES)
    assert len(reads) == first
