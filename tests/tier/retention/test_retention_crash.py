"""Retention in a process that dies before any change it makes: the next one finds everything right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tier.flat.flat_world import batch
from tier.retention_world import Broker
from tier.tier_world import BROKER, CLUSTER, RECORD_BYTES, record
from tiermq.errors import TierError, TierUnavailable
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.metadata.database import IN_MEMORY
from tiermq.tier.metadata.manifest_store import ManifestStore, snapshot_manifest
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import TopicStatus
from tiermq.tier.restore.restore import restore
from tiermq.tier.retention.retention import Retention
from tiermq.tier.tier_config import TierConfig


class Died(BaseException):
    """The process ends here."""


class Mortal:
    """A driver, and a metadata store, of a process that dies before its n-th change of either."""

    CHANGES = frozenset({
        "delete", "delete_object", "put_object", "mark_deleted", "delete_segment", "add_segment", "delete_topic",
        "delete_queue", "update_topic", "trim_time_entries",
    })  # fmt: skip

    def __init__(self, inner: object, life: list[int], death: BaseException | None = None) -> None:
        self._inner = inner
        self._life = life
        self._death = death or Died()

    def __getattr__(self, name: str) -> object:
        found = getattr(self._inner, name)
        if name not in self.CHANGES:
            return found

        def dying(*values: object, **named: object) -> object:
            self._life[0] -= 1
            if self._life[0] < 0:
                raise self._death
            return found(*values, **named)

        return dying


def prepared(path: Path) -> Broker:
    path.mkdir()
    broker = Broker(path)
    broker.world.write(11)
    broker.later(50)
    broker.world.write(3)
    broker.world.put_manifests()
    return broker


def mortal_files(broker: Broker, life: list[int], death: BaseException | None = None) -> Retention:
    """With a TierError as its death only the back end's calls fail, and the process goes on."""
    world = broker.world
    is_failing = isinstance(death, TierError)
    driver: Any = Mortal(world.driver, life, death)
    metadata: Any = Mortal(world.metadata, [1 << 30] if is_failing else life)
    manifests = ManifestStore(driver, "a test", clock=world.clock)
    files = FlatFileStore(
        driver, metadata, CLUSTER, BROKER, world.clock, log_segment_bytes=4 * RECORD_BYTES, queue_segment_bytes=100
    )
    for file in files:
        file.recover()
    return Retention(
        files, metadata, driver, None, TierConfig(tiered_store_file_reserved_time=72), world.clock,
        before_emptied=lambda queue: manifests.write(snapshot_manifest(world.metadata, queue)),
    )  # fmt: skip


@pytest.mark.parametrize("hours", [23, 73])
def test_a_crash_before_any_change_of_an_expiry_leaves_the_offsets_right(tmp_path: Path, hours: int) -> None:
    # Ten is the first that has both: the log's third segment begins at 8, the third segment of units at 10.
    expected = [10, 11, 12, 13] if hours == 23 else []
    for length in range(200):
        broker = prepared(tmp_path / str(length))
        broker.later(hours)
        life = [1 << 30]
        retention = mortal_files(broker, life)
        life[0] = length
        died = False
        try:
            retention.run()
        except Died:
            died = True
        broker.world.reopen()
        broker.make()
        found = broker.world.readable()
        assert found == list(range(found[0], 14)) if found else not expected
        broker.world.file()
        broker.retention.run()
        assert broker.world.readable() == expected
        assert broker.world.metadata.segments_being_deleted() == []
        rows = {segment.key for segment in broker.world.metadata.all_segments() if segment.size}
        assert rows == set(broker.world.listed())
        broker.world.write(2)
        assert broker.world.readable()[-2:] == [14, 15]
        broker.world.close()
        if not died:
            assert length > 5
            return
    pytest.fail("it never came to an end")


@pytest.mark.parametrize("dies", [True, False])
def test_a_disk_that_is_lost_in_the_middle_of_an_expiry_costs_the_queue_no_number(tmp_path: Path, dies: bool) -> None:
    """The process dies before a change, or its back end fails to make it and the process goes on for a round."""
    for length in range(200):
        broker = prepared(tmp_path / str(length))
        broker.later(73)
        life = [1 << 30]
        retention = mortal_files(broker, life, TierUnavailable("no answer") if not dies else Died())
        life[0] = length
        failed = False
        try:
            failed = bool(retention.run().failures)
        except Died:
            failed = True
        broker.world.close()
        with MetadataStore(IN_MEMORY, clock=broker.world.clock) as metadata:
            restore(broker.world.driver, metadata, cluster=CLUSTER, broker=BROKER, clock=broker.world.clock)
            file = FlatFileStore(broker.world.driver, metadata, CLUSTER, BROKER, broker.world.clock).find("orders", 0)
            assert file is not None
            assert file.commit_offset == 14, length
            file.recover()
            first = file.log.append_offset
            assert file.write(batch(14, 2, first, records=[record("orders", 0, 14 + at, 1) for at in range(2)]))
            assert file.commit_offset == 16
        if not failed:
            assert length > 5
            return
    pytest.fail("it never came to an end")


def test_a_crash_before_any_change_of_a_topics_deletion_is_made_good_by_the_next_round(tmp_path: Path) -> None:
    for length in range(200):
        broker = prepared(tmp_path / str(length))
        broker.world.write(1, "payments")
        life = [1 << 30]
        retention = mortal_files(broker, life)
        life[0] = length
        died = False
        try:
            retention.delete_topic("orders")
        except Died:
            died = True
        broker.world.reopen()
        broker.make()
        if length > 0:
            topic = broker.world.metadata.topic("orders")
            assert topic is None or topic.status == TopicStatus.DELETING
            broker.retention.run()
            assert {key.topic for key in broker.world.listed()} == {"payments"}
            assert broker.world.driver.list_objects() == []
            assert broker.world.metadata.topic("orders") is None
            assert broker.world.metadata.segments_being_deleted() == []
            broker.world.write(2)
            assert broker.world.readable() == [0, 1]
        broker.world.close()
        if not died:
            assert length > 8
            return
    pytest.fail("it never came to an end")
