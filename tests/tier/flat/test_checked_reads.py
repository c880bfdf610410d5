"""Reads of a queue in the tier compare the checksums of the blocks that they touch, header and properties included."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tier.fetch.fetch_world import FetchWorld, Mail, mails
from tiermq.errors import CorruptSegment, TierError
from tiermq.tier.block_sums import LOG_BLOCK_BYTES as LOG_BLOCK
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.names import SegmentType


@pytest.fixture
def world(tmp_path: Path) -> FetchWorld:
    return FetchWorld(tmp_path)


@pytest.mark.parametrize("kind", [SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE])
def test_no_flipped_bit_of_a_queue_is_read(world: FetchWorld, kind: SegmentType) -> None:
    file = world.write(mails(200))
    part = file.log if kind is SegmentType.COMMIT_LOG else file.units
    chance = random.Random(3)
    for _ in range(200):
        at = chance.randrange(part.commit_offset)
        byte = bytes(part.reread(at, 1))
        world.damage(kind, at, bytes([byte[0] ^ 1 << chance.randrange(8)]))
        with pytest.raises(CorruptSegment, match="not what was written"):
            part.read(at, 1)
        for offset in (0, 100, 199):
            with pytest.raises(TierError):
                world.get(offset)
        world.damage(kind, at, byte)
    assert world.read_all() == list(range(200))


def test_damage_of_one_block_is_no_error_for_the_others(world: FetchWorld) -> None:
    file = world.write([Mail(body=bytes(9_000)) for _ in range(100)])
    world.damage(SegmentType.COMMIT_LOG, 10, b"?")
    with pytest.raises(CorruptSegment):
        file.log.read(LOG_BLOCK - 1, 2)
    assert len(file.log.read(LOG_BLOCK, 100)) == 100
    assert world.get(60).messages[0].queue_offset == 60


def test_sums_grow_by_commits_of_any_size_and_are_the_same_after_a_restart(world: FetchWorld) -> None:
    for size in (1, 70_000, 300_000, 5, 262_144):
        file = world.write([Mail(body=bytes(size))])
    [segment] = file.log.segments
    row = world.metadata.segment(segment.key)
    assert isinstance(row, Segment)
    assert row.sums == segment.sums
    assert segment.sums.size == segment.commit_position > 2 * LOG_BLOCK
    assert not segment.sums.bad_blocks(memoryview(file.log.reread(0, segment.commit_position)), 0)
