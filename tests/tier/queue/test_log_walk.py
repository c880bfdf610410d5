"""The walk over a commit log: every byte is a sound record, a mark, or damage, and sound is what was written."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servers.faulty_driver import FaultyDriver
from tier.flat.flat_world import batch
from tier.tier_world import TierWorld, record
from tier.verify_world import COUNT, LOG, QUEUE, bytes_of, log_key, sound_world
from tiermq.consumequeue.unit import UNIT
from tiermq.errors import CorruptSegment
from tiermq.tier.names import SegmentKey
from tiermq.tier.repair.queue_facts import Damage, LogPart, SoundRun, read_facts, walk_log


def walked(world: TierWorld) -> list[LogPart]:
    return list(walk_log(world.driver, QUEUE, read_facts(world.driver, QUEUE).logs))


def messages(parts: list[LogPart]) -> dict[int, tuple[int, int]]:
    found = {}
    for run in parts:
        if isinstance(run, SoundRun):
            for number, (place, size, _) in enumerate(UNIT.iter_unpack(run.units)):
                found[run.queue_offset + number] = place, size
    return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TierWorld:
    return sound_world(tmp_path_factory.mktemp("walk"))


def test_a_sound_log_is_sound_runs_from_end_to_end(world: TierWorld) -> None:
    parts = walked(world)
    assert all(isinstance(part, SoundRun) for part in parts)
    assert list(messages(parts)) == list(range(COUNT))
    assert parts[-1].stop == world.segments(LOG)[-1].end


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    damage=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 1 << 30), st.binary(min_size=1, max_size=300)), max_size=3
    ),
    window=st.sampled_from([200, 500, 1 << 20]),
)
def test_chunks_cover_the_log_once_and_what_is_sound_is_what_was_written(
    world: TierWorld, damage: list[tuple[int, int, bytes]], window: int
) -> None:
    keys = [segment.key for segment in world.segments(LOG)]
    before = {key: bytes(bytes_of(world, key)) for key in keys}
    expected = messages(walked(world))
    patch = pytest.MonkeyPatch()
    try:
        patch.setattr("tiermq.tier.repair.queue_facts.WINDOW_BYTES", window)
        for which, at, data in damage:
            target = bytes_of(world, keys[which])
            at %= len(target)
            target[at : at + len(data)] = data[: len(target) - at]
        parts = walked(world)
        end = 0
        for part in parts:
            assert part.start == end
            end = part.stop
        assert end == world.segments(LOG)[-1].end
        for run in parts:
            if isinstance(run, SoundRun):
                for place, size, _ in UNIT.iter_unpack(run.units):
                    assert (place, size) in expected.values()
        untouched = {key for key in keys if bytes(bytes_of(world, key)) == before[key]}
        found = messages(parts)
        for offset, (place, size) in expected.items():
            if any(key.base <= place < key.base + len(before[key]) for key in untouched):
                assert found.get(offset) == (place, size)
    finally:
        patch.undo()
        for key, data in before.items():
            bytes_of(world, key)[:] = data


def test_holes_marks_foreign_records_and_unreadable_bytes_are_distinguished(tmp_path: Path) -> None:
    world = sound_world(tmp_path)
    struct.pack_into(">i", bytes_of(world, log_key(world)), 12, 9)
    world.driver.delete(log_key(world, 1))
    parts = walked(world)
    damages = [part for part in parts if isinstance(part, Damage)]
    assert [damage.is_hole for damage in damages] == [False, True]
    assert damages[1] == Damage(log_key(world, 1).base, log_key(world, 2).base, is_hole=True)

    class Broken(FaultyDriver):
        def read(self, key: SegmentKey, position: int, length: int) -> memoryview:
            if key == log_key(world):
                raise CorruptSegment("half an object")
            return super().read(key, position, length)

    facts = read_facts(world.driver, QUEUE)
    first = next(walk_log(Broken(world.driver), QUEUE, facts.logs))
    assert first == Damage(0, facts.logs[0].size)
    world.close()


def test_the_end_mark_of_a_segment_is_neither_record_nor_damage(tmp_path: Path) -> None:
    world = TierWorld(tmp_path)
    file = world.write(2)
    start = file.log.commit_offset
    mark = struct.pack(">iIq", 16, 0xCBD43194, 99)
    more = batch(2, 1, start + 16, records=[record("orders", 0, 2, 5)])
    world.driver.write(log_key(world), start, [mark, more.data])
    parts = walked(world)
    assert [type(part) for part in parts] == [SoundRun, SoundRun]
    assert parts[1].start == start + 16
    world.close()
