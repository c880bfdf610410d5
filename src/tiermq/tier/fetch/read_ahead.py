"""ReadAhead: how many messages to fetch at once for a group that reads a queue.

Additive increase, multiplicative decrease. A group that comes back exactly where it stopped gets a larger window, step
by step; fetched messages that expire unread halve it; a jump starts anew with a small one.

    sequential read      window = min(window + step, max)
    unread expiry        window = max(window // 2, min)
    jump                 window = min

A pure state machine: no clock, no I/O. One instance belongs to one (group, queue); only its reader changes it.
"""

from __future__ import annotations

from dataclasses import dataclass

WINDOW_MIN = 64
WINDOW_STEP = 512


@dataclass(slots=True)
class ReadAhead:
    """`window` is what the next fetch may take; `next_offset` is where the group is expected."""

    max_window: int
    window: int = WINDOW_MIN
    next_offset: int = -1

    def on_read(self, offset: int, next_offset: int) -> None:
        """The group read [offset, next_offset)."""
        if offset == self.next_offset:
            self.window = min(self.window + WINDOW_STEP, self.max_window)
        elif self.next_offset >= 0:
            self.window = WINDOW_MIN
        self.next_offset = next_offset

    def on_unread_expiry(self) -> None:
        """Messages fetched for the group went unread."""
        self.window = max(self.window // 2, WINDOW_MIN)

    def size_for(self, wanted: int) -> int:
        """How many messages to fetch when `wanted` were asked for. One alone (a look-up) is not read ahead much."""
        if wanted <= 1:
            return min(32, self.max_window)
        return max(min(self.window, self.max_window), min(wanted, self.max_window))

    @property
    def is_sequential(self) -> bool:
        return self.window > WINDOW_MIN
