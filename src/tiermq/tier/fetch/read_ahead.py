"""ReadAhead: how many messages to fetch at once for a group that reads a queue, and how far ahead of it.

Additive increase, multiplicative decrease. A group that comes back exactly where it stopped gets a larger window, step
by step. When it had to wait although it read in order, four times as many windows are kept ahead of it: a start that
looks for the back end's pace. Messages that were fetched and went unread halve both. A jump starts anew with a small
window.

    sequential read      window = min(window + step, max)
    sequential miss      depth  = min(depth * 4, DEPTH_MAX)
    unread               window = max(window // 2, min)     depth = max(depth // 2, DEPTH_MIN)
    jump                 window = min                       depth = DEPTH_MIN

A pure state machine: no clock, no I/O. One instance belongs to one (group, queue). Threads: its reader changes it; an
unread window may be reported by any thread, and the worst that a race does is a window of the wrong size.
"""

from __future__ import annotations

from dataclasses import dataclass

WINDOW_MIN = 64
WINDOW_STEP = 4_096  # Whoever comes back once mostly stays: RocketMQ reads so many ahead for everybody.
SINGLE_WINDOW = 32  # For a get of one message, which is a look-up more often than a reader.
DEPTH_MIN = 2
DEPTH_MAX = 16
DEPTH_FACTOR = 4


@dataclass(frozen=True, slots=True)
class Asked:
    """Messages [begin, end) that are asked for and whose fetches have not begun, and how large windows should be."""

    begin: int
    end: int
    window_count: int
    mean_bytes: int


@dataclass(slots=True)
class ReadAhead:
    """`window` is what the next fetch may take; `depth` how many windows lie ready; `next_offset` the place expected.

    `planned_end` is how far fetches were asked for; `plan_at` the place whose reading asks for more; `asked` belongs to
    those who fetch (`run_ahead`).
    """

    max_window: int
    window: int = WINDOW_MIN
    depth: int = DEPTH_MIN
    next_offset: int = -1
    is_sequential: bool = False
    planned_end: int = -1
    plan_at: int = -1
    asked: Asked | None = None

    def on_read(self, offset: int, next_offset: int) -> None:
        """The group read [offset, next_offset)."""
        if offset == self.next_offset:
            self.is_sequential = True
            if self.window < self.max_window:
                self.window = min(self.window + WINDOW_STEP, self.max_window)
        elif self.next_offset >= 0:
            self._start_anew()
        self.next_offset = next_offset

    def on_miss(self, offset: int) -> None:
        """The messages at `offset` were not there yet. Only one who reads in order deserves more ahead."""
        if offset == self.next_offset and self.is_sequential:
            self.depth = min(self.depth * DEPTH_FACTOR, DEPTH_MAX)
            self.plan_at = -1

    def on_unread(self) -> None:
        """Messages fetched for the group went unread."""
        self.window = max(self.window // 2, WINDOW_MIN)
        self.depth = max(self.depth // 2, DEPTH_MIN)

    def on_failure(self, offset: int) -> None:
        """What was to be fetched from `offset` on did not come: it may be asked for again."""
        self.planned_end = min(self.planned_end, offset)
        self.plan_at = -1
        self.asked = None

    def size_for(self, wanted: int) -> int:
        """How many messages to fetch when `wanted` were asked for."""
        if wanted <= 1:
            return min(SINGLE_WINDOW, self.max_window)
        return min(max(self.window, wanted), self.max_window)

    def _start_anew(self) -> None:
        self.is_sequential = False
        self.window = WINDOW_MIN
        self.depth = DEPTH_MIN
        self.planned_end = -1
        self.plan_at = -1
        self.asked = None
