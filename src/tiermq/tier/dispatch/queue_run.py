"""QueueRun: what the engine remembers of one queue while it runs; BackOff and MemoryBudget, which many of them share.

Nothing of it survives the process, and nothing of it needs to.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from tiermq.tier.dispatch.turns import QueueName
from tiermq.tier.metadata.manifest_policy import ManifestCause


@dataclass(frozen=True, slots=True)
class BackOff:
    """How long a queue rests after failures in a row: doubling, with a limit, drawn between half and all of it."""

    first_ms: int = 1_000
    max_ms: int = 60_000

    def rest_ms(self, failures: int, chance: float) -> int:
        """`chance` is drawn from 0..1. Pure."""
        longest = min(self.max_ms, self.first_ms * 2 ** min(failures - 1, 30))
        return int(longest * (0.5 + chance / 2))


@dataclass(slots=True)
class QueueRun:
    """One queue. Changed by the thread whose turn it is; `woken` also by the thread that brings arrivals."""

    name: QueueName
    epoch: int = 0
    commit_offset: int = -1
    due_ms: int = 0  # When it is to be looked at again; 0: nobody has asked for that.
    woken: bool = False
    failures: int = 0
    retry_at_ms: int = 0
    fenced: str = ""  # Why this writer may never write the queue again.
    forked_at: int = -1  # From that offset on the tier has other messages under the queue's numbers.
    trouble: str = ""  # What went wrong last; empty when nothing is wrong.
    refused: bool = False  # Whether that was no outage: waiting alone will not help.
    force_to: int = -1  # Hold nothing back below this offset.
    average_bytes: float = 0.0
    causes: set[ManifestCause] = field(default_factory=set)
    manifest_written_ms: int | None = None

    def worked(self) -> None:
        self.failures, self.retry_at_ms, self.trouble, self.refused = 0, 0, "", False


class MemoryBudget:
    """How many bytes of batches may be in memory at once, over all queues. Any thread may call anything.

    One batch is always admitted, however large: a message that is larger than the whole budget must pass too.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._held: dict[QueueName, int] = {}
        self._used = 0
        self._refused: set[QueueName] = set()

    @property
    def used_bytes(self) -> int:
        return self._used

    def take(self, name: QueueName, size: int) -> bool:
        """Ask for room; a refused queue is named by the next `settle` that gives some back."""
        with self._lock:
            others = self._used - self._held.get(name, 0)
            if others > 0 and others + size > self.limit_bytes:
                self._refused.add(name)
                return False
            self._held[name] = size
            self._used = others + size
            return True

    def settle(self, name: QueueName, size: int) -> set[QueueName]:
        """Say what the queue really holds now; returns the queues that were refused, if room came free."""
        with self._lock:
            before = self._held.pop(name, 0)
            if size:
                self._held[name] = size
            self._used += size - before
            if size >= before or not self._refused:
                return set()
            freed, self._refused = self._refused, set()
            return freed
