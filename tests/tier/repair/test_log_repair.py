"""Which messages are lost, who has them, and where their bytes go."""

from __future__ import annotations

from tier.repair.repair_world import RepairWorld
from tier.verify_world import COUNT, LOG, QUEUE, bytes_of, log_key
from tiermq.tier.repair.queue_facts import read_facts, scan_log
from tiermq.tier.repair.queue_repair import Lost, PatchedSegment, apply_patches, find_lost, find_patches


def lost(made: RepairWorld, *, with_local: bool = True) -> tuple[list[Lost], list[str]]:
    facts = read_facts(made.world.driver, QUEUE)
    sources = [made.local] if with_local else []
    return find_lost(made.world.driver, facts, scan_log(made.world.driver, facts), sources)


def test_nothing_is_lost_of_a_sound_log(made: RepairWorld) -> None:
    assert lost(made) == ([], [])


def test_the_records_around_a_damage_say_which_messages_it_held(made: RepairWorld) -> None:
    bytes_of(made.world, log_key(made.world))[320:700] = bytes(380)
    ((found,), unknown) = lost(made)
    assert unknown == []
    assert found.from_offset == 2
    assert found.to_offset == 5
    assert found.start < 320 < 700 < found.stop


def test_a_segment_in_the_middle_and_the_end_of_the_log_are_lost_by_number_too(made: RepairWorld) -> None:
    made.world.driver.delete(log_key(made.world, 1))
    last = log_key(made.world, -1)
    del bytes_of(made.world, last)[-100:]
    found, unknown = lost(made)
    assert unknown == []
    assert (found[0].start, found[0].to_offset) == (log_key(made.world, 1).base, 20)
    assert (found[-1].to_offset, found[-1].stop) == (COUNT, made.world.segments(LOG)[-1].end)


def test_a_whole_log_is_lost_from_its_first_message_on(made: RepairWorld) -> None:
    for segment in made.world.segments(LOG):
        made.world.driver.delete(segment.key)
    ((found,), _) = lost(made)
    assert (found.start, found.from_offset, found.to_offset) == (0, 0, COUNT)


def test_bytes_that_only_a_segments_checksum_misses_are_found_with_a_local_store(made: RepairWorld) -> None:
    data = bytes_of(made.world, log_key(made.world))
    data[data.index(b"UNIQ_KEY\x01") + 10] ^= 1
    ((found,), unknown) = lost(made)
    assert (found.from_offset, found.to_offset, unknown) == (0, 1, [])
    (nothing, unknown) = lost(made, with_local=False)
    assert nothing == []
    assert "is unknown without a local store" in unknown[0]


def test_patches_cover_several_segments_and_each_gets_its_own_bytes(made: RepairWorld) -> None:
    for segment in made.world.segments(LOG)[:2]:
        made.world.driver.delete(segment.key)
    facts = read_facts(made.world.driver, QUEUE)
    found, _ = find_lost(made.world.driver, facts, scan_log(made.world.driver, facts), [made.local])
    if not found:  # The head of a log that is gone looks like one that has expired.
        found = [Lost(0, log_key(made.world, 2).base, 0, facts.rows_of(LOG)[2].begin_offset)]
    patches, failed = find_patches(facts, found, [made.local])
    assert failed == []
    apply_patches(made.world.driver, facts, patches, "damaged-1")
    made.assert_as_before()


def test_a_patched_segment_can_be_gone_through_again(made: RepairWorld) -> None:
    key = log_key(made.world)
    bytes_of(made.world, key)[100] ^= 1
    facts = read_facts(made.world.driver, QUEUE)
    patches, _ = find_patches(facts, lost(made)[0], [made.local])
    pieces = PatchedSegment(made.world.driver, key, facts.logs[0], patches)
    for _ in range(2):
        assert b"".join(pieces) == made.before[key.path]
