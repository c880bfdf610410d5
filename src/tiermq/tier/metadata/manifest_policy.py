"""When a queue's manifest is written: at once after what changes its shape, and now and then while it grows.

A manifest is not the truth about the tail of a queue, the listing is. It may lag behind commits without any loss: a
restore reads what is beyond it from the records. So growth alone costs one small request per interval and queue.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass


class ManifestCause(enum.Enum):
    """What happened to a queue since its manifest was written."""

    COMMIT = "commit"
    ROLL = "roll"
    SEAL = "seal"
    EXPIRY = "expiry"
    GAP = "gap"
    TOPIC_CHANGE = "topic change"
    CLOSE = "close"
    START = "start"
    """A life before this one ended before it could write what it had changed."""


@dataclass(frozen=True, slots=True)
class ManifestPolicy:
    """Whether to write now. A value: the same question gets the same answer."""

    interval_ms: int = 60_000

    def is_due(self, causes: Collection[ManifestCause], last_written_ms: int | None, now_ms: int) -> bool:
        """`last_written_ms` is None when this process has not written the manifest of the queue yet."""
        due_ms = self.due_at_ms(causes, last_written_ms)
        return due_ms is not None and now_ms >= due_ms

    def due_at_ms(self, causes: Collection[ManifestCause], last_written_ms: int | None) -> int | None:
        """The time from which on the manifest is due: 0 for at once, None for not at all."""
        if not causes:
            return None
        if last_written_ms is None or any(cause is not ManifestCause.COMMIT for cause in causes):
            return 0
        return last_written_ms + self.interval_ms
