"""References: who still uses a mapped file, and when it may go.

    AVAILABLE --shutdown--> DRAINING --last release--> DRAINED
        |                      |
        |                      +--shutdown after the interval--> FORCED --last release--> DRAINED
        +--shutdown with no other holder-----------------------------------------------> DRAINED

The count starts at one, the owner's own reference, which the first shutdown drops. FORCED means that the owner no
longer waits: the file's name goes away now, while its bytes stay mapped for the holders that are left.
"""

from __future__ import annotations

import enum
import threading

from tiermq.errors import IllegalTransition


class ReferenceState(enum.Enum):
    AVAILABLE = "available"
    DRAINING = "draining"
    FORCED = "forced"
    DRAINED = "drained"


class References:
    """A count with a state. Any thread may call anything; `_lock` guards both."""

    __slots__ = ("_count", "_lock", "_shut_down_at_ms", "state")

    def __init__(self) -> None:
        self.state = ReferenceState.AVAILABLE
        self._count = 1
        self._shut_down_at_ms = 0
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        return self._count

    def hold(self) -> bool:
        """Take a reference; False once the file is on its way out."""
        with self._lock:
            if self.state is not ReferenceState.AVAILABLE:
                return False
            self._count += 1
            return True

    def pin(self) -> bool:
        """Take a reference for the owner's own work (flush, commit), also on the way out; False when it is all over."""
        with self._lock:
            if self.state is ReferenceState.DRAINED:
                return False
            self._count += 1
            return True

    def release(self) -> bool:
        """Give a reference back; True when it was the last one. Raises IllegalTransition for one too many."""
        with self._lock:
            if self._count <= (1 if self.state is ReferenceState.AVAILABLE else 0):
                raise IllegalTransition(
                    f"expected a reference to release, found none held ({self.state.value}, count {self._count}). "
                    "Each hold or select is released exactly once."
                )
            return self._drop_one()

    def shutdown(self, now_ms: int, interval_ms: int) -> bool:
        """Start or continue the way out; True when the owner's reference was the last one.

        Only a call that comes `interval_ms` or more after the first one stops waiting for the other holders.
        """
        with self._lock:
            if self.state is ReferenceState.AVAILABLE:
                self.state = ReferenceState.DRAINING
                self._shut_down_at_ms = now_ms
                return self._drop_one()
            if self.state is ReferenceState.DRAINING and now_ms - self._shut_down_at_ms >= interval_ms:
                self.state = ReferenceState.FORCED
            return False

    def _drop_one(self) -> bool:
        self._count -= 1
        if self._count == 0:
            self.state = ReferenceState.DRAINED
            return True
        return False
