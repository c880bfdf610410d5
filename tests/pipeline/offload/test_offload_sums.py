"""Checksums of blocks in manifests: every job that writes segments writes them, others add what is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pipeline.offload.offload_world import SMALL, OffloadWorld, fill
from tiermq import Message
from tiermq.cli.main import cli
from tiermq.errors import TierMQError
from tiermq.store.local_store import LocalStore
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.manifest_store import ManifestStore
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.tiered_store import TieredStore

COUNT = 4


@pytest.fixture
def world(tmp_path: Path) -> OffloadWorld:
    made = OffloadWorld(tmp_path)
    with LocalStore.open(made.store) as store:
        for number in range(COUNT):
            assert store.put(Message("orders", b"body %d" % number, keys=[f"order-{number}"])).ok
    return made


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def offload(world: OffloadWorld) -> None:
    result = run("pipeline", "offload", "--store", world.place(), "--tier", world.tier, "--master", "here")
    assert result.exit_code == 0, result.output


def damage(world: OffloadWorld) -> None:
    """Change a key of a message in the tier, where RocketMQ's format has no checksum."""
    [log] = [path for path in (world.root / "t").rglob("orders/0/COMMIT_LOG/*") if path.is_file()]
    data = log.read_bytes()
    assert data.count(b"order-2") == 1
    log.write_bytes(data.replace(b"order-2", b"order-9"))


def rows(world: OffloadWorld) -> list[Segment]:
    """What the manifests say of all segments of messages that have a byte."""
    driver = open_driver(world.tier)
    queues = {info.key.queue for info in driver.list_segments() if info.key.type.name != "INDEX"}
    manifests = [ManifestStore(driver, "a test").read(queue) for queue in sorted(queues)]
    return [row for manifest in manifests if manifest is not None for row in manifest.segments if row.size]


def without_sums(world: OffloadWorld) -> None:
    """The tier as a TierMQ left it whose offload wrote no checksums of blocks."""
    driver = open_driver(world.tier)
    with MetadataStore(world.store / "config" / "tieredStoreMetadata.db") as metadata:
        for row in metadata.all_segments():
            metadata.put_segment(replace(row, sums=None))
    for queue in {row.key.queue for row in rows(world)}:
        manifests = ManifestStore(driver, "an older one")
        manifests.acquire(queue)
        manifest = manifests.read(queue)
        assert manifest is not None
        manifests.write(replace(manifest, segments=tuple(replace(row, sums=None) for row in manifest.segments)))
    assert not any(row.has_all_sums for row in rows(world))


def assert_damage_is_found(world: OffloadWorld) -> None:
    reported = run("tier", "cat", world.tier, "--topic", "orders", "--queue", "0")
    assert reported.exit_code == 1, reported.output
    assert all("is not what was written" in json.loads(line)["error"] for line in reported.stdout.splitlines())
    assert "order-9" not in reported.stdout
    restored = world.root / "restored"
    assert run("tier", "restore", world.tier, "--store", str(restored)).exit_code == 0
    names: dict[str, Any] = {"broker_cluster_name": "c", "broker_name": "b"}
    with (
        TieredStore.open(restored, tier=world.tier, background=False, **names) as store,
        pytest.raises(TierMQError, match="is not what was written"),
    ):
        store.get("orders", 0, 0, COUNT)


def test_a_damaged_property_of_an_offloaded_message_is_not_read_as_good_data(world: OffloadWorld) -> None:
    offload(world)
    damage(world)
    assert_damage_is_found(world)


def test_compact_adds_the_checksums_that_an_earlier_offload_did_not_write(world: OffloadWorld) -> None:
    offload(world)
    without_sums(world)
    words = ("pipeline", "compact", world.tier, "--master", "here", "--json")
    assert json.loads(run(*words, "--dry-run").stdout)["planned"]["summedSegments"] == 2
    assert not any(row.has_all_sums for row in rows(world))
    done = run(*words)
    assert (done.exit_code, json.loads(done.stdout)["done"]["summedSegments"]) == (0, 2), done.output
    assert all(row.has_all_sums for row in rows(world))
    damage(world)
    assert_damage_is_found(world)


def test_compact_reports_a_segment_that_is_damaged_and_gives_it_no_checksums(world: OffloadWorld) -> None:
    offload(world)
    without_sums(world)
    damage(world)
    result = run("pipeline", "compact", world.tier, "--master", "here")
    assert result.exit_code == 1
    assert "are not what was written" in result.output
    assert [row.has_all_sums for row in rows(world) if row.key.type.name == "COMMIT_LOG"] == [False]


def test_a_repair_adds_the_checksums_that_are_missing(world: OffloadWorld) -> None:
    offload(world)
    without_sums(world)
    result = run("pipeline", "verify", world.tier, "--repair", "--master", "here")
    assert result.exit_code == 0, result.output
    assert all(row.has_all_sums for row in rows(world))
    damage(world)
    assert_damage_is_found(world)


def test_an_offload_goes_on_with_the_checksums_of_a_segment_that_had_none(world: OffloadWorld) -> None:
    offload(world)
    without_sums(world)
    with LocalStore.open(world.store) as store:
        assert store.put(Message("orders", b"one more")).ok
    offload(world)
    assert all(row.has_all_sums for row in rows(world))


def test_every_segment_of_an_offload_in_waves_has_the_checksums_of_all_its_blocks(tmp_path: Path) -> None:
    made = OffloadWorld(tmp_path)
    fill(made.store, 400)
    report = made.offload(settings=SMALL)
    assert report.done["waves"] > 1
    assert report.done["segments_sealed"] > 0
    assert all(row.has_all_sums for row in rows(made))
