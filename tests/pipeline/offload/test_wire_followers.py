"""A broker whose messages a job copies from another machine: it reads the bucket, and the job none of its files."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pipeline.offload.offload_world import QUEUES, STORE, TIER
from pipeline.offload.wire_world import CLUSTER, WireWorld, fill, wire_world
from simulation.manual_clock import ManualClock
from tiermq.cli.main import cli
from tiermq.clock import HOUR_MS
from tiermq.pipeline.compact.job import compact
from tiermq.pipeline.expire.job import expire
from tiermq.pipeline.task_runner import LocalRunner
from tiermq.tier.driver.bundle import encode_bundle
from tiermq.tier.driver.contract import ForwardingDriver, Result
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.manifest_changes import changes_name
from tiermq.tier.names import BUNDLES_DIRECTORY, SegmentKey
from tiermq.tier.tiered_store import TieredStore

HOME = (CLUSTER, "broker-0")


@pytest.fixture(params=["", "?driver=object"], ids=["files", "objects"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[WireWorld]:
    suffix = request.param
    tier = (tmp_path / "t").as_uri() + suffix
    with wire_world(
        tmp_path, suffix=suffix, tier=tier, tier_dispatch_enable=False, file_reserved_time=0, **TIER
    ) as made:
        yield made


def store_of(world: WireWorld) -> TieredStore:
    store = world.broker.broker.store
    assert isinstance(store, TieredStore)
    return store


def all_of(store: TieredStore, topic: str, queue_id: int) -> list[Any]:
    found: list[Any] = []
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        page = store.get(topic, queue_id, offset, 32)
        found += page.messages
        offset = page.next_offset
    return found


class Opened:
    """The files below a directory that this thread opens, SQLite's included. Audit hooks stay: it is switched off."""

    def __init__(self, directory: Path) -> None:
        self.paths: list[str] = []
        self._directory, self._thread, self._is_on = str(directory), threading.get_ident(), True
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._is_on and event in ("open", "sqlite3.connect") and threading.get_ident() == self._thread:
            path = str(arguments[0])
            if path.startswith(self._directory):
                self.paths.append(path)

    def stop(self) -> None:
        self._is_on = False


def test_files_go_on_proof_and_old_messages_and_keys_are_read_while_a_job_elsewhere_copies(world: WireWorld) -> None:
    fill(world.broker, 2_000)
    store = store_of(world)
    before = {name: [message.body for message in all_of(store, *name)] for name in QUEUES}
    keyed = [message for message in all_of(store, "orders", 0) if message.keys][:3]
    opened = Opened(world.root / "s0")
    world.offload()
    opened.stop()
    assert opened.paths == []
    assert store.flush_to_tier()
    store.clean_now()
    assert store.local.min_offset("orders", 0) > keyed[-1].queue_offset
    assert {name: [message.body for message in all_of(store, *name)] for name in QUEUES} == before
    for message in keyed:
        found = store.query("orders", message.keys[0])
        assert [each.queue_offset for each in found.messages] == [message.queue_offset]
    assert store.query("orders", "no such key").complete
    fill(world.broker, 300, 2, 2_000)
    assert not store.flush_to_tier()
    world.offload()
    assert store.flush_to_tier()


def test_a_note_that_cannot_be_read_is_reported_and_the_other_queues_are_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier = (tmp_path / "t").as_uri() + "?driver=object"
    with wire_world(
        tmp_path, suffix="?driver=object", tier=tier, tier_dispatch_enable=False, file_reserved_time=0, **TIER
    ) as world:
        fill(world.broker, 10)
        world.offload()
        store = store_of(world)
        assert store.flush_to_tier()
        (directory,) = (tmp_path / "t").glob(f"*/*/{BUNDLES_DIRECTORY}")
        number = max(int(each.name) for each in directory.iterdir() if each.name.isdigit()) + 1
        data, _ = encode_bundle(
            "somebody", [], notes={"orders/0": "none", "orders/1": '{"queue": 1, "topic": "orders"}'}
        )
        (directory / f"{number:020d}").write_bytes(data)
        fill(world.broker, 10, 2)
        world.offload()
        assert store.flush_to_tier()
        store.clean_now()
        for name in QUEUES:
            assert [message.queue_offset for message in all_of(store, *name)] == list(range(store.max_offset(*name)))
    assert "a note in a bundle" in caplog.text


def test_expiry_and_compaction_of_the_bucket_alone_reach_a_broker_that_follows(world: WireWorld) -> None:
    fill(world.broker, 2_000)
    world.offload()
    store = store_of(world)
    assert store.flush_to_tier()
    compact(LocalRunner(), tier=world.tier, cluster=CLUSTER, broker="broker-0")
    store.refresh_tier()
    before = {name: all_of(store, *name) for name in QUEUES}
    store.clean_now()
    assert {name: [m.body for m in all_of(store, *name)] for name in QUEUES} == {
        name: [m.body for m in messages] for name, messages in before.items()
    }
    report = expire(
        tier=world.tier, keep_hours=1, clock=ManualClock(world.broker.clock.now_ms() + 2 * HOUR_MS), orphans=False
    )
    assert report.done["segments"] > 0, report
    store.refresh_tier()
    for name in QUEUES:
        assert store.min_offset(*name) > 0
        assert [m.body for m in all_of(store, *name)] == [
            m.body for m in before[name] if m.queue_offset >= store.min_offset(*name)
        ]


@pytest.mark.parametrize("deletes", [True, False])
def test_retention_of_a_broker_that_follows_is_applied_by_the_job_that_expires_its_tier(
    tmp_path: Path, deletes: bool
) -> None:
    tier = (tmp_path / "t").as_uri()
    retention: dict[str, Any] = {
        "tiered_store_file_reserved_time": 1,
        "tier_max_bytes_per_topic": 30_000,
        "tiered_store_delete_file_enable": deletes,
    }
    with wire_world(tmp_path, tier=tier, tier_dispatch_enable=False, **retention, **TIER) as made:
        fill(made.broker, 400)
        made.offload()
        early, late = (ManualClock(made.broker.clock.now_ms() + hours * HOUR_MS) for hours in (0, 2))

        def expired(clock: ManualClock, **limits: Any) -> int:
            report = expire(tier=tier, clock=clock, orphans=False, **limits)
            assert report.problems == []
            notes = [note.partition("the broker's ")[2] for note in report.details["notes"]]
            named = [] if "keep_hours" in limits else ["tieredStoreFileReservedTime=1"]
            named += [] if "max_bytes_per_topic" in limits else ["tierMaxBytesPerTopic=30000"]
            assert notes == (named if deletes else [])
            return int(report.done["segments"])

        assert expired(early, keep_hours=1000, max_bytes_per_topic=10**9) == 0, "what the operator says comes first"
        assert expired(late, keep_hours=1000, max_bytes_per_topic=10**9) == 0
        # By the command, whose clock is this machine's: the size.
        result = CliRunner().invoke(cli, ["pipeline", "expire", tier, "--json"])
        assert result.exit_code == 0, result.output
        assert (json.loads(result.stdout)["done"]["segments"] > 0) == deletes
        before = sum(len(data) for data in made.segments().values())
        assert (expired(late) > 0) == deletes
        left = sum(len(data) for data in made.segments().values())
        assert left == 0 if deletes else left == before


class Counting(ForwardingDriver):
    """Counts requests by operation."""

    def __init__(self, url: str) -> None:
        super().__init__(open_driver(url))
        self.counts: dict[str, int] = {}

    def forward(self, operation: str, key: SegmentKey | None, call: Callable[[], Result]) -> Result:
        self.counts[operation] = self.counts.get(operation, 0) + 1
        return super().forward(operation, key, call)


def test_a_look_is_one_request_and_one_for_each_changed_queue_also_after_a_restart(world: WireWorld) -> None:
    fill(world.broker, 300)
    world.offload()
    store_of(world).refresh_tier()
    root, tier = world.root / "s0", world.tier
    seen = store_of(world).tier.metadata.changes_seen()
    assert seen is not None
    world.broker.stop()
    driver = Counting(tier)
    settings: dict[str, Any] = {"broker_cluster_name": CLUSTER, "broker_name": "broker-0"}
    with TieredStore.open(
        root, driver=driver, background=False, tier_dispatch_enable=False, **settings, **TIER, **STORE
    ) as store:
        driver.counts.clear()
        assert not store.refresh_tier()
        assert driver.counts == {"get_object": 1}
        driver.inner.delete_object(changes_name(*HOME))
        store.refresh_tier()
        store.refresh_tier()
        assert driver.counts["list_objects"] == 1, "the list was lost: all manifests are read, once"
        assert store.tier.metadata.changes_seen() == seen
