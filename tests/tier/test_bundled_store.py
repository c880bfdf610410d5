"""A store whose quiet queues share objects: lived, killed, restored, verified, repaired and deleted as any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from scenarios.broker_world import SETTINGS, BrokerWorld
from scenarios.steps import (
    EraseBrokerDisk,
    ExpectEverything,
    ExpectMessages,
    ExpireLocal,
    KillWriter,
    MoveClock,
    Open,
    Produce,
    Reopen,
    Step,
    TierNow,
    play,
)
from tiermq.errors import CorruptSegment
from tiermq.pipeline.offload.job import offload
from tiermq.store.readonly.store import ReadOnlyStore
from tiermq.tier.driver import bundle, object_store
from tiermq.tier.driver.object_requests import ObjectRequests
from tiermq.tier.driver.object_store import ObjectStoreDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.names import BUNDLES_DIRECTORY
from tiermq.tier.repair.repair import repair_tier
from tiermq.tier.tier_identity import open_known_metadata
from tiermq.tier.tier_view import view_tier
from tiermq.tier.verify.verify import verify_tier

URL = "memory://bundled"
QUEUES = 6
OFFLOADED = {name: value for name, value in SETTINGS.items() if name.startswith("tiered_store")}


@pytest.fixture(params=["", "early"])
def objects(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """Also with bundles that are merged and unpacked soon."""
    if request.param:
        monkeypatch.setattr(bundle, "MERGE_RUN", 3)
        monkeypatch.setattr(object_store, "UNPACKED_BYTES", 600)
    return MemoryStore()


def driver_of(objects: MemoryStore) -> ObjectStoreDriver:
    return ObjectStoreDriver(ObjectRequests(objects, URL), URL)


def world_of(path: Path, objects: MemoryStore, **settings: Any) -> BrokerWorld:
    return BrokerWorld(
        path, driver_of(objects), tier_bundle_interval=1_000, **{"tiered_store_file_reserved_time": 10_000, **settings}
    )


def paths(objects: MemoryStore, part: str = "") -> list[str]:
    return sorted(meta["path"] for batch in objects.list() for meta in batch if part in meta["path"])


def live_bundles(objects: MemoryStore) -> list[str]:
    """Those that count, and that have ranges."""
    found = [(path, bundle.bundle_object(path.rpartition("/")[2], 0, 0)) for path in paths(objects, BUNDLES_DIRECTORY)]
    live = bundle.bundle_sequence(made for _, made in found if made is not None).live
    return [
        path
        for path, made in found
        if made in live and bundle.decode_directory(bytes(objects.get(path).bytes()), path).ranges
    ]


def produce(count: int) -> list[Step]:
    return [Produce(count, f"topic-{number % 2}", number // 2) for number in range(QUEUES)]


def fill(world: BrokerWorld, rounds: int = 4, count: int = 2) -> None:
    for _ in range(rounds):
        for number in range(QUEUES):
            world.put(count, f"topic-{number % 2}", number // 2)
        world.clock.advance_ms(1_000)
        assert world.store.flush_to_tier()


def check_all(world: BrokerWorld) -> None:
    for (topic, queue_id), sent in world.sent.items():
        assert [message.body for message in world.read(topic, queue_id)] == [message.body for message in sent]


def test_a_life_with_quiet_queues(tmp_path: Path, objects: MemoryStore) -> None:
    world = world_of(tmp_path, objects)
    steps: list[Step] = [Open(), *produce(2), TierNow(), MoveClock(1_000), *produce(12), TierNow(), KillWriter(),
             MoveClock(1_000), *produce(15), TierNow(), ExpectEverything(), ExpireLocal(), ExpectEverything(),
             EraseBrokerDisk(), Reopen(restore=True), ExpectEverything(), *produce(2), TierNow(),
             ExpectMessages()]  # fmt: skip
    play(world, steps)


def test_a_step_of_all_queues_is_one_object(tmp_path: Path, objects: MemoryStore) -> None:
    world = world_of(tmp_path, objects)
    world.open()
    fill(world, 1)
    before = world.driver.requests.counts
    fill(world, 1)
    spent = {kind: count - before.get(kind, 0) for kind, count in world.driver.requests.counts.items()}
    is_early = bundle.MERGE_RUN == 3
    assert spent["put"] <= (QUEUES * 3 + 3 if is_early else 2)  # The bundle, and the lease.
    assert verify_tier(driver_of(objects)).problem_count == 0
    world.bury()


def test_all_commands_see_the_same_messages(tmp_path: Path, objects: MemoryStore) -> None:
    world = world_of(tmp_path, objects)
    world.open()
    fill(world)
    assert paths(objects, BUNDLES_DIRECTORY)
    view = view_tier(driver_of(objects))
    assert {(queue.key.topic, queue.key.queue_id): queue.max_offset for queue in view.queues} == {
        name: len(sent) for name, sent in world.sent.items()
    }
    for queue in view.queues:
        rows = list(view.messages(queue, 0, 100))
        expected = [message.body for message in world.sent[queue.key.topic, queue.key.queue_id]]
        assert [row.message.body for row in rows if row.message is not None] == expected
    report = verify_tier(driver_of(objects), metadata=world.store.tier.metadata)
    assert (report.problem_count, report.counts["records"]) == (0, sum(map(len, world.sent.values())))
    world.bury()


def test_a_deleted_topic_is_gone_and_may_begin_again(tmp_path: Path, objects: MemoryStore) -> None:
    world = world_of(tmp_path, objects)
    world.open()
    fill(world)
    assert world.store.delete_topics(["topic-0"]) == 1
    assert {info.key.topic for info in driver_of(objects).list_segments()} == {"topic-1"}
    for number in range(0, QUEUES, 2):
        del world.sent["topic-0", number // 2]
    fill(world, 2, 1)
    world.kill()
    world.open()
    world.clock.advance_ms(1_000)
    assert world.store.flush_to_tier()
    check_all(world)
    assert verify_tier(driver_of(objects)).problem_count == 0
    world.erase_disk()
    world.open(restore=True)
    check_all(world)
    world.bury()


def test_expired_segments_leave_the_bundles(tmp_path: Path, objects: MemoryStore) -> None:
    world = world_of(tmp_path, objects, tiered_store_file_reserved_time=1)
    world.open()
    fill(world)
    world.clock.advance_ms(3 * 3_600_000)
    assert world.store.flush_to_tier()
    assert world.store.tier.retention.run().segments
    fill(world, 1)
    for queue in view_tier(driver_of(objects)).queues:
        assert queue.min_offset >= 8
    assert verify_tier(driver_of(objects)).problem_count == 0
    world.bury()


@pytest.mark.parametrize("which", [0, -1])
def test_a_lost_bundle_is_found_and_repaired_from_the_local_store(tmp_path: Path, which: int) -> None:
    """The last one leaves no hole in the sequence: the store's metadata know what it had."""
    objects = MemoryStore()
    world = world_of(tmp_path, objects)
    world.open()
    fill(world, 5)
    world.close()
    objects.delete(live_bundles(objects)[which])
    with ReadOnlyStore.open(world.disk) as store, open_known_metadata(world.disk) as metadata:
        assert verify_tier(driver_of(objects), metadata=metadata).problem_count
        report = repair_tier(driver_of(objects), sources=[store], metadata=metadata)
        assert report.is_complete, report.to_dict()
        assert verify_tier(driver_of(objects), metadata=metadata).problem_count == 0
    world.driver = driver_of(objects)
    world.open(tiered_storage_level="FORCE")
    check_all(world)
    fill(world, 1)
    check_all(world)
    world.bury()


def test_a_dry_run_of_a_repair_reports_the_lost_bundle_and_changes_nothing(tmp_path: Path) -> None:
    objects = MemoryStore()
    world = world_of(tmp_path, objects)
    world.open()
    fill(world, 2)
    world.close()
    objects.delete(live_bundles(objects)[0])
    with pytest.raises(CorruptSegment, match="repair --store"):
        driver_of(objects).size(next(iter(driver_of(objects).list_segments())).key)
    before = paths(objects)
    report = repair_tier(driver_of(objects), dry_run=True)
    assert any(BUNDLES_DIRECTORY in change for outcome in report.outcomes for change in outcome.changes)
    assert paths(objects) == before


def test_a_job_continues_a_tier_with_bundles_and_the_broker_after_it(tmp_path: Path) -> None:
    url = f"memory://bundled-{tmp_path.name}?driver=object"
    world = BrokerWorld(tmp_path, open_driver(url), tier_bundle_interval=1_000, tier_close_timeout=0)
    world.open()
    fill(world, 2)
    for number in range(QUEUES):
        world.put(2, f"topic-{number % 2}", number // 2)
    world.store.local.flush()
    world.close()
    report = offload([str(world.disk)], url, config=OFFLOADED)
    assert report.is_clean, report
    assert report.done["messages"] == 2 * QUEUES
    assert verify_tier(open_driver(url)).problem_count == 0
    world.driver = open_driver(url)
    world.open(tiered_storage_level="FORCE")
    fill(world, 2)
    check_all(world)
    assert verify_tier(open_driver(url)).problem_count == 0
    world.bury()
