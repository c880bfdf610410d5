"""FlushGroup: producers that wait for one flush together.

One of them leads: it gathers the others for a moment, flushes, and lets go everybody whom the flush covers. Whoever
came too late for it follows the next leader, or is the next leader.

Why gather: of producers that put again as soon as they were let go, half would otherwise come just too late for each
flush, and two halves would take turns for ever, each with a flush of its own. A leader therefore expects everybody who
was let go or left waiting by the flush before, and waits for them at most as long as a flush takes. Where nobody comes
meanwhile, the next leaders do not wait, for longer and longer.

Why followers are let go in a row: woken all at once, all but one would go to sleep again, before the interpreter lock.
So a leader wakes the first two, and whoever was woken wakes the one behind it before anything else.

Invariants: at most one leads; a follower is let go once, with its bytes durable, or flushing failed, or with the word
that it leads now; whoever is let go lets the next one go, in whatever way it leaves; nobody waits for a leader that
does not exist.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

PATIENCE = 1.0
"""How long a leader gathers at most, in times of the last flush."""
PATIENCE_S_MAX = 0.001
SKIPS_MAX = 64
ROWS = 2
"""How many followers are woken at once: one at work, and one on its way."""


class _Follower:
    __slots__ = ("behind", "leads", "offset", "turn")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.leads = False
        self.behind: _Follower | None = None  # Whom it wakes when it was woken itself.
        self.turn = threading.Lock()
        self.turn.acquire()


class FlushGroup:
    """See the module. `flush(offset, deadline)` makes everything below the offset durable, or gives up;
    `flushed_where()` is how far that came, `has_failed()` whether no flush will come further.
    """

    def __init__(
        self,
        flush: Callable[[int, float], None],
        flushed_where: Callable[[], int],
        has_failed: Callable[[], bool],
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._flush = flush
        self._flushed_where = flushed_where
        self._has_failed = has_failed
        self._now = now
        self._lock = threading.Lock()
        self._led = False
        self._followers: list[_Follower] = []
        self._expected = 1
        self._complete: threading.Lock | None = None  # What a gathering leader waits for.
        self._flush_s = 0.0
        self._misses = 0
        self._skips = 0

    @property
    def expected(self) -> int:
        """How many producers the next leader looks out for, itself included."""
        return self._expected

    def wait(self, offset: int, timeout_s: float) -> bool:
        """True once everything below `offset` is durable; False when the wait is over, or flushing failed."""
        deadline = self._now() + timeout_s
        follower = self._join(offset)
        if follower is not None and not self._follow(follower, timeout_s):
            return self._flushed_where() >= offset
        try:
            self._gather()
            begun = self._now()
            self._flush(offset, deadline)
            self._flush_s = self._now() - begun
        finally:
            self._hand_over()
        return self._flushed_where() >= offset

    def _join(self, offset: int) -> _Follower | None:
        """A place behind the leader; None when the caller leads."""
        with self._lock:
            if not self._led:
                self._led = True
                return None
            follower = _Follower(offset)
            self._followers.append(follower)
            if self._complete is not None and len(self._followers) + 1 >= self._expected:
                self._complete.release()
                self._complete = None
            return follower

    def _follow(self, follower: _Follower, timeout_s: float) -> bool:
        """Wait to be let go; True for a follower that leads now."""
        try:
            if not follower.turn.acquire(timeout=timeout_s):
                self._leave(follower)
            return follower.leads
        except BaseException:  # A signal's, in the main thread: others must not wait for a producer that has gone.
            if not self._leave(follower) and follower.leads:
                self._hand_over()
            raise
        finally:
            if follower.behind is not None:
                follower.behind.turn.release()

    def _leave(self, follower: _Follower) -> bool:
        """Go, after a time-out; False when somebody let the follower go at the last moment."""
        with self._lock:
            if follower not in self._followers:
                return False
            self._followers.remove(follower)
            return True

    def _gather(self) -> None:
        with self._lock:
            if len(self._followers) + 1 >= self._expected:
                return
            if self._skips > 0:
                self._skips -= 1
                return
            before = len(self._followers)
            complete = self._complete = threading.Lock()
            complete.acquire()
        all_came = complete.acquire(timeout=min(self._flush_s * PATIENCE, PATIENCE_S_MAX))
        with self._lock:
            self._complete = None
            came = all_came or len(self._followers) > before
            self._misses = 0 if came else self._misses + 1
            self._skips = 0 if came else min(2**self._misses, SKIPS_MAX)

    def _hand_over(self) -> None:
        """Let go everybody who is served, and make one of the others the leader."""
        failed = self._has_failed()
        with self._lock:
            where = self._flushed_where()
            served = [each for each in self._followers if failed or each.offset <= where]
            waiting = [each for each in self._followers if not (failed or each.offset <= where)]
            self._followers = waiting[1:]
            self._expected = 1 + len(served) + len(waiting)
            self._led = bool(waiting)
            if waiting:
                waiting[0].leads = True  # Under the lock, so that one whose time is over sees it, too.
            for each, behind in zip(served, served[ROWS:], strict=False):
                each.behind = behind
        if waiting:
            waiting[0].turn.release()
        for each in served[:ROWS]:
            each.turn.release()
