"""What the index asks of the tier's metadata: the part of MetadataStore that knows index segments.

Every change is durable when the call returns. A deletion marks the row, then removes the object, then the row, so that
a crash in between leaves a row that says what is still to be done.
"""

from __future__ import annotations

from typing import Protocol

from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.names import QueueKey, SegmentKey, SegmentType


class IndexRows(Protocol):
    """See `tiermq.tier.metadata.metadata_store.MetadataStore`."""

    def put_segment(self, segment: Segment) -> None:
        """Store the segment exactly as given, replacing a row of the same key."""

    def segments(self, queue: QueueKey, type: SegmentType | None = None) -> list[Segment]:  # noqa: A002
        """The live segments of a queue, by type and base."""
        ...

    def segments_being_deleted(self) -> list[Segment]:
        """The segments whose deletion has begun and is not finished."""
        ...

    def mark_deleted(self, key: SegmentKey) -> None:
        """Hide the segment, before its object goes."""

    def delete_segment(self, key: SegmentKey) -> bool:
        """Forget the segment, after its object went."""
        ...
