"""The jobs over a tier that the real RocketMQ wrote, and whose metadata were taken over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from golden.tier_reading import BROKER, CLUSTER, NAMES, WrittenTier, check_keys, check_messages, import_into, open_tier
from simulation.manual_clock import ManualClock
from tiermq.pipeline.compact.job import compact
from tiermq.pipeline.expire.job import expire
from tiermq.pipeline.reindex.job import reindex
from tiermq.pipeline.verify.job import verify
from tiermq.tier.names import SegmentType


@pytest.fixture(params=NAMES)
def written(request: pytest.FixtureRequest) -> WrittenTier:
    return WrittenTier.golden(request.param)


def given(written: WrittenTier, path: Path) -> dict[str, Any]:
    """What a job is told: the tier, the store that took it over, and the hour at which it was written."""
    tier = import_into(path, written)
    for name in ("commitlog", "consumequeue"):
        (path / name).mkdir()
    clock = ManualClock(max(fact["store_timestamp"] for fact in written.stored.values()) + 1000)
    return {"tier": tier.absolute().as_uri(), "store": f"{path}={CLUSTER}/{BROKER}", "clock": clock}


def test_its_index_is_built_again_and_then_compacted_and_every_key_is_found(
    written: WrittenTier, tmp_path: Path
) -> None:
    job = given(written, tmp_path)
    before = verify(None, **job)
    assert before.is_clean, before.problems
    built = reindex(None, **job)
    assert built.is_clean, built.problems
    assert built.done["records"] == len(written.stored)
    assert reindex(None, **job, dry_run=True).planned["queues"] == 0
    merged = compact(None, **job)
    assert merged.is_clean, merged.problems
    assert merged.done["merged_files"] == 1
    assert expire(None, **job).is_clean
    after = verify(None, **job)
    assert after.is_clean, after.problems
    with open_tier(tmp_path, tmp_path / "tier", written, clock=job["clock"]) as store:
        assert store.tier.index is not None
        store.tier.index.run_once()
        assert store.tier.index.is_complete
        assert len(store.tier.metadata.segments(next(iter(store.tier.metadata.all_segments(
            "rmq_sys_INDEX"))).key.queue, SegmentType.INDEX)) == 1  # fmt: skip
        check_messages(store, written)
        check_keys(store, written)


def test_from_the_bucket_alone_nobody_knows_the_ids_of_its_topics(written: WrittenTier, tmp_path: Path) -> None:
    job = given(written, tmp_path)
    report = reindex(None, tier=job["tier"], clock=job["clock"])
    assert report.problems
    assert all("tiermq tier import" in problem for problem in report.problems)
    assert report.done == {}
