"""The life of one index file, from the first item to the tier.

    UNSEALED ──full, old──► SEALED ──copied to the tier──► UPLOAD
        └──────────────────────┴──────────────┬──────────────┘
                                           SHUTDOWN     closed, expired, or removed because it was empty

UNSEALED and SEALED answer from the local file, UPLOAD from the tier. A query that has an entry in hand while it moves on
gets its answer from wherever the items are: the tier's copy is known before the local file is let go.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tiermq.errors import IllegalTransition, TierError
from tiermq.tier.index.compacted_index import CompactedIndex
from tiermq.tier.index.index_write_file import IndexWriteFile, Selected

EVER_MS = (1 << 63) - 1


class IndexState(enum.Enum):
    """Where a file is in its life."""

    UNSEALED = "UNSEALED"
    SEALED = "SEALED"
    UPLOAD = "UPLOAD"
    SHUTDOWN = "SHUTDOWN"


_NEXT = {
    IndexState.UNSEALED: {IndexState.SEALED, IndexState.SHUTDOWN},
    IndexState.SEALED: {IndexState.UPLOAD, IndexState.SHUTDOWN},
    IndexState.UPLOAD: {IndexState.SHUTDOWN},
    IndexState.SHUTDOWN: set(),
}


@dataclass(slots=True, eq=False)
class IndexEntry:
    """One file in the index store's table. Its state changes under the store's lock only."""

    begin_ms: int
    state: IndexState
    local: IndexWriteFile | None = None
    remote: CompactedIndex | None = None

    def move(self, state: IndexState) -> None:
        """Go to `state`; raises IllegalTransition where the diagram has no arrow."""
        if state not in _NEXT[self.state]:
            raise IllegalTransition(
                f"index file {self.begin_ms}: expected one of {sorted(next_.value for next_ in _NEXT[self.state])} "
                f"after {self.state.value}, was asked for {state.value}"
            )
        self.state = state

    def time_range_ms(self) -> tuple[int, int]:
        """The smallest and the largest store time that the file may hold."""
        if self.remote is not None:
            return self._remote_oldest_ms(), self.remote.segment.end_ms
        if self.local is None or self.local.is_closed:
            return 0, EVER_MS
        facts = self.local.facts()
        return (facts.oldest_ms, facts.newest_ms) if facts.item_count else (EVER_MS, -1)

    def _remote_oldest_ms(self) -> int:
        """Begin is when the file was created: its records are older. How much older, only the companion knows."""
        if self.remote is None:
            return 0
        try:
            facts = self.remote.facts()
        except TierError:
            return 0  # Asking one file too many is better than missing what it holds.
        return 0 if facts is None else facts.oldest_ms

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Whether a record of the file can lie in the time range."""
        if self.remote is not None and self.remote.segment.end_ms < begin_ms:
            return False  # Known without asking the tier.
        oldest_ms, newest_ms = self.time_range_ms()
        return oldest_ms <= end_ms and newest_ms >= begin_ms

    def select(self, key_hash: int, max_count: int, begin_ms: int, end_ms: int) -> Selected:
        """Items of a hash, newest first, from wherever they are now. Raises what the driver raises."""
        if self.local is not None:
            found = self.local.select(key_hash, max_count, begin_ms, end_ms)
            if found is not None:
                return found
        if self.remote is not None:
            return self.remote.select(key_hash, max_count, begin_ms, end_ms)
        return Selected([], has_more=False)
