"""FlatCommitLog: the records of one queue in the tier, and when its segment is rolled by age."""

from __future__ import annotations

from tiermq.clock import Clock
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.flat.flat_append_file import FlatAppendFile
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import UNKNOWN_OFFSET
from tiermq.tier.names import QueueKey, SegmentType

HOUR_MS = 3_600_000
QUEUE_OFFSET_AT = 20
HEAD_BYTES = 28


class FlatCommitLog(FlatAppendFile):
    """A flat file of records. Each record's physical offset is its own offset in this file."""

    def __init__(
        self, driver: TierDriver, metadata: MetadataStore, queue: QueueKey, max_size: int, clock: Clock
    ) -> None:
        super().__init__(driver, metadata, queue, SegmentType.COMMIT_LOG, max_size, clock)

    def should_roll_by_age(self, interval_hours: int, minimum_bytes: int, now_ms: int) -> bool:
        """Whether the last segment is old and large enough to be ended before it is full."""
        if self.is_empty:
            return False
        last = self.last
        return last.append_position >= minimum_bytes and now_ms - last.created_ms > interval_hours * HOUR_MS

    def first_queue_offset(self) -> int:
        """The queue offset of the oldest record; -1 while none is committed.

        The metadata knows it. Only for a tier that somebody else wrote it is read from the record itself, once.
        """
        if self.is_empty or self.commit_offset - self.min_offset < HEAD_BYTES:
            return -1
        first = self.segments[0]
        if first.begin_offset == UNKNOWN_OFFSET:
            head = first.read(0, HEAD_BYTES)
            first.begin_offset = int.from_bytes(head[QUEUE_OFFSET_AT:HEAD_BYTES], "big", signed=True)
        return first.begin_offset
