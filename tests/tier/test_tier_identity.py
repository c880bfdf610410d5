"""A store's metadata against the tier that it was copied to, another one, and one that was emptied."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.offload.offload_world import OffloadWorld, fill
from simulation.manual_clock import ManualClock
from tiermq.errors import StoreLocked, TierError
from tiermq.pipeline.offload.job import offload
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.database import IN_MEMORY
from tiermq.tier.metadata.manifest import encode_manifest, manifest_name
from tiermq.tier.metadata.manifest_store import ManifestStore
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.tier_config import TierConfig
from tiermq.tier.tier_identity import TAILS_MAX, forget_tier, missing_tail, require_known_tier


@pytest.fixture
def world(tmp_path: Path) -> OffloadWorld:
    made = OffloadWorld(tmp_path)
    fill(made.store, 60)
    made.offload()
    return made


def metadata_path(world: OffloadWorld) -> Path:
    return TierConfig(store_path_root_dir=str(world.store)).metadata_path


def test_the_tier_that_the_store_was_copied_to_is_known(world: OffloadWorld) -> None:
    with MetadataStore(metadata_path(world)) as metadata:
        require_known_tier(open_driver(world.tier), metadata, "my store")


def test_a_store_that_was_never_copied_knows_no_tier_and_takes_any(tmp_path: Path) -> None:
    with MetadataStore(IN_MEMORY) as metadata:
        require_known_tier(open_driver(tmp_path.as_uri()), metadata, "my store")


def test_a_tier_that_lost_one_queue_is_still_the_same(world: OffloadWorld) -> None:
    folder = next(path for path in Path(world.root / "t").rglob("payments") if path.is_dir())
    shutil.rmtree(folder)
    with MetadataStore(metadata_path(world)) as metadata:
        assert missing_tail(open_driver(world.tier), metadata) is None


@pytest.mark.parametrize("emptied", [True, False], ids=["emptied", "another"])
def test_a_tier_without_any_of_it_is_refused_and_nothing_is_written(world: OffloadWorld, emptied: bool) -> None:
    folder = world.root / "t"
    if emptied:
        for path in list(folder.rglob("COMMIT_LOG")):  # The lease and the manifests are still there.
            shutil.rmtree(path)
    else:
        world.tier = (world.root / "elsewhere").as_uri()
    before = sorted(world.root.rglob("*"))
    for dry_run in (True, False):
        with pytest.raises(TierError, match=r"expected the history that .*/s recorded there, such as .* found 0;"):
            offload([world.place()], world.tier, dry_run=dry_run)
    assert sorted(world.root.rglob("*")) == before


def test_history_that_expired_by_the_buckets_own_account_is_not_missed(world: OffloadWorld) -> None:
    driver = open_driver(world.tier)
    with MetadataStore(metadata_path(world)) as metadata:
        for queue in metadata.queues():
            manifest = ManifestStore(driver, "test").read(queue.key)
            for row in metadata.segments(queue.key):
                driver.delete(row.key)
            if manifest is not None:
                driver.put_object(manifest_name(queue.key), encode_manifest(replace(manifest, segments=())))
        assert missing_tail(driver, metadata) is None


def test_few_of_many_queues_are_asked_for(world: OffloadWorld) -> None:
    asked = []

    class Counted:
        url = "memory://empty"

        def size(self, key: object) -> int:
            asked.append(key)
            return 0

        def get_object(self, _name: str) -> None:
            return None

    with MetadataStore(metadata_path(world)) as metadata:
        assert missing_tail(Counted(), metadata) is not None  # type: ignore[arg-type]
    assert 0 < len(asked) <= TAILS_MAX


def test_what_is_forgotten_lies_beside(world: OffloadWorld) -> None:
    path = metadata_path(world)
    (world.store / "tiered_index_file").mkdir()  # As a broker leaves it that has tiered by itself.
    kept = forget_tier(path, world.store, ManualClock(77))
    assert kept == ["tiered_index_file.forgotten-77", f"{path.name}.forgotten-77"]
    assert [(world.store / kept[0]).is_dir(), path.with_name(kept[1]).is_file(), path.exists()] == [True, True, False]
    with MetadataStore(path.with_name(kept[1])) as metadata:
        assert metadata.segment_count() > 0


def test_what_is_being_read_is_not_forgotten(world: OffloadWorld) -> None:
    path = metadata_path(world)
    with MetadataStore(path) as metadata:
        metadata.topics()
        with pytest.raises(StoreLocked, match="stop the store's broker first"):
            forget_tier(path, world.store, ManualClock(77))
    assert os.path.exists(path)
