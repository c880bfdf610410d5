"""A tier to be verified: two queues over several segments, manifests, an index file, a lease; a hand on its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tier.tier_world import BROKER, CLUSTER, TierWorld
from tiermq.tier.metadata.broker_lease import BrokerLease
from tiermq.tier.names import QueueKey, SegmentKey, SegmentType, index_queue
from tiermq.tier.verify.verify_report import VerifyReport

QUEUE = QueueKey(CLUSTER, BROKER, "orders", 0)
LOG, UNITS, INDEX = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE, SegmentType.INDEX
COUNT = 30


def sound_world(path: Path) -> TierWorld:
    made = TierWorld(path, log_bytes=1600, unit_bytes=200)
    for _ in range(COUNT // 10):
        made.clock.advance_ms(1000)
        made.write(10)
    made.write(5, "payments", 2)
    made.put_index()
    made.put_manifests()
    BrokerLease(made.driver, CLUSTER, BROKER, "me", clock=made.clock).acquire()
    return made


@pytest.fixture(name="world")
def sound_tier(tmp_path: Path) -> Iterator[TierWorld]:
    """A sound tier, for a test to damage; a fixture of the modules and folders that import it."""
    made = sound_world(tmp_path)
    yield made
    made.close()


def bare(world: TierWorld) -> None:
    """Take manifests away, as RocketMQ has none: then no checksum helps, every flaw must be seen in the bytes."""
    for name in world.driver.list_objects():
        world.driver.delete_object(name)


def bytes_of(world: TierWorld, key: SegmentKey) -> bytearray:
    data = world.driver._place.segments[key].data
    assert isinstance(data, bytearray)
    return data


def log_key(world: TierWorld, number: int = 0) -> SegmentKey:
    return world.segments(LOG)[number].key


def unit_key(world: TierWorld, number: int = 0) -> SegmentKey:
    return world.segments(UNITS)[number].key


def index_key(world: TierWorld) -> SegmentKey:
    return world.metadata.segments(index_queue(CLUSTER, BROKER))[0].key


def kinds(report: VerifyReport) -> set[str]:
    return {finding.kind for finding in report.problems}


def notes(report: VerifyReport) -> set[str]:
    return {finding.kind for finding in report.notes}
