"""Turns: who is next. A line of queues, each in it at most once, none worked on by two threads at a time.

    push ──► line ──take──► busy ──done──► (gone, or at the end of the line again)

A queue that is pushed while it is busy stands in line again when its turn is over, at the end, like everybody else:
so a queue that always has more to do gets one turn while every other that has something gets one too.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable

QueueName = tuple[str, int]


class Turns:
    """Any thread may call anything."""

    def __init__(self) -> None:
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        self._left = threading.Condition(lock)
        self._line: deque[QueueName] = deque()
        self._waiting: set[QueueName] = set()
        self._busy: set[QueueName] = set()
        self._again: set[QueueName] = set()
        self._version = 0

    def __len__(self) -> int:
        return len(self._line)

    @property
    def busy(self) -> int:
        return len(self._busy)

    def is_empty(self) -> bool:
        """Whether nobody stands in line and nobody is busy, both at the same moment."""
        with self._changed:
            return not self._line and not self._busy

    @property
    def version(self) -> int:
        """Changes whenever somebody came into the line; for `wait`."""
        return self._version

    def push(self, names: Iterable[QueueName]) -> None:
        with self._changed:
            for name in names:
                if name in self._busy:
                    self._again.add(name)
                elif name not in self._waiting:
                    self._waiting.add(name)
                    self._line.append(name)
            self._version += 1
            self._changed.notify_all()

    def take(self) -> QueueName | None:
        """The first in line, which is busy until `done`; None when nobody waits."""
        with self._changed:
            if not self._line:
                return None
            name = self._line.popleft()
            self._waiting.discard(name)
            self._busy.add(name)
            return name

    def done(self, name: QueueName, again: bool) -> None:
        with self._changed:
            self._busy.discard(name)
            again = again or name in self._again
            self._again.discard(name)
            if again:
                self._waiting.add(name)
                self._line.append(name)
                self._version += 1
            else:
                self._left.notify_all()
            self._changed.notify_all()

    def wait(self, version: int, timeout_s: float) -> None:
        """Until somebody came into the line after `version` was read, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != version, timeout_s)

    def wait_left(self, timeout_s: float) -> None:
        """Until a queue has ended a turn and does not stand in line again, or the time is over.

        For whoever waits for queues to be done: waking it for every turn would take time from those who work.
        """
        with self._left:
            if self._line or self._busy:
                self._left.wait(timeout_s)

    def wait_idle(self, timeout_s: float) -> bool:
        """Until nobody is busy; False when that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy, timeout_s)

    def wait_free(self, topics: Collection[str], timeout_s: float) -> bool:
        """Until no queue of those topics is busy; False when that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not any(name[0] in topics for name in self._busy), timeout_s)

    def nudge(self) -> None:
        """Let everybody who waits look again."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()
