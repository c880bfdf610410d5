"""A sound tier to be damaged and repaired, and a local store that still has its messages."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from tier.tier_world import TierWorld
from tier.verify_world import sound_world
from tiermq.tier.repair.repair import repair_tier
from tiermq.tier.repair.repair_plan import RepairReport
from tiermq.tier.verify.verify import verify_tier

UNIT = struct.Struct(">qiq")


@dataclass
class Given:
    data: bytes
    units: bytes
    count: int


class LocalRecords:
    """The messages of a world as they were before the damage, as a local store would give them."""

    def __init__(self, world: TierWorld) -> None:
        self._records: dict[tuple[str, int], dict[int, tuple[bytes, int]]] = {}
        for queue in world.metadata.queues():
            file = world.files.find(queue.key.topic, queue.key.queue_id)
            assert file is not None
            found = self._records[queue.key.topic, queue.key.queue_id] = {}
            for offset in range(file.min_offset, file.commit_offset):
                place, size, code = UNIT.unpack(file.units.read_units(offset, 1))
                found[offset] = bytes(file.log.read(place, size)), code

    def forget(self, topic: str, queue_id: int, *offsets: int) -> None:
        for offset in offsets:
            del self._records[topic, queue_id][offset]

    def collect_for_tier(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int, tier_offset: int
    ) -> Given:
        data, units = bytearray(), bytearray()
        records = self._records.get((topic, queue_id), {})
        count = 0
        while (
            count < min(max_count, 3) and offset + count in records
        ):  # Few at a time, so that there are several calls.
            record, code = records[offset + count]
            if count and len(data) + len(record) > max_bytes:
                break
            place = tier_offset + len(data)
            units += UNIT.pack(place, len(record), code)
            data += record[:28] + place.to_bytes(8, "big") + record[36:]
            count += 1
        return Given(bytes(data), bytes(units), count)


@dataclass
class RepairWorld:
    """A world, its messages elsewhere, and how it looked when it was sound."""

    world: TierWorld
    local: LocalRecords
    before: dict[str, bytes]

    @classmethod
    def make(cls, path: Path) -> RepairWorld:
        world = sound_world(path)
        return cls(world, LocalRecords(world), bytes_in(world))

    def repair(self, *, with_local: bool = True, dry_run: bool = False, metadata: bool = False) -> RepairReport:
        self.world.clock.advance_ms(3_600_000)  # The lease of the world's writer has run out.
        return repair_tier(
            self.world.driver,
            sources=[self.local] if with_local else [],
            metadata=self.world.metadata if metadata else None,
            dry_run=dry_run,
            clock=self.world.clock,
        )

    def assert_as_before(self) -> None:
        """Every byte of every segment is what it was, and nothing more is there."""
        assert bytes_in(self.world) == self.before
        assert verify_tier(self.world.driver).problems == []

    @property
    def asides(self) -> dict[str, bytes]:
        found: dict[str, bytes] = self.world.driver._place.asides
        return found


def bytes_in(world: TierWorld) -> dict[str, bytes]:
    return {info.key.path: bytes(world.driver.read(info.key, 0, info.size)) for info in world.driver.list_segments()}
