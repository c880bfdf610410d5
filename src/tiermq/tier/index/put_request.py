"""What the index is asked to put, and what became of it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

_I32_MAX = (1 << 31) - 1
_I64_MAX = (1 << 63) - 1


class PutOutcome(enum.Enum):
    """What became of a put. A failure of the disk is an exception, after which the same put can be tried again."""

    SUCCESS = "SUCCESS"
    ALREADY_INDEXED = "ALREADY_INDEXED"  # The record lies before what its queue has indexed: nothing to do.
    ILLEGAL_REQUEST = "ILLEGAL_REQUEST"  # No index file can ever take it; the next record can be put.
    SHUTDOWN = "SHUTDOWN"  # The index is closed. The record is found and indexed at the next start.

    @property
    def is_done(self) -> bool:
        """Whether the record needs no further attempt in this life of the index."""
        return self is PutOutcome.SUCCESS or self is PutOutcome.ALREADY_INDEXED


class IndexRequest(NamedTuple):
    """One record of a queue's tier commit log, as far as the index needs to know it. `keys` may be empty."""

    topic: str
    topic_id: int
    queue_id: int
    keys: Sequence[str]
    tier_offset: int
    size: int
    store_ms: int

    def is_legal(self) -> bool:
        """Whether every value fits into an item."""
        return (
            bool(self.topic and self.topic.strip())
            and 0 <= self.queue_id <= _I32_MAX
            and 0 <= self.tier_offset <= _I64_MAX
            and 0 < self.size <= _I32_MAX
            and 0 <= self.store_ms <= _I64_MAX
        )
