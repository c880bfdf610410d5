"""A store that leaves its tier to a job: it never takes the lease, and sees what the job has copied."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.offload.offload_world import QUEUES, TIER, OffloadWorld, put
from tiermq.errors import StaleWriter
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.names import INDEX_TOPIC
from tiermq.tier.tiered_store import TieredStore


@pytest.fixture
def world(tmp_path: Path) -> OffloadWorld:
    return OffloadWorld(tmp_path)


@pytest.fixture
def store(world: OffloadWorld) -> Iterator[TieredStore]:
    with world.tiered(tier_dispatch_enable=False) as opened:
        put(opened.local, 300, random.Random(1))
        yield opened


def test_a_job_copies_beside_the_store_and_the_store_sees_it_when_it_looks(
    world: OffloadWorld, store: TieredStore
) -> None:
    assert not store.flush_to_tier()
    assert store.status()["tier"]["dispatch"] == "by a job"  # type: ignore[index]
    assert world.offload().done["messages"] == 300
    assert store.refresh_tier()
    assert not store.refresh_tier()
    assert store.flush_to_tier()
    for file in store.tier.files:
        assert file.commit_offset == store.local.max_offset(file.queue.topic, file.queue.queue_id)
    put(store.local, 100, random.Random(2), 500)
    assert not store.flush_to_tier()
    world.offload()
    assert store.flush_to_tier()


def test_cold_reads_times_and_keys_work_while_a_job_copies_and_local_files_go_on_proof(
    world: OffloadWorld, store: TieredStore
) -> None:
    before = {name: [message.body for message in all_of(store, *name)] for name in QUEUES}
    world.offload()
    proof = store.tier.engine.proof
    end = store.local.dispatched_where
    assert proof.must_stay(0, end)
    store.refresh_tier()
    assert proof.must_stay(0, end), "nothing has been read back yet"
    assert proof.prove()
    assert not proof.must_stay(0, end)
    for topic, queue_id in QUEUES:
        cold = store.tier.fetcher.get(topic, queue_id, 0, 32)
        assert [message.body for message in cold.messages] == before[topic, queue_id][: len(cold.messages)]
    assert store.tier.key_index is not None
    assert store.tier.key_index.is_complete_for("orders")
    keyed = next(message for message in all_of(store, "orders", 0) if message.keys)
    hits = store.tier.key_index.query("orders", keyed.keys[0], 10, 0, 1 << 62).hits
    assert [hit.size for hit in hits] == [keyed.size]
    assert [message.queue_offset for message in store.query("orders", keyed.keys[0]).messages] == [keyed.queue_offset]


@pytest.mark.parametrize("step", ["committed", "cover", "rows", "manifests"])
def test_no_key_is_denied_that_a_job_had_not_indexed_at_the_last_look(world: OffloadWorld, step: str) -> None:
    """A job commits messages before it indexes them: a look in between sees copies whose keys are not there yet."""
    looks = []
    with world.tiered(tier_dispatch_enable=False, file_reserved_time=0) as store:
        put(store.local, 2_000, random.Random(1))
        keyed = [message for message in all_of(store, "orders", 0) if message.keys]

        def look(name: str) -> None:
            if name == step:
                looks.append(store.refresh_tier())
                for message in keyed[:3]:  # The local store has them.
                    assert store.query("orders", message.keys[0]).messages
                assert store.query("orders", "no such key").complete

        world.offload(step=look)
        assert any(looks)
        store.clean_now()
        assert store.local.min_offset("orders", 0) > 0
        for message in keyed:
            found = store.query("orders", message.keys[0])
            assert [each.queue_offset for each in found.messages] == [message.queue_offset]
        assert store.query("orders", "no such key").complete


def test_a_key_is_found_though_a_job_merged_index_files_since_the_last_look(
    world: OffloadWorld, store: TieredStore
) -> None:
    keyed = next(message for message in all_of(store, "orders", 0) if message.keys)
    directory, gone = world.root / "t", set[Path]()
    for number in range(40):
        store.refresh_tier()
        before = set(directory.rglob(f"{INDEX_TOPIC}/0/INDEX/*"))
        world.offload(all_slots=False)
        if gone := before - set(directory.rglob(f"{INDEX_TOPIC}/0/INDEX/*")):
            break
        put(store.local, 20, random.Random(number), 500)
    assert gone, "no file that the store knows was merged"
    assert store.tier.key_index is not None
    answer = store.tier.key_index.query("orders", keyed.keys[0], 10, 0, 1 << 62)
    assert ([hit.size for hit in answer.hits], list(answer.failures)) == ([keyed.size], [])


def test_a_store_whose_job_indexes_nothing_does_not_deny_keys_that_only_the_tier_has(world: OffloadWorld) -> None:
    with world.tiered(tier_dispatch_enable=False, file_reserved_time=0) as store:
        put(store.local, 2_000, random.Random(1))
        keyed = next(message for message in all_of(store, "orders", 0) if message.keys)
        world.offload(config={**TIER, "message_index_enable": False})
        store.refresh_tier()
        assert store.query("orders", "no such key").complete, "the local store has everything"
        store.clean_now()
        assert store.local.min_offset("orders", 0) > keyed.queue_offset
        found = store.query("orders", keyed.keys[0])
        assert (found.messages, found.complete) == ([], False)


def test_nothing_of_the_tier_is_written_by_a_store_that_follows(world: OffloadWorld, store: TieredStore) -> None:
    with pytest.raises(StaleWriter, match="leaves its tier to a job"):
        store.expire_now()
    with pytest.raises(StaleWriter, match="leaves its tier to a job"):
        store.delete_topics(["orders"])
    assert store.local.topics().keys() >= {"orders"}
    assert open_driver(world.tier).list_objects() == []


def test_a_queue_of_which_the_tier_has_less_than_the_metadata_reports_proves_nothing(
    world: OffloadWorld, store: TieredStore
) -> None:
    world.offload()
    driver = open_driver(world.tier)
    info = next(iter(driver.list_segments()))
    for each in list(driver.list_segments()):
        if each.key.queue == info.key.queue:
            driver.delete(each.key)
    store.refresh_tier()
    assert store.tier.engine.proof.must_stay(0, store.local.dispatched_where)


def test_a_store_that_opens_while_a_job_has_its_tier_follows_that_job(world: OffloadWorld, tmp_path: Path) -> None:
    from tiermq.tier.dispatch.writer import TierLock

    held = TierLock(world.store, "a job")
    with world.tiered() as store:
        assert store.tier.follower is not None
    held.release()
    with world.tiered() as store:
        assert store.tier.follower is None
        put(store.local, 5, random.Random(1))
        assert store.flush_to_tier()


def test_a_store_with_threads_looks_by_itself(world: OffloadWorld) -> None:
    settings = {"tier_dispatch_enable": False, "broker_cluster_name": "c", "broker_name": "b"}
    with TieredStore.open(world.store, tier=world.tier, **settings) as store:  # type: ignore[arg-type]
        put(store.local, 30, random.Random(1))
        world.offload(config={})
        assert store.flush_to_tier(timeout_s=60)


def all_of(store: TieredStore, topic: str, queue_id: int) -> list:  # type: ignore[type-arg]
    found, offset = [], 0
    while offset < store.max_offset(topic, queue_id):
        page = store.get(topic, queue_id, offset, 32)
        found += page.messages
        offset = page.next_offset
    return found
