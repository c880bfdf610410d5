"""FlushGroup: producers that wait for one flush together.

One of them leads: it gathers the others for a moment, flushes, and lets go everybody whom the flush covers. Whoever
came too late for it follows the next leader, or is the next leader. Where flushes may overlap and producers are not
many, the next leader does not wait for the flush before: while some of them wait for the disk, the others put.

Why gather: of producers that put again as soon as they were let go, a few would otherwise come in time for each flush,
and the others just too late. A leader therefore expects everybody whom the flush before let go, or (without overlap)
left waiting, and waits for them at most as long as a flush takes. Where nobody comes meanwhile, the next leaders do not
wait, for longer and longer.

Why a line: a leader lets one producer go, who lets the next one go as soon as it runs, so that they come back over all
the time of a flush and fill two of them about equally; let go all at once they end up in one. Of many producers (MANY)
neither a line nor a second flush makes more messages: a leader's patience ends before the line, groups get small, and
each flush takes processor time from producers that wait for nothing else.

Invariants: at most one gathers, at most FLIGHTS_MAX flush; a follower is let go once, with its bytes durable, or
flushing failed, or with the word that it leads now; nobody waits for a leader that does not exist; of a line that is
not empty, somebody who will let the next one go is awake.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

PATIENCE = 1.0
"""How long a leader gathers at most, in times of the last flush."""
PATIENCE_S_MAX = 0.001
SKIPS_MAX = 64
FLIGHTS_MAX = 2
MANY = 32
"""More producers than this are let go at once, by one flush after the other."""


class _Follower:
    __slots__ = ("leads", "line", "offset", "turn")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.leads = False
        self.line: list[_Follower] = []  # Who is let go after this one; shared by all of them.
        self.turn = threading.Lock()
        self.turn.acquire()


class FlushGroup:
    """See the module. `flush(offset, deadline)` makes everything below the offset durable, or gives up;
    `flushed_where()` is how far that came, `has_failed()` whether no flush will come further, `may_overlap()` whether
    another flush can be begun beside one.
    """

    def __init__(
        self,
        flush: Callable[[int, float], None],
        flushed_where: Callable[[], int],
        has_failed: Callable[[], bool],
        now: Callable[[], float] = monotonic,
        may_overlap: Callable[[], bool] = lambda: False,
    ) -> None:
        self._flush = flush
        self._flushed_where = flushed_where
        self._has_failed = has_failed
        self._now = now
        self._may_overlap = may_overlap
        self._lock = threading.Lock()
        self._led = False  # Somebody gathers `_followers`, or was told to.
        self._followers: list[_Follower] = []
        self._flights: list[list[_Follower]] = []  # Whom each flush that is under way was begun for.
        self._expected = 1
        self._many = False
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
        flight: list[_Follower] = []
        try:
            self._gather()
            self._take_off(flight)
            begun = self._now()
            self._flush(max([offset, *[each.offset for each in flight]]), deadline)
            self._flush_s = self._now() - begun
        finally:
            self._land(flight)
        return self._flushed_where() >= offset

    def _join(self, offset: int) -> _Follower | None:
        """A place behind the leader; None when the caller leads."""
        with self._lock:
            if not self._led and (not self._flights or self._overlaps()):
                self._led = True
                return None
            follower = _Follower(offset)
            self._followers.append(follower)
            if self._complete is not None and len(self._followers) + 1 >= self._expected:
                self._complete.release()
                self._complete = None
            return follower

    def _overlaps(self) -> bool:
        """Whether another flush may be begun beside those under way."""
        return not self._many and len(self._flights) < FLIGHTS_MAX and self._may_overlap()

    def _follow(self, follower: _Follower, timeout_s: float) -> bool:
        """Wait to be let go, or for the end of the time; True when the caller leads now."""
        try:
            let_go = follower.turn.acquire(timeout=timeout_s)
        except BaseException:  # An interrupt. Others may wait for what this one was to do.
            if not self._leave(follower):
                _let_go_next(follower.line)
                if follower.leads:
                    self._land([])
            raise
        if let_go or not self._leave(follower):
            _let_go_next(follower.line)  # Also one who goes before its turn: it is in the line, and will not be there.
        return follower.leads

    def _leave(self, follower: _Follower) -> bool:
        """Go before one's turn; False when somebody was about to let the follower go."""
        with self._lock:
            for waiting in (self._followers, *self._flights):
                if follower in waiting:
                    waiting.remove(follower)
                    return True
            return False

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

    def _take_off(self, flight: list[_Follower]) -> None:
        """Begin a flush for everybody who was gathered. Whoever comes now leads, or waits for, another one."""
        with self._lock:
            flight += self._followers
            self._followers = []
            self._flights.append(flight)
            self._led = False

    def _land(self, flight: list[_Follower]) -> None:
        """Let go everybody who is served, also by an earlier flush that still runs; make one of the others leader."""
        failed = self._has_failed()
        leader: _Follower | None = None
        with self._lock:
            where = self._flushed_where()
            if any(each is flight for each in self._flights):
                self._flights = [each for each in self._flights if each is not flight]
            else:
                self._led = False  # An interrupt, before the flush was begun.
            served: list[_Follower] = []
            self._followers = _unserved([*flight, *self._followers], where, failed, served)
            for other in self._flights:
                other[:] = _unserved(other, where, failed, served)
            self._many = sum(map(len, self._flights), 1 + len(served) + len(self._followers)) > MANY
            overlaps = self._overlaps()
            self._expected = 1 + len(served) + (0 if overlaps else len(self._followers))
            if self._followers and not self._led and (overlaps or not self._flights):
                leader = self._followers.pop(0)
                leader.leads = self._led = True  # Under the lock, so that one whose time is over sees it, too.
            at_once = len(served) if self._many else 1
            served.reverse()
            for each in served:
                each.line = served
        if leader is not None:
            leader.turn.release()
        for _ in range(at_once):
            _let_go_next(served)


def _unserved(waiting: list[_Follower], where: int, failed: bool, served: list[_Follower]) -> list[_Follower]:
    """Those whom a flush up to `where` leaves waiting; the others join `served`."""
    left: list[_Follower] = []
    for each in waiting:
        (served if failed or each.offset <= where else left).append(each)
    return left


def _let_go_next(line: list[_Follower]) -> None:
    try:
        following = line.pop()
    except IndexError:  # The line is through. Asking first would not do: others take from it, too.
        return
    following.turn.release()
