"""A TieredStore's life: settings, bad input, opening, closing, being without a tier, evicting on proof."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from scenarios.broker_world import HOUR_MS, SETTINGS, BrokerWorld
from servers.faulty_driver import Down
from tier.tiered_world import bodies, opened, sent
from tiermq import Message
from tiermq.config import StoreConfig
from tiermq.errors import (
    BadConfig,
    BadTierUrl,
    FutureManifest,
    StoreClosed,
    StoreLocked,
    TierCredentials,
    TierUnavailable,
)
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.metadata.document import seal_document
from tiermq.tier.metadata.manifest import decode_manifest, manifest_name
from tiermq.tier.names import QueueKey
from tiermq.tier.tier_config import StorageLevel, TierConfig
from tiermq.tier.tiered_store import TieredStore

T = "orders"
QUEUE = QueueKey("DefaultCluster", "broker-a", T, 0)


# Settings


def test_without_settings_the_defaults_are_rocketmqs(tmp_path: Path) -> None:
    with TieredStore.open(tmp_path, tier="memory://defaults", background=False) as store:
        config = store.tier.config
        assert config.tiered_storage_level is StorageLevel.NOT_IN_DISK
        assert config.tiered_store_group_commit_count == 4_096
        assert config.tiered_store_file_reserved_time == -1  # For ever; RocketMQ deletes after 72 hours.
        assert config.root_path == tmp_path
        assert store.put(Message(T, b"hello", keys=["k"])).ok
        assert store.flush_to_tier()
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


def test_a_store_without_a_tier_reports_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="URL of its tier"):
        TieredStore.open(tmp_path)


# Bad input


def test_an_unknown_scheme_is_refused_and_the_known_ones_are_named(tmp_path: Path) -> None:
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

    before = threading.enumerate()  # Threads of an earlier test may end meanwhile.
    with pytest.raises(TierUnavailable):
        TieredStore.open(tmp_path, driver=Unlistable(), restore=True, **SETTINGS)
    assert [each for each in threading.enumerate() if each not in before] == []
    opened(tmp_path).close()


def test_a_second_store_in_the_same_directory_is_refused(world: BrokerWorld) -> None:
    world.open()
    with pytest.raises(StoreLocked):
        opened(world.disk)


def test_a_queue_with_a_manifest_of_the_future_is_left_alone_and_the_others_go_on(world: BrokerWorld) -> None:
    world.open()
    world.put(5)
    assert world.store.flush_to_tier()
    stored = world.driver.get_object(manifest_name(QUEUE))
    future = seal_document(json.loads(stored.data)["body"], 9)
    world.driver.put_object(manifest_name(QUEUE), future)
    with pytest.raises(FutureManifest):
        decode_manifest(future, "m")
    world.close()
    world.open()
    world.put(5)
    world.put(5, "other")
    assert not world.store.flush_to_tier()
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
    assert not world.store.flush_to_tier()
    world.close()
    world.open()
    world.put(10)
    assert bodies(world) == sent(world)
    world.driver.plan = None
    if not world.store.flush_to_tier():
        world.clock.advance_ms(60_000)
        assert world.store.flush_to_tier()
    file = world.store.tier.files.find(T, 0)
    assert file is not None
    assert (file.min_offset, file.commit_offset) == (0, 20)


def test_a_closed_store_reports_so(world: BrokerWorld) -> None:
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
        assert store.flush_to_tier(60)
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
            assert store.flush_to_tier(60)


def test_a_request_that_hangs_does_not_hold_up_a_close_for_ever(tmp_path: Path) -> None:
    class Hanging(MemoryDriver):
        released = threading.Event()
        entered = threading.Event()

        def write(self, key: Any, position: int, data: Any) -> bool:
            self.entered.set()
            self.released.wait()
            return super().write(key, position, data)

    driver = Hanging()
    store = TieredStore.open(
        tmp_path, driver=driver, tier_close_timeout=300, tiered_store_group_commit_timeout=0, **SETTINGS
    )
    assert store.put(Message(T, b"x")).ok
    assert not store.flush_to_tier(0.2)
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
    assert world.store.flush_to_tier()
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
    assert world.store.flush_to_tier()
    world.close()
    world.clock.advance_ms(73 * HOUR_MS)
    world.driver.plan = Down()
    world.open(tiered_store_file_reserved_time=10_000)
    assert world.evict() == 0
    world.driver.plan = None
    assert world.store.flush_to_tier()
    assert world.evict() > 0
    assert bodies(world) == sent(world)


def test_without_proof_files_go_when_they_are_old(world: BrokerWorld) -> None:
    world.open(tier_evict_on_proof=False)
    world.put(300)
    world.clock.advance_ms(73 * HOUR_MS)
    assert world.evict() > 0


def test_a_restore_for_a_broker_that_is_waited_for_indexes_keys_afterwards(world: BrokerWorld) -> None:
    world.open()
    world.put(40)
    assert world.store.flush_to_tier()
    world.erase_disk()
    world.open(restore=True, index_later=True)
    key = world.sent[T, 0][7].keys[0]
    assert world.store.tier.index is not None
    assert not world.store.query(T, key).complete, "and no message of the tier was read"
    world.put(1)
    world.store.tier.index.run_once()
    page = world.store.query(T, key)
    assert page.complete
    assert [message.body for message in page.messages] == [world.sent[T, 0][7].body]
    assert bodies(world) == sent(world)
