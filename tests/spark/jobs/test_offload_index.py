"""The key index at the end of an offload: in the tier, whole, and used by whoever has nothing but the tier."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from spark.jobs.offload_world import SMALL, TIER, OffloadWorld, fill
from tiermq import LocalStore, Message
from tiermq.clock import SystemClock
from tiermq.errors import TierError, TierUnavailable
from tiermq.files.os_file_access import OsFileAccess
from tiermq.spark.jobs.offload import offload
from tiermq.spark.jobs.offload_index import publish_index
from tiermq.spark.source.builder import explain_scan
from tiermq.tier.driver.contract import Buffer
from tiermq.tier.driver.posix import PosixDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.index.index_store import IndexStore
from tiermq.tier.metadata.database import IN_MEMORY
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.names import SegmentKey, SegmentType
from tiermq.tier.verify import verify_tier


@pytest.fixture
def world(tmp_path: Path) -> OffloadWorld:
    made = OffloadWorld(tmp_path)
    fill(made.store, 400)
    return made


def index_files(world: OffloadWorld) -> int:
    return sum(info.key.type is SegmentType.INDEX for info in open_driver(world.tier).list_segments())


def test_a_key_is_found_by_the_index_of_the_tier_alone_straight_after_an_offload(world: OffloadWorld) -> None:
    world.offload()
    stored = sum(map(len, world.segments().values()))
    found = explain_scan(tier=world.tier, keys="key-77").counters
    assert found.index_files_asked > 0
    assert 0 < found.bytes_planned < stored / 100


def test_a_run_that_finds_nothing_to_do_makes_no_index_file(world: OffloadWorld) -> None:
    first = world.offload()
    assert first.done["index_files"] == index_files(world) > 0
    assert world.offload().done["index_files"] == 0
    assert index_files(world) == first.done["index_files"]


def test_every_run_brings_the_keys_that_it_copied(world: OffloadWorld) -> None:
    world.offload()
    fill(world.store, 50, seed=2, first=1_000)
    assert world.offload().done["index_files"] == 1
    for key in ("key-77", "key-1001"):
        assert explain_scan(tier=world.tier, keys=key).counters.bytes_planned < 2_000
    assert verify_tier(open_driver(world.tier)).problems == []


def test_an_open_file_stays_in_the_store_where_that_is_asked_for(world: OffloadWorld) -> None:
    report = offload([world.place()], world.tier, index="local", settings=SMALL, config=TIER)
    assert (report.done["index_files"], index_files(world)) == (0, 0)
    assert report.done["keys"] > 0
    assert world.offload().done["index_files"] == 1
    assert explain_scan(tier=world.tier, keys="key-77").counters.bytes_planned < 2_000


def test_a_store_without_a_key_needs_no_index_file(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path / "s") as store:
        store.put(Message("orders", b"without a key"))
    world = OffloadWorld(tmp_path)
    report = world.offload()
    assert (report.problems, report.done["messages"], index_files(world)) == ([], 1, 0)


class _FullTier(PosixDriver):
    """Takes no byte of an index file while `is_full`."""

    is_full = True

    def write(self, key: SegmentKey, position: int, data: Sequence[Buffer]) -> None:
        if self.is_full:
            raise TierUnavailable("the tier is full")
        super().write(key, position, data)


def test_an_index_that_does_not_come_into_the_tier_is_a_problem_and_the_next_attempt_goes_on(tmp_path: Path) -> None:
    driver: Any = _FullTier(tmp_path / "t")
    with MetadataStore(IN_MEMORY) as rows:
        index = IndexStore(OsFileAccess(), str(tmp_path / "s"), driver, rows, "c", "b", clock=SystemClock())
        index.start(with_thread=False)
        index.put("orders", 1, 0, ["k"], 0, 100, 1_000)
        with pytest.raises(TierError, match=r"my store: .* found 1 files of it only here .* the next run goes on"):
            publish_index(index, "my store", lambda: True)
        driver.is_full = False
        assert publish_index(index, "my store", lambda: True) == 1
        assert publish_index(index, "my store", lambda: True) == 0
        index.close()
