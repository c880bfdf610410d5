"""A log is doubted where its units or its checksum speak against it."""

from __future__ import annotations

import struct
from pathlib import Path

from tier.flat.flat_world import batch
from tier.tier_world import TierWorld, record
from tier.verify_world import QUEUE, bare, bytes_of, log_key, sound_world, unit_key
from tiermq.tier.repair.queue_facts import Damage, read_facts, scan_log


def test_a_record_with_a_wrong_number_is_damage_and_not_another_message(tmp_path: Path) -> None:
    world = sound_world(tmp_path)
    for position, key in ((0, log_key(world)), (0, log_key(world, 1))):
        struct.pack_into(">q", bytes_of(world, key), position + 20, 5)
    scan = scan_log(world.driver, read_facts(world.driver, QUEUE))
    assert [damage.start for damage in scan.damages] == [0, log_key(world, 1).base]
    assert scan.doubted == {0, log_key(world, 1).base}
    world.close()


def test_a_segment_without_its_checksum_is_doubted_and_the_others_are_not(tmp_path: Path) -> None:
    world = sound_world(tmp_path)
    data = bytes_of(world, log_key(world, 1))
    data[data.index(b"UNIQ_KEY\x01") + 10] ^= 1
    scan = scan_log(world.driver, read_facts(world.driver, QUEUE))
    assert (scan.doubted, scan.damages) == (frozenset({log_key(world, 1).base}), [])
    assert scan.is_doubted(log_key(world, 1).base + 5)
    assert not scan.is_doubted(log_key(world, 1).base - 5)
    bare(world)
    assert scan_log(world.driver, read_facts(world.driver, QUEUE)).doubted == frozenset()
    world.close()


def test_a_repeated_upload_is_no_wrong_number(tmp_path: Path) -> None:
    world = TierWorld(tmp_path)
    file = world.write(3)
    doubled = [record("orders", 0, 3, 5)]
    start = file.log.commit_offset
    first, second = batch(3, 1, start, records=doubled), batch(3, 1, start + len(doubled[0]), records=doubled)
    world.driver.write(log_key(world), start, [first.data, second.data])
    world.driver.write(unit_key(world), 60, [second.units])
    scan = scan_log(world.driver, read_facts(world.driver, QUEUE))
    assert not any(isinstance(part, Damage) for part in scan.parts)
    world.close()


def test_the_unit_of_a_number_is_found_in_whichever_segment_it_is(tmp_path: Path) -> None:
    world = sound_world(tmp_path)
    facts = read_facts(world.driver, QUEUE)
    queue = facts.queue(world.driver)
    unit = queue.unit(11)
    assert unit is not None
    assert (unit.queue_offset, unit.packed()) == (11, bytes(bytes_of(world, unit_key(world, 1))[20:40]))
    assert queue.unit(999) is None
    world.close()
