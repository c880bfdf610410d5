"""What is there of a queue and what is known of it."""

from __future__ import annotations

from pathlib import Path

from tier.verify_world import LOG, QUEUE, UNITS, log_key, sound_world
from tiermq.tier.metadata.manifest import manifest_name
from tiermq.tier.names import QueueKey
from tiermq.tier.repair.queue_facts import read_facts


def test_segments_come_by_base_and_rows_from_manifest_and_metadata(tmp_path: Path) -> None:
    world = sound_world(tmp_path)
    world.metadata.mark_deleted(log_key(world))
    facts = read_facts(world.driver, QUEUE, world.metadata)
    assert [info.key.base for info in facts.logs] == sorted(info.key.base for info in facts.logs)
    assert {info.key.type for info in facts.units} == {UNITS}
    assert len(facts.rows_of(LOG)) == len(facts.logs) - 1  # The metadata is newer than the manifest.
    assert len(read_facts(world.driver, QUEUE).rows_of(LOG)) == len(facts.logs)
    assert facts.manifest is not None
    world.close()


def test_a_manifest_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    world = sound_world(tmp_path)
    other = world.driver.get_object(manifest_name(QueueKey(QUEUE.cluster, QUEUE.broker, "payments", 2)))
    assert other is not None
    for content in (b"{}", other.data):
        world.driver.put_object(manifest_name(QUEUE), content)
        facts = read_facts(world.driver, QUEUE)
        assert (facts.manifest, facts.is_future, facts.rows) == (None, False, ())
        assert facts.manifest_damage
    world.close()


def test_a_queue_that_is_not_there_has_nothing(tmp_path: Path) -> None:
    world = sound_world(tmp_path)
    facts = read_facts(world.driver, QueueKey("c", "b", "t", 0))
    assert (facts.logs, facts.units, facts.manifest, facts.manifest_damage) == ((), (), None, None)
    world.close()
