"""The consume queue: whole units only, and queue offsets as places."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.manual_clock import ManualClock
from tier.flat.flat_world import QUEUE
from tiermq.consumequeue.unit import UNIT, UNIT_BYTES
from tiermq.errors import IllegalRange
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.flat.flat_file import FlatConsumeQueue
from tiermq.tier.flat.flat_segment import AppendStatus
from tiermq.tier.metadata.metadata_store import MetadataStore


@pytest.fixture
def queue(tmp_path: Path) -> FlatConsumeQueue:
    metadata = MetadataStore(tmp_path / "tier.db")
    return FlatConsumeQueue(MemoryDriver(), metadata, QUEUE, 5 * UNIT_BYTES + 7, ManualClock())


def test_a_segment_holds_whole_units_only(queue: FlatConsumeQueue) -> None:
    assert queue.max_size == 5 * UNIT_BYTES
    queue.create_segment(100 * UNIT_BYTES)
    assert queue.room_units == 5
    assert queue.append_units(bytes(6 * UNIT_BYTES), 1, 1) is AppendStatus.SUCCESS, "an empty one takes anything"
    assert queue.append_units(bytes(UNIT_BYTES), 1, 1) is AppendStatus.FILE_FULL


def test_offsets_are_queue_offsets(queue: FlatConsumeQueue) -> None:
    queue.create_segment(100 * UNIT_BYTES)
    for number in range(3):
        queue.append_units(UNIT.pack(number * 50, 50, 7), 1, 1)
    assert (queue.min_queue_offset, queue.commit_queue_offset, queue.append_queue_offset) == (100, 100, 103)
    queue.commit()
    assert queue.commit_queue_offset == 103
    assert [UNIT.unpack(queue.read_units(100 + n, 1))[0] for n in range(3)] == [0, 50, 100]
    assert len(queue.read_units(101, 100)) == 2 * UNIT_BYTES
    with pytest.raises(IllegalRange):
        queue.read_units(99, 1)
