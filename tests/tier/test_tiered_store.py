"""A TieredStore's life: settings, opening and closing, uploading, evicting on proof, topics, retention, one writer."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scenarios.broker_world import HOUR_MS, SETTINGS, BrokerWorld
from tiermq import GetStatus, Message, TieredStore
from tiermq.config import StoreConfig
from tiermq.errors import (
    BadConfig,
    BadTierUrl,
    FutureManifest,
    StaleWriter,
    StoreClosed,
    StoreDamaged,
    StoreLocked,
    TierCredentials,
    TierError,
    TierUnavailable,
)
from tiermq.tier.driver.faulty import Down, Fault, ScriptedFaults
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.fetch.read_policy import StorageLevel
from tiermq.tier.metadata.manifest import decode_manifest, manifest_name
from tiermq.tier.names import QueueKey
from tiermq.tier.tier_config import TierConfig

T = "orders"
QUEUE = QueueKey("DefaultCluster", "broker-a", T, 0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[BrokerWorld]:
    world = BrokerWorld(tmp_path)
    yield world
    world.driver.plan = None
    world.bury()


def bodies(world: BrokerWorld, topic: str = T) -> list[bytes]:
    return [message.body for message in world.read(topic)]


def sent(world: BrokerWorld, topic: str = T) -> list[bytes]:
    return [message.body for message in world.sent[topic, 0]]


# Settings


def opened(path: Path, **more: Any) -> TieredStore:
    return TieredStore.open(path, background=False, **{"driver": MemoryDriver(), **SETTINGS, **more})


def test_without_settings_the_defaults_are_rocketmqs(tmp_path: Path) -> None:
    with TieredStore.open(tmp_path, tier="memory://defaults", background=False) as store:
        config = store.tier.config
        assert config.tiered_storage_level is StorageLevel.NOT_IN_DISK
        assert config.tiered_store_group_commit_count == 4_096
        assert config.tiered_store_file_reserved_time == 72
        assert config.root_path == tmp_path
        assert store.put(Message(T, b"hello", keys=["k"])).ok
        assert store.tier_now()
        assert [m.body for m in store.query(T, "k").messages] == [b"hello"]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("tiered_storage_levl", "tiered_storage_level"),
        ("tier_cach_bytes", "tier_cache_bytes"),
        ("flush_disk_typ", "flush_disk_type"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_name_of_both_stores(
    tmp_path: Path, name: str, nearest: str
) -> None:
    with pytest.raises(BadConfig, match=f"no setting named {name}: did you mean {nearest}"):
        opened(tmp_path, **{name: 1})


@pytest.mark.parametrize("level", ["NOT_ON_DISK", 4, "-1"])
def test_an_unknown_level_is_refused_and_the_legal_ones_are_named(tmp_path: Path, level: object) -> None:
    with pytest.raises(BadConfig, match="DISABLE.*NOT_IN_DISK.*NOT_IN_MEM.*FORCE"):
        opened(tmp_path, tiered_storage_level=level)


def test_settings_of_a_broker_conf_reach_both_stores(tmp_path: Path) -> None:
    text = f"storePathRootDir={tmp_path}\nbrokerName=broker-x\ntieredStorageLevel=FORCE\nmessageIndexEnable=false\n"
    config, tier_config = StoreConfig.from_properties(text)[0], TierConfig.from_properties(text)[0]
    with TieredStore.open(config=config, tier_config=tier_config, tier="memory://conf", background=False) as store:
        assert store.config.root_path == store.tier.config.root_path == tmp_path
        assert store.tier.config.tiered_storage_level is StorageLevel.FORCE
        assert store.tier.files.broker == "broker-x"
        assert store.tier.index is None


def test_the_tiers_metadata_lies_in_the_local_stores_directory(tmp_path: Path) -> None:
    config = StoreConfig(store_path_root_dir=str(tmp_path / "here"))
    with TieredStore.open(config=config, tier="memory://there", background=False):
        assert (tmp_path / "here" / "config" / "tieredStoreMetadata.db").exists()


def test_a_store_without_a_tier_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="URL of its tier"):
        TieredStore.open(tmp_path)


# Bad input


def test_a_scheme_that_nobody_knows_is_refused_and_the_known_ones_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadTierUrl, match="s3"):
        TieredStore.open(tmp_path / "store", tier="ftp://host/dir", background=False)
    assert not (tmp_path / "store" / "abort").exists()


def test_missing_credentials_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(TierCredentials, match="AWS_ACCESS_KEY_ID"):
        TieredStore.open(tmp_path, tier="s3://bucket/prefix", background=False)


def test_a_failed_open_leaves_nothing_locked_and_no_thread(tmp_path: Path) -> None:
    class Unlistable(MemoryDriver):
        def list_segments(self, prefix: str = "") -> Any:
            raise TierUnavailable("down")

    before = threading.active_count()
    with pytest.raises(TierUnavailable):
        TieredStore.open(tmp_path, driver=Unlistable(), restore=True, **SETTINGS)
    assert threading.active_count() == before
    opened(tmp_path).close()


def test_a_second_store_in_the_same_directory_is_refused(world: BrokerWorld) -> None:
    world.open()
    with pytest.raises(StoreLocked):
        opened(world.disk)


def test_a_queue_with_a_manifest_of_the_future_is_left_alone_and_the_others_go_on(world: BrokerWorld) -> None:
    world.open()
    world.put(5)
    assert world.store.tier_now()
    stored = world.driver.get_object(manifest_name(QUEUE))
    future = stored.data.replace(b'"version": 1', b'"version": 9').replace(b'"version":1', b'"version":9')
    assert future != stored.data
    world.driver.put_object(manifest_name(QUEUE), future)
    with pytest.raises(FutureManifest):
        decode_manifest(future, "m")
    world.close()
    world.open()
    world.put(5)
    world.put(5, "other")
    assert not world.store.tier_now()
    tier: Any = world.store.status()["tier"]
    assert "orders-0" in tier["troubles"]
    file = world.store.tier.files.find("other", 0)
    assert file is not None
    assert file.commit_offset == 5
    assert world.driver.get_object(manifest_name(QUEUE)).data == future
    assert bodies(world) == sent(world)


# Opening, closing, being down


def test_opening_and_closing_and_putting_go_on_while_the_tier_is_down(world: BrokerWorld) -> None:
    world.driver.plan = Down()
    world.open()
    world.put(10)
    assert not world.store.tier_now()
    world.close()
    world.open()
    world.put(10)
    assert bodies(world) == sent(world)
    world.driver.plan = None
    assert world.store.tier_now() or world.clock.advance_ms(60_000) or world.store.tier_now()
    file = world.store.tier.files.find(T, 0)
    assert file is not None
    assert (file.min_offset, file.commit_offset) == (0, 20)


def test_a_closed_store_says_so(world: BrokerWorld) -> None:
    store = world.open()
    world.put(1)
    world.close()
    assert not store.running
    assert not store.put(Message(T, b"x")).ok
    with pytest.raises(StoreClosed):
        store.get(T, 0, 0)
    store.close()


def test_with_threads_of_its_own_everything_arrives_by_itself(tmp_path: Path) -> None:
    driver = MemoryDriver()
    with TieredStore.open(tmp_path / "store", driver=driver, **SETTINGS) as store:
        for number in range(500):
            assert store.put(Message(T, b"%d" % number, number % 4, keys=[f"k{number}"])).ok
        assert store.tier_now(60)
        assert store.tier.engine.status()["lag_bytes"] == 0
    with TieredStore.open(tmp_path / "copy", driver=driver, restore=True, **SETTINGS) as store:
        assert store.restored is not None
        assert store.restored.message_count == 500
        assert [m.body for m in store.query(T, "k77").messages] == [b"77"]
        assert store.get(T, 3, 0, 4).count == 4


def test_a_first_upload_right_after_the_start_owns_the_broker_first(tmp_path: Path) -> None:
    for number in range(5):
        with TieredStore.open(tmp_path / str(number), driver=MemoryDriver(), **SETTINGS) as store:
            assert store.put(Message(T, b"x")).ok
            assert store.tier_now(60)


def test_a_request_that_hangs_does_not_hold_up_a_close_for_ever(tmp_path: Path) -> None:
    class Hanging(MemoryDriver):
        released = threading.Event()
        entered = threading.Event()

        def write(self, key: Any, position: int, data: Any) -> None:
            self.entered.set()
            self.released.wait()
            super().write(key, position, data)

    driver = Hanging()
    store = TieredStore.open(
        tmp_path, driver=driver, tier_close_timeout=300, tiered_store_group_commit_timeout=0, **SETTINGS
    )
    assert store.put(Message(T, b"x")).ok
    assert not store.tier_now(0.2)
    assert driver.entered.wait(30)
    store.close()
    assert not store.local.running
    driver.released.set()
    with TieredStore.open(tmp_path, driver=MemoryDriver(), **SETTINGS) as again:
        assert again.get(T, 0, 0).count == 1


# Evict on proof


def test_local_files_go_only_once_the_tier_has_them_and_read_the_same_afterwards(world: BrokerWorld) -> None:
    world.open(tiered_store_file_reserved_time=10_000)
    world.put(300)
    before = [
        (m.body, m.properties, m.queue_offset, m.born_host, m.sys_flag, m.store_timestamp_ms) for m in world.read()
    ]
    world.clock.advance_ms(73 * HOUR_MS)
    assert world.store.clean_now().vetoed
    assert world.store.local.min_physical_offset == 0
    status: Any = world.store.status()["tier"]
    assert status["lag_bytes"] > 0
    assert "tiermq_dispatch_backlog_bytes" in world.store.metrics.render_prometheus()
    assert world.store.tier_now()
    assert world.evict() > 0
    assert world.store.local.min_physical_offset > 0
    status = world.store.status()["tier"]
    assert status["lag_bytes"] == 0
    after = [
        (m.body, m.properties, m.queue_offset, m.born_host, m.sys_flag, m.store_timestamp_ms) for m in world.read()
    ]
    assert after == before


def test_after_a_start_nothing_goes_before_the_tier_has_confirmed_it(world: BrokerWorld) -> None:
    world.open(tiered_store_file_reserved_time=10_000)
    world.put(300)
    assert world.store.tier_now()
    world.close()
    world.clock.advance_ms(73 * HOUR_MS)
    world.driver.plan = Down()
    world.open(tiered_store_file_reserved_time=10_000)
    assert world.evict() == 0
    world.driver.plan = None
    assert world.store.tier_now()
    assert world.evict() > 0
    assert bodies(world) == sent(world)


def test_without_proof_files_go_when_they_are_old(world: BrokerWorld) -> None:
    world.open(tier_evict_on_proof=False)
    world.put(300)
    world.clock.advance_ms(73 * HOUR_MS)
    assert world.evict() > 0


# Restoring late


def test_a_lost_disk_that_is_not_restored_is_noticed_and_nothing_in_the_tier_is_touched(world: BrokerWorld) -> None:
    world.open()
    world.put(50)
    assert world.store.tier_now()
    before = {info.key: info.size for info in world.driver.list_segments()}
    world.erase_disk()
    world.open()
    world.store.put(Message(T, b"too early"))
    assert not world.store.tier_now()
    tier: Any = world.store.status()["tier"]
    assert "tiermq tier restore" in tier["troubles"]["orders-0"]
    assert {info.key: info.size for info in world.driver.list_segments()} == before
    world.close()
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="used before it was restored"):
            world.open(restore=True)
    world.erase_disk()
    world.open(restore=True)
    assert bodies(world) == sent(world)


def test_a_start_before_the_restore_does_no_harm_when_nothing_was_put(world: BrokerWorld) -> None:
    world.open()
    world.put(50)
    assert world.store.tier_now()
    world.erase_disk()
    world.open()
    world.store.set_retention(T, hours=5)
    world.close()
    world.open(restore=True)
    assert world.store.restored is not None
    assert bodies(world) == sent(world)


def test_a_store_that_needs_no_restore_is_not_restored(world: BrokerWorld) -> None:
    world.open()
    world.put(50)
    assert world.store.tier_now()
    world.close()
    world.open(restore=True)
    assert world.store.restored is None
    assert bodies(world) == sent(world)


# Topics


def test_topics_are_those_of_both_stores(world: BrokerWorld) -> None:
    world.open()
    world.put(3)
    world.put(3, T, 2)
    assert world.store.tier_now()
    world.erase_disk()
    world.open(restore=True)
    world.put(1, "new")
    assert world.store.topics() == {"new": [0], T: [0, 2]}


def test_a_deleted_topic_is_gone_from_both_stores_and_begins_anew(world: BrokerWorld) -> None:
    world.open()
    world.put(50)
    world.put(5, "other")
    assert world.store.tier_now()
    first = world.sent[T, 0][0]
    assert world.store.delete_topics([T, "unknown"]) == 1
    assert world.store.topics() == {"other": [0]}
    assert world.store.tier.metadata.topic(T) is None
    assert world.store.tier.metadata.queue(QUEUE) is None
    assert world.driver.list_objects("212d6b50_DefaultCluster/broker-a/orders") == []
    assert list(world.driver.list_segments("212d6b50_DefaultCluster/broker-a/orders")) == []
    assert world.store.tier.index is not None
    assert world.store.tier.index.query(T, first.keys[0], 5, 0, world.clock.now_ms()).hits == []
    assert (world.store.min_offset(T, 0), world.store.max_offset(T, 0)) == (0, 0)
    world.sent.clear()
    world.put(7)
    assert world.store.tier_now()
    assert bodies(world) == sent(world)
    assert [m.body for m in world.store.query(T, world.sent[T, 0][3].keys[0]).messages] == [sent(world)[3]]
    world.kill()
    world.open()
    assert bodies(world) == sent(world)


@pytest.mark.parametrize("ending", ["reopen", "kill"])
def test_a_topic_that_could_not_be_deleted_stays_hidden_and_goes_when_the_tier_is_back(
    world: BrokerWorld, ending: str
) -> None:
    world.open()
    world.put(50)
    assert world.store.tier_now()
    world.driver.plan = Down()
    with pytest.raises(TierUnavailable):
        world.store.delete_topics([T])
    assert world.store.topics() == {}
    assert world.store.get(T, 0, 0).count == 0
    world.sent.clear()
    world.put(4)
    assert bodies(world) == sent(world)
    assert world.store.max_offset(T, 0) == 4
    if ending == "kill":
        world.kill()
    else:
        world.close()
    world.open()
    assert bodies(world) == sent(world)
    assert (world.store.min_offset(T, 0), world.store.max_offset(T, 0)) == (0, 4)
    tier: Any = world.store.status()["tier"]
    assert tier["deleting"] == [T]
    assert not world.store.tier_now()
    world.driver.plan = None
    world.clock.advance_ms(120_000)
    assert world.store.expire_now().topics == [T]
    assert world.store.tier_now()
    file = world.store.tier.files.find(T, 0)
    assert file is not None
    assert (file.min_offset, file.commit_offset) == (0, 4)
    assert bodies(world) == sent(world)


@pytest.mark.parametrize("operation", ["delete", "delete_object", "list_segments", "list_objects", "get_object"])
def test_a_deletion_that_fails_at_any_step_is_finished_by_the_next_call(world: BrokerWorld, operation: str) -> None:
    world.open()
    world.put(100)
    assert world.store.tier_now()
    world.driver.plan = ScriptedFaults(operation, [Fault.BEFORE])
    with pytest.raises(TierError):
        world.store.delete_topics([T])
    assert world.store.topics() == {}
    world.driver.plan = None
    world.store.delete_topics([T])
    assert list(world.driver.list_segments()) == []
    world.sent.clear()
    world.put(3)
    assert world.store.tier_now()
    assert bodies(world) == sent(world)


def test_unused_topics_are_cleaned_from_both_stores(world: BrokerWorld) -> None:
    world.open()
    for topic in (T, "kept", "rmq_sys_own"):
        world.put(3, topic)
    assert world.store.tier_now()
    assert world.store.clean_unused_topics(["kept"]) == 1
    assert world.store.topics() == {"kept": [0], "rmq_sys_own": [0]}


# Retention


def test_a_topics_own_retention_is_kept_to_and_outlives_the_disk(world: BrokerWorld) -> None:
    world.open()
    world.put(100)
    world.put(100, "short")
    world.store.set_retention(T, hours=1_000)
    world.store.set_retention("short", hours=1)
    assert world.store.tier_now()
    assert world.store.tier_now()  # Nothing to upload; the manifests are due.
    world.erase_disk()
    world.open(restore=True)
    topics = {topic.name: topic.reserve_time_hours for topic in world.store.tier.metadata.topics()}
    assert topics == {T: 1_000, "short": 1}
    world.clock.advance_ms(100 * HOUR_MS)
    report = world.store.expire_now()
    assert report.failures == []
    assert {segment.key.topic for segment in report.segments} == {"short"}
    assert world.store.min_offset(T, 0) == 0
    assert (world.store.min_offset("short", 0), world.store.max_offset("short", 0)) == (100, 100)
    assert bodies(world) == sent(world)
    world.put(3, "short")
    assert world.store.tier_now()
    assert [m.queue_offset for m in world.read("short")] == [100, 101, 102]


@pytest.mark.parametrize("bad", [{"hours": 0}, {"hours": -2}, {"max_bytes": 0}])
def test_a_retention_that_means_nothing_is_refused(world: BrokerWorld, bad: dict[str, int]) -> None:
    world.open()
    with pytest.raises(BadConfig):
        world.store.set_retention(T, **bad)


def test_what_expired_is_not_restored(world: BrokerWorld) -> None:
    world.open()
    world.put(100)
    world.store.set_retention(T, max_bytes=6_000)
    assert world.store.tier_now()
    assert world.store.expire_now().segments
    file = world.store.tier.files.find(T, 0)
    assert file is not None
    low = file.min_offset
    assert low > 0
    world.erase_disk()
    world.open(restore=True)
    assert world.store.min_offset(T, 0) == low
    assert bodies(world) == sent(world)[low:]


@pytest.mark.parametrize("manifest", ["after", "before"])
def test_numbering_goes_on_when_everything_had_expired_before_the_disk_was_lost(
    world: BrokerWorld, manifest: str
) -> None:
    """Also when the manifest was not written any more since the expiry."""
    world.open()
    world.put(100)
    assert world.store.tier_now()
    while world.store.tier.engine.step():
        continue
    world.clock.advance_ms(100 * HOUR_MS)
    assert world.store.expire_now().segments
    if manifest == "after":
        while world.store.tier.engine.step():
            continue
    world.erase_disk()
    world.open(restore=True)
    assert (world.store.min_offset(T, 0), world.store.max_offset(T, 0)) == (100, 100)
    del world.sent[T, 0][:]
    world.put(30)
    assert world.store.tier_now()
    assert world.sent[T, 0][0].offset == 100
    assert bodies(world) == sent(world)
    world.erase_disk()
    world.open(restore=True)
    assert bodies(world) == sent(world)
    assert [m.queue_offset for m in world.store.query(T, world.sent[T, 0][7].keys[0]).messages] == [107]


# One writer


def test_a_second_broker_of_the_same_name_is_refused_with_the_first_ones_name(
    world: BrokerWorld, tmp_path: Path
) -> None:
    world.open()
    world.put(5)
    assert world.store.tier_now()
    with opened(tmp_path / "second", driver=world.driver, clock=world.clock) as second:
        assert second.put(Message(T, b"other")).ok
        assert not second.tier_now()
        tier: Any = second.status()["tier"]
        assert "standing by" in tier["lease"]
        assert str(world.disk) in tier["lease"]
        with pytest.raises(StaleWriter, match="holds it"):
            second.delete_topics([T])
        with pytest.raises(StaleWriter):
            second.expire_now()
        assert second.get(T, 0, 0).count == 1
    assert bodies(world) == sent(world)


def test_the_first_writer_is_fenced_after_a_take_over_and_its_messages_stay_local(
    world: BrokerWorld, tmp_path: Path
) -> None:
    world.open()
    world.put(5)
    assert world.store.tier_now()
    world.clock.advance_ms(61_000)  # It was cut off from the tier for longer than its lease.
    with opened(tmp_path / "second", driver=world.driver, clock=world.clock, restore=True) as second:
        assert second.put(Message(T, b"other")).queue_offset == 5
        assert second.tier_now()
        world.put(5)
        assert not world.store.tier_now()
        tier: Any = world.store.status()["tier"]
        assert "lost" in tier["lease"]
        assert str(tmp_path / "second") in tier["lease"]
        with pytest.raises(StaleWriter):
            world.store.expire_now()
        assert second.get(T, 0, 5).messages[0].body == b"other"
    world.clock.advance_ms(120_000)  # The second one is gone; the first one still does not know what it wrote.
    assert not world.store.tier_now()
    assert bodies(world) == sent(world)
    for _ in range(3):  # Not now, not later, and not after a restart.
        world.close()
        world.clock.advance_ms(120_000)
        world.open()
        assert not world.store.tier_now()
    fenced: Any = world.store.status()["tier"]
    assert "gave numbers out" in fenced["fenced"]["orders-0"]
    world.close()
    with opened(tmp_path / "third", driver=world.driver, clock=world.clock, restore=True) as third:
        assert third.max_offset(T, 0) == 6
        assert [m.body for m in third.get(T, 0, 0).messages] == [*sent(world)[:5], b"other"]


def test_a_standby_takes_over_when_the_first_one_is_gone(world: BrokerWorld, tmp_path: Path) -> None:
    world.open()
    world.put(5)
    assert world.store.tier_now()
    with opened(tmp_path / "second", driver=world.driver, clock=world.clock, restore=True) as second:
        assert not second.tier_now() or second.tier.engine.status()["lease"] != "held"
        world.close()
        assert second.put(Message(T, b"mine")).queue_offset == 5
        assert second.tier_now()
        assert second.get(T, 0, 5, 1).messages[0].body == b"mine"


def test_a_standby_writes_no_index_into_the_tier(world: BrokerWorld, tmp_path: Path) -> None:
    world.open()
    world.put(400)
    assert world.store.tier_now()
    with opened(tmp_path / "second", driver=world.driver, clock=world.clock, restore=True) as second:
        before = [info.key for info in world.driver.list_segments()]
        assert second.tier.index is not None
        assert second.tier.index.is_complete
        second.tier.index.seal()
        for _ in range(3):
            second.tier.index.run_once()
        assert [info.key for info in world.driver.list_segments()] == before
        assert [m.queue_offset for m in second.query(T, "key-17").messages] == [16]
    assert [info.key for info in world.driver.list_segments()] == before
    assert world.store.tier.index is not None
    for _ in range(5):
        world.store.tier.index.run_once()
    assert [m.queue_offset for m in world.store.query(T, "key-17").messages] == [16]


def test_full_index_files_are_uploaded_when_the_store_is_closed(world: BrokerWorld) -> None:
    world.open()
    world.put(400)
    assert world.store.tier_now()
    world.close()
    assert [info for info in world.driver.list_segments() if "/INDEX/" in info.key.path]


def test_epochs_go_on_rising_when_the_lease_was_lost(world: BrokerWorld) -> None:
    world.open()
    world.put(5)
    assert world.store.tier_now()
    world.close()
    for name in world.driver.list_objects():
        if "lease" in name:
            world.driver.delete_object(name)
    world.open()
    world.put(5)
    assert world.store.tier_now()
    assert world.store.get(T, 0, 9).status is GetStatus.FOUND
