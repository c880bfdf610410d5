"""What a consume queue is asked to append, and what became of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UnitRequest:
    """One record of the commit log, as far as a consume queue needs to know it.

    `queue_offset` is the record's first queue offset; an inner batch covers `batch_size` of them.
    `bit_map` is the filter bit map; it is kept only by queues that have an ext queue.
    """

    physical_offset: int
    size: int
    tags_code: int
    queue_offset: int
    store_timestamp_ms: int
    batch_size: int = 1
    bit_map: bytes = b""


class AppendOutcome(enum.Enum):
    """What became of a unit. In every case a message with queue offset k is found at k, or nowhere."""

    APPENDED = 0
    """The unit is in its place."""

    DUPLICATE = 1
    """The record has its unit already. Nothing was written."""

    GAP = 2
    """The unit is in its place, but queue offsets before it are missing: messages of this queue were lost.
    Their places hold pre-blank units (simple queue) or are covered by no unit (batch queue)."""

    CONFLICT = 3
    """The queue offset belongs to another record. Nothing was written: the record cannot be consumed from this queue.
    The queue offset table was lost or the record was damaged."""

    TOO_FAR = 4
    """The queue offset is so far ahead of the queue that the record is more likely damaged than the queue incomplete.
    Nothing was written."""
