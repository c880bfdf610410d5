"""The life of one index file, from the first item to the tier.

    UNSEALED ──full, old──► SEALED ──copied to the tier──► UPLOAD
        └──────────────────────┴──────────────┬──────────────┘
                                           SHUTDOWN     closed, expired, or removed because it was empty

UNSEALED and SEALED answer from the local file, UPLOAD from the tier. A query that has an entry in hand while it moves
on gets its answer from wherever the items are: the tier's copy is known before the local file is let go.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tiermq.errors import IllegalTransition, StoreClosed, TierError
from tiermq.tier.index.compacted_index import CompactedIndex
from tiermq.tier.index.index_coverage import CoverageRecord
from tiermq.tier.index.index_write_file import FileFacts, IndexWriteFile, Selected

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
    sealed_record: CoverageRecord | None = None  # What was indexed when the file was sealed.

    def move(self, state: IndexState) -> None:
        """Go to `state`; raises IllegalTransition where the diagram has no arrow."""
        if state not in _NEXT[self.state]:
            raise IllegalTransition(
                f"index file {self.begin_ms}: expected one of {sorted(next_.value for next_ in _NEXT[self.state])} "
                f"after {self.state.value}, was asked for {state.value}"
            )
        self.state = state

    def newest_ms(self) -> int:
        """No message of the file was stored after; -1 of an empty one. Known without asking the tier."""
        if self.remote is not None:
            return self.remote.segment.end_ms
        facts = self._local_facts()
        return EVER_MS if facts is None else facts.newest_ms if facts.item_count else -1

    def oldest_ms(self) -> int:
        """No message of the file was stored before; 0 when nobody can tell.

        Begin is when the file was created: its messages are older. How much older, only an uploaded file's companion
        knows, which is asked for once.
        """
        try:
            facts = self._local_facts() if self.remote is None else self.remote.facts()
        except TierError:
            return 0  # Asking one file too many is better than missing what it holds.
        return 0 if facts is None else facts.oldest_ms

    def _local_facts(self) -> FileFacts | None:
        try:
            return None if self.local is None else self.local.facts()
        except StoreClosed:
            return None

    def select(self, key_hash: int, max_count: int, begin_ms: int, end_ms: int) -> Selected:
        """Items of a hash, newest first, from wherever they are now. Raises what the driver raises."""
        if self.local is not None:
            found = self.local.select(key_hash, max_count, begin_ms, end_ms)
            if found is not None:
                return found
        if self.remote is not None:
            return self.remote.select(key_hash, max_count, begin_ms, end_ms)
        return Selected([], has_more=False)
