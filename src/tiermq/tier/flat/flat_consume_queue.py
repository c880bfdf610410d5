"""FlatConsumeQueue: the units of one queue in the tier. Unit k lies at byte 20 * k, as in the local store."""

from __future__ import annotations

from tiermq.clock import Clock
from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.tier.driver.contract import Buffer, TierDriver
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

    @property
    def room_units(self) -> int:
        """How many more units the last segment takes."""
        return self.last.room() // UNIT_BYTES

    def append_units(self, units: Buffer, begin_ms: int, end_ms: int) -> AppendStatus:
        """Take units for the next commit, all or none. FILE_FULL: they pass the segment's end, part them and roll."""
        return self.last.append(units, begin_ms, end_ms)

    def read_units(self, queue_offset: int, count: int) -> bytes | memoryview:
        """Up to `count` committed units from `queue_offset` on."""
        return self.read(queue_offset * UNIT_BYTES, count * UNIT_BYTES)
