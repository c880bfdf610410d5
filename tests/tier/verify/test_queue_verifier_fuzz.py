"""Whatever the bytes are, a verification comes to its end, reports it, and raises nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tier.tier_world import TierWorld
from tier.verify_world import bare, bytes_of, index_key, kinds, log_key, sound_world, unit_key
from tiermq.tier.tier_view import view_tier
from tiermq.tier.verify.verify import verify_tier

damage = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 1 << 30), st.binary(min_size=1, max_size=40)), min_size=1, max_size=4
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TierWorld:
    return sound_world(tmp_path_factory.mktemp("fuzz"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=damage, cut=st.integers(0, 3))
def test_any_damage_is_survived_and_found_by_checksum(
    world: TierWorld, damage: list[tuple[int, int, bytes]], cut: int
) -> None:
    keys = [
        log_key(world),
        log_key(world, 1),
        log_key(world, -1),
        unit_key(world),
        unit_key(world, -1),
        index_key(world),
    ]
    before = {key: bytes(bytes_of(world, key)) for key in keys}
    objects = dict(world.driver._place.objects)
    try:
        for which, at, data in damage:
            target = bytes_of(world, keys[which])
            at %= len(target)
            target[at : at + len(data)] = data[: len(target) - at]
        if cut:
            del bytes_of(world, keys[cut])[-cut * 7 :]
        changed = [key for key in keys[:5] if bytes(bytes_of(world, key)) != before[key]]
        found = kinds(verify_tier(world.driver))
        assert not changed or found & {"checksum", "short_segment"}
        bare(world)
        verify_tier(world.driver, metadata=world.metadata)
        view = view_tier(world.driver)
        for queue in view.queues:
            assert all(
                row.message is not None or row.error or row.queue_offset >= 0 for row in view.messages(queue, 0, 99)
            )
    finally:
        for key, data in before.items():
            bytes_of(world, key)[:] = data
        world.driver._place.objects.update(objects)


def test_the_world_is_sound_to_begin_with(tmp_path: Path) -> None:
    world = sound_world(tmp_path)
    assert verify_tier(world.driver).is_clean
    world.close()
