"""FlatConsumeQueue: the units of one queue in the tier. Unit k lies at byte 20 * k, as in the local store."""

from __future__ import annotations

from tiermq.clock import Clock
from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.flat.flat_append_file import FlatAppendFile
from tiermq.tier.flat.flat_segment import AppendStatus
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.names import QueueKey, SegmentType


class FlatConsumeQueue(FlatAppendFile):
    """A flat file of 20-byte units; offsets in it are queue offsets times 20."""

    def __init__(
        self, driver: TierDriver, metadata: MetadataStore, queue: QueueKey, max_size: int, clock: Clock
    ) -> None:
        whole = max(1, max_size // UNIT_BYTES) * UNIT_BYTES
        super().__init__(driver, metadata, queue, SegmentType.CONSUME_QUEUE, whole, clock)

    @property
    def min_queue_offset(self) -> int:
        return max(0, self.min_offset) // UNIT_BYTES

    @property
    def commit_queue_offset(self) -> int:
        return self.commit_offset // UNIT_BYTES

    @property
    def append_queue_offset(self) -> int:
        return self.append_offset // UNIT_BYTES

    def append_units(self, units: bytes, begin_ms: int, end_ms: int) -> AppendStatus:
        """Take units for the next commit. A run that passes the segment's end is parted there."""
        view = memoryview(units)
        while len(view):
            room = (self.max_size - self.last.append_position) // UNIT_BYTES * UNIT_BYTES
            if room == 0:
                if not self.roll():
                    return AppendStatus.FILE_FULL
                room = self.max_size
            status = self.append(bytes(view[:room]), begin_ms, end_ms)
            if status is not AppendStatus.SUCCESS:
                return status
            view = view[room:]
        return AppendStatus.SUCCESS

    def read_units(self, queue_offset: int, count: int) -> bytes | memoryview:
        """Up to `count` committed units from `queue_offset` on."""
        return self.read(queue_offset * UNIT_BYTES, count * UNIT_BYTES)
