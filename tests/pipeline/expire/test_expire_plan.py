"""What would go is what goes: the plan by rows against the retention by files, for random histories."""

from __future__ import annotations

from pathlib import Path

import pytest

from tier.tier_world import HOUR_MS, TierWorld
from tiermq.pipeline.expire.plan import planned_expiry
from tiermq.tier.retention.retention import Retention
from tiermq.tier.tier_config import TierConfig


@pytest.mark.parametrize("seed", range(6))
def test_the_plan_names_what_the_retention_removes(tmp_path: Path, seed: int) -> None:
    world = TierWorld(tmp_path, log_bytes=640, unit_bytes=100)
    for turn in range(1 + seed):
        world.write(3 + (seed * 7 + turn) % 5, "orders", turn % 2)
        world.write(2, "payments")
        world.clock.advance_ms(HOUR_MS // 2)
    config = TierConfig(tiered_store_file_reserved_time=1, tier_max_bytes_per_topic=2_000)
    retention = Retention(world.files, world.metadata, world.driver, None, config, world.clock)
    planned = planned_expiry(world.metadata, retention.kept_ms, retention.bytes_max, world.clock.now_ms())
    removed = retention.run()
    assert sorted(each.path for each in planned) == sorted(segment.key.path for segment in removed.segments)
    assert sum(each.size for each in planned) == removed.bytes_freed
    world.close()


def test_deletions_that_were_begun_come_first_and_go_even_if_nothing_may_expire(tmp_path: Path) -> None:
    world = TierWorld(tmp_path, log_bytes=640, unit_bytes=100)
    world.write(20)
    first = world.metadata.all_segments()[0].key
    world.metadata.mark_deleted(first)
    planned = planned_expiry(world.metadata, lambda _: 0, lambda _: -1, 1 << 60, is_delete_enabled=False)
    assert [(each.path, each.reason) for each in planned] == [(first.path, "its deletion was begun and not finished")]
    assert planned[0].as_row() == {"path": first.path, "bytes": planned[0].size, "reason": planned[0].reason}
    world.close()
