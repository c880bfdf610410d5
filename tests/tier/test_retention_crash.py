"""Retention in a process that dies before any change it makes: the next one finds everything right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tier.retention_world import Broker
from tier.tier_world import BROKER, CLUSTER, RECORD_BYTES
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.metadata.metadata_values import TopicStatus
from tiermq.tier.retention import Retention
from tiermq.tier.tier_config import TierConfig


class Died(BaseException):
    """The process ends here."""


class Mortal:
    """A driver, and a metadata store, of a process that dies before its n-th change of either."""

    CHANGES = frozenset({
        "delete", "delete_object", "mark_deleted", "delete_segment", "add_segment", "delete_topic", "delete_queue",
        "update_topic", "trim_time_entries",
    })  # fmt: skip

    def __init__(self, inner: object, life: list[int]) -> None:
        self._inner = inner
        self._life = life

    def __getattr__(self, name: str) -> object:
        found = getattr(self._inner, name)
        if name not in self.CHANGES:
            return found

        def dying(*values: object, **named: object) -> object:
            self._life[0] -= 1
            if self._life[0] < 0:
                raise Died
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


def mortal_files(broker: Broker, life: list[int]) -> Retention:
    world = broker.world
    driver, metadata = Mortal(world.driver, life), Mortal(world.metadata, life)
    files = FlatFileStore(
        driver, metadata, CLUSTER, BROKER, world.clock, log_segment_bytes=4 * RECORD_BYTES, queue_segment_bytes=100
    )  # type: ignore[arg-type]
    for file in files:
        file.recover()
    return Retention(files, metadata, driver, None, TierConfig(), world.clock)  # type: ignore[arg-type]


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
