"""The seam between the timer wheel and timers that are due so late that they are kept elsewhere.

    enqueue:  due beyond the horizon ─► add … add ─► flush ─► the checkpoint passes them
    later:    pull ─► put into the timer topic again ─► the topic is on disk ─► pulled
    at last:  everything due before a time was delivered ─► forget

A far timer that was added and flushed survives the loss of the broker's disk until it is forgotten. Between a crash
and what it undid, the same timer may be added twice or pulled twice; none may be lost.
Threads: all calls come from the timer service's own thread, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class FarTimer:
    """One message of the timer topic, as it is stored."""

    deliver_ms: int
    is_delete: bool
    """Whether it cancels another timer that is due at the same time."""
    record: bytes
    """The whole commit-log record, as it was read."""


class FarTimers(Protocol):
    """Where far timers are kept. Methods raise TierError when the place cannot be reached; they can be tried again."""

    @property
    def horizon_ms(self) -> int:
        """A timer due later than now plus this is far."""
        ...

    def add(self, timer: FarTimer) -> None:
        """Take one. It is buffered, and counts for nothing until the next `flush`."""

    def flush(self) -> None:
        """Everything that was added is durable when it returns."""

    def pull(self, until_ms: int) -> Iterable[FarTimer]:
        """Those due before `until_ms` that no earlier pull gave, unless that one was never confirmed by `pulled`."""

    def pulled(self) -> None:
        """What pulls gave so far, is durable in the local store: it need not be given again."""

    def forget(self, before_ms: int) -> None:
        """Everything due before `before_ms` was delivered, and is no longer needed."""
