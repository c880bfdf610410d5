"""The whole life of a tiered store on a real S3 server: tiered, evicted, erased, restored; both sides killed."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from scenarios.broker_world import SETTINGS, BrokerWorld
from scenarios.killed_writer import SIZES, Promised, check, run_and_kill
from scenarios.steps import (
    EraseBrokerDisk,
    ExpectEverything,
    ExpectMessages,
    ExpectOffsets,
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
from servers.seaweedfs import SeaweedFS
from tiermq import Message
from tiermq.errors import TierCredentials, TierError, TierUnavailable
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.tiered_store import TieredStore


@pytest.mark.parametrize("bundle_interval", [0, 1_000])
def test_a_life_on_s3(url: str, tmp_path: Path, bundle_interval: int) -> None:
    world = BrokerWorld(
        tmp_path, open_driver(url), tiered_store_file_reserved_time=10_000, tier_bundle_interval=bundle_interval
    )
    steps: list[Step] = [Open(), Produce(60), MoveClock(1_000), Produce(60, "orders", 1), TierNow(), KillWriter(),
             MoveClock(1_000), Produce(100),
             TierNow(), ExpectEverything(), ExpireLocal(), ExpectEverything(), EraseBrokerDisk(), Reopen(restore=True),
             ExpectOffsets(0, 160), ExpectEverything(), Produce(5), TierNow(), ExpectMessages()]  # fmt: skip
    play(world, steps)


def test_a_deleted_topic_leaves_nothing_in_the_bucket(url: str, tmp_path: Path) -> None:
    world = BrokerWorld(tmp_path, open_driver(url))
    world.open()
    world.put(60)
    world.put(3, "other")
    assert world.store.flush_to_tier()
    assert world.store.delete_topics(["orders"]) == 1
    left = [info.key.topic for info in world.driver.list_segments()]
    assert set(left) == {"other"}
    assert not [name for name in world.driver.list_objects() if "orders" in name]
    world.bury()


def test_a_bucket_that_is_not_there_is_a_typed_error_and_holds_up_no_put(
    seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in seaweedfs.guest_environment.items():
        monkeypatch.setenv(name, value)
    with TieredStore.open(tmp_path, tier="s3://no-such-bucket/x", background=False, **SETTINGS) as store:
        assert store.put(Message("orders", b"x")).ok
        assert not store.flush_to_tier(5)
        assert store.get("orders", 0, 0).count == 1
    shutil.rmtree(tmp_path)
    with pytest.raises(TierError):
        TieredStore.open(tmp_path, tier="s3://no-such-bucket/x", restore=True, background=False, **SETTINGS)


def test_wrong_credentials_are_a_typed_error_without_the_secret(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret-value")
    with pytest.raises(TierCredentials) as caught:
        TieredStore.open(tmp_path, tier=url, restore=True, background=False, **SETTINGS)
    assert "wrong-secret-value" not in str(caught.value)


def _objects(server: SeaweedFS, url: str) -> tuple[Any, list[str]]:
    store = server.store("history")
    prefix = url.removeprefix("s3://history/")
    return store, sorted(item["path"] for batch in store.list(prefix) for item in batch)


def test_a_part_that_was_truncated_is_reported_and_never_returned(
    seaweedfs: SeaweedFS, url: str, tmp_path: Path
) -> None:
    world = BrokerWorld(tmp_path, open_driver(url), tiered_store_commit_log_max_size=1 << 20)
    world.open()
    world.put(50)
    assert world.store.flush_to_tier()
    world.close()
    store, names = _objects(seaweedfs, url)
    part = next(name for name in names if "/COMMIT_LOG/" in name and ".parts/" in name)
    data = bytes(store.get(part).bytes())
    store.put(part, data[: len(data) // 2])
    world.open(tiered_storage_level="FORCE")
    world.put(3)
    assert not world.store.flush_to_tier()
    tier: Any = world.store.status()["tier"]
    assert "orders-0" in tier["troubles"]
    for offset in range(0, 50, 7):
        assert world.store.get("orders", 0, offset, 1).messages[0].queue_offset == offset  # The local store has it.
    world.erase_disk()
    world.open(restore=True)
    assert world.store.restored is not None
    found = [m.queue_offset for m in world.read()]
    assert found == list(range(len(found)))
    assert len(found) < 50
    world.bury()


def test_segments_are_one_object_each_once_they_are_full(seaweedfs: SeaweedFS, url: str, tmp_path: Path) -> None:
    world = BrokerWorld(tmp_path, open_driver(url))
    world.open()
    for _ in range(6):
        world.put(20)
        assert world.store.flush_to_tier()
    while world.store.tier.engine.step():
        continue
    _, names = _objects(seaweedfs, url)
    log = [info for info in world.driver.list_segments() if "COMMIT_LOG" in info.key.path]
    assert all(info.sealed for info in log[:-1])
    prefix = url.removeprefix("s3://history/")
    for info in log[:-1]:
        assert f"{prefix}/{info.key.path}" in names
    world.bury()


@pytest.mark.slow
@pytest.mark.crash
def test_a_broker_that_is_killed_while_it_uploads_to_s3_loses_and_doubles_nothing(
    seaweedfs: SeaweedFS, url: str, tmp_path: Path
) -> None:
    promised = Promised()
    for rounds in (1, 3, 2):
        run_and_kill(tmp_path / "store", url, promised, rounds, seaweedfs.environment)
    with TieredStore.open(tmp_path / "store", tier=url, broker_name="broker-a", **SIZES) as store:
        check(store, promised)
        assert store.flush_to_tier(120), store.status()
    shutil.rmtree(tmp_path / "store")
    with TieredStore.open(tmp_path / "store", tier=url, broker_name="broker-a", restore=True, **SIZES) as store:
        check(store, promised)


@pytest.mark.slow
@pytest.mark.crash
def test_a_server_that_is_killed_in_the_middle_is_caught_up_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SeaweedFS(tmp_path / "server") as server:
        server.create_bucket("history")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        put: dict[int, int] = {}
        settings: dict[str, Any] = {**SIZES, "tiered_store_group_commit_timeout": 0, "tier_dispatch_interval": 50}
        with TieredStore.open(tmp_path / "store", tier="s3://history/x", broker_name="broker-a", **settings) as store:

            def go(count: int) -> None:
                for number in range(len(put), len(put) + count):
                    result = store.put(Message("orders", b"%d" % number, keys=[f"key-{number}"]))
                    assert result.ok
                    put[result.queue_offset] = number

            go(500)
            assert store.flush_to_tier(60)
            go(500)
            server.kill()
            began = time.monotonic()
            go(500)
            assert time.monotonic() - began < 30  # Not one put waited for the tier.
            assert not store.flush_to_tier(3)
            assert store.get("orders", 0, 1_200).count
            server.start()
            assert store.flush_to_tier(240), store.status()
        shutil.rmtree(tmp_path / "store")
        with TieredStore.open(
            tmp_path / "store", tier="s3://history/x", broker_name="broker-a", restore=True, **settings
        ) as store:
            assert store.max_offset("orders", 0) == 1_500
            promised = Promised({0: put})
            check(store, promised)


def test_a_server_that_is_gone_is_unavailable_and_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with pytest.raises(TierUnavailable):
        TieredStore.open(tmp_path, tier="s3://history/x", restore=True, background=False, **SETTINGS)
